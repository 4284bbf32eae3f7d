"""`trimtab plan --measure`: runs what the plan says would settle it, where a server can be reached or launched."""

import asyncio
import math
from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import urlsplit

import msgspec
from rich.console import Console

from trimtab.core.layout import Layout, PlanInputError
from trimtab.core.served import ModelShape
from trimtab.engines.vllm import VllmLaunch, bind_threads
from trimtab.interfaces.plan_answer import PlanAnswer
from trimtab.interfaces.plan_checkpoint import folder_of
from trimtab.interfaces.plan_measured import layout_of
from trimtab.interfaces.plan_words import measurement_words
from trimtab.planning.efficiency import Run
from trimtab.planning.measured import Group, Load, MeasuredLayout
from trimtab.planning.settle import Measurement
from trimtab.runtime.clock import SystemClock
from trimtab.runtime.hardware import usable_cpus
from trimtab.runtime.layout_runs import Subject, measure_layouts
from trimtab.runtime.served_known import LOCAL_CPU
from trimtab.runtime.served_sources import SourceError
from trimtab.runtime.vllm_env import find_environment
from trimtab.workloads.steady import Steady

RUNS: Final = 2
"""Runs of each measurement, after one that warms up: short, and their spread is seen."""

REQUESTS_OF_A_CLIENT: Final = 2
KV_HEADROOM: Final = 2


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one measurement. `why_not`: empty where it was run. Milliseconds are means over its runs."""

    what: str
    layout: Layout
    clients: int
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    runs: int = 0
    why_not: str = ""


class Corrected(msgspec.Struct, frozen=True, kw_only=True):
    """The plan before and after what was measured."""

    before: PlanAnswer
    measured: tuple[Measured, ...]
    after: PlanAnswer


def urls_of(words: Sequence[str], model: ModelShape) -> dict[Layout, str]:
    """Return where each layout serves, out of LAYOUT=URL words; raises `PlanInputError`."""
    found: dict[Layout, str] = {}
    for word in words:
        label, _, url = word.partition("=")
        if not _is_address(url):
            raise PlanInputError("url", f"{word!r} is not LAYOUT=URL", ("TP2=http://host:8000",))
        single = label.strip().lower() in ("single", "one device", "tp1")
        layout = Layout() if single else layout_of(label.upper(), model)
        if layout == Layout() and not single:
            raise PlanInputError("url", f"{label!r} names no layout", ("single", "TP2", "TP4 PP2"))
        found[layout] = url.rstrip("/")
    return found


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is none, a bracket without its pair
        return False


def _not_asked_for(answer: PlanAnswer, urls: Mapping[Layout, str]) -> tuple[str, ...]:
    """Say which servers were named that no measurement of the plan asks."""
    asked = {each.layout for each in answer.measurements}
    wanted = " and ".join(dict.fromkeys(layout.label for layout in sorted(asked))) or "none"
    return tuple(
        f"{layout.label} at {url}: the plan asks for no measurement of it, but of {wanted}"
        for layout, url in urls.items()
        if layout not in asked
    )


def run_measurements(
    answer: PlanAnswer,
    urls: Mapping[Layout, str],
    group: Group,
    *,
    model_text: str,
    console: Console,
) -> tuple[tuple[Measured, ...], tuple[MeasuredLayout, ...]]:
    """Run the plan's measurements one after the other; returns what came of each, and rows that correct the plan.

    Raises `SourceError` where none can be run, `LaunchError`, `RunFailedError`.
    """
    told: list[Measured] = []
    rows: list[MeasuredLayout] = []
    unasked = _not_asked_for(answer, urls)
    for words in unasked:
        console.print(f"not used: {words}", highlight=False, markup=False)
    for each in answer.measurements:
        load = load_of(each, answer)
        subject = _subject(each.layout, urls, answer, load, model_text)
        what = measurement_words(each)
        if isinstance(subject, str):
            told.append(
                Measured(what=what, layout=each.layout, clients=load.concurrency, why_not=subject)
            )
            continue
        runs = asyncio.run(_run(subject, load, console))
        row = row_of(runs, load, group)
        rows.append(row)
        told.append(
            Measured(
                what=what,
                layout=each.layout,
                clients=load.concurrency,
                ttft_ms=row.ttft_ms,
                tpot_ms=row.tpot_ms,
                runs=len(runs),
            )
        )
    if not rows:
        reasons = (
            "; ".join([*(each.why_not for each in told), *unasked]) or "the plan asks for none"
        )
        raise SourceError(f"nothing was measured: {reasons}")
    return tuple(told), tuple(rows)


def load_of(each: Measurement, answer: PlanAnswer) -> Steady:
    """Return a closed loop like a measurement: arrivals become as many streams as are expected to run at once."""
    streams = each.concurrency
    if streams is None:
        alike = [
            found.expected.batch
            for found in answer.layouts
            if found.expected and msgspec.structs.replace(found.layout, replicas=1) == each.layout
        ]
        streams = alike[0] if alike else 1.0
    return Steady(
        concurrency=max(1, math.ceil(streams)),
        input_tokens=each.input_tokens,
        output_tokens=each.output_tokens,
        rounds=REQUESTS_OF_A_CLIENT,
    )


def row_of(runs: Sequence[Run], load: Steady, group: Group) -> MeasuredLayout:
    """Return the runs of one layout as a row: the means of their times."""
    return MeasuredLayout(
        id=f"{runs[0].layout.label} now",
        group=group,
        engine_version="",
        load=Load(
            layout=runs[0].layout,
            clients=float(load.concurrency),
            input_tokens=load.input_tokens,
            output_tokens=load.output_tokens,
            run="measured by trimtab",
        ),
        ttft_ms=sum(run.ttft_ms for run in runs) / len(runs),
        tpot_ms=sum(run.tpot_ms for run in runs) / len(runs),
    )


def _subject(
    layout: Layout, urls: Mapping[Layout, str], answer: PlanAnswer, load: Steady, model_text: str
) -> Subject | str:
    """Return what to measure, or why that cannot be had."""
    devices = layout.devices_per_replica
    if layout in urls:
        return Subject(layout=layout, accelerators=devices, url=urls[layout])
    if not answer.hardware.local:
        return f"{layout.label} serves nowhere that was told: --url '{layout.label}=http://...'"
    cpus = usable_cpus()
    if devices > len(cpus):
        return f"{layout.label} needs {devices} CPUs and this machine has {len(cpus)}"
    context = answer.demand.context_tokens or load.input_tokens + load.output_tokens
    tokens = (load.input_tokens + load.output_tokens) * load.concurrency
    each_token = next(
        (
            found.memory.kv_bytes_per_token_rank
            for found in answer.layouts
            if msgspec.structs.replace(found.layout, replicas=1) == layout
        ),
        0.0,
    )
    return Subject(
        layout=layout,
        accelerators=devices,
        launch=VllmLaunch(
            model=str(folder_of(model_text)),
            served_name="measured",
            port=0,
            context_tokens=max(512, KV_HEADROOM * context),
            tensor_parallel=layout.tp,
            pipeline_parallel=layout.pp,
            data_parallel=layout.attention_dp,
            expert_parallel=layout.moe_ep > 1,
            threads=bind_threads(cpus[:devices], devices),
            kv_cache_bytes=max(64 << 20, math.ceil(KV_HEADROOM * tokens * each_token)),
            prefix_caching=False,
        ),
    )


async def _run(subject: Subject, load: Steady, console: Console) -> list[Run]:
    return await measure_layouts(
        [subject],
        load,
        rounds=RUNS,
        clock=SystemClock(),
        environment=None if subject.launch is None else find_environment(""),
        on_stage=lambda words: console.print(words, highlight=False, markup=False),
    )


def is_local(hardware: str) -> bool:
    """Say whether the hardware that was asked for is this machine's CPUs."""
    return hardware.partition(":")[0].strip().lower() == LOCAL_CPU


def show(found: Corrected, console: Console) -> None:
    """Print what was measured and what it changed."""
    console.print("\nMeasured", style="bold")
    for each in found.measured:
        told = (
            f"not run: {each.why_not}"
            if each.ttft_ms is None or each.tpot_ms is None
            else f"TTFT {each.ttft_ms:,.1f} ms, TPOT {each.tpot_ms:,.2f} ms (n={each.runs})"
        )
        console.print(
            f"  {each.layout.label}, {each.clients} requests in flight: {told}", highlight=False
        )
    console.print("\nBefore and after", style="bold")
    for name, answer in (("before", found.before), ("after", found.after)):
        console.print(f"  {name}: {_said(answer)}", highlight=False)


def _said(answer: PlanAnswer) -> str:
    best = answer.layouts[0]
    chosen = best.label if answer.found else f"nothing meets the targets, nearest {best.label}"
    if best.ttft_ms is None or best.tpot_ms is None:
        return chosen
    return f"{chosen}: TTFT {best.ttft_ms.value:,.1f} ms, TPOT {best.tpot_ms.value:,.2f} ms"
