"""What attached servers say by themselves, diagnosed as `trimtab diagnose` does: what binds, what would relieve it.

Most of what it proposes needs a restart or another server. trimtab does neither to servers of others, so it is said.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from trimtab.core.cost import START_COST, CostModel
from trimtab.core.events import Calibrated, Diagnosed
from trimtab.core.served import ServerSample
from trimtab.diagnosis.served_advice import Outcome, ServedAdvice
from trimtab.diagnosis.served_facts import ServedFacts
from trimtab.diagnosis.traffic_cost import cost_from_traffic, differs
from trimtab.runtime.served_run import diagnose_scrapes
from trimtab.runtime.served_sources import Scrape, Source, SourceKind
from trimtab.runtime.supervisor import System

PROPOSALS_SAID_MAX: Final = 2
LEARN_FROM_S: Final = 600.0
"""Seconds of traffic that costs are learned from."""

SCOPE: Final = "attached servers"


class AttachedAdvisor:
    """Learns what attached servers cost and says what their own metrics show. Nothing is moved, nothing is loaded."""

    def __init__(self, system: System, say: Callable[[str], None]) -> None:
        self._system = system
        self._say = say
        self.cost: CostModel = START_COST

    async def look(self) -> None:
        """Look once; what was found goes to the ledger."""
        self._learn()
        attached = self._system.attached
        assert attached is not None, "only attached servers are advised about"
        histories, at_s = attached.fleet.histories(), self._system.clock.wall_s()
        advice = await asyncio.to_thread(advise_attached, histories, at_s=at_s)
        if advice is None:
            return
        event = Diagnosed(diagnosis=advice.diagnosis, scope=SCOPE)
        self._system.ledger.append(event, cause_id=self._system.started_event, durable=True)
        if said := advice_words(advice):
            self._say(f"servers     {said}")

    def _learn(self) -> None:
        """Route by what traffic shows, once it shows something else than before."""
        system = self._system
        recent = system.records_since(system.clock.wall_s() - LEARN_FROM_S)
        found = cost_from_traffic(recent)
        if found is None or not differs(self.cost, found):
            return
        self.cost = found
        system.use_cost(found)
        calibrated = Calibrated(revision=system.baseline.id, cost=found)
        system.ledger.append(calibrated, cause_id=system.started_event)


def advise_attached(
    histories: Sequence[tuple[str, tuple[ServerSample, ...]]], *, at_s: float
) -> ServedAdvice | None:
    """Diagnose the recent pages of servers, each with its id; None without two pages of one server.

    `at_s`: seconds of the wall clock, as in the pages.
    """
    scrapes = [
        Scrape(source=Source(kind=SourceKind.URL, place="", server=replica), samples=samples)
        for replica, samples in histories
        if len(samples) > 1
    ]
    if not scrapes:
        return None
    return diagnose_scrapes(scrapes, ServedFacts(), at_s=at_s).advice


def advice_words(advice: ServedAdvice) -> str:
    """Say in one line what binds and what would relieve it; empty where that cannot be told."""
    if advice.binding is None:
        return ""
    binding = advice.binding
    said = f"{binding.phase.value} is bound by {binding.resource.value}: {binding.because}"
    wanted = [each for each in advice.proposals if each.premise_holds is not False]
    if advice.outcome is Outcome.HEALTHY or not wanted:
        return said
    moves = (_proposal(each.lever, each.gain_share_max) for each in wanted[:PROPOSALS_SAID_MAX])
    return f"{said}. For whoever runs the servers: {'; '.join(moves)}"


def _proposal(lever: str, gain_share_max: float | None) -> str:
    return (
        lever
        if gain_share_max is None
        else f"{lever} (at most {gain_share_max:.0%} of request time)"
    )
