"""`trimtab efficiency`: what each added accelerator does, by runs on real servers, and what to do about it."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click
import msgspec
from rich.console import Console
from rich.table import Table

from trimtab.core.layout import Layout, PlanInputError, Span
from trimtab.core.narrate_words import UNKNOWN
from trimtab.core.ports import EngineFormatError
from trimtab.engines.chrome_trace import read_trace
from trimtab.engines.vllm import VllmLaunch, bind_threads
from trimtab.interfaces.common import friendly, run_until_told
from trimtab.planning.efficiency import EfficiencyReport, Run, efficiency_report
from trimtab.runtime.clock import SystemClock
from trimtab.runtime.hardware import usable_cpus
from trimtab.runtime.layout_runs import Subject, layout_of_name, measure_layouts
from trimtab.runtime.served_sources import SourceError
from trimtab.runtime.vllm_env import CHECKPOINTS, find_environment
from trimtab.workloads.steady import Steady

MIB: Final = 1024 * 1024
REVERSED: Final = 1


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The report with the runs behind it."""

    report: EfficiencyReport
    runs: tuple[Run, ...]
    load: Steady


@click.command("efficiency")
@click.argument("layouts", nargs=-1, required=True)
@click.option(
    "--model",
    default="made-llama",
    show_default=True,
    help=f"Folder of a checkpoint, or one of {', '.join(CHECKPOINTS)}.",
)
@click.option("--concurrency", type=click.IntRange(1), default=4, show_default=True)
@click.option("--isl", type=click.IntRange(1), default=256, show_default=True, help="Input tokens.")
@click.option("--osl", type=click.IntRange(2), default=64, show_default=True, help="Output tokens.")
@click.option(
    "--rounds", type=click.IntRange(1, 50), default=3, show_default=True, help="Alternating runs."
)
@click.option("--requests", type=click.IntRange(1), default=2, show_default=True, help="A client.")
@click.option("--tpot-ms", type=float, help="Target that users need.")
@click.option(
    "--trace",
    "traces",
    multiple=True,
    metavar="LAYOUT=FILE",
    help="Torch profiler trace of a rank of a layout; repeatable.",
)
@click.option(
    "--devices",
    multiple=True,
    metavar="LAYOUT=URL",
    help="Page of a device exporter (DCGM) of a layout's devices: how busy they are, their power; repeatable.",
)
@click.option(
    "--profile/--no-profile",
    default=True,
    show_default=True,
    help="Trace the servers started here once more after the runs.",
)
@click.option("--kv-cache", type=click.IntRange(16), default=256, show_default=True, help="MiB.")
@click.option("--python", "interpreter", default="", help="Interpreter that has vLLM.")
@click.option("--json", "as_json", is_flag=True, help="Print report and runs as JSON.")
@friendly
def efficiency_command(
    layouts: Sequence[str],
    model: str,
    concurrency: int,
    isl: int,
    osl: int,
    rounds: int,
    requests: int,
    tpot_ms: float | None,
    traces: Sequence[str],
    devices: Sequence[str],
    profile: bool,
    kv_cache: int,
    interpreter: str,
    as_json: bool,
) -> None:
    """Measure LAYOUTS of one model against the smallest of them and say whether each accelerator pays.

    A layout is single, tp2, pp2, dp2 or tp2-ep, started with vLLM on this machine's CPUs, one CPU a
    rank (single@2: one rank on two CPUs), or LAYOUT=URL[,ACCELERATORS] for a server that runs
    already. Runs alternate between the servers.

    \b
    Examples:
      trimtab efficiency single single@2 tp2 pp2 dp2
      trimtab efficiency --model made-moe single tp2 tp2-ep
      trimtab efficiency single=http://a:8000,1 tp4=http://b:8000,4 --tpot-ms 25

    Exit codes: 0 measured, 1 more accelerators reverse the gain (or an error), 2 usage.
    """
    load = Steady(
        concurrency=concurrency, input_tokens=isl, output_tokens=osl, rounds=requests, model=model
    )
    pages = _pages(devices)
    subjects = [
        msgspec.structs.replace(found, devices=pages.get(found.layout, ""))
        for found in (_subject(word, model, isl + osl, kv_cache) for word in layouts)
    ]
    runs = run_until_told(_measure(subjects, load, rounds, interpreter, profile=profile))
    traced = [_with_trace(run, _shares(traces)) for run in runs]
    report = efficiency_report(traced, tpot_ms=tpot_ms)
    if as_json:
        answer = Answer(report=report, runs=tuple(traced), load=load)
        click.echo(msgspec.json.format(msgspec.json.encode(answer)).decode())
    else:
        _show(report, load, Console())
    if report.reverses_at is not None:
        raise SystemExit(REVERSED)


