"""`trimtab quantize`: the ladder of precisions of a model, measured on live arms, and the rung to take."""

from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import click
import msgspec

from trimtab.engines.kv_types import BY_ENGINE
from trimtab.engines.vllm_checks import GARBAGE_KV_TYPES
from trimtab.interfaces.common import friendly
from trimtab.interfaces.files import write_whole
from trimtab.interfaces.quantize_html import page
from trimtab.interfaces.quantize_lever import floor_words, lever_record, scores, start_command
from trimtab.interfaces.quantize_view import plan_words, show
from trimtab.interfaces.trial import (
    LEVER_NAME,
    PAGE_NAME,
    STAYS,
    propose_command,
    reported,
    told,
    tried,
)
from trimtab.interfaces.tune_console import TuneConsole
from trimtab.quality.eval_scores import RUNS_DEFAULT, Harness
from trimtab.quality.ladder import ORIGINAL_KV, ORIGINAL_KV_VLLM
from trimtab.quality.quantized import Plan, Quantized
from trimtab.runtime.clock import SystemClock
from trimtab.runtime.quality_evals import read_evals
from trimtab.runtime.quality_texts import named_texts, standard_texts
from trimtab.runtime.quantize_ask import QuantizeAsk, WalkEngine
from trimtab.runtime.quantize_walk import quantize

TEXTS_EACH = 4
JSON_NAME, SCORES_NAME = "quantized.json", "scores.jsonl"


KV_TYPES = {
    WalkEngine.LLAMACPP: BY_ENGINE[WalkEngine.LLAMACPP],
    # A version may have mended what is known as garbage: the walk measures it if asked to, and refuses it.
    WalkEngine.VLLM: (*BY_ENGINE[WalkEngine.VLLM], *sorted(GARBAGE_KV_TYPES)),
}
ORIGINALS = {WalkEngine.LLAMACPP: ORIGINAL_KV, WalkEngine.VLLM: ORIGINAL_KV_VLLM}
UNASKED = {WalkEngine.LLAMACPP: "q8_0", WalkEngine.VLLM: "fp8"}
"""What is measured beside the original's where `--kv` is not given."""


class _NamedText(click.ParamType[tuple[str, Path]]):
    name = "KIND=FILE"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, Path]:
        kind, found, path = str(value).partition("=")
        if not found or not kind or not path:
            self.fail(f"{value!r} is not KIND=FILE, such as legal=contracts.txt", param, ctx)
        return kind, Path(path)


