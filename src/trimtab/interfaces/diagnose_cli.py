"""`trimtab diagnose`: what binds servers that somebody else runs, read from their own metrics."""

import asyncio
from collections import deque
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Final, ParamSpec

import click
import msgspec
from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from trimtab.diagnosis.served_facts import ServedFacts
from trimtab.interfaces.common import FiniteRange
from trimtab.interfaces.diagnose_answer import DiagnoseAnswer, answer_of, printable
from trimtab.interfaces.diagnose_html import page
from trimtab.interfaces.diagnose_view import print_answer, show_live
from trimtab.interfaces.diagnose_words import Moment, moment_of
from trimtab.interfaces.files import write_whole
from trimtab.runtime.clock import SystemClock
from trimtab.runtime.served_known import find_hardware, read_facts, read_model
from trimtab.runtime.served_run import Diagnosed, Watch, diagnose_scrapes
from trimtab.runtime.served_sources import (
    SCRAPES_MAX,
    SOURCES_MAX,
    Failure,
    Scrape,
    Source,
    SourceError,
    SourceKind,
    parse_source,
    prometheus_source,
    read_file,
    watch_window,
)

P = ParamSpec("P")

ERROR: Final = 3
MOMENTS_MAX: Final = 600
"""Refreshes that a watch remembers for its charts."""


class Unreadable(click.ClickException):
    """An error in one line, with the code that tells it from a bottleneck."""

    exit_code = ERROR


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line asked for."""

    sources: tuple[Source, ...]
    facts: ServedFacts
    window_s: float
    scrapes: int
    between_s: float | None
    every_s: float
    refreshes: int | None
    html: Path | None
    before: tuple[Scrape | Failure, ...] = ()


def _exits(command: Callable[P, int]) -> Callable[P, None]:
    """End with the code that a command returns; known errors are one line and code 3, Ctrl-C is 130."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            code = command(*args, **kwargs)
        except SourceError as error:
            raise Unreadable(printable(str(error))) from error
        except KeyboardInterrupt:
            raise SystemExit(130) from None
        raise SystemExit(code)

    return run


@click.command()
@click.argument("sources", nargs=-1, metavar="[URL|FILE]...")
@click.option("--prometheus", metavar="URL", help="A Prometheus server to ask, with --selector.")
@click.option(
    "--selector", metavar="SELECTOR", help="""Series to ask it for, for example '{job="vllm"}'."""
)
@click.option("--model", help="config.json, GGUF file or name of the model, for its ceilings.")
@click.option(
    "--hardware", help="Accelerator by name (H100, MI300X, ...), or cpu to measure this machine."
)
@click.option(
    "--accelerators",
    type=click.IntRange(1),
    help="How many hold one copy of the model [default: 1].",
)
@click.option(
    "--ttft-ms",
    type=FiniteRange(0, min_open=True),
    help="Target for the time to first token, p99.",
)
@click.option(
    "--tpot-ms",
    type=FiniteRange(0, min_open=True),
    help="Target for the time per output token, p99.",
)
@click.option(
    "--facts",
    "facts_path",
    type=click.Path(path_type=Path, dir_okay=False),
    help="TOML or JSON file of what else is known; see docs/diagnose.md.",
)
@click.option(
    "--window",
    "window_s",
    type=FiniteRange(0.0, 86_400.0),
    default=10.0,
    show_default=True,
    help="Seconds over which addresses are read; 0: once, which tells of their life since the start.",
)
@click.option(
    "--scrapes",
    type=click.IntRange(2, SCRAPES_MAX),
    default=3,
    show_default=True,
    help="Reads in a window.",
)
@click.option(
    "--between",
    "between_s",
    type=FiniteRange(0.0, min_open=True),
    help="Seconds between saved scrapes of one server, where their files' times do not tell.",
)
@click.option(
    "--before",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    multiple=True,
    help="Saved page of an earlier day or of the other arm, to compare with; two of one server make a window.",
)
@click.option(
    "--watch",
    is_flag=True,
    help="Look again and again until Ctrl-C; each look is about the last window.",
)
@click.option(
    "--every",
    "every_s",
    type=FiniteRange(0.05, 3600.0),
    default=5.0,
    show_default=True,
    help="Seconds between the looks of --watch.",
)
@click.option("--refreshes", type=click.IntRange(1), help="End --watch after so many looks.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print the answer as JSON; with --watch one line a look.",
)
@click.option(
    "--html",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the answer as one page; with --watch it is written anew at each look.",
)
@_exits
def diagnose(
    sources: tuple[str, ...],
    prometheus: str | None,
    selector: str | None,
    model: str | None,
    hardware: str | None,
    accelerators: int | None,
    ttft_ms: float | None,
    tpot_ms: float | None,
    facts_path: Path | None,
    window_s: float,
    scrapes: int,
    between_s: float | None,
    before: tuple[Path, ...],
    watch: bool,
    every_s: float,
    refreshes: int | None,
    as_json: bool,
    html: Path | None,
) -> int:
    """Say what binds model servers that already run, from their metrics alone. Nothing on them is changed.

    \b
    URL   an address of metrics; http://host:8000 means http://host:8000/metrics
    FILE  a saved page of metrics; two of one server, in order, make a window
    NAME=URL, NAME=FILE   say which server a source is of

    \b
    Exit codes: 0 healthy; 1 a bottleneck; 2 wrong usage; 3 an error; 4 cannot tell.
    Healthy means that the targets are met; without targets, that no phase is queued
    or above 85% of a ceiling.
    """
    facts = _facts(facts_path, model, hardware, accelerators, ttft_ms, tpot_ms)
    if before and not sources and prometheus is None:
        raise click.UsageError("--before needs something to compare with it: an address or a file")
    asked = Asked(
        sources=_sources(sources, prometheus, selector, facts_given=facts_path is not None),
        facts=facts,
        window_s=window_s,
        scrapes=scrapes,
        between_s=between_s,
        every_s=every_s,
        refreshes=refreshes,
        html=html,
        before=tuple(read_file(Source(kind=SourceKind.FILE, place=str(path))) for path in before),
    )
    if watch:
        return _watch(asked, as_json=as_json)
    answer = _once(asked, quiet=as_json)
    if html is not None:
        write_whole(html, page(answer))
    if as_json:
        click.echo(_json(answer))
    else:
        print_answer(answer, Console())
    return answer.exit_code


