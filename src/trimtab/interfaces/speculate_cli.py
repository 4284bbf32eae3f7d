"""`trimtab speculate`: where drafting pays for a model on this machine and its traffic, how deep, up to which batch."""

from pathlib import Path
from typing import Any

import click
import msgspec

from trimtab.core.config import Config
from trimtab.interfaces.common import FiniteRange, friendly, read_config
from trimtab.interfaces.speculate_html import page
from trimtab.interfaces.speculate_lever import lever_record
from trimtab.interfaces.speculate_view import show
from trimtab.interfaces.trial import (
    LEVER_NAME,
    PAGE_NAME,
    STAYS,
    propose_command,
    reported,
    told,
    tried,
)
from trimtab.runtime.sources import standard_library
from trimtab.runtime.speculate import Speculator, check_given
from trimtab.runtime.speculate_ask import BATCHES, DEPTHS, TEMPERATURES, SpeculateAsk
from trimtab.workloads.base import WorkloadError
from trimtab.workloads.draft_samples import DraftSample, read_samples, standard_samples

JSON_NAME = "speculated.json"


class _Numbers(click.ParamType[tuple[float, ...]]):
    """Numbers with commas between them, each within bounds and none twice."""

    name = "N,N,..."

    def __init__(self, low: float, high: float, *, whole: bool) -> None:
        self._low, self._high, self._whole = low, high, whole

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[float, ...]:
        if isinstance(value, tuple):
            return value
        try:
            kind = int if self._whole else float
            found = tuple(sorted({kind(part) for part in str(value).split(",")}))
        except ValueError:
            self.fail(f"{value!r} is no list such as 1,2,4", param, ctx)
        if not all(self._low <= each <= self._high for each in found):
            self.fail(f"each must lie within {self._low:g} and {self._high:g}", param, ctx)
        return found


@click.command("speculate")
@click.argument("model", required=False, default="")
@click.option(
    "--requests",
    "requests_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help='Requests of yours: OpenAI bodies, one a line, each with an optional "label". Default: made edits, '
    "questions, chats and answers bound to a schema.",
)
@click.option(
    "--samples",
    type=click.IntRange(2, 64),
    default=8,
    show_default=True,
    help="Made edits, and half as many of each other kind; of your requests at most four times as many.",
)
@click.option(
    "--batch",
    type=click.IntRange(1, 256),
    default=1,
    show_default=True,
    help="Streams that a replica of yours decodes at once (trimtab diagnose): the depth is chosen for it.",
)
@click.option(
    "--batches",
    type=_Numbers(1, 256, whole=True),
    default=BATCHES,
    help="Batches to measure; that of --batch is always among them, and a larger one.  [default: 1,2,4,8,16,32]",
)
@click.option(
    "--depths",
    type=_Numbers(2, 64, whole=True),
    default=DEPTHS,
    help="Lengths of drafts to measure; none at all is always among them.  [default: 4,8,16]",
)
@click.option(
    "--temperatures",
    type=_Numbers(0.0, 2.0, whole=False),
    default=TEMPERATURES,
    help="Sampling temperatures; 0 is always among them.  [default: 0,0.7,1]",
)
@click.option(
    "--rounds",
    type=click.IntRange(2, 100),
    default=3,
    show_default=True,
    help="Rounds of every measurement; more of them narrow the intervals, and only what these show is recommended.",
)
@click.option(
    "--loop-s",
    type=FiniteRange(0.2, 600.0),
    default=3.0,
    show_default=True,
    help="Seconds of one closed loop; a tenth more for each stream.",
)
@click.option(
    "--config",
    "config_path",
    type=click.Path(path_type=Path, dir_okay=False),
    help="TOML configuration: its engine is measured, but for slots and context.",
)
@click.option(
    "--report",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("out"),
    show_default=True,
    help=f"Folder for {PAGE_NAME}, {JSON_NAME} and {LEVER_NAME}.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@friendly
def speculate_command(report: Path, as_json: bool, **asked: Any) -> None:
    """Find where drafting (n-gram speculation) pays for MODEL (a GGUF file; default: the packaged one) on this machine.

    Answers are recorded without drafts, and what every depth would have drafted over them is counted. What a step costs
    by batch and depth is measured apart; both together predict every depth at every batch, and then each is measured
    beside no drafts at all. Of the depths whose gain the rounds show, the shallowest that no other is shown to beat is
    taken; where none is shown, nothing is drafted. Requests that gain nothing, and answers bound to a schema that would
    not stay valid, are left out. The answer is written as a lever record to propose.

    \b
    Examples:
      trimtab speculate --report out/
      trimtab speculate --requests requests.jsonl --batch 4
      trimtab rollout propose out/lever.toml --dry-run

    Exit codes: 0 it pays, 1 an error, 2 usage, 4 it stays off.
    """
    ask = _ask_of(**asked)
    headline = ("speculate", "answers, steps, every depth at every batch", _expected_s(ask))
    found = tried(headline, lambda clock, seen: Speculator(ask, clock, seen.progress).run())
    found = reported(found, lever_record(found), report, json_name=JSON_NAME, page=page)
    then = (f"{report / PAGE_NAME}: the same with pictures", *propose_command(found))
    told(found, as_json=as_json, show=show, then=then)
    if not found.pays:
        raise SystemExit(STAYS)


def _ask_of(
    *,
    model: str,
    requests_file: Path | None,
    samples: int,
    batch: int,
    batches: tuple[int, ...],
    depths: tuple[int, ...],
    temperatures: tuple[float, ...],
    rounds: int,
    loop_s: float,
    config_path: Path | None,
) -> SpeculateAsk:
    """Read the files that the options name; raises `ConfigError`, `LaunchError`, `WorkloadError`, `SourcesError`."""
    config = read_config(config_path) if config_path else Config()
    engine = config.engine
    if model:
        engine = msgspec.structs.replace(engine, model=model)
    check_given(engine.model)
    return SpeculateAsk(
        engine=engine,
        samples=_samples(requests_file, samples),
        batch=batch,
        depths=depths,
        batches=batches,
        temperatures=tuple(sorted({0.0, *temperatures})),
        rounds=rounds,
        loop_s=loop_s,
    )


def _samples(file: Path | None, samples: int) -> tuple[DraftSample, ...]:
    if file is None:
        return standard_samples(standard_library(), each=samples, seed=1)
    try:
        with file.open(encoding="utf-8") as lines:
            return read_samples(lines, file=file.name, most=4 * samples)
    except (OSError, UnicodeDecodeError) as error:
        raise WorkloadError(f"{file} cannot be read: {error}") from error


def _expected_s(ask: SpeculateAsk) -> float:
    """Say about how long it takes: the loops' own time, and about as much for all else."""
    loops = ask.rounds * sum(ask.loop_s + 0.1 * batch for batch in ask.measured_batches)
    return 2.0 * loops * (1 + len(ask.depths))
