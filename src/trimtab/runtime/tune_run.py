"""Runs a tune from start to result: starts the system, ends it whatever happens, reads the result from the ledger."""

import asyncio
from collections.abc import Callable, Iterable, Sequence

from aiohttp import web

from trimtab.core.config import Config
from trimtab.core.events import Envelope, LeverProposed, RunStarted
from trimtab.core.narrate import chain, tell
from trimtab.core.ports import Clock
from trimtab.runtime.control import Control
from trimtab.runtime.ledger_reader import SqliteReader
from trimtab.runtime.result import LedgerInfo, TuneResult
from trimtab.runtime.supervisor import System
from trimtab.runtime.tune import Tune
from trimtab.runtime.tune_plan import TunePlan
from trimtab.runtime.tune_result import TuneFacts, build_result
from trimtab.runtime.tune_view import TuneView

Routes = Callable[[System], Iterable[web.AbstractRouteDef]]


async def run_tune(
    config: Config, plan: TunePlan, view: TuneView, clock: Clock, *, routes: Routes = lambda _: ()
) -> TuneResult:
    """Run one tune and return its result; every process is gone when it returns or raises.

    Raises `LaunchError`, `GatewayError`, `LedgerError`, `CalibrationError` or `WorkloadError` with what is wrong.
    """
    began_s = clock.mono_s()
    system = System(config, clock, command="tune", seed=plan.seed, extra_routes=routes)
    reason = "interrupted"
    try:
        await _run(system, plan, view)
        reason = "finished"
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise
    finally:
        view.stage("stop", "draining and stopping every replica", 2.0)
        await asyncio.shield(system.stop(reason))
        view.close()
    return _read_result(system, plan, clock.mono_s() - began_s)


async def _run(system: System, plan: TunePlan, view: TuneView) -> None:
    view.stage(
        "start", f"{system.config.fleet.replicas} replicas of {system.baseline.model.name}", 3.0
    )
    await system.start(settings={f"tune.{name}": value for name, value in _flat(plan).items()})
    view.say(f"{len(system.fleet.replica_ids())} replicas ready; gateway and page on {system.url}")
    holder: list[Tune] = []
    control = Control(system, lambda: holder[0].standing())
    holder.append(Tune(system, control, plan, view))
    await control.start()
    try:
        await holder[0].run()
        control.check()
    finally:
        if not control.controller.has_ended:
            await control.controller.give_up("the tune ended before its proof did")
        await control.stop()


def _flat(plan: TunePlan) -> dict[str, str | int | float | bool]:
    return {name: getattr(plan, name) for name in plan.__struct_fields__}


def _read_result(system: System, plan: TunePlan, duration_s: float) -> TuneResult:
    path = system.config.ledger.path
    with SqliteReader(path) as reader:
        checked = reader.verify()
        mine = this_run(reader.read(), system.run_id)
    names = {e.event.record.name for e in mine if isinstance(e.event, LeverProposed)}
    facts = TuneFacts(
        machine=system.hardware.label,
        workload=plan.workload,
        ledger=LedgerInfo(
            path=str(path), events=len(mine), head_hash=checked.head_hash, verified=checked.ok
        ),
        duration_s=duration_s,
        chains={name: tuple(tell(step) for step in chain(name, mine)) for name in sorted(names)},
        notes=(
            "The peak cycle is the workload's own compressed cycle, not a day of real traffic.",
            "Latencies are measured at the gateway, from a request's arrival to its tokens leaving.",
        ),
    )
    return build_result(mine, facts)


def this_run(envelopes: Sequence[Envelope], run_id: str) -> list[Envelope]:
    """Return the events from the run's start on; a ledger may hold earlier runs."""
    start = next(
        (
            i
            for i, e in enumerate(envelopes)
            if isinstance(e.event, RunStarted) and e.event.run_id == run_id
        ),
        0,
    )
    return list(envelopes[start:])
