"""What a prefill and a decode step cost on servers that nobody may load for a measurement: learned from traffic.

Law: of requests that met a prompt size (or a batch), the fastest shows the cost, because a queue or other work can only
add time. Prompts are put together by size, two classes to each doubling, and the fastest of a class stands for it.
Regimes: with few requests, or with sizes or batches that lie close together, nothing is learned, and what is returned
says why: a line is carried no farther down than what was measured is wide, so the largest batch must be twice the
smallest (4 and 5 do not tell what a stream alone would take), or all streams were alone, whose cost is then taken to
grow with their number. A batch that few answers met is no point of the line. Failure modes: batches far above the
largest one are told by its line, and noise in the slope grows with them; where every request waited, the cost of a
token is too high; then all predictions are, by the same factor, and their order stays.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Final

from trimtab.core.cost import CostModel
from trimtab.core.evidence import Unknown
from trimtab.core.record import RequestRecord
from trimtab.diagnosis.calibration import PrefillTiming, StepTiming, fit_cost

PREFILLS_MIN: Final = 20
STEPS_MIN: Final = 20
SIZES_MIN: Final = 3
SPREAD_MIN: Final = 2.0
"""Times the smallest size or batch that the largest must be, for a line through them to be carried beyond."""

BATCH_ANSWERS_MIN: Final = 3
COMPUTED_TOKENS_MIN: Final = 16
"""Shorter prefills show the fixed cost of a request and little of a token's."""

CLASSES_PER_DOUBLING: Final = 2
CHANGED_SHARE_MIN: Final = 0.10


def cost_from_traffic(
    records: Sequence[RequestRecord],
    tokens_per_step: Callable[[RequestRecord], float | None] = attrgetter("tokens_per_step"),
) -> CostModel | Unknown:
    """Return costs learned from finished requests, or what they say too little of, and why.

    Only streams that ended well count; prompt tokens that the engine reused are taken off. Of an engine that does not
    report them, only prompts of which no replica was believed to hold anything count. `tokens_per_step`: what a step
    gave an answer, None where nobody knows.
    """
    good = [record for record in records if record.ok and record.stream]
    prefills = [timing for record in good if (timing := _prefill(record)) is not None]
    steps = _often(
        [
            StepTiming(record.batch_at_admission, record.tpot_ms, tokens_per_step(record))
            for record in good
            if record.tpot_ms is not None and record.batch_at_admission
        ]
    )
    fastest = _fastest_of_class(prefills)
    sizes = [timing.tokens for timing in fastest]
    batches = sorted({step.batch for step in steps})
    lacking = _lacking(len(prefills), sizes, len(steps), batches)
    if lacking is not None:
        return lacking
    return fit_cost(
        fastest,
        steps,
        source=(
            f"learned from the fleet's traffic: {len(prefills)} prefills of {sizes[0]} to {sizes[-1]} tokens, "
            f"{len(steps)} answers in batches of {batches[0]} to {batches[-1]}"
        ),
    )


def _lacking(
    prefills: int, sizes: Sequence[int], steps: int, batches: Sequence[int]
) -> Unknown | None:
    """Return what cannot be learned yet, the first that lacks; sizes and batches in rising order."""
    if prefills < PREFILLS_MIN:
        return Unknown("prefill_ms", f"{prefills} prefills were timed, {PREFILLS_MIN} are needed")
    if steps < STEPS_MIN:
        words = f"{steps} answers were timed in a batch that {BATCH_ANSWERS_MIN} had, {STEPS_MIN} are needed"
        return Unknown("step_ms", words)
    if len(sizes) < SIZES_MIN or sizes[-1] < SPREAD_MIN * sizes[0]:
        words = (
            f"prompts of {sizes[0]} to {sizes[-1]} tokens lie too close together: the largest must be "
            f"{SPREAD_MIN:g} times the smallest, in {SIZES_MIN} classes of size"
        )
        return Unknown("prefill_ms_per_token", words)
    if batches[-1] > 1 and batches[-1] < SPREAD_MIN * batches[0]:
        words = (
            f"batches of {batches[0]} to {batches[-1]} streams lie too close together to tell what a stream alone "
            f"takes: the largest must be {SPREAD_MIN:g} times the smallest"
        )
        return Unknown("step_ms_per_stream", words)
    return None


def _often(steps: Sequence[StepTiming]) -> list[StepTiming]:
    """Return the timings of batches that enough answers met for the fastest to have met nothing else."""
    met = Counter(step.batch for step in steps)
    return [step for step in steps if met[step.batch] >= BATCH_ANSWERS_MIN]


def _prefill(record: RequestRecord) -> PrefillTiming | None:
    tokens = record.tokens
    computed = tokens.computed
    if computed is None and tokens.held_best == 0:
        computed = tokens.prompt
    if record.ttft_ms is None or computed is None or computed < COMPUTED_TOKENS_MIN:
        return None
    return PrefillTiming(computed, record.ttft_ms)


def _fastest_of_class(prefills: Iterable[PrefillTiming]) -> list[PrefillTiming]:
    """Return for each class of sizes the prefill with the least time per token."""
    found: dict[int, PrefillTiming] = {}
    for each in prefills:
        size = int(CLASSES_PER_DOUBLING * math.log2(each.tokens))
        best = found.get(size)
        if best is None or each.ms * best.tokens < best.ms * each.tokens:
            found[size] = each
    return [found[size] for size in sorted(found)]


def differs(before: CostModel, after: CostModel) -> bool:
    """Say whether costs moved so far that what decides should follow them: any by more than a tenth."""
    pairs = [
        (before.prefill_ms(1000), after.prefill_ms(1000)),
        (before.step_ms(1), after.step_ms(1)),
        (before.step_ms(16), after.step_ms(16)),
    ]
    told, now = before.tokens_per_step, after.tokens_per_step
    if (told is None) is not (now is None):
        return True
    if told is not None and now is not None:
        pairs.append((told, now))
    return any(abs(new - old) > CHANGED_SHARE_MIN * old for old, new in pairs)
