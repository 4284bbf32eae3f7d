"""Drafting measured beside none: closed loops by batch and depth, and every request alone at every temperature."""

import math
from collections.abc import Callable, Mapping, Sequence

import msgspec

from trimtab.core.revision import Speculation
from trimtab.engines.llamacpp_decode import Decoded
from trimtab.levers.speculation_depths import PointFigures
from trimtab.levers.speculation_found import CutFigures, judge_cut
from trimtab.policies.ngram_drafts import DraftCounts
from trimtab.policies.speculation_model import StepTimes, predict
from trimtab.quality.ladder import ratio_of
from trimtab.runtime.speculate_arm import DraftArm, LoopTime
from trimtab.runtime.speculate_record import Asked, counts_of, fits, total
from trimtab.runtime.speculate_stage import DraftStage
from trimtab.runtime.speculate_steps import OFF, PLAIN
from trimtab.workloads.base import looks_looping

Say = Callable[[float, str], None]


class Loops(msgspec.Struct, frozen=True, kw_only=True):
    """Closed loops by (depth, batch), one a round; depth 0 is the arm that cannot draft."""

    seen: dict[tuple[int, int], tuple[LoopTime, ...]]


async def run_loops(
    stage: DraftStage,
    source: DraftArm,
    places: Sequence[int],
    asked: Sequence[Asked],
    settings: Mapping[int, Speculation],
    *,
    batches: Sequence[int],
    rounds: int,
    loop_s: float,
    say: Say,
) -> tuple[Loops, dict[int, DraftArm]]:
    """Run every depth and none at every batch in turn; `places`: slots of `source` that hold the prompts to loop.

    Returns what was seen and the arms, which still run. Raises `ArmError`.
    """
    arms = {0: await stage.start(PLAIN, OFF)}
    for depth, speculation in settings.items():
        arms[depth] = await stage.start(f"depth{depth}", speculation)
    slots = stage.revision.slots
    held = [places[slot % len(places)] for slot in range(slots)]
    prompts = [asked[place].prompt for place in held]
    for arm in arms.values():
        await stage.spread(source, arm, held)
    seen: dict[tuple[int, int], list[LoopTime]] = {}
    for turn in range(rounds):
        for at, batch in enumerate(batches):
            say((turn + at / len(batches)) / rounds, f"{batch} streams, round {turn + 1}")
            depths = [*arms]
            shift = (turn + at) % len(depths)
            for depth in depths[shift:] + depths[:shift]:
                used = prompts[: slots_used(batch, len(places), slots)]
                await stage.idle(arms[depth])
                time = await arms[depth].loop(used, batch=batch, least_s=loop_s + 0.1 * batch)
                seen.setdefault((depth, batch), []).append(time)
    return Loops(seen={key: tuple(times) for key, times in seen.items()}), arms