@click.command("quantize")
@click.argument("model", required=False, default="")
@click.option(
    "--engine",
    # By their values: of members click takes the names.
    type=click.Choice([each.value for each in WalkEngine]),
    default=WalkEngine.LLAMACPP.value,
    show_default=True,
    help="Whose ladder: llamacpp walks a GGUF file, vllm a folder with config.json and safetensors, which SGLang "
    "serves too.",
)
@click.option(
    "--ignore",
    multiple=True,
    help="vllm: a module that stays high, by its name or `re:` and a pattern; one that matches none is an error.",
)
@click.option(
    "--text",
    "texts",
    multiple=True,
    type=_NamedText(),
    help="Text to judge by and the kind of traffic it stands for; may be repeated. Default: code and prose of Python.",
)
@click.option(
    "--positions",
    type=click.IntRange(64, 100_000),
    default=512,
    show_default=True,
    help="Scored token positions of each kind of text.",
)
@click.option(
    "--margin",
    type=click.FloatRange(0.0, 10.0, min_open=True),
    default=0.02,
    show_default=True,
    help="Nats a token that a rung may be worse by; 0.02 is 2% of perplexity.",
)
@click.option(
    "--quality",
    "evals",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Evals as JSONL: prompts with checks, or HumanEval, MBPP, GSM8K, BLiMP as published; each kind must pass.",
)
@click.option(
    "--lm-eval",
    "tasks",
    multiple=True,
    help="Task that lm-eval runs against every arm's endpoint (the command lm_eval on PATH); may be repeated.",
)
@click.option(
    "--lm-eval-include",
    "include",
    type=click.Path(exists=True, file_okay=False),
    default=None,
    help="Folder with task files of lm-eval.",
)
@click.option(
    "--eval-margin",
    type=click.FloatRange(0.0, 1.0, min_open=True),
    default=0.02,
    show_default=True,
    help="Share of items that a rung may get wrong more than the original.",
)
@click.option(
    "--eval-items",
    type=click.IntRange(8, 100_000),
    default=1000,
    show_default=True,
    help="Most items that are asked, drawn by a fixed seed; of a task of lm-eval the first.",
)
@click.option(
    "--eval-runs",
    type=click.IntRange(2, 32),
    default=RUNS_DEFAULT,
    show_default=True,
    help="Seeded runs of sampled items by every arm; the original's tell the noise floor.",
)
@click.option(
    "--rounds",
    type=click.IntRange(2, 100),
    default=4,
    show_default=True,
    help="Rounds of speed, original and rung in turn; more of them tell smaller differences.",
)
@click.option(
    "--kv",
    "kv_types",
    multiple=True,
    type=click.Choice([*dict.fromkeys(kv for kinds in KV_TYPES.values() for kv in kinds)]),
    help="KV precisions to measure; the original's is always among them. Default: q8_0 of llamacpp, fp8 of vllm.",
)
@click.option(
    "--kv-binds",
    is_flag=True,
    help="KV capacity or its transfer binds (trimtab diagnose says so): only then is a KV precision recommended.",
)
@click.option("--rung", "only", multiple=True, help="Only rungs of this name; may be repeated.")
@click.option("--no-sensitivity", is_flag=True, help="Take the usual order of layers unmeasured.")
@click.option(
    "--no-confirm", is_flag=True, help="Leave out the second full run of the chosen rung."
)
@click.option(
    "--resume",
    is_flag=True,
    help="Go on with a walk into the same folder that was interrupted: what it has measured is taken over.",
)
@click.option(
    "--report",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("out"),
    show_default=True,
    help=f"Folder for {PAGE_NAME}, {JSON_NAME}, {LEVER_NAME} and the chosen file.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@friendly
def quantize_command(report: Path, as_json: bool, **asked: Any) -> None:
    """Find the precision of MODEL that costs no quality beyond noise.

    MODEL is a GGUF file, or a folder for vLLM; without one it is the packaged model. The ladder is walked from the
    original down, one stage at a time. Every rung runs beside the original on this machine: both are scored on the same
    texts through the path that serves users, and their speed is measured in turns. The answer is the rung of lowest
    latency and cost whose difference in quality lies within the margin; it is measured once more, and written as a
    lever record to propose.

    \b
    Examples:
      trimtab quantize --report out/
      trimtab quantize model-f16.gguf --text code=samples.py --text letters=mail.txt --positions 2048
      trimtab quantize --engine vllm --kv fp8 --report out/
      trimtab rollout propose out/lever.toml --dry-run

    Exit codes: 0 a rung is better, 1 an error, 2 usage, 4 the original stays.
    """
    ask = _ask_of(report, **asked)
    headline = ("quantize", "the original, then one rung after the other", 1200.0)
    found = tried(headline, lambda clock, seen: _walked(ask, clock, seen))
    _write_scores(found, report)
    found = reported(found, lever_record(found), report, json_name=JSON_NAME, page=page)
    told(found, as_json=as_json, show=show, then=tuple(_then(found, report)))
    if found.artifact is None:
        raise SystemExit(STAYS)


def _ask_of(
    report: Path,
    *,
    model: str,
    engine: str,
    ignore: tuple[str, ...],
    texts: tuple[tuple[str, Path], ...],
    positions: int,
    margin: float,
    evals: tuple[Path, ...],
    tasks: tuple[str, ...],
    include: str | None,
    eval_margin: float,
    eval_items: int,
    eval_runs: int,
    rounds: int,
    kv_types: tuple[str, ...],
    kv_binds: bool,
    only: tuple[str, ...],
    no_sensitivity: bool,
    no_confirm: bool,
    resume: bool,
) -> QuantizeAsk:
    """Read the files that the options name; raises `TextError`, and `UsageError` for what the engine does not have."""
    kind = WalkEngine(engine)
    known = KV_TYPES[kind]
    if unknown := [kv for kv in kv_types if kv not in known]:
        raise click.UsageError(f"{kind} has no KV type {unknown[0]}: {', '.join(known)}")
    if ignore and kind is not WalkEngine.VLLM:
        raise click.UsageError("--ignore is of checkpoints for vllm: give --engine vllm")
    return QuantizeAsk(
        model=model,
        engine=kind,
        ignore=ignore,
        folder=report,
        texts=named_texts(texts) if texts else standard_texts(TEXTS_EACH),
        positions=positions,
        kv_types=tuple(dict.fromkeys((ORIGINALS[kind], *(kv_types or (UNASKED[kind],))))),
        rounds=rounds,
        evals=read_evals(
            evals,
            items_max=eval_items,
            runs=eval_runs,
            harness=Harness(tasks=tasks, include=include or "", items_max=eval_items),
        ),
        eval_margin=eval_margin,
        margin_nats=margin,
        kv_binds=kv_binds,
        only=only,
        sensitivity=not no_sensitivity,
        confirm=not no_confirm,
        resume=resume,
    )


def _walked(
    ask: QuantizeAsk, clock: SystemClock, seen: TuneConsole
) -> Coroutine[Any, Any, Quantized]:
    def plan_told(plan: Plan) -> None:
        for line in plan_words(plan):
            seen.say(line)

    ask = msgspec.structs.replace(ask, on_plan=plan_told)
    return quantize(ask, clock, lambda words, part: seen.progress(part, words))


def _write_scores(found: Quantized, report: Path) -> None:
    # What an earlier walk wrote would pass for this one's.
    (report / SCORES_NAME).unlink(missing_ok=True)
    if (lines := scores(found)) is not None:
        write_whole(report / SCORES_NAME, lines)


def _then(found: Quantized, report: Path) -> Iterator[str]:
    """Yield where more is, and what to do with the chosen rung."""
    yield f"{report / PAGE_NAME}: the same with pictures and every gate"
    if command := start_command(found):
        yield command
    yield from propose_command(found)
    if found.lever_record and found.items:
        yield f"trimtab rollout score NAME {report / SCORES_NAME}{floor_words(found)}"
