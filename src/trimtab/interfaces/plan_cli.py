"""`trimtab plan`: which parallel layout of a model on which accelerators, before anything is started."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import wraps
from pathlib import Path
from typing import Final, ParamSpec

import click
import msgspec
from click.core import ParameterSource
from rich.console import Console

from trimtab.core.layout import PlanInputError
from trimtab.core.ports import LaunchError
from trimtab.interfaces.files import write_whole
from trimtab.interfaces.plan_answer import FOUND, PlanAnswer, answer_of
from trimtab.interfaces.plan_html import page
from trimtab.interfaces.plan_inputs import (
    ENGINES,
    Words,
    ask_of,
    estimator_of,
    kv_bits_of,
    read_trace,
)
from trimtab.interfaces.plan_measure import Corrected, is_local, run_measurements, urls_of
from trimtab.interfaces.plan_measure import show as show_measured
from trimtab.interfaces.plan_measured import read_rows
from trimtab.interfaces.plan_validation import print_validation
from trimtab.interfaces.plan_view import print_answer
from trimtab.interfaces.plan_write import Writing, check_words, write_launch, writing_of
from trimtab.planning.corrected import CorrectedEstimator
from trimtab.planning.layouts import Sizes
from trimtab.planning.measured import Group, MeasuredLayout
from trimtab.planning.plan import plan as plan_layouts
from trimtab.runtime.kernel_names import system_of
from trimtab.runtime.layout_runs import RunFailedError
from trimtab.runtime.plan_estimator import ExpertFacts, build_estimator, keep_times
from trimtab.runtime.plan_validate import validate_table
from trimtab.runtime.served_sources import SourceError

P = ParamSpec("P")

ERROR: Final = 3
VALIDATES: Final = ("validate", "seed", "as_json")
SIZES: Final = ("tp", "pp", "attention_dp", "moe_ep", "replicas")


class Unplannable(click.ClickException):
    """An error in one line, with the code that tells it from a plan that meets nothing."""

    exit_code = ERROR


@contextmanager
def _uncollected() -> Iterator[None]:
    """Look for no garbage in cycles, as a plan leaves next to none and looking takes a fifteenth of a first one.

    Nor is what it made looked through afterwards: it lasts as long as the process, or is let go without being looked
    for.
    """
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was:
            gc.enable()


def _exits(command: Callable[P, int]) -> Callable[P, None]:
    """End with the code that a command returns; known errors are one line and code 3, Ctrl-C is 130."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            code = command(*args, **kwargs)
        except (PlanInputError, SourceError, LaunchError, RunFailedError) as error:
            raise Unplannable(str(error)) from error
        except KeyboardInterrupt:
            raise SystemExit(130) from None
        raise SystemExit(code)

    return run


