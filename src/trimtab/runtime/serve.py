"""Serves until told to stop: starts from what the ledger says, watches adopted levers, diagnoses in advise mode."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path

from aiohttp import web

from trimtab.core.config import Config
from trimtab.core.cost import START_COST, CostModel
from trimtab.core.cuts import Cut
from trimtab.core.lever import Assessment, Lever, LeverRecordError, RampPlan, Situation
from trimtab.core.ports import Clock, LaunchError
from trimtab.core.state import EMPTY, State
from trimtab.core.types import Mode, ReplicaState, Role, RolloutState
from trimtab.levers.catalog import catalog, routing_policy_of
from trimtab.runtime.attached_advice import AttachedAdvisor
from trimtab.runtime.control import Control
from trimtab.runtime.ledger_reader import SqliteReader
from trimtab.runtime.measure import measure_cost
from trimtab.runtime.model import lies_whole
from trimtab.runtime.operate import Operator
from trimtab.runtime.proof import FROZEN, ControlError
from trimtab.runtime.resume import Resumed, remembered, resume
from trimtab.runtime.situation import Standing
from trimtab.runtime.supervisor import System

DIAGNOSE_EVERY_S = 60.0
DIAGNOSE_REQUESTS_MIN = 20

SAID_MAX = 4
"""How many of the last words are not said again."""

CALIBRATE_S = 6.0

Say = Callable[[str], None]
Routes = Callable[[System, Callable[[], Operator | None]], Iterable[web.AbstractRouteDef]]
"""(system, who carries out what a person asks of levers: None until the fleet serves) -> routes."""


async def serve(
    config: Config,
    clock: Clock,
    stop: asyncio.Event,
    say: Say,
    *,
    routes: Routes = lambda _system, _operator: (),
    admin_token: str | None = None,
) -> None:
    """Serve until `stop` is set, then drain; raises what could not be had at the start."""
    operators: list[Operator] = []

    def extra_routes(system: System) -> Iterable[web.AbstractRouteDef]:
        return routes(system, lambda: operators[0] if operators else None)

    system = System(config, clock, command="up", extra_routes=extra_routes, admin_token=admin_token)
    reason = "interrupted"
    try:
        found = _resumed(system)
        for move in found.moves:
            system.ledger.append(move, cause_id=None, durable=True)
            say(f"{move.lever}: {move.reason}")
        cost = await _unless_stopped(stop, _begin(system, found, say))
        if cost is None:
            return
        for line in _banner(system, found):
            say(line)
        advisors: list[Advisor] = []
        control = Control(system, lambda: advisors[0].standing())
        advisors.append(Advisor(system, control, cost, say))
        _watch_adopted(control, found, system.started_event or "")
        _go_on(control, found, Path(config.ledger.path), system.started_event or "")
        await control.start()
        operators.append(Operator(control, system))
        advising = asyncio.create_task(advisors[0].run())
        try:
            await _until(stop, advising, control)
            reason = "asked to stop"
        finally:
            advising.cancel()
            await asyncio.gather(advising, return_exceptions=True)
            await control.stop()
    finally:
        say("draining: running requests may finish, new ones are refused")
        await asyncio.shield(system.stop(reason))
        say("stopped")


async def _begin(system: System, found: Resumed, say: Say) -> CostModel:
    if system.attached is not None:
        system.attached.say = say
    proving = () if found.proving is None else (found.proving.record,)
    prefill = max((record.prefill for record in (*found.adopted, *proving)), default=0)
    await system.start(revisions=found.revisions, plan=found.plan, prefill=prefill)
    if system.attached is not None:
        # Servers of others are not loaded for our measurements: what their traffic shows is enough.
        return START_COST
    say("measuring the costs of a prefill and of a decode step on an idle replica")
    return await measure_cost(system, CALIBRATE_S)


async def _unless_stopped(
    stop: asyncio.Event, work: Coroutine[None, None, CostModel]
) -> CostModel | None:
    """Return what the work returns, or None if the stop comes first: then the work is cancelled and over."""
    working, stopping = asyncio.create_task(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
        return await working if working.done() else None
    finally:
        for task in (working, stopping):
            task.cancel()
        await asyncio.gather(working, stopping, return_exceptions=True)


def standing_of(system: System, cost: CostModel) -> Standing:
    """What a running fleet is diagnosed with; a real peak cycle is a day."""
    return Standing(
        fleet=system.fleet_facts(),
        revision=system.baseline,
        cost=cost,
        speculation=None,
        ramp=RampPlan(),
        mode=system.config.levers.mode,
        owner=system.config.levers.owner,
        target_gain=system.config.levers.target_gain,
        attached=system.attached is not None,
        prefill_replicas=sum(one.role is Role.PREFILL for one in system.fleet.infos()),
        prefill_restarts=system.roles.settings_for(Role.PREFILL)
        != system.roles.settings_for(Role.MIXED),
    )


async def _until(stop: asyncio.Event, advising: "asyncio.Task[None]", control: Control) -> None:
    """Wait for the stop; an error of the loops that decide ends the run instead of going unseen."""
    while not stop.is_set():
        control.check()
        if advising.done():
            advising.result()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), 1.0)


def _resumed(system: System) -> Resumed:
    state = _state(Path(system.config.ledger.path))
    system.gateway.metrics.rollouts.seed(state)
    configured = system.config.fleet.replicas
    replicas = () if system.attached is not None else remembered(state, configured)
    return resume(
        state,
        replicas=replicas,
        baseline=system.baseline,
        policy=system.config.routing.policy,
        has_artifact=lies_whole,
    )


def _state(path: Path) -> State:
    with SqliteReader(path) as reader:
        return reader.catch_up(EMPTY)


def _watch_adopted(control: Control, found: Resumed, cause_id: str) -> None:
    for record in found.adopted:
        if (narrowed := found.narrowed.get(record.name)) is not None:
            control.triggers.adopt(
                record,
                routing_policy_of(record),
                narrowed.cuts,
                cause_id,
                without=narrowed.without,
                narrowed_by=narrowed.by,
            )
            continue
        preferred = [each.cuts for each in found.plan.preferences if each.lever == record.name]
        cuts: tuple[Cut, ...] = preferred[0] if preferred else ()
        control.triggers.adopt(record, routing_policy_of(record), cuts, cause_id)

    for off in found.disabled:
        policy = routing_policy_of(off.record)
        control.triggers.adopt(
            off.record,
            policy,
            off.cuts,
            cause_id,
            off_by=off.by,
            without=off.without,
            narrowed_by=off.narrowed_by,
        )


def _go_on(control: Control, found: Resumed, ledger: Path, cause_id: str) -> None:
    """Follow the lever that was being proven, and stay frozen if somebody froze promotions."""
    proving = found.proving
    if proving is not None:
        with SqliteReader(ledger) as reader:
            met = reader.met(proving.record.name)
        control.controller.go_on(
            proving.record,
            routing_policy_of(proving.record),
            state=proving.state,
            share=proving.share,
            cause_id=proving.proposal_id,
            out=proving.out,
            met=met,
        )
    if found.frozen_because is not None:
        control.controller.frozen = True
    control.verifier.due.update(dict.fromkeys(found.due, cause_id))
    control.scores.update(found.scores)
    control.verifies = True


def _banner(system: System, found: Resumed) -> list[str]:
    lines = [
        *_ready(system),
        f"OpenAI API  {system.url}/v1",
        f"page        {system.url}/",
        f"ledger      {system.config.ledger.path}",
    ]
    lines += [f"adopted     {record.name}" for record in found.adopted]
    lines += [f"held off    {off.record.name} by {', '.join(off.by)}" for off in found.disabled]
    if found.proving is not None:
        lines.append(f"{found.proving.state.value:11} {found.proving.record.name} goes on")
    lines += [f"to verify   {name}" for name in found.due]
    if found.frozen_because is not None:
        lines.append(
            f"frozen      {found.frozen_because}; `trimtab unfreeze` lets promotions go on"
        )
    return [*lines, "Ctrl-C drains and stops"]


def _ready(system: System) -> list[str]:
    """Say what serves; of attached servers each with its address and what it says of itself."""
    infos = system.fleet.infos()
    if system.attached is None:
        return [f"{len(infos)} replicas of {system.baseline.model.name} ready"]
    well = sum(info.state is ReplicaState.READY for info in infos)
    head = f"{well} of {len(infos)} attached servers ready, model {system.baseline.model.name}"
    return [head, *(f"  {info.id}  {info.url}  {info.reason}" for info in infos)]


class Advisor:
    """Diagnoses every minute in which there was enough traffic; what follows depends on the mode.

    observe: the diagnosis is recorded. advise: it also says which lever would be moved. act: it starts to prove that
    lever, if none is being proven; a lever that needs measurements of its own first (speculation) is left to `tune`,
    and one that was taken back while it was being proven is not tried again before the next start.
    """

    def __init__(self, system: System, control: Control, cost: CostModel, say: Say) -> None:
        self._system = system
        self._control = control
        self._cost = cost
        self._say = say
        self._said: deque[str] = deque(maxlen=SAID_MAX)
        self._servers: AttachedAdvisor | None = None
        if system.attached is not None:
            self._servers = AttachedAdvisor(system, self._say_once)
        self._refused: set[str] = set()

    def standing(self) -> Standing:
        """What the fleet is diagnosed with."""
        cost = self._cost if self._servers is None else self._servers.cost
        return standing_of(self._system, cost)

    async def run(self) -> None:
        """Look once a minute until cancelled."""
        while True:
            await asyncio.sleep(DIAGNOSE_EVERY_S)
            recent = self._system.records_since(self._system.clock.wall_s() - DIAGNOSE_EVERY_S)
            if len(recent) >= DIAGNOSE_REQUESTS_MIN:
                await self._look()

    async def _look(self) -> None:
        control, mode = self._control, self._system.config.levers.mode
        if self._servers is not None:
            await self._servers.look()
        looked = control.look("serving", cause_id=self._system.started_event)
        if mode is Mode.OBSERVE:
            return
        self._let_go()
        situation = control.situations.situation(
            looked,
            self.standing(),
            adopted=tuple(control.triggers.adopted),
            refused=tuple(sorted(self._refused)),
        )
        levers = catalog()
        chosen, because, event_id = control.situations.choose(
            situation, levers, cause_id=looked.event_id
        )
        self._say_once(f"advice      {because.split('. ')[0]}")
        if mode is not Mode.ACT or chosen is None or not control.controller.has_ended:
            return
        if control.controller.is_frozen:
            # Nothing is proposed that could not be started: it would be a new proposal every minute.
            self._say_once(f"{chosen.lever} was not started: {FROZEN}")
        else:
            await self._act(levers[chosen.lever], situation, chosen, because, event_id)

    def _say_once(self, words: str) -> None:
        """Say what was not said lately; the same words are not news."""
        if words not in self._said:
            self._said.append(words)
            self._say(words)

    def _let_go(self) -> None:
        """Let go of a rollout that has ended; what failed is not tried on the same traffic a minute later."""
        ended = self._control.controller.finish()
        if ended is not None and ended.rollout.state is not RolloutState.ADOPTED:
            self._refused.add(ended.record.name)

    async def _act(
        self, lever: Lever, situation: Situation, chosen: Assessment, because: str, event_id: str
    ) -> None:
        try:
            record = lever.propose(situation, chosen, because)
            proposed = self._control.controller.propose(record, cause_id=event_id)
            self._control.begin_proof()
            policy = routing_policy_of(record)
            await self._control.controller.start(record, policy, cause_id=proposed)
        except (LeverRecordError, ControlError, LaunchError) as error:
            self._say(f"{lever.name} was not started: {error}")
