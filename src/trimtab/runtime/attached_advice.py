"""What attached servers say by themselves, diagnosed as `trimtab diagnose` does: what binds, what would relieve it.

Most of what it proposes needs a restart or another server. trimtab does neither to servers of others, so it is said.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from trimtab.core.cost import START_COST, CostModel
from trimtab.core.events import Calibrated, Diagnosed
from trimtab.core.evidence import Unknown
from trimtab.core.handover import ReplicaLabels
from trimtab.core.layout import PlanInputError
from trimtab.core.links import find_link
from trimtab.core.served import ServerSample
from trimtab.core.types import Role
from trimtab.diagnosis.served_advice import Answer, Outcome, ServedAdvice, Subject
from trimtab.diagnosis.served_facts import HandOffFacts, ServedFacts, TransferFacts
from trimtab.diagnosis.served_rules_transfer import SOCKETS
from trimtab.diagnosis.traffic_cost import cost_from_traffic, differs
from trimtab.policies.links import LinkRate
from trimtab.runtime.served_run import diagnose_scrapes
from trimtab.runtime.served_sources import Scrape, Source, SourceKind
from trimtab.runtime.supervisor import System

PROPOSALS_SAID_MAX: Final = 2
LEARN_FROM_S: Final = 600.0
"""Seconds of traffic that costs are learned from."""

SCOPE: Final = "attached servers"
NOTHING_TOLD: Final = ServedFacts()
SLOW: Final = frozenset({Answer.TRANSPORT, Answer.DESCRIPTORS, Answer.SET_UP, Answer.BANDWIDTH})


class AttachedAdvisor:
    """Learns what attached servers cost and says what their own metrics show. Nothing is moved, nothing is loaded."""

    def __init__(self, system: System, say: Callable[[str], None]) -> None:
        self._system = system
        self._say = say
        self.cost: CostModel = START_COST
        self._lacks_said: set[str] = set()

    async def look(self) -> None:
        """Look once; what was found goes to the ledger."""
        self._learn()
        attached = self._system.attached
        assert attached is not None, "only attached servers are advised about"
        histories, at_s = attached.fleet.histories(), self._system.clock.wall_s()
        facts = ServedFacts(transfer=self._transfer_facts(), hand_off=self._hand_off_facts())
        advice = await asyncio.to_thread(advise_attached, histories, at_s=at_s, facts=facts)
        if advice is None:
            return
        event = Diagnosed(diagnosis=advice.diagnosis, scope=SCOPE)
        self._system.ledger.append(event, cause_id=self._system.started_event, durable=True)
        # KV that failed hand-offs keep would fill the prefill side: nothing is sent ahead until they end well.
        self._system.hand_overs.stays_local = fills_up(advice)
        if said := advice_words(advice):
            self._say(f"servers     {said}")

    def _transfer_facts(self) -> TransferFacts | None:
        """Return what the servers' labels and the hand-overs so far tell of how KV travels."""
        labels = [info.labels for info in self._system.fleet.infos()]
        rates = [rate for _, _, rate in self._system.hand_overs.pool.links.rates()]
        return transfer_facts(labels, rates)

    def _hand_off_facts(self) -> HandOffFacts | None:
        """Return how long prefill servers keep what nobody fetches; None where no server prefills for others."""
        if all(info.role is not Role.PREFILL for info in self._system.fleet.infos()):
            return None
        handover = self._system.config.handover
        return HandOffFacts(hold_s=handover.nixl_lease_s, timeout_s=handover.prefill_timeout_s)

    def _learn(self) -> None:
        """Route by what traffic shows, once it shows something else than before."""
        system = self._system
        recent = system.records_since(system.clock.wall_s() - LEARN_FROM_S)
        found = cost_from_traffic(recent, system.roles.tokens_per_step)
        if isinstance(found, Unknown):
            if self.cost is START_COST and found.name not in self._lacks_said:
                self._lacks_said.add(found.name)
                self._say(
                    f"costs       not learned from the last {LEARN_FROM_S:.0f} s: {found.reason}"
                )
            return
        if not differs(self.cost, found):
            return
        self.cost = found
        system.use_cost(found)
        calibrated = Calibrated(revision=system.baseline.id, cost=found)
        system.ledger.append(calibrated, cause_id=system.started_event)


def advise_attached(
    histories: Sequence[tuple[str, tuple[ServerSample, ...]]],
    *,
    at_s: float,
    facts: ServedFacts = NOTHING_TOLD,
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
    return diagnose_scrapes(scrapes, facts, at_s=at_s).advice


def transfer_facts(
    labels: Sequence[ReplicaLabels], rates: Sequence[LinkRate]
) -> TransferFacts | None:
    """Return what is known of how KV travels: by labels where all servers agree, by the first hand-overs; or None."""
    hosts, links = {one.host for one in labels}, {one.link for one in labels}
    link = links.pop() if len(links) == 1 else ""
    firsts = [rate.connection_ms for rate in rates if rate.connection_ms is not None]
    facts = TransferFacts(
        link_bytes_per_s=_link_rate(link),
        transport=next((one for one in SOCKETS if link.lower().startswith(one)), None),
        same_node=None if "" in hosts or not hosts else len(hosts) == 1,
        first_ms=max(firsts, default=None),
    )
    return None if facts == TransferFacts() else facts


def _link_rate(name: str) -> float | None:
    try:
        return find_link(name).bytes_per_s if name else None
    except PlanInputError:
        return None


def advice_words(advice: ServedAdvice) -> str:
    """Say in one line what binds, what would relieve it, and what is wrong with transfers; empty without any."""
    slow = ". ".join(said for said in (_slow_transfers(advice), _leaks(advice)) if said)
    if advice.binding is None:
        return slow
    binding = advice.binding
    said = f"{binding.phase.value} is bound by {binding.resource.value}: {binding.because}"
    wanted = [each for each in advice.proposals if each.premise_holds is not False]
    said = f"{said}. {slow}" if slow else said
    if advice.outcome is Outcome.HEALTHY or not wanted:
        return said
    moves = (_proposal(each.lever, each.gain_share_max) for each in wanted[:PROPOSALS_SAID_MAX])
    return f"{said}. For whoever runs the servers: {'; '.join(moves)}"


def _slow_transfers(advice: ServedAdvice) -> str:
    found = advice.judgement(Subject.TRANSFER)
    if found is None or found.answer not in SLOW:
        return ""
    return f"transfers of KV are bound by {found.answer.value}: {found.because}"


def fills_up(advice: ServedAdvice) -> bool:
    """Say whether KV that failed hand-overs keep is predicted to fill a prefill server."""
    found = advice.judgement(Subject.BLOCK_LEAK)
    return found is not None and found.answer is Answer.EXHAUSTS


def _leaks(advice: ServedAdvice) -> str:
    found = advice.judgement(Subject.BLOCK_LEAK)
    if found is None or not fills_up(advice):
        return ""
    return f"KV that nobody fetches fills the pool: {found.because}"


def _proposal(lever: str, gain_share_max: float | None) -> str:
    return (
        lever
        if gain_share_max is None
        else f"{lever} (at most {gain_share_max:.0%} of request time)"
    )
