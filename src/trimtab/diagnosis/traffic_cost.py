"""What a prefill and a decode step cost on servers that nobody may load for a measurement: learned from traffic.

Law: of requests that met a prompt size (or a batch), the fastest shows the cost, because a queue or other work can only
add time. Prompts are put together by size, two classes to each doubling, and the fastest of a class stands for it.
Regimes: with few requests, with prompts of one size only, or with batches of one size above 1, nothing is learned:
one batch does not tell what a stream alone would take. Failure mode: where every request waited, the cost of a token
is too high; then all predictions are, by the same factor, and their order stays.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Final

from trimtab.core.cost import CostModel
from trimtab.core.record import RequestRecord
from trimtab.diagnosis.calibration import PrefillTiming, StepTiming, fit_cost

PREFILLS_MIN: Final = 20
STEPS_MIN: Final = 20
SIZES_MIN: Final = 3
BATCHES_MIN: Final = 2
COMPUTED_TOKENS_MIN: Final = 16
"""Shorter prefills show the fixed cost of a request and little of a token's."""

CLASSES_PER_DOUBLING: Final = 2
CHANGED_SHARE_MIN: Final = 0.10


def cost_from_traffic(records: Sequence[RequestRecord]) -> CostModel | None:
    """Return costs learned from finished requests, None where they say too little.

    Only streams that ended well count; prompt tokens that the engine reused are taken off. Of an engine that does not
    report them, only prompts of which no replica was believed to hold anything count.
    """
    good = [record for record in records if record.ok and record.stream]
    prefills = [timing for record in good if (timing := _prefill(record)) is not None]
    steps = [
        StepTiming(record.batch_at_admission, record.tpot_ms)
        for record in good
        if record.tpot_ms is not None and record.batch_at_admission
    ]
    fastest = _fastest_of_class(prefills)
    batches = {step.batch for step in steps}
    if len(batches) < BATCHES_MIN and 1 not in batches:
        return None
    if len(prefills) < PREFILLS_MIN or len(steps) < STEPS_MIN or len(fastest) < SIZES_MIN:
        return None
    return fit_cost(
        fastest, steps, source=f"learned from {len(prefills)} prefills of the fleet's traffic"
    )


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
    """Say whether costs moved so far that routing should follow them: any by more than a tenth."""
    pairs = (
        (before.prefill_ms(1000), after.prefill_ms(1000)),
        (before.step_ms(1), after.step_ms(1)),
        (before.step_ms(16), after.step_ms(16)),
    )
    return any(abs(new - old) > CHANGED_SHARE_MIN * old for old, new in pairs)
