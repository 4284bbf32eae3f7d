"""Measures what a prefill and a decode step cost on an idle replica of a started system, and routes by it.

Where replicas that prefill run other threads than those that decode, the first of them is measured too: what a chunk
changes follows from the steps, what threads change does not.
"""

from functools import partial

import aiohttp
import msgspec

from trimtab.core.cost import CostModel
from trimtab.core.events import Calibrated
from trimtab.core.types import Role
from trimtab.runtime.calibrate import Progress, calibrate_cost
from trimtab.runtime.supervisor import System


async def measure_cost(
    system: System, budget_s: float, on_progress: Progress = lambda *_: None
) -> CostModel:
    """Measure the first replica, and one that prefills if it has its own threads; returns the first one's costs.

    `budget_s`: seconds for each. Raises `CalibrationError`, or `LaunchError` if one is not ready.
    """
    replica, apart = system.fleet.replica_ids()[0], _prefill_apart(system)
    async with aiohttp.ClientSession() as session:
        measure = partial(
            calibrate_cost,
            engine_format=system.engine,
            session=session,
            clock=system.clock,
            budget_s=budget_s,
            on_progress=on_progress,
        )
        cost = await measure(system.ready_url(replica))
        there = None if apart is None else await measure(system.ready_url(apart))
    system.router.forget(replica)
    system.use_cost(cost)
    calibrated = Calibrated(revision=system.baseline.id, cost=cost)
    system.ledger.append(calibrated, cause_id=system.started_event)
    if apart is not None and there is not None:
        system.router.forget(apart)
        system.hand_overs.pool.cost_there = with_prefill_of(there, cost)
    return cost


def with_prefill_of(there: CostModel, cost: CostModel) -> CostModel:
    """Return costs whose prefill is that of another replica. It decodes for nobody: its steps tell nothing."""
    return msgspec.structs.replace(
        cost,
        prefill_base_ms=there.prefill_base_ms,
        prefill_ms_per_token=there.prefill_ms_per_token,
        prefill_samples=there.prefill_samples,
        source=f"{there.source}, prefill on a replica that prefills",
    )


def _prefill_apart(system: System) -> str | None:
    """Return the first replica that prefills with other threads than those that decode, None if there is none."""
    infos = system.fleet.infos()
    whole = {info.threads for info in infos if info.role is not Role.PREFILL}
    own = (info.id for info in infos if info.role is Role.PREFILL and info.threads not in whole)
    return next(own, None)
