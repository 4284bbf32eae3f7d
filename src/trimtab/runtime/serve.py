"""Serves until told to stop: starts from what the ledger says, watches adopted levers, diagnoses in advise mode."""

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path

from aiohttp import web

from trimtab.core.config import Config
from trimtab.core.cuts import Cut
from trimtab.core.lever import RampPlan
from trimtab.core.ports import Clock
from trimtab.core.state import State
from trimtab.levers.catalog import catalog, routing_policy_of
from trimtab.runtime.control import Control
from trimtab.runtime.ledger_reader import SqliteReader
from trimtab.runtime.resume import Resumed, resume
from trimtab.runtime.situation import Standing
from trimtab.runtime.supervisor import START_COST, System

DIAGNOSE_EVERY_S = 60.0
DIAGNOSE_REQUESTS_MIN = 20

Routes = Callable[[System], Iterable[web.AbstractRouteDef]]


async def serve(
    config: Config,
    clock: Clock,
    stop: asyncio.Event,
    say: Callable[[str], None],
    *,
    routes: Routes = lambda _: (),
) -> None:
    """Serve until `stop` is set, then drain; raises what could not be had at the start."""
    system = System(config, clock, command="up", extra_routes=routes)
    reason = "interrupted"
    try:
        found = _resumed(system)
        for move in found.moves:
            system.ledger.append(move, cause_id=None, durable=True)
            say(f"{move.lever}: {move.reason}")
        await system.start(revisions=found.revisions, plan=found.plan)
        for line in _banner(system, found):
            say(line)
        control = Control(system, lambda: standing_of(system))
        _watch_adopted(control, found)
        await control.start()
        advising = asyncio.create_task(_advise(system, control, say))
        try:
            await stop.wait()
            reason = "asked to stop"
        finally:
            advising.cancel()
            await asyncio.gather(advising, return_exceptions=True)
            await control.stop()
    finally:
        say("draining: running requests may finish, new ones are refused")
        await asyncio.shield(system.stop(reason))
        say("stopped")


def standing_of(system: System) -> Standing:
    """What a running fleet is diagnosed with; a real peak cycle is a day."""
    return Standing(
        fleet=system.fleet_facts(),
        revision=system.baseline,
        cost=START_COST,
        speculation=None,
        ramp=RampPlan(),
        mode=system.config.levers.mode,
        owner=system.config.levers.owner,
        target_gain=system.config.levers.target_gain,
    )


def _resumed(system: System) -> Resumed:
    replicas = tuple(f"r{index}" for index in range(system.config.fleet.replicas))
    state = _state(Path(system.config.ledger.path))
    return resume(
        state, replicas=replicas, baseline=system.baseline, policy=system.config.routing.policy
    )


def _state(path: Path) -> State:
    with SqliteReader(path) as reader:
        return reader.state()


def _watch_adopted(control: Control, found: Resumed) -> None:
    for record in found.adopted:
        preferred = [each.cuts for each in found.plan.preferences if each.lever == record.name]
        cuts: tuple[Cut, ...] = preferred[0] if preferred else ()
        control.triggers.adopt(record, routing_policy_of(record.name), cuts, cause_id="")


def _banner(system: System, found: Resumed) -> list[str]:
    lines = [
        f"{len(found.revisions)} replicas of {system.baseline.model.name} ready",
        f"OpenAI API  {system.url}/v1",
        f"page        {system.url}/",
        f"ledger      {system.config.ledger.path}",
    ]
    lines += [f"adopted     {record.name}" for record in found.adopted]
    return [*lines, "Ctrl-C drains and stops"]


async def _advise(system: System, control: Control, say: Callable[[str], None]) -> None:
    """Diagnose every minute in which there was enough traffic, and say which lever would be moved."""
    control.begin_window()
    said = ""
    while True:
        await asyncio.sleep(DIAGNOSE_EVERY_S)
        recent = system.records_since(system.clock.wall_s() - DIAGNOSE_EVERY_S)
        if len(recent) < DIAGNOSE_REQUESTS_MIN:
            control.begin_window()
            continue
        looked = control.look("serving", cause_id=system.started_event)
        situation = control.situations.situation(
            looked, standing_of(system), adopted=tuple(control.triggers.adopted), refused=()
        )
        _, because, _ = control.situations.choose(situation, catalog(), cause_id=looked.event_id)
        words = because.split(". ")[0]
        if words != said:
            said = words
            say(f"advice      {words}")
        control.begin_window()