async def _measure(
    subjects: Sequence[Subject],
    load: Steady,
    rounds: int,
    interpreter: str,
    *,
    profile: bool,
) -> list[Run]:
    progress = Console(stderr=True)
    launches = any(subject.launch is not None for subject in subjects)
    return await measure_layouts(
        subjects,
        load,
        rounds=rounds,
        clock=SystemClock(),
        environment=find_environment(interpreter) if launches else None,
        profile=profile,
        on_stage=lambda words: progress.print(words, highlight=False, markup=False),
    )


def _subject(word: str, model: str, context: int, kv_cache: int) -> Subject:
    name, _, where = word.partition("=")
    name, _, asked = name.partition("@")
    layout = layout_of_name(name)
    if asked and not (asked.isdigit() and int(asked) >= layout.devices_per_replica):
        raise PlanInputError(
            "layout",
            f"{word!r}: {layout.label} needs at least {layout.devices_per_replica} CPUs",
            (f"{name}@{layout.devices_per_replica}",),
        )
    if where:
        url, _, count = where.rpartition(",")
        known = bool(url) and count.isdigit()
        return Subject(
            layout=layout,
            accelerators=int(count) if known else layout.devices_per_replica,
            url=(url if known else where).rstrip("/"),
        )
    ranks = layout.devices_per_replica
    threads = int(asked) if asked else ranks
    cpus = usable_cpus()
    return Subject(
        layout=layout,
        accelerators=threads,
        launch=VllmLaunch(
            model=model,
            served_name=model.rstrip("/").rpartition("/")[2],
            port=0,
            context_tokens=max(512, 2 * context),
            tensor_parallel=layout.tp,
            pipeline_parallel=layout.pp,
            data_parallel=layout.attention_dp,
            expert_parallel=layout.moe_ep > 1,
            # One CPU a rank, so that a second rank is a second accelerator.
            threads=bind_threads(cpus[:threads], ranks),
            kv_cache_bytes=kv_cache * MIB,
            prefix_caching=False,
        ),
    )


def _pages(words: Sequence[str]) -> dict[Layout, str]:
    """Return the exporter's page of each layout; raises `SourceError`."""
    found: dict[Layout, str] = {}
    for word in words:
        name, _, url = word.partition("=")
        if not url.startswith(("http://", "https://")):
            raise SourceError(
                f"--devices {word}: give LAYOUT=URL, such as tp2=http://host:9400/metrics"
            )
        found[layout_of_name(name)] = url
    return found


def _shares(words: Sequence[str]) -> dict[Layout, float]:
    """Return the largest share of communication among the traced ranks of each layout; raises `SourceError`."""
    found: dict[Layout, float] = {}
    for word in words:
        name, separator, path = word.partition("=")
        if not separator:
            raise SourceError(f"--trace {word}: give LAYOUT=FILE")
        try:
            times = read_trace(Path(path).read_bytes())
        except (OSError, EngineFormatError) as error:
            raise SourceError(f"{path} cannot be read: {error}") from error
        layout = layout_of_name(name)
        found[layout] = max(found.get(layout, 0.0), times.communication_share)
    return found


def _with_trace(run: Run, shares: dict[Layout, float]) -> Run:
    share = shares.get(run.layout)
    return run if share is None else msgspec.structs.replace(run, communication_share=share)


def _show(report: EfficiencyReport, load: Steady, console: Console) -> None:
    console.print(
        f"{load.concurrency} clients, {load.input_tokens} tokens in, {load.output_tokens} out; ranges are of the runs"
    )
    table = Table(show_edge=False)
    for name in (
        "layout",
        "against",
        "work",
        "TPOT",
        "TTFT",
        "efficiency",
        "did not divide",
        "in trace",
        "n",
    ):
        table.add_column(name, justify="left" if name in {"layout", "against"} else "right")
    for one in report.steps:
        table.add_row(
            f"{one.larger.label} on {one.accelerators[1]}",
            f"{one.smaller.label} on {one.accelerators[0]}",
            _times(one.throughput_ratio),
            _times(one.tpot_ratio),
            _times(one.ttft_ratio),
            _share(one.efficiency),
            _share(one.excess_share),
            UNKNOWN if one.traced_share is None else f"{one.traced_share:.0%}",
            str(one.pairs),
        )
    console.print(table)
    for one in report.steps:
        console.print(f"{one.verdict.value.replace('_', ' ')}: {one.because}", soft_wrap=True)
        for sign in one.signs:
            console.print(f"  {one.larger.label}: {sign}", soft_wrap=True)
    if report.reverses_at is not None:
        console.print(f"from {report.reverses_at} accelerators on, more of them make it slower")
    console.print(report.because, soft_wrap=True)
    sys.stdout.flush()


def _times(span: Span) -> str:
    if span.low is None or span.high is None:
        return f"x{span.value:.2f} (unknown)"
    return f"x{span.value:.2f} [{span.low:.2f}, {span.high:.2f}]"


def _share(span: Span) -> str:
    if span.low is None or span.high is None:
        return f"{span.value:.0%} (unknown)"
    return f"{span.value:.0%} [{span.low:.0%}, {span.high:.0%}]"