@click.command()
@click.option("--model", metavar="PATH|NAME", help="config.json, GGUF file or name of the model.")
@click.option(
    "--hardware",
    metavar="NAME[:COUNT[xNODES]]",
    help="Accelerators there are: COUNT in each of NODES, for example H100:8x2; cpu is this machine.",
)
@click.option("--link", metavar="NAME", help="What joins devices of a node [default: the usual].")
@click.option("--node-link", metavar="NAME", help="What joins nodes, for example ib400.")
@click.option("--isl", type=int, metavar="N", help="Input tokens of a request, mean.")
@click.option("--osl", type=int, metavar="N", help="Output tokens of a request, mean.")
@click.option("--context", type=int, metavar="N", help="The longest context [default: isl + osl].")
@click.option("--concurrency", type=float, metavar="N", help="Requests in flight at once.")
@click.option("--rate", type=float, metavar="N", help="Requests per second.")
@click.option(
    "--trace",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Azure or Mooncake trace: lengths, busiest minute.",
)
@click.option("--ttft-ms", type=float, help="Target for the mean time to first token.")
@click.option("--tpot-ms", type=float, help="Target for the mean time per output token.")
@click.option(
    "--prefix-share",
    metavar="R|trace",
    help="Part (0 to 1) of input tokens that a cache holds; trace: all that the trace's prompts repeat.",
)
@click.option("--draft-tokens", type=int, default=0, help="Drafted tokens a step [default: 0].")
@click.option("--draft-acceptance", type=float, help="Part (0 to 1) of drafts that are accepted.")
@click.option("--precision", help="Weights: bf16, fp8, nvfp4, w4a16, ... [default: as stored].")
@click.option("--kv-precision", help="KV cache: auto, fp8, ... [default: the engine's].")
@click.option("--engine", type=click.Choice(tuple(ENGINES)), default="vllm", show_default=True)
@click.option("--price", type=float, metavar="$/h", help="Price of one accelerator for an hour.")
@click.option("--expert-skew", type=float, help="Load of the busiest rank over the mean, measured.")
@click.option(
    "--collective", metavar="NAME", help="How experts exchange: deepep, pplx, all-reduce, ..."
)
@click.option("--tp", type=click.IntRange(1), help="Only this tensor-parallel size.")
@click.option("--pp", type=click.IntRange(1), help="Only this many pipeline stages.")
@click.option(
    "--dp", "attention_dp", type=click.IntRange(1), help="Only this many attention groups."
)
@click.option("--ep", "moe_ep", type=click.IntRange(1), help="Only this expert-parallel size.")
@click.option("--replicas", type=click.IntRange(1), help="Only this many replicas.")
@click.option(
    "--measured",
    multiple=True,
    metavar="[LAYOUT=]FILE",
    help="Measured: a table of layouts; or TP4=FILE with a benchmark's result or a gateway's access log.",
)
@click.option(
    "--measure",
    is_flag=True,
    help="Run the measurements that would settle it, on servers at --url or launched on cpu, and correct the plan.",
)
@click.option(
    "--url",
    "urls",
    multiple=True,
    metavar="LAYOUT=URL",
    help="Where a layout serves, for --measure, such as TP4=http://host:8000; repeatable.",
)
@click.option(
    "--write",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Write the chosen layout's command, Kubernetes manifests and Ray Serve configuration.",
)
@click.option(
    "--validate",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Compare estimates with a table of measured layouts instead, before and after calibration.",
)
@click.option(
    "--seed",
    type=click.IntRange(0),
    default=1,
    show_default=True,
    help="Draws the rows that calibrate in --validate.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
@click.option(
    "--html", type=click.Path(path_type=Path, dir_okay=False), help="Write the answer as one page."
)
@_exits
def plan(
    as_json: bool,
    html: Path | None,
    validate: Path | None,
    seed: int,
    measure: bool,
    urls: tuple[str, ...],
    write: Path | None,
    **options: object,
) -> int:
    """Say which parallel layout of a model meets the targets with the fewest accelerators.

    Does it fit, which layouts are possible and why not the others, what each accelerator
    adds, what is uncertain and which two short measurements would settle it. Without
    --concurrency and --rate: what all accelerators can do within the targets.

    \b
    Exit codes: 0 a plan; 1 nothing meets the targets; 2 wrong usage; 3 an error.
    """
    if validate is not None:
        _only_validate()
        return _validate(validate, seed, as_json=as_json)
    sizes = Sizes(**{name: options.pop(name) for name in SIZES})  # type: ignore[arg-type]
    for name in ("model", "hardware"):
        if options[name] is None:
            raise click.UsageError(f"--{name} is needed")
    words = msgspec.convert(options | {"sizes": sizes}, Words, strict=False)
    if urls and not measure:
        raise click.UsageError("--url is for --measure")
    if write is not None:
        check_words(words)
    asking = _Asking(words)
    writing = None if write is None else writing_of(words, asking.ask)
    answer = asking.answer()
    corrected = _measured(asking, answer, urls) if measure else None
    if corrected is not None:
        answer = corrected.after
    if html is not None:
        write_whole(html, page(answer))
    if as_json:
        click.echo(msgspec.json.encode(answer if corrected is None else corrected).decode())
    else:
        print_answer(answer, Console())
        if corrected is not None:
            show_measured(corrected, Console())
    if write is not None and writing is not None:
        _write(write, answer, writing)
    return answer.exit_code


def _only_validate() -> None:
    """Raise where options were given that a validation does not use: it would seem to answer them."""
    context = click.get_current_context()
    given = [
        parameter.opts[0]
        for parameter in context.command.params
        if parameter.name not in VALIDATES
        and context.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE
    ]
    if given:
        raise click.UsageError(f"--validate takes the table alone, not {', '.join(given)}")


def _measured(asking: "_Asking", answer: PlanAnswer, urls: tuple[str, ...]) -> Corrected:
    told, rows = run_measurements(
        answer,
        urls_of(urls, asking.ask.model),
        asking.group,
        model_text=asking.words.model,
        console=Console(stderr=True),
    )
    return Corrected(before=answer, measured=told, after=asking.answer(rows))


def _write(folder: Path, answer: PlanAnswer, writing: Writing) -> None:
    """Write what starts the chosen layout and say where; nothing where no layout was chosen."""
    if answer.chosen is None:
        click.echo(f"nothing was written to {folder}: no layout meets the targets", err=True)
        return
    files = write_launch(folder, answer, writing)
    click.echo(f"wrote {', '.join(str(path) for path in files)}", err=True)


def _validate(path: Path, seed: int, *, as_json: bool) -> int:
    found = validate_table(path, seed, estimator_of)
    keep_times()
    if as_json:
        click.echo(msgspec.json.encode(found).decode())
    else:
        print_validation(found, Console())
    return FOUND


class _Asking:
    """One question with its estimator, which may be asked again once more was measured."""

    def __init__(self, words: Words) -> None:
        self.words = words
        self._trace = None if words.trace is None else read_trace(words.trace)
        self.ask = ask_of(words, self._trace)
        self._estimator = build_estimator(
            self.ask.model,
            self.ask.accelerator,
            model_name=words.model,
            engine=ENGINES[words.engine],
            precision=words.precision or "",
            kv_bits=kv_bits_of(words),
            cluster=self.ask.cluster,
            experts=ExpertFacts(skew=self.ask.expert_skew, exchange=self.ask.exchange),
        )
        system = system_of(self.ask.accelerator.name) or self.ask.accelerator.name
        self.group = Group(system=system, engine=words.engine, model=words.model)
        self._rows = read_rows(words.measured, self.group, self.ask.model)

    def answer(self, rows: tuple[MeasuredLayout, ...] = ()) -> PlanAnswer:
        """Plan with what was measured before and `rows`."""
        console = Console(stderr=True)
        with (
            console.status("asking for the times of layouts")
            if console.is_terminal
            else nullcontext(),
            _uncollected(),
        ):
            corrected = CorrectedEstimator(
                self._estimator, self.group.system, self.words.engine, (*self._rows, *rows)
            )
            found = plan_layouts(self.ask, corrected, trace=self._trace)
            keep_times()
        return answer_of(
            found,
            self.ask,
            sources=self._estimator.sources,
            trace=self._trace,
            local=is_local(self.words.hardware),
        )
