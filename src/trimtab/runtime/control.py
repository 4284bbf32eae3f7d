"""Wires the parts that decide and act on a started system: actuator, controller, triggers, equality probe."""

import asyncio
from collections import deque
from collections.abc import Callable

import aiohttp

from trimtab.core.cuts import Cut
from trimtab.core.events import QualityScored, RolloutMoved, TriggerMoved
from trimtab.core.lever import LeverRecord
from trimtab.core.quality_scores import Scores
from trimtab.core.record import RequestRecord
from trimtab.core.state import SCORES_MAX
from trimtab.core.types import RolloutState
from trimtab.rollout.answer import ArmExtras
from trimtab.rollout.quality import revision_of
from trimtab.runtime.actuation import Actuator
from trimtab.runtime.controller import TICK_S, Controller
from trimtab.runtime.equality import EqualityProbe
from trimtab.runtime.proof import Proof
from trimtab.runtime.situation import (
    Looked,
    ProcessSample,
    Situations,
    Standing,
    payers_reason,
)
from trimtab.runtime.supervisor import System
from trimtab.runtime.trigger_watch import TriggerShell
from trimtab.runtime.verifier import Verifier

EQUALITY_EVERY_TICKS = 10
EQUALITY_PROBES_MAX = 12
WINDOW_S = 60.0
"""A diagnosis outside a stage is of the last minute."""

SAMPLES_MAX = 120
RECOVER_EVERY_TICKS = 10


