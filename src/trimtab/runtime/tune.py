"""The whole loop on one fleet, once: measure, diagnose, prove levers one by one, measure again, provoke a trigger.

Stages: calibrate (an idle replica) -> baseline (round robin, saturating arrivals) -> for each chosen lever a
rollout under the workload's compressed peak -> final (the baseline's arrivals again) -> burst (arrivals beyond the
break-even, then calm). Time is bounded: a rollout that has not passed in time is taken back and says so.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

import aiohttp

from trimtab.core.cost import CostModel, SpeculationTable
from trimtab.core.events import Calibrated, RolloutMoved, TriggerMoved
from trimtab.core.lever import Assessment, Lever, LeverRecord, LeverRecordError
from trimtab.core.ports import LaunchError
from trimtab.core.revision import Speculation, SpeculationMethod
from trimtab.core.types import Mode, RolloutState
from trimtab.diagnosis.calibration import CalibrationError
from trimtab.levers.catalog import catalog, routing_policy_of
from trimtab.runtime.calibrate import (
    Replica,
    SpeculationProbe,
    calibrate_speculation,
)
from trimtab.runtime.control import Control
from trimtab.runtime.load import LoadProgress
from trimtab.runtime.measure import measure_cost
from trimtab.runtime.proof import ControlError
from trimtab.runtime.situation import Looked, Standing
from trimtab.runtime.sources import standard_library
from trimtab.runtime.supervisor import System
from trimtab.runtime.tune_plan import (
    Rates,
    TunePlan,
    affine_capacity,
    make_workload,
    ramp_of,
    round_robin_capacity,
)
from trimtab.runtime.tune_stage import StageOutcome, Stages
from trimtab.runtime.tune_view import TuneView
from trimtab.workloads.base import PeakShape, Workload

SPECULATION_TRIED = Speculation(
    method=SpeculationMethod.NGRAM_SIMPLE, match_tokens=8, draft_tokens_max=8
)
CALIBRATE_S = 12.0
SPECULATION_S = 60.0
SPECULATION_PROMPTS = 8
"""A round each, as many as the time allows: one edit of four gains nothing, so few rounds show nothing of 1.4x."""
SPECULATION_BATCHES = (1, 3, 6)
SPECULATION_OUTPUT_TOKENS = 40
ROLLOUT_LOAD = 0.9
"""Arrivals of a rollout over the affine capacity."""

TAKEN_LOAD = 0.65
"""The same for a lever that takes a replica: the others carry nearly everything while its slice is small."""

TAKEN_TURNS = 3

BURST_LOAD = 2.5
BURST_USERS = 4
CALM_LOAD = 0.25


class Tune:
    """One tune over a started system. `run` returns when every stage is over; results are in the ledger."""

    def __init__(self, system: System, control: Control, plan: TunePlan, view: TuneView) -> None:
        self._system = system
        self._control = control
        self._plan = plan
        self._view = view
        self._stages = Stages(system, control.actuator, view)
        self._began_s = system.clock.mono_s()
        self._sources: Mapping[str, str] = standard_library()
        self._cost: CostModel | None = None
        self._table: SpeculationTable | None = None
        self._adopted: list[str] = []
        self._refused: list[str] = []
        control.on_moved.append(self._say_moved)
        control.on_trigger.append(self._say_trigger)

    async def run(self) -> None:
        """Go through all stages; raises what ends a tune early (no replica, no ledger)."""
        await self._calibrate()
        rates = self._rates()
        arrivals = await self._arrivals(rates)
        baseline = await self._measure("baseline", arrivals, rates, "round robin")
        looked = self._look("baseline", baseline, "before")
        for _ in range(self._plan.levers_max):
            chosen = await self._choose(looked)
            if chosen is None or self._left_s() < self._reserve_s():
                break
            looked = await self._prove(chosen, looked, rates)
        final = await self._measure("final", arrivals, rates, "what was adopted")
        self._look("final", final, "after")
        if self._control.triggers.adopted:
            await self._burst(rates)

    # -- stages -----------------------------------------------------------------------------

    async def _calibrate(self) -> None:
        system = self._system
        self._view.stage(
            "calibrate", "costs of a prefill and of a decode step on an idle replica", CALIBRATE_S
        )
        self._cost = await measure_cost(system, CALIBRATE_S, self._view.progress)
        self._view.say(
            f"prefill {self._cost.prefill_ms_per_token:.1f} ms per token (n={self._cost.prefill_samples}); "
            f"decode step {self._cost.step_ms(1):.0f} ms alone, {self._cost.step_ms(4):.0f} ms with 4 streams "
            f"(n={self._cost.step_samples})"
        )

    def _rates(self) -> Rates:
        cost, replicas = self._known_cost(), self._system.config.fleet.replicas
        affine, blind = affine_capacity(cost, replicas), round_robin_capacity(cost, replicas)
        chosen = self._plan.rate_per_s or affine
        return Rates(saturating=chosen, affine_capacity=affine, round_robin_capacity=blind)

    async def _arrivals(self, rates: Rates) -> Workload:
        return await self._made(
            rate_per_s=rates.saturating,
            seed=self._plan.seed,
            requests=self._plan.baseline_requests,
        )

    async def _measure(
        self, name: str, arrivals: Workload, rates: Rates, routed: str
    ) -> StageOutcome:
        await self._empty_caches()
        count = len(arrivals.requests)
        words = (
            f"{count} requests at {rates.saturating:.2f} per second through {routed} "
            f"(round robin serves about {rates.round_robin_capacity:.2f})"
        )
        return await self._stages.run(
            name, arrivals, load_words=words, expected_s=count / rates.round_robin_capacity
        )

    async def _empty_caches(self) -> None:
        """Both compared runs send the same prompts: neither may find them in the slots already."""
        for replica in self._system.fleet.replica_ids():
            await self._system.launcher.erase_kv(replica)
            self._system.router.forget(replica)

    def _look(self, scope: str, outcome: StageOutcome, when: str | None) -> Looked:
        situations = self._control.situations
        looked = situations.look(
            scope,
            self.standing(),
            outcome.records,
            views=outcome.views,
            hand_overs=self._system.hand_overs.books.since(outcome.before.at_s),
            before=outcome.before,
            after=outcome.after,
            cause_id=outcome.event_id,
        )
        if when is not None:
            situations.read_budgets(when, None, looked.diagnosis, cause_id=looked.event_id)
        found = looked.diagnosis
        if found.dominant_phase is None or found.dominant_resource is None:
            self._view.say(f"diagnosis ({scope}): nothing dominates")
        else:
            self._view.say(
                f"diagnosis ({scope}): {found.dominant_phase.value} bound by {found.dominant_resource.value}, "
                f"confidence {found.confidence:.2f}, {found.samples} requests"
            )
        return looked

    async def _choose(self, looked: Looked) -> tuple[Assessment, LeverRecord, str] | None:
        tried = bool(self._adopted or self._refused)
        if tried and self._table is None and self._left_s() > self._reserve_s():
            await self._measure_speculation()
        situations = self._control.situations
        situation = situations.situation(
            looked, self.standing(), adopted=tuple(self._adopted), refused=tuple(self._refused)
        )
        levers: Mapping[str, Lever] = catalog()
        chosen, because, event_id = situations.choose(situation, levers, cause_id=looked.event_id)
        self._view.say(f"choice: {because.split('. ')[0]}")
        if chosen is None:
            return None
        try:
            record = levers[chosen.lever].propose(situation, chosen, because)
        except LeverRecordError as error:
            self._view.say(f"{chosen.lever} was not proposed: {error}")
            self._refused.append(chosen.lever)
            return None
        return chosen, record, event_id

    async def _measure_speculation(self) -> None:
        """Measure the break-even on the real engine: one replica restarts speculating, then both are compared."""
        system = self._system
        plain, trial = system.fleet.replica_ids()[0], system.fleet.replica_ids()[-1]
        self._view.stage(
            "break-even",
            "aggregate decode speed by batch, without and with drafts",
            SPECULATION_S + 6,
        )
        revision = system.baseline.replace(speculation=SPECULATION_TRIED)
        try:
            await system.fleet.restart_into(
                trial, revision, drain_timeout_s=30.0, cause_id=system.started_event
            )
            async with aiohttp.ClientSession() as session:
                self._table = await calibrate_speculation(
                    Replica(id=plain, url=system.ready_url(plain)),
                    Replica(id=trial, url=system.ready_url(trial)),
                    SPECULATION_TRIED,
                    await self._speculation_probe(),
                    engine_format=system.engine,
                    session=session,
                    clock=system.clock,
                    keeper=system.launcher,
                    budget_s=SPECULATION_S,
                    on_progress=self._view.progress,
                )
        except (CalibrationError, LaunchError) as error:
            self._view.say(f"speculation could not be measured: {error}")
            return
        finally:
            # Whether the lever is moved is not decided yet: until then both replicas are plain.
            await self._control.actuator.go_back((trial,), cause_id=system.started_event)
            await self._empty_caches()
        system.ledger.append(
            Calibrated(revision=revision.id, speculation=self._table), cause_id=system.started_event
        )
        ratios = ", ".join(one.told for one in self._table.gains())
        self._view.say(
            f"speculation on edits: {ratios} streams; break-even {self._table.break_even().told}"
        )

    async def _speculation_probe(self) -> SpeculationProbe:
        """Edits from sessions of all ages; batches that leave room, so that a burst can pass the largest one."""
        slots = self._system.baseline.slots
        workload = await self._made(rate_per_s=1.0, seed=self._plan.seed + 1000, requests=60)
        edits = [each for each in workload.requests if each.label == "edit" and each.turn > 0]
        every = max(1, len(edits) // SPECULATION_PROMPTS)
        return SpeculationProbe(
            path=edits[0].endpoint if edits else "/v1/chat/completions",
            prompts=tuple(edit.body for edit in edits[::every][:SPECULATION_PROMPTS]),
            content="edit",
            batches=tuple(batch for batch in SPECULATION_BATCHES if batch < slots) or (1,),
            output_tokens=SPECULATION_OUTPUT_TOKENS,
            rounds_max=SPECULATION_PROMPTS,
        )

    async def _prove(
        self, chosen: tuple[Assessment, LeverRecord, str], looked: Looked, rates: Rates
    ) -> Looked:
        _, record, event_id = chosen
        control, system = self._control, self._system
        proposed = control.controller.propose(record, cause_id=event_id)
        control.situations.predict_budgets(record, looked.diagnosis, cause_id=proposed)
        stop = asyncio.Event()
        arrivals = await self._rollout_arrivals(record, rates)
        control.begin_proof()
        try:
            await control.controller.start(record, routing_policy_of(record), cause_id=proposed)
        except (ControlError, LaunchError) as error:
            self._view.say(f"{record.name} could not be started: {error}")
            self._refused.append(record.name)
            return looked
        watcher = asyncio.create_task(self._until_ended(stop))
        began_s = system.clock.mono_s()
        words = f"proving {record.name} under {len(arrivals.requests)} arrivals at most"
        try:
            outcome = await self._stages.run(
                f"rollout {record.name}",
                arrivals,
                load_words=words,
                expected_s=self._rollout_s(),
                stop=stop,
                progress=lambda seen: self._rollout_progress(seen, began_s),
            )
        finally:
            stop.set()
            await watcher
        proof = control.controller.finish()
        adopted = proof is not None and proof.rollout.state is RolloutState.ADOPTED
        (self._adopted if adopted else self._refused).append(record.name)
        return self._look(f"after {record.name}", outcome, None)

    async def _rollout_arrivals(self, record: LeverRecord, rates: Rates) -> Workload:
        """Arrivals with the compressed peak.

        For a lever that takes a replica they come from one user in short sessions: requests that never overlap have
        equal batches in both arms, and many sessions are many changes between the arms.
        """
        takes_one = record.revision is not None
        return await self._made(
            rate_per_s=rates.affine_capacity * (TAKEN_LOAD if takes_one else ROLLOUT_LOAD),
            seed=self._plan.seed + 1 + len(self._adopted) + len(self._refused),
            duration_s=self._rollout_s(),
            peak=PeakShape(period_s=self._plan.peak_cycle_s),
            users=1 if takes_one else None,
            turns=TAKEN_TURNS if takes_one else None,
        )

    async def _until_ended(self, stop: asyncio.Event) -> None:
        """End the arrivals when the rollout has ended, and the rollout when its time is up."""
        controller = self._control.controller
        deadline_s = self._system.clock.mono_s() + self._rollout_s()
        while not stop.is_set():
            if controller.has_ended:
                stop.set()
            elif self._system.clock.mono_s() >= deadline_s:
                await controller.give_up("time is up: not enough evidence for a pass")
            self._control.check()
            await asyncio.sleep(0.5)

    def _rollout_progress(self, seen: LoadProgress, began_s: float) -> tuple[float, str]:
        proof = self._control.controller.proof
        share = (self._system.clock.mono_s() - began_s) / self._rollout_s()
        if proof is None:
            return share, f"{seen.finished} answered"
        state = proof.rollout
        verdict = "" if state.verdict is None else f", {state.verdict.value}"
        return (
            share,
            f"{state.state.value} at {state.share:.0%}{verdict}; {seen.finished} answered, look {state.looks}",
        )

    async def _burst(self, rates: Rates) -> None:
        """Arrivals far beyond the break-even, then calm, so that triggers fire and let levers return."""
        plan = self._plan
        for name, load, seconds, offset in (
            ("burst", BURST_LOAD, plan.burst_s, 2000),
            ("calm", CALM_LOAD, plan.calm_s, 3000),
        ):
            rate, users = rates.affine_capacity * load, plan.users
            arrivals = await self._made(
                rate_per_s=rate,
                seed=plan.seed + offset,
                duration_s=seconds,
                users=users * BURST_USERS if name == "burst" else users,
            )
            words = f"{len(arrivals.requests)} requests at {rate:.2f} per second"
            stop = asyncio.Event()
            # Users who still wait for answers when the time is over send nothing more.
            asyncio.get_running_loop().call_later(seconds, stop.set)
            outcome = await self._stages.run(
                name, arrivals, load_words=words, expected_s=seconds, stop=stop
            )
            await self._control.triggers.settle()
            self._look(name, outcome, name)

    async def _made(self, **sizes: Any) -> Workload:
        """Make arrivals in a thread: drawing edits from real sources takes a while."""
        return await asyncio.to_thread(
            make_workload,
            self._plan,
            self._sources,
            context_tokens=self._system.baseline.context_tokens,
            **sizes,
        )

    # -- small things -----------------------------------------------------------------------

    def standing(self) -> Standing:
        return Standing(
            fleet=self._system.fleet_facts(),
            revision=self._system.baseline,
            cost=self._known_cost(),
            speculation=self._table,
            ramp=ramp_of(self._plan),
            mode=Mode.ACT,
            owner=self._system.config.levers.owner,
            target_gain=self._system.config.levers.target_gain,
        )

    def _known_cost(self) -> CostModel:
        assert self._cost is not None, "costs are calibrated first"
        return self._cost

    def _left_s(self) -> float:
        return self._plan.total_s - (self._system.clock.mono_s() - self._began_s)

    def _reserve_s(self) -> float:
        """Seconds that the final run and the burst will need."""
        return (
            self._plan.baseline_requests / max(0.1, self._rates().affine_capacity)
            + self._plan.burst_s * 2
            + 30.0
        )

    def _rollout_s(self) -> float:
        return max(30.0, min(self._plan.rollout_s_max, self._left_s() - self._reserve_s()))

    def _say_moved(self, event: RolloutMoved) -> None:
        self._view.say(f"{event.lever}: {event.after.value} at {event.share:.0%} ({event.reason})")

    def _say_trigger(self, event: TriggerMoved) -> None:
        what = "disabled itself" if event.fired else "came back"
        self._view.say(f"{event.lever} {what}: {event.trigger.name} ({event.action})")