def slots_used(batch: int, prompts: int, slots: int) -> int:
    """Return how many slots a batch goes round in: enough for every prompt, a whole number for each stream."""
    return batch * max(1, min(slots // batch, math.ceil(prompts / batch)))


def points_of(
    loops: Loops, times: StepTimes, counts: Mapping[int, DraftCounts], batches: Sequence[int]
) -> tuple[PointFigures, ...]:
    """Set what was predicted beside what was measured."""
    found: list[PointFigures] = []
    for batch in batches:
        plain = loops.seen[0, batch]
        for depth in (0, *counts):
            here = loops.seen[depth, batch]
            tokens = sum(one.tokens for one in here)
            ratio = ratio_of(
                [one.tokens_per_s for one in plain], [one.tokens_per_s for one in here]
            )
            found.append(
                PointFigures(
                    batch=batch,
                    depth=depth,
                    predicted_tpot_ms=predict(
                        times, batch, depth, counts.get(depth, DraftCounts())
                    ).tpot_ms,
                    measured_tpot_ms=sum(one.active_ms for one in here) / tokens,
                    tokens_per_s=None if depth == 0 else ratio,
                    rounds=tuple(one.tokens_per_s for one in here),
                )
            )
    return tuple(found)


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """One request answered without and with drafts."""

    asked: Asked
    temperature: float
    off: Decoded
    on: Decoded

    @property
    def looping(self) -> bool:
        """Whether one of the answers ends in a loop."""
        return looks_looping(self.off.text) or looks_looping(self.on.text)


async def run_pairs(
    off: DraftArm,
    on: DraftArm,
    asked: Sequence[Asked],
    temperatures: Sequence[float],
    seed: int,
    say: Say,
) -> tuple[Pair, ...]:
    """Answer every request on both arms, one after the other; who goes first alternates. Raises `ArmError`.

    Both hold what is asked i-th in slot i.
    """
    found: list[Pair] = []
    for turn, temperature in enumerate(temperatures):
        for slot, one in enumerate(asked):
            done = (turn + slot / len(asked)) / len(temperatures)
            say(done, f"one stream, temperature {temperature:g}, {slot + 1} of {len(asked)}")
            seen: dict[str, Decoded] = {}
            for arm in (off, on) if (turn + slot) % 2 == 0 else (on, off):
                seen[arm.name] = await arm.answer(
                    one.prompt, slot=slot, temperature=temperature, seed=seed + slot
                )
            found.append(
                Pair(asked=one, temperature=temperature, off=seen[off.name], on=seen[on.name])
            )
    return tuple(found)


def cuts_of(
    pairs: Sequence[Pair], match: int, depth: int, *, by_repetition: bool = False
) -> tuple[CutFigures, ...]:
    """Return the figures of every cut: by label, constraint and temperature; or by repetition instead of label."""
    groups: dict[tuple[str, str, float, str], list[Pair]] = {}
    for pair in pairs:
        label = "" if by_repetition else pair.asked.sample.label
        repetition = pair.asked.repetition if by_repetition else ""
        key = (label, pair.asked.constraint, pair.temperature, repetition)
        groups.setdefault(key, []).append(pair)
    return tuple(_cut(*key, group, match, depth) for key, group in sorted(groups.items()))


def _cut(
    label: str,
    constraint: str,
    temperature: float,
    repetition: str,
    pairs: Sequence[Pair],
    match: int,
    depth: int,
) -> CutFigures:
    # Validity is asked of every answer, also of one that is of no use for times.
    bound = [pair for pair in pairs if pair.asked.sample.schema is not None]
    usable = [pair for pair in pairs if not pair.looping and pair.off.tpot_ms and pair.on.tpot_ms]
    ratio = ratio_of(
        [pair.off.tpot_ms or 0.0 for pair in usable], [pair.on.tpot_ms or 0.0 for pair in usable]
    )
    told = [pair for pair in usable if pair.asked.sample.expected is not None]
    valid_off = sum(fits(pair.off.text, pair.asked.sample.schema) for pair in bound)
    valid_on = sum(fits(pair.on.text, pair.asked.sample.schema) for pair in bound)
    return CutFigures(
        label=label,
        constraint=constraint,
        temperature=temperature,
        repetition=repetition,
        requests=len(pairs),
        looping=sum(pair.looping for pair in pairs),
        counts=total(counts_of(pair.asked, pair.off, match, depth) for pair in usable),
        drafted=sum(pair.on.drafted for pair in usable),
        accepted=sum(pair.on.accepted for pair in usable),
        tpot_ms=ratio,
        pays=judge_cut(ratio, valid_off if bound else None, valid_on if bound else None),
        valid_off=valid_off if bound else None,
        valid_on=valid_on if bound else None,
        as_expected=sum((p.asked.sample.expected or "") in p.off.text for p in told)
        if told
        else None,
    )


def drafted_by_rule(pairs: Sequence[Pair], match: int, depth: int) -> tuple[int, int]:
    """Return the drafted tokens over the answers with drafts: by the rule, and by the engine's own count."""
    by_rule = total(counts_of(pair.asked, pair.on, match, depth) for pair in pairs)
    return sum(by_rule.drafted), sum(pair.on.drafted for pair in pairs)
