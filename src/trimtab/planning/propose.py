"""Which short measurements would settle a choice between layouts, chosen before any of them is run.

Each candidate has an expected value (work per device, say) and a standard deviation of its logarithm. The leader is
worth a measurement because its own promise may not hold; after it the rival that most likely beats the leader. Both
share what is uncertain about the whole group, so what separates them counts, not how far off both may be together.
Where nothing is likely to change the choice, measuring the leader alone still confirms it.
"""

import math
from collections.abc import Sequence

import msgspec

from trimtab.core.layout import Layout


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """One way to run a layout: `value` is what is maximised, `log_sd` how uncertain its logarithm is on its own.

    `allowed`: how likely (0 to 1) it keeps the targets. `clients` in flight on the replica.
    """

    layout: Layout
    clients: float
    value: float
    log_sd: float
    allowed: float


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """A measurement to run: what, and why this one."""

    layout: Layout
    clients: float
    because: str


def propose_measurements(candidates: Sequence[Candidate], count: int = 2) -> tuple[Proposal, ...]:
    """Return up to `count` measurements of different layouts, the most telling first.

    A candidate's weight is its chance of keeping the targets; the chance that it beats the leader is that of a normal
    difference of logarithms. Ties break on the layout, then on clients.
    """
    best = _best_of_each_layout(candidates)
    if not best or count < 1:
        return ()
    leader = best[0]
    proposals = [
        Proposal(
            layout=leader.layout,
            clients=leader.clients,
            because=f"expected to be the best choice, and {leader.allowed:.0%} likely to keep the targets",
        )
    ]
    rivals = sorted(
        ((_chance_to_win(rival, leader), rival) for rival in best[1:]),
        key=lambda pair: (-pair[0], pair[1].layout, pair[1].clients),
    )
    proposals.extend(
        Proposal(
            layout=rival.layout,
            clients=rival.clients,
            because=f"{chance:.0%} likely to beat {leader.layout.label}",
        )
        for chance, rival in rivals[: count - 1]
    )
    return tuple(proposals)


def _best_of_each_layout(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidate of each layout that promises most, the overall best first."""
    ordered = sorted(
        candidates, key=lambda one: (-one.value * one.allowed, one.layout, one.clients)
    )
    found: dict[Layout, Candidate] = {}
    for candidate in ordered:
        found.setdefault(candidate.layout, candidate)
    return list(found.values())


def _chance_to_win(rival: Candidate, leader: Candidate) -> float:
    """Return how likely the rival keeps the targets and does more than the leader, or the leader fails them."""
    if rival.value <= 0.0 or leader.value <= 0.0:
        return 0.0
    spread = math.hypot(rival.log_sd, leader.log_sd)
    ahead = math.log(rival.value / leader.value)
    better = (
        0.5 * (1.0 + math.erf(ahead / (spread * math.sqrt(2.0))))
        if spread > 0.0
        else float(ahead > 0.0)
    )
    return rival.allowed * (1.0 - leader.allowed * (1.0 - better))
