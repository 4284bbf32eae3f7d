"""Which levers meet: those that move the same budget, or act on the same phase, of traffic that both touch.

What was proven of one holds beside the others as they were. When one of them is adopted, switched off or goes away,
every adopted lever that meets it is to be verified again, in the traffic that both touch.
"""

from collections.abc import Iterable

import msgspec

from trimtab.core.cuts import Cut
from trimtab.core.gate import Metric
from trimtab.core.lever import LeverRecord
from trimtab.core.types import Budget, Phase
from trimtab.rollout.answer import ALL_TRAFFIC

_PHASES: dict[Metric, Phase] = {
    Metric.TTFT_MS: Phase.PREFILL,
    Metric.PROMPT_TOKENS_COMPUTED: Phase.PREFILL,
    Metric.TPOT_MS: Phase.DECODE,
    Metric.CHUNK_GAP_MS: Phase.DECODE,
}
"""The phase that a metric is a matter of; the others span several."""


class Meeting(msgspec.Struct, frozen=True, kw_only=True):
    """What two levers both touch. `cuts`: ("all",) where both touch everything."""

    budgets: tuple[Budget, ...]
    phases: tuple[Phase, ...]
    cuts: tuple[str, ...]


def meeting(one: LeverRecord, other: LeverRecord) -> Meeting | None:
    """Return what two levers both touch, None where they do not meet. Symmetric."""
    cuts = _common_cuts(one.cuts, other.cuts)
    budgets = _in_order(Budget, _budgets(one) & _budgets(other))
    phases = _in_order(Phase, _phases(one) & _phases(other))
    if not cuts or not (budgets or phases):
        return None
    return Meeting(budgets=budgets, phases=phases, cuts=cuts)


def touched(record: LeverRecord) -> tuple[str, ...]:
    """Return the budgets that a lever moves and the phases it acts on, by name."""
    budgets = _in_order(Budget, _budgets(record))
    phases = _in_order(Phase, _phases(record))
    return tuple(each.value for each in (*budgets, *phases))


def matrix(records: Iterable[LeverRecord]) -> dict[tuple[str, str], Meeting]:
    """Return every pair of levers that meet, each pair once, by their names in order."""
    ordered = sorted(records, key=lambda record: record.name)
    found: dict[tuple[str, str], Meeting] = {}
    for at, one in enumerate(ordered):
        for other in ordered[at + 1 :]:
            both = meeting(one, other)
            if both is not None:
                found[one.name, other.name] = both
    return found


def _budgets(record: LeverRecord) -> set[Budget]:
    return {move.budget for move in record.moves}


def _phases(record: LeverRecord) -> set[Phase]:
    expected = (_PHASES.get(effect.metric) for effect in record.expected)
    return {record.bottleneck.phase, *(phase for phase in expected if phase is not None)}


def _in_order(kind: type[Budget] | type[Phase], found: set[Budget] | set[Phase]) -> tuple:  # type: ignore[type-arg]
    return tuple(each for each in kind if each in found)


def _common_cuts(one: tuple[Cut, ...], other: tuple[Cut, ...]) -> tuple[str, ...]:
    """Cuts of one dimension meet where they are equal; those of two dimensions may always hold the same request."""
    if not one or not other:
        return tuple(str(cut) for cut in (*one, *other)) or (ALL_TRAFFIC,)
    common = {
        cut
        for mine in one
        for theirs in other
        for cut in (mine, theirs)
        if mine == theirs or mine.dimension is not theirs.dimension
    }
    return tuple(str(cut) for cut in sorted(common))
