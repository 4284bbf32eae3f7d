"""How many tokens to draft: the depth whose step gives most accepted tokens per millisecond at the present batch.

Law:    rate(k) = (1 + sum of acceptance at positions 1..k) / step_ms(batch, k),  k = 0 .. depth_max;  depth = argmax
Acceptance at a position is the part of drafts whose token there was accepted (so it never rises with the position),
smoothed over steps. For the first `warm_up_steps` the first depth stays, since little was seen. Hysteresis is not
symmetric: a deeper draft must promise `deeper_gain`, a shallower one only `shallower_gain`, because a draft too long
costs every stream of the batch and one too short only what it might have saved. Depth 0 is off inside the engine;
what it costs to have an engine that could draft is another arm and not decided here.

Failure modes: nothing is learned at depth 0, so acceptance that came back is not seen there; the caller may send a
step of depth 1 now and then (`probe_steps`). Acceptance that differs between streams is judged by its mean.

Source: Liu et al., "Optimizing Speculative Decoding for Serving Large Language Models Using Goodput" (SmartSpec), 2024.
"""

import math
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta


class DepthReason(StrEnum):
    """Why a depth was chosen."""

    WARMING_UP = "warming_up"
    BEST = "best"
    KEPT = "kept"
    PROBE = "probe"


class DepthRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the decision is told. Gains are parts of the present depth's rate; `probe_steps` 0: never probe."""

    depth_max: Annotated[int, Meta(ge=0, le=64)] = 8
    first_depth: Annotated[int, Meta(ge=0, le=64)] = 4
    smoothing: Annotated[float, Meta(gt=0.0, le=1.0)] = 0.2
    warm_up_steps: Annotated[int, Meta(ge=0)] = 10
    deeper_gain: Annotated[float, Meta(ge=0.0)] = 0.05
    shallower_gain: Annotated[float, Meta(ge=0.0)] = 0.01
    probe_steps: Annotated[int, Meta(ge=0)] = 200


class DepthState(msgspec.Struct, frozen=True, kw_only=True):
    """What was learned: `acceptance` by position (None: never drafted so far), steps seen, steps at depth 0."""

    depth: int
    acceptance: tuple[float | None, ...] = ()
    steps: int = 0
    steps_off: int = 0


class DepthChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The depth to draft with; `rates`: tokens per millisecond and stream at each depth that could be judged."""

    depth: int
    reason: DepthReason
    rates: tuple[float, ...] = ()


def first_state(rules: DepthRules) -> DepthState:
    """Return what is known before the first step."""
    return DepthState(depth=min(rules.first_depth, rules.depth_max))


def observed(
    state: DepthState, accepted: Sequence[float], steps: int, rules: DepthRules
) -> DepthState:
    """Take in `steps` steps whose drafts had `accepted` (0 to 1) at positions 1, 2, ...; empty: nothing was drafted.

    Deeper positions that were learned before follow the last one drafted, so that a probe of one token tells of them.
    """
    if steps <= 0:
        return state
    if not accepted:
        return msgspec.structs.replace(state, steps_off=state.steps_off + steps)
    keep = (1.0 - rules.smoothing) ** steps
    known = list(state.acceptance) + [None] * (len(accepted) - len(state.acceptance))
    for at, share in enumerate(accepted):
        before = known[at]
        known[at] = share if before is None else share + keep * (before - share)
    last = len(accepted) - 1
    if last < len(state.acceptance):
        factor = _sharpness(state.acceptance[last], known[last])
        known[last + 1 :] = [
            None if share is None else share**factor for share in known[last + 1 :]
        ]
    return msgspec.structs.replace(
        state, acceptance=tuple(known), steps=state.steps + steps, steps_off=0
    )


def _sharpness(before: float | None, after: float | None) -> float:
    """Return the power by which deeper positions follow the last one that was drafted: a chain a, a^2, ... moves so."""
    if before is None or after is None or not (0.0 < before < 1.0 and 0.0 < after < 1.0):
        return 1.0
    return math.log(after) / math.log(before)


def choose(
    state: DepthState, batch: float, step_ms: Callable[[float, int], float], rules: DepthRules
) -> DepthChoice:
    """Choose a depth for a batch; `step_ms(batch, depth)` is what a step costs then.

    Positions that were never drafted are taken to be accepted as the last one before them, times its own ratio.
    """
    if state.steps < rules.warm_up_steps and state.steps_off < rules.probe_steps:
        return DepthChoice(depth=state.depth, reason=DepthReason.WARMING_UP)
    expected = extended(state.acceptance, rules.depth_max)
    rates, tokens = [], 1.0
    for depth in range(len(expected) + 1):
        tokens += expected[depth - 1] if depth else 0.0
        rates.append(tokens / step_ms(batch, depth))
    best = max(range(len(rates)), key=lambda depth: (rates[depth], -depth))
    present = rates[min(state.depth, len(rates) - 1)]
    gain = rates[best] / present - 1.0
    needed = rules.deeper_gain if best > state.depth else rules.shallower_gain
    if best != state.depth and gain >= needed:
        return DepthChoice(depth=best, reason=DepthReason.BEST, rates=tuple(rates))
    if state.depth == 0 and rules.depth_max and 0 < rules.probe_steps <= state.steps_off:
        return DepthChoice(depth=1, reason=DepthReason.PROBE, rates=tuple(rates))
    return DepthChoice(depth=state.depth, reason=DepthReason.KEPT, rates=tuple(rates))


def moved(state: DepthState, choice: DepthChoice) -> DepthState:
    """Return the state that drafts with a choice."""
    return msgspec.structs.replace(state, depth=choice.depth)


def extended(acceptance: Sequence[float | None], depth_max: int) -> tuple[float, ...]:
    """Return acceptance for all positions up to the deepest; empty while nothing is known."""
    found: list[float] = []
    for share in acceptance[:depth_max]:
        if share is None:
            break
        found.append(min(share, found[-1]) if found else share)
    if not found:
        return ()
    ratio = found[-1] / found[-2] if len(found) > 1 and found[-2] > 0.0 else found[-1]
    while len(found) < depth_max:
        found.append(found[-1] * ratio)
    return tuple(found)
