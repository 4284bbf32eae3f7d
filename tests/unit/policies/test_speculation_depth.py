"""The depth of drafts: best at the batch, learned from steps, slow to grow and quick to shrink."""

from functools import partial

import pytest

from trimtab.core.step_cost import StepCost
from trimtab.policies.speculation_depth import (
    DepthReason,
    DepthRules,
    DepthState,
    choose,
    extended,
    first_state,
    moved,
    observed,
)

COST = StepCost(
    overhead_ms=2.0,
    weights_ms=10.0,
    token_ms=0.1,
    stream_ms=0.0,
    context_ms=0.0,
    pair_ms=0.0,
    source="test",
)
RULES = DepthRules(depth_max=6, first_depth=3)


def step_ms(batch: float, depth: int) -> float:
    """A step of so many streams, each with so many drafts."""
    return COST.step_ms(tokens=batch * (1 + depth), streams=batch)


def learned(share: float, *, depth: int = 3) -> DepthState:
    """A state that saw drafts accepted at share, share^2, ..."""
    accepted = [share ** (at + 1) for at in range(3)]
    return observed(DepthState(depth=depth), accepted, 50, RULES)


def test_drafts_are_long_at_a_small_batch_and_none_at_a_large_one() -> None:
    """The break-even is where verification shows: 100 streams of 0.1 ms fill the 10 ms of the weights."""
    state = learned(0.7)
    small, large = choose(state, 1, step_ms, RULES), choose(state, 300, step_ms, RULES)
    assert (small.depth, large.depth) == (6, 0)
    assert small.rates[6] == max(small.rates)
    assert large.rates[0] == max(large.rates)


def test_rate_is_tokens_of_a_step_over_its_time() -> None:
    """(1 + a1 + a2) / step."""
    rates = choose(learned(0.5), 4, step_ms, RULES).rates
    assert rates[2] == pytest.approx((1 + 0.5 + 0.25) / step_ms(4, 2), rel=1e-6)


def test_depth_stays_until_enough_steps_were_seen() -> None:
    """Ten by default."""
    state = observed(first_state(RULES), [0.0, 0.0, 0.0], 9, RULES)
    assert choose(state, 1, step_ms, RULES).reason is DepthReason.WARMING_UP
    assert choose(observed(state, [0.0] * 3, 1, RULES), 60, step_ms, RULES).depth == 0


def test_growing_needs_more_gain_than_shrinking() -> None:
    """A gain of 3% shortens a draft and does not lengthen it."""
    rules = DepthRules(depth_max=3, first_depth=3)

    def flat(at_best: int, _: float, depth: int) -> float:
        # Every depth gives the same rate but the best, which gives 3% more.
        tokens = 1.0 + sum(extended((1.0,), 3)[:depth])
        return tokens / (1.03 if depth == at_best else 1.0)

    deep, shallow = (observed(DepthState(depth=at), [1.0], 50, rules) for at in (3, 1))
    assert choose(deep, 4, partial(flat, 1), rules).depth == 1
    kept = choose(shallow, 4, partial(flat, 3), rules)
    assert (kept.depth, kept.reason) == (1, DepthReason.KEPT)


def test_off_is_probed_now_and_then() -> None:
    """Nothing is learned without a draft; a probe of one token may bring it back."""
    state = observed(learned(0.05, depth=0), [], RULES.probe_steps, RULES)
    probe = choose(state, 60, step_ms, RULES)
    assert (probe.depth, probe.reason) == (1, DepthReason.PROBE)
    back = observed(moved(state, probe), [0.9], 30, RULES)
    assert choose(back, 1, step_ms, RULES).depth > 1


def test_acceptance_is_smoothed_and_never_rises_with_the_position() -> None:
    """One step moves it by a fifth of the way."""
    state = observed(DepthState(depth=2), [0.8, 0.4], 1, RULES)
    state = observed(state, [0.3, 0.4], 1, RULES)
    assert state.acceptance == pytest.approx((0.7, 0.4))
    assert extended((0.5, 0.6), 4) == pytest.approx((0.5, 0.5, 0.5, 0.5))
    assert extended((), 4) == ()