def _sources(
    texts: tuple[str, ...], prometheus: str | None, selector: str | None, *, facts_given: bool
) -> tuple[Source, ...]:
    if (prometheus is None) != (selector is None):
        raise click.UsageError("--prometheus and --selector belong together")
    if not texts and prometheus is None and not facts_given:
        raise click.UsageError("name an address or a file of metrics, or --prometheus, or --facts")
    try:
        found = [parse_source(text) for text in texts]
        if prometheus is not None and selector is not None:
            found.append(prometheus_source(prometheus, selector))
    except SourceError as error:
        raise click.UsageError(str(error)) from error
    if len(found) > SOURCES_MAX:
        raise click.UsageError(f"{len(found)} sources are more than {SOURCES_MAX}")
    _one_address_a_name(found)
    return tuple(dict.fromkeys(found))


def _one_address_a_name(sources: list[Source]) -> None:
    named: dict[str, str] = {}
    for source in sources:
        if source.server and source.kind is SourceKind.URL:
            other = named.setdefault(source.server, source.place)
            if other != source.place:
                raise click.UsageError(
                    f"{source.server}= names one server, but stands before {other} and {source.place}"
                )


def _facts(
    path: Path | None,
    model: str | None,
    hardware: str | None,
    accelerators: int | None,
    ttft_ms: float | None,
    tpot_ms: float | None,
) -> ServedFacts:
    """Return the facts of the file with the options over them."""
    given = {
        "model": None if model is None else read_model(model),
        "accelerator": None if hardware is None else find_hardware(hardware),
        "accelerators": accelerators,
        "ttft_ms_target": ttft_ms,
        "tpot_ms_target": tpot_ms,
    }
    facts = ServedFacts() if path is None else read_facts(path)
    told = {name: value for name, value in given.items() if value is not None}
    return msgspec.structs.replace(facts, **told)


def _once(asked: Asked, *, quiet: bool) -> DiagnoseAnswer:
    clock = SystemClock()
    found = asyncio.run(_collect(asked, clock, quiet=quiet))
    return _answer(
        diagnose_scrapes(
            found,
            asked.facts,
            at_s=clock.wall_s(),
            between_s=asked.between_s,
            before=asked.before,
        )
    )


async def _collect(
    asked: Asked, clock: SystemClock, *, quiet: bool
) -> tuple[Scrape | Failure, ...]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    console = Console(stderr=True)
    hidden = quiet or not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=hidden) as bar:
        task = bar.add_task(f"reading for {asked.window_s:g} s", total=None)
        return await watch_window(
            asked.sources,
            clock=clock,
            window_s=asked.window_s,
            scrapes=asked.scrapes,
            on_progress=lambda done, of: bar.update(task, completed=done, total=of),
        )


def _watch(asked: Asked, *, as_json: bool) -> int:
    """Look until Ctrl-C or the last refresh; the exit code is that of the last answer."""
    console = Console()
    moments: deque[Moment] = deque(maxlen=MOMENTS_MAX)
    last: list[DiagnoseAnswer] = []

    def seen(answer: DiagnoseAnswer) -> None:
        moments.append(moment_of(answer))
        last[:] = [answer]
        if asked.html is not None:
            write_whole(asked.html, page(answer, tuple(moments), refresh_s=asked.every_s))
        if as_json:
            click.echo(_json(answer))

    try:
        if as_json:
            asyncio.run(_looks(asked, seen))
        else:
            with Live(console=console, screen=console.is_terminal, auto_refresh=False) as live:

                def draw(answer: DiagnoseAnswer) -> None:
                    seen(answer)
                    note = (
                        f"every {asked.every_s:g} s over the last {asked.window_s:g} s; Ctrl-C ends"
                    )
                    live.update(show_live(answer, tuple(moments), note), refresh=True)

                asyncio.run(_looks(asked, draw))
    except KeyboardInterrupt:
        if not last:
            raise
    if not as_json and console.is_terminal:
        print_answer(last[0], console)
    return last[0].exit_code


async def _looks(asked: Asked, show: Callable[[DiagnoseAnswer], object]) -> None:
    clock = SystemClock()
    async with Watch(
        asked.sources, asked.facts, clock, window_s=asked.window_s, before=asked.before
    ) as watch:
        started_s, done = clock.mono_s(), 0
        while asked.refreshes is None or done < asked.refreshes:
            await asyncio.sleep(max(0.0, started_s + done * asked.every_s - clock.mono_s()))
            show(_answer(await watch.look()))
            done += 1


def _answer(found: Diagnosed) -> DiagnoseAnswer:
    return answer_of(
        found.advice,
        found.readings,
        found.windows,
        failures=found.failures,
        notes=found.notes,
        at_s=found.at_s,
    )


def _json(answer: DiagnoseAnswer) -> str:
    return msgspec.json.encode(answer).decode()