class Control:
    """Everything that moves levers on one system. `run` ticks until `stop` is called.

    `standing` supplies the measured costs and the fleet for the diagnosis that follows an adoption.
    """

    def __init__(self, system: System, standing: Callable[[], Standing]) -> None:
        self._system = system
        self._standing = standing
        self.on_moved: list[Callable[[RolloutMoved], None]] = []
        self.on_trigger: list[Callable[[TriggerMoved], None]] = []
        self.situations = Situations(system.ledger, system.clock)
        self.actuator = Actuator(
            router=system.router,
            fleet=system.fleet,
            sink=system.ledger,
            baseline=system.baseline,
            mono_s=system.clock.mono_s,
            roles=system.roles,
        )
        self.triggers = TriggerShell(
            actuator=self.actuator,
            sink=system.ledger,
            clock=system.clock,
            records=lambda: system.records,
            load_bound=system.config.routing.load_bound,
            baseline_policy=system.config.routing.policy,
            distrust=self._forget_index,
            lower_affinity=system.lower_affinity,
            scores=self._scores_of,
            on_moved=lambda event: self._tell(self.on_trigger, event),
            on_changed=lambda *said: self.verifier.changed(*said),
        )
        self.controller = Controller(
            actuator=self.actuator,
            sink=system.ledger,
            clock=system.clock,
            extras=self._extras,
            after_adoption=self._verify,
            on_adopted=self._watch,
            on_moved=lambda event: self._tell(self.on_moved, event),
        )
        self.verifier = Verifier(
            controller=self.controller,
            triggers=lambda: self.triggers,
            sink=system.ledger,
            baseline_policy=system.config.routing.policy,
            mode=system.config.levers.mode,
        )
        self.verifies = False
        """Whether levers that became due are verified again by themselves (in mode act)."""
        self._http: aiohttp.ClientSession | None = None
        self._equality: EqualityProbe | None = None
        self._probing: asyncio.Task[None] | None = None
        self._peak_bytes: dict[str, int] = {}
        self._counted_for: Proof | None = None
        self.scores: dict[str, tuple[Scores, ...]] = {}
        """Evaluations by lever, those of earlier runs included."""
        self._samples: deque[ProcessSample] = deque(maxlen=SAMPLES_MAX)
        self._task: asyncio.Task[None] | None = None
        system.listen(self.controller.on_record)

    async def start(self) -> None:
        """Begin to tick."""
        self._http = aiohttp.ClientSession()
        self._equality = EqualityProbe(self._http, self._system.engine, self._system.secret.digest)
        self._system.gateway.on_body = self._equality.offer
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Stop ticking and let go of everything; a lever still being proven stays where the ledger says it is."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._probing is not None:
            self._probing.cancel()
            await asyncio.gather(self._probing, return_exceptions=True)
        await self.triggers.close()
        if self._http is not None:
            await self._http.close()

    def check(self) -> None:
        """Raise what ended the ticking, if anything did."""
        if self._task is not None and self._task.done() and not self._task.cancelled():
            self._task.result()

    async def _run(self) -> None:
        ticks = 0
        while True:
            await asyncio.sleep(TICK_S)
            ticks += 1
            self._samples.append(self._system.process_sample())
            self._note_memory()
            if not self._system.ledger.healthy and ticks % RECOVER_EVERY_TICKS == 0:
                await self._system.ledger.recover()
            self.triggers.saw(self._system.load.view(self._system.clock.wall_s()))
            await self.controller.tick()
            await self.triggers.tick()
            if self.verifies:
                self.verifier.tick()
            if ticks % EQUALITY_EVERY_TICKS == 0:
                self._probe_equality()

    def _note_memory(self) -> None:
        for replica in self._system.fleet.replica_ids():
            resident = self._system.processes.memory_bytes(replica)
            if resident is not None:
                self._peak_bytes[replica] = max(resident, self._peak_bytes.get(replica, 0))

    def _probe_equality(self) -> None:
        proof, probe = self.controller.proof, self._equality
        busy = self._probing is not None and not self._probing.done()
        if proof is None or probe is None or busy or probe.counts.n >= EQUALITY_PROBES_MAX:
            return
        self._probing = asyncio.create_task(self._probe(probe, proof.replicas))

    async def _probe(self, probe: EqualityProbe, candidates: tuple[str, ...]) -> None:
        """A candidate revision answers on its own replica; a routing lever where the prefix is already held."""
        replicas = self._system.fleet.replica_ids()

        def candidate_url(record: RequestRecord) -> str | None:
            return self._system.url_of(candidates[0] if candidates else record.replica or "")

        def baseline_url(record: RequestRecord) -> str | None:
            others = [
                r for r in replicas if r not in candidates and (candidates or r != record.replica)
            ]
            return self._system.url_of(others[0]) if others else None

        await probe.run_once(candidate_url, baseline_url)

    def _extras(self, record: LeverRecord, replicas: tuple[str, ...]) -> ArmExtras:
        if self.controller.proof is not self._counted_for:
            self.begin_proof()
        counts = self._equality.counts if self._equality is not None else None
        theirs = [self._peak_bytes[r] for r in replicas if r in self._peak_bytes]
        others = [peak for r, peak in self._peak_bytes.items() if r not in replicas]
        plain = float(max(others)) if others else None
        return ArmExtras(
            memory_bytes_baseline=plain,
            # A routing lever serves both arms from the same processes: one peak stands for both.
            memory_bytes_candidate=float(max(theirs)) if theirs else plain,
            outputs_differ=counts.candidate_differs if counts else 0,
            outputs_n=counts.n if counts else 0,
            floor_differs=counts.floor_differs if counts else 0,
            floor_n=counts.n if counts else 0,
            price_baseline=self._system.config.levers.price_per_replica_hour or None,
            price_candidate=record.price_per_replica_hour,
            scores=self.scores.get(record.name, ()),
        )

    def scored(self, event: QualityScored, *, cause_id: str | None) -> None:
        """Take in an evaluation of a lever: its gates and its triggers look at it from now on."""
        self._system.ledger.append(event, cause_id=cause_id, durable=True)
        before = self.scores.get(event.lever, ())
        self.scores[event.lever] = (*before, event.scores)[-SCORES_MAX:]

    def begin_proof(self) -> None:
        """Start counting memory and outputs for another proof, a verification included; none is judged by another's."""
        self._counted_for = self.controller.proof
        self._peak_bytes.clear()
        self._note_memory()
        if self._probing is not None:
            self._probing.cancel()
        if self._equality is not None:
            self._equality.reset()

    def _verify(self, record: LeverRecord, *, cause_id: str) -> str | None:
        """Diagnose the whole system over the last minute of the proof; a paying budget that binds fails the lever."""
        looked = self.look(f"adopting {record.name}", cause_id=cause_id)
        self.situations.read_budgets(
            "after", record.name, looked.diagnosis, cause_id=looked.event_id
        )
        return payers_reason(record, looked.diagnosis)

    def look(self, scope: str, *, cause_id: str | None) -> Looked:
        """Diagnose the last minute, or as much of it as was sampled."""
        now = self._system.process_sample()
        recent = [sample for sample in self._samples if sample.at_s >= now.at_s - WINDOW_S]
        before = recent[0] if recent else now
        return self.situations.look(
            scope,
            self._standing(),
            self._system.records_since(before.at_s),
            views=self._system.views_since(before.at_s),
            hand_overs=self._system.hand_overs.books.since(before.at_s),
            before=before,
            after=now,
            cause_id=cause_id,
        )

    def _scores_of(self, record: LeverRecord) -> tuple[Scores, ...]:
        mine = revision_of(record)
        return tuple(each for each in self.scores.get(record.name, ()) if each.revision == mine)

    def _forget_index(self) -> None:
        """Believe nothing of the prefix index any more; it fills again with what engines deliver."""
        for replica in self._system.fleet.replica_ids():
            self._system.router.forget(replica)

    def _watch(
        self, record: LeverRecord, policy: str | None, cuts: tuple[Cut, ...], cause_id: str
    ) -> None:
        self.triggers.adopt(record, policy, cuts, cause_id)
        self.verifier.changed(record, RolloutState.ADOPTED, cause_id)

    @staticmethod
    def _tell(listeners: list[Callable[..., None]], event: object) -> None:
        for listener in listeners:
            listener(event)
