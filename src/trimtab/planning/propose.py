"""Which layout promises most under a limit, and which short measurements would settle the choice.

Each layout can be run with fewer or more clients, and whoever runs it tunes them: its promise is the work expected of
the best load that will turn out to keep the limit. What makes a promise doubtful is where the limit cuts: so the
leading layouts are measured at the load that is least sure to keep it. A measurement there also corrects all other
loads and layouts of the group. Where nothing is doubtful the two measurements still confirm what leads.
"""

from collections import defaultdict
from collections.abc import Sequence

import msgspec

from trimtab.core.layout import Layout


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """One way to run a layout: `value` is the work it does, `allowed` how likely (0 to 1) it keeps the limit."""

    layout: Layout
    clients: float
    value: float
    allowed: float


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """A measurement to run: what, and why this one."""

    layout: Layout
    clients: float
    because: str


def promise(candidates: Sequence[Candidate]) -> float:
    """Return the work expected of one layout whose clients are tuned to the limit.

    Loads are taken from the most work down; each adds its work times the chance that it keeps the limit and none above
    it does. Their errors are taken to be common: where a load keeps the limit, every easier one does.
    """
    expected, covered = 0.0, 0.0
    for candidate in sorted(candidates, key=lambda one: (-one.value, one.clients)):
        if candidate.allowed > covered:
            expected += candidate.value * (candidate.allowed - covered)
            covered = candidate.allowed
    return expected


def rank_layouts(candidates: Sequence[Candidate]) -> tuple[Layout, ...]:
    """Return the layouts by their promise, the best first; ties go to fewer devices."""
    loads = _by_layout(candidates)
    return tuple(
        sorted(loads, key=lambda layout: (-promise(loads[layout]), layout.devices, layout))
    )


def propose_measurements(candidates: Sequence[Candidate], count: int = 2) -> tuple[Proposal, ...]:
    """Return up to `count` measurements of different layouts, the leading one first."""
    loads = _by_layout(candidates)
    proposals: list[Proposal] = []
    for place, layout in enumerate(rank_layouts(candidates)[: max(count, 0)]):
        doubtful = min(loads[layout], key=lambda one: (abs(one.allowed - 0.5), one.clients))
        leads = "promises most" if place == 0 else "is the next best"
        proposals.append(
            Proposal(
                layout=layout,
                clients=doubtful.clients,
                because=f"{layout.label} {leads}; {doubtful.allowed:.0%} likely within the limit there",
            )
        )
    return tuple(proposals)


def _by_layout(candidates: Sequence[Candidate]) -> dict[Layout, list[Candidate]]:
    loads: dict[Layout, list[Candidate]] = defaultdict(list)
    for candidate in candidates:
        loads[candidate.layout].append(candidate)
    return loads
