"""One stage of a tune: arrivals sent through the gateway while samples of the fleet are taken around them."""

import asyncio
from collections.abc import Callable

import msgspec

from trimtab.core.decision import FleetView
from trimtab.core.events import StageEnded, StageStarted
from trimtab.core.record import RequestRecord
from trimtab.runtime.actuation import Actuator
from trimtab.runtime.load import LoadProgress, run_load
from trimtab.runtime.load_result import LoadResult
from trimtab.runtime.situation import ProcessSample
from trimtab.runtime.supervisor import System
from trimtab.runtime.tune_view import TuneView
from trimtab.workloads.base import Workload


class StageOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a stage left: its load's result, its records and views, the process samples at both ends."""

    name: str
    load: LoadResult
    records: tuple[RequestRecord, ...]
    views: tuple[FleetView, ...]
    before: ProcessSample
    after: ProcessSample
    event_id: str


class Stages:
    """Runs stages one after another; each is two events with the figures between them."""

    def __init__(self, system: System, actuator: Actuator, view: TuneView) -> None:
        self._system = system
        self._actuator = actuator
        self._view = view

    async def run(
        self,
        name: str,
        workload: Workload,
        *,
        load_words: str,
        expected_s: float,
        stop: asyncio.Event | None = None,
        progress: Callable[[LoadProgress], tuple[float, str]] | None = None,
    ) -> StageOutcome:
        """Send a workload and return what came of it; `stop` ends the arrivals early."""
        system = self._system
        self._view.stage(name, load_words, expected_s)
        cause = system.ledger.append(
            StageStarted(stage=name, load=load_words), cause_id=system.started_event, durable=True
        )
        self._actuator.set_stage(name, cause_id=cause)
        before = system.process_sample()
        load = await run_load(
            system.url,
            workload,
            stop=stop,
            clock=system.clock,
            on_progress=lambda seen: self._view.progress(*(progress or _progress)(seen)),
        )
        self._actuator.set_stage(None, cause_id=cause)
        after = system.process_sample()
        event_id = system.ledger.append(
            StageEnded(stage=name, summary=_figures(load)), cause_id=cause, durable=True
        )
        records = tuple(r for r in system.records_since(before.at_s) if r.stage == name)
        return StageOutcome(
            name=name,
            load=load,
            records=records,
            views=tuple(system.views_since(before.at_s)),
            before=before,
            after=after,
            event_id=event_id,
        )


def _progress(seen: LoadProgress) -> tuple[float, str]:
    last = seen.last
    text = f"{seen.finished} of {seen.total} answered"
    if last is not None and last.ttft_ms is not None:
        text += f"; last TTFT {last.ttft_ms:,.0f} ms"
    return seen.finished / max(1, seen.total), text


def _figures(load: LoadResult) -> dict[str, float | int | str | None]:
    summary = load.summary
    return {
        "n": summary.n,
        "ok": summary.ok,
        "errors": sum(summary.errors.values()),
        "unsent": summary.unsent,
        "makespan_s": summary.makespan_s,
        "ttft_ms_mean": summary.ttft_ms.mean if summary.ttft_ms else None,
        "tpot_ms_mean": summary.tpot_ms.mean if summary.tpot_ms else None,
        "lateness_ms_p95": summary.lateness_ms.p95 if summary.lateness_ms else None,
        "prompt_tokens": summary.prompt_tokens,
        "cached_tokens": summary.cached_tokens,
        "output_tokens_per_s": summary.output_tokens_per_s,
    }
