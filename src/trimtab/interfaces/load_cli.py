"""`trimtab load`: the generator that `tune` uses, against any OpenAI-compatible server."""

import asyncio
import random
from collections.abc import Mapping
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from trimtab.interfaces.common import friendly
from trimtab.runtime.clock import SystemClock
from trimtab.runtime.load import LoadProgress, run_load
from trimtab.runtime.load_result import LoadResult, Spread
from trimtab.runtime.secret_refs import resolve_secret
from trimtab.runtime.sources import standard_library
from trimtab.runtime.tune_plan import TunePlan, make_workload
from trimtab.workloads.base import Workload, WorkloadError
from trimtab.workloads.files import from_azure_csv, from_coding_sessions, from_jsonl, from_mooncake
from trimtab.workloads.traces import TraceParams

GENERATED = ("coding", "chat", "mixed")
FORMATS = ("jsonl", "mooncake", "azure", "sessions")


@click.command()
@click.argument("url")
@click.option(
    "--workload",
    default="coding",
    show_default=True,
    help="coding, chat, mixed, or a file (see --format).",
)
@click.option(
    "--format",
    "file_format",
    type=click.Choice(FORMATS),
    default="jsonl",
    show_default=True,
    help="Format of a workload file: OpenAI bodies, Mooncake trace, Azure CSV, coding sessions.",
)
@click.option(
    "--rate",
    type=click.FloatRange(0.0, min_open=True),
    default=1.0,
    show_default=True,
    help="Requests per second.",
)
@click.option(
    "--requests", type=click.IntRange(1), default=50, show_default=True, help="How many requests."
)
@click.option(
    "--users", type=click.IntRange(1), default=8, show_default=True, help="Users at the same time."
)
@click.option(
    "--context",
    type=click.IntRange(512),
    default=2048,
    show_default=True,
    help="Context of one slot of the server, in tokens; made prompts stay inside it.",
)
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True)
@click.option(
    "--api-key", default="", help="Key to send along: env:NAME or file:PATH [default: none]."
)
@click.option("--json", "as_json", is_flag=True, help="Print the whole result as JSON.")
@friendly
def load(
    url: str,
    workload: str,
    file_format: str,
    rate: float,
    requests: int,
    users: int,
    context: int,
    seed: int,
    api_key: str,
    as_json: bool,
) -> None:
    """Send a workload to URL at its intended times (open loop) and report what came of it.

    Exit code 0: every request was answered; 1: some were not, or nothing could be sent.
    """
    if workload in GENERATED:
        made = _made(workload, rate, requests, users, context, seed)
    else:
        made = _from_file(Path(workload), file_format, rate, requests, context, seed)
    headers = {"Authorization": f"Bearer {resolve_secret(api_key)}"} if api_key else {}
    result = asyncio.run(_send(url, made, headers, quiet=as_json))
    if as_json:
        click.echo(msgspec.json.encode(result).decode())
    else:
        _print(result, Console())
    if result.summary.ok < result.summary.n or result.summary.unsent:
        raise SystemExit(1)


def _made(name: str, rate: float, requests: int, users: int, context: int, seed: int) -> Workload:
    plan = TunePlan(workload=name, users=users, seed=seed)
    return make_workload(
        plan,
        standard_library(),
        rate_per_s=rate,
        seed=seed,
        requests=requests,
        context_tokens=context,
    )


def _from_file(
    path: Path, file_format: str, rate: float, requests: int, context: int, seed: int
) -> Workload:
    try:
        opened = path.open(encoding="utf-8")
    except OSError as error:
        raise WorkloadError(
            f"workload {str(path)!r} is no generator and no readable file: {error.strerror}"
        ) from error
    params = TraceParams(context_tokens=context, requests_max=requests, rate_per_s=rate, seed=seed)
    rng = random.Random(seed)
    with opened as lines:
        match file_format:
            case "mooncake":
                return from_mooncake(lines, params, file=str(path))
            case "azure":
                return from_azure_csv(lines, params, file=str(path))
            case "sessions":
                return from_coding_sessions(lines, params, rng, file=str(path))
            case _:
                return from_jsonl(lines, params, rng, file=str(path))


async def _send(
    url: str, workload: Workload, headers: Mapping[str, str], *, quiet: bool
) -> LoadResult:
    if quiet:
        return await run_load(url, workload, headers=headers, clock=SystemClock())
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(workload.name, total=len(workload.requests))

        def show(seen: LoadProgress) -> None:
            errors = f", {seen.errors} failed" if seen.errors else ""
            bar.update(
                task,
                completed=seen.finished,
                description=f"{workload.name}: {seen.sent} sent{errors}",
            )

        return await run_load(url, workload, on_progress=show, headers=headers, clock=SystemClock())


def _print(result: LoadResult, console: Console) -> None:
    summary = result.summary
    table = Table(
        title=f"{result.workload}, seed {result.seed}: {summary.ok} of {summary.n} answered"
    )
    for heading in ("", "n", "mean", "p50", "p95", "max"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name, spread in (
        ("TTFT ms", summary.ttft_ms),
        ("TPOT ms", summary.tpot_ms),
        ("end to end ms", summary.e2e_ms),
        ("lateness ms", summary.lateness_ms),
    ):
        table.add_row(name, *_cells(spread))
    console.print(table)
    rate = summary.output_tokens_per_s
    console.print(
        f"{summary.output_tokens} output tokens in {summary.makespan_s:.1f} s"
        f" ({'unknown' if rate is None else f'{rate:.1f}'} per second);"
        f" {summary.cached_tokens} of {summary.prompt_tokens} prompt tokens were cached"
    )
    for error, count in summary.errors.items():
        console.print(f"{count} x {error}", markup=False)


def _cells(spread: Spread | None) -> tuple[str, ...]:
    if spread is None:
        return ("0", *("unknown",) * 4)
    return (
        str(spread.n),
        *(f"{value:,.1f}" for value in (spread.mean, spread.p50, spread.p95, spread.max)),
    )
