"""Measures what a prefill and a decode step cost on an idle replica of a started system, and routes by it."""

import aiohttp

from trimtab.core.cost import CostModel
from trimtab.core.events import Calibrated
from trimtab.runtime.calibrate import Progress, calibrate_cost
from trimtab.runtime.supervisor import System


async def measure_cost(
    system: System, budget_s: float, on_progress: Progress = lambda *_: None
) -> CostModel:
    """Measure the first replica; raises `CalibrationError`, or `LaunchError` if it is not ready."""
    replica = system.fleet.replica_ids()[0]
    url = system.ready_url(replica)
    async with aiohttp.ClientSession() as session:
        cost = await calibrate_cost(
            url,
            system.engine,
            session=session,
            clock=system.clock,
            budget_s=budget_s,
            on_progress=on_progress,
        )
    system.router.forget(replica)
    system.use_cost(cost)
    calibrated = Calibrated(revision=system.baseline.id, cost=cost)
    system.ledger.append(calibrated, cause_id=system.started_event)
    return cost
