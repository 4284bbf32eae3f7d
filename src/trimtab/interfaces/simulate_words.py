"""A simulation's figures in words: means over seeds with their intervals."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from trimtab.core.narrate_words import UNKNOWN
from trimtab.sim.compare import half_of
from trimtab.sim.run import SimResult

NOTHING_DRAWN = (
    "Nothing is drawn here: every seed gave the same run, so there is no interval and no verdict. "
    "With begin_drawn = true in [workload] each seed begins the trace elsewhere."
)

Read = Callable[[SimResult], float | None]


def cell(runs: Sequence[SimResult], form: str, read: Read) -> str:
    """Return a metric's mean over the seeds with half of its 95% interval, unknown where no run has it."""
    known = [value for run in runs if (value := read(run)) is not None]
    if not known:
        return UNKNOWN
    text = form.format(sum(known) / len(known))
    half = half_of(runs, known)
    return text if half is None else f"{text} \u00b1{form.format(half).removesuffix(' ms')}"


def total(counts: Iterable[Mapping[str, int]]) -> Counter[str]:
    """Return counts of several runs added up."""
    found: Counter[str] = Counter()
    for one in counts:
        found.update(one)
    return found
