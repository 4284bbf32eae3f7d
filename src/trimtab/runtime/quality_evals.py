"""Evals on a live arm: items read from a file, answered through the path that serves users, judged by their checks."""

import gzip
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final, cast

import aiohttp

from trimtab.core.ports import LaunchError
from trimtab.quality.eval_checks import JudgeCheck, ProgramCheck, SchemaCheck, program_of
from trimtab.quality.eval_scores import (
    RUNS_DEFAULT,
    EvalAnswer,
    EvalOutcome,
    EvalSet,
    Harness,
)
from trimtab.quality.evals import (
    LINE_BYTES_MAX,
    EvalError,
    EvalItem,
    Item,
    PairItem,
    read_items,
    text_is_right,
)
from trimtab.runtime.asked_arm import ArmError
from trimtab.runtime.eval_judge import JudgeError, agrees
from trimtab.runtime.json_schemas import fits_schema, schema_fault
from trimtab.runtime.lm_eval import check_harness, harness_outcomes
from trimtab.runtime.quality_arm import QualityArm, Window
from trimtab.runtime.quality_texts import TextError
from trimtab.runtime.sandbox import ProgramEnd, check_sandbox, run_program
from trimtab.workloads.base import estimate_tokens

SEED: Final = 20
ESTIMATE_LEAST: Final = 0.6
"""Part of an estimate of tokens that a text has at least: single texts differ from it by up to a third."""
NO_HARNESS: Final = Harness()
PAIR_CONTEXT_TOKENS: Final = 1
"""A sentence is scored from its first token after what the model begins a text with."""


def read_evals(
    paths: Sequence[Path],
    *,
    items_max: int,
    runs: int = RUNS_DEFAULT,
    harness: Harness = NO_HARNESS,
) -> EvalSet:
    """Read eval files and draw at most `items_max` items by a fixed seed; raises `TextError`.

    A file whose name ends in `.gz` is read as compressed. `runs`: of each sampled item.
    """
    found: list[Item] = []
    for path in paths:
        try:
            with _opened(path) as file:
                found += read_items(_lines(file), name=path.name)
        except EvalError as error:
            raise TextError(str(error)) from error
        except EOFError as error:
            raise TextError(f"{path} cannot be read: it is cut off") from error
        except OSError as error:
            raise TextError(f"{path} cannot be read: {error.strerror or error}") from error
    seen: set[str] = set()
    for item in found:
        if item.id in seen:
            raise TextError(
                f"the eval item {item.id!r} comes twice in {', '.join(str(path) for path in paths)}: "
                "ids must differ, and so must the names of the files"
            )
        seen.add(item.id)
    chosen = found
    if len(found) > items_max:
        places = sorted(random.Random(SEED).sample(range(len(found)), items_max))
        chosen = [found[place] for place in places]
    return EvalSet(items=tuple(chosen), total=len(found), runs=runs, harness=harness)


def _opened(path: Path) -> BinaryIO:
    return cast(BinaryIO, gzip.open(path)) if path.suffix == ".gz" else path.open("rb")


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """Yield lines; one that is longer than may be read comes in parts, of which the first is refused."""
    while line := file.readline(LINE_BYTES_MAX + 1):
        yield line


async def answered(arm: QualityArm, evals: EvalSet) -> tuple[EvalOutcome, ...]:
    """Return what an arm makes of every item; raises `ArmError`, `SandboxError`.

    Sampled items are asked `evals.runs` times, with the same seeds for every arm; then lm-eval's tasks are run.
    """
    found: list[EvalOutcome] = []
    async with aiohttp.ClientSession() as session:
        for item in evals.items:
            try:
                answer = await _answer(arm, item, evals.runs_of(item), session)
            except JudgeError:
                raise
            except ArmError as error:
                raise ArmError(f"eval item {item.id}: {error}") from error
            found.append(EvalOutcome(item.id, item.kind, answer))
    return (*found, *await harness_outcomes(arm, evals.harness))


async def _answer(
    arm: QualityArm, item: Item, runs: int, session: aiohttp.ClientSession
) -> EvalAnswer:
    if isinstance(item, PairItem):
        good = await _loss(arm, item.good)
        return EvalAnswer((good < await _loss(arm, item.bad),))
    replies = [await arm.answer(item, seed=SEED + run) for run in range(runs)]
    right = tuple([await _is_right(reply.text, item, session) for reply in replies])
    return EvalAnswer(right, replies[0].input_tokens)


async def _is_right(answer: str, item: EvalItem, session: aiohttp.ClientSession) -> bool:
    if not text_is_right(answer, item, fits_schema):
        return False
    for check in item.checks:
        if isinstance(check, ProgramCheck):
            if await run_program(program_of(answer, check)) is not ProgramEnd.PASSED:
                return False
        elif isinstance(check, JudgeCheck) and not await agrees(session, check, item, answer):
            return False
    return True


async def _loss(arm: QualityArm, sentence: str) -> float:
    """Return -log p of a whole sentence, in nats."""
    tokens = await arm.tokens(sentence)
    window = Window(kind="pair", name="pair", tokens=tokens, first=PAIR_CONTEXT_TOKENS)
    return sum((await arm.score(window)).losses)


async def check_evals(evals: EvalSet, *, context_tokens: int | None = None) -> None:
    """Raise `LaunchError` where an item could not be judged here: before anything is started.

    `context_tokens`: of an arm. What is surely longer is refused; what only may be is asked.
    """
    check_schemas(evals)
    for item in evals.items if context_tokens is not None else ():
        if (tokens := _tokens_at_least(item)) > (context_tokens or 0):
            raise LaunchError(
                f"eval item {item.id}: its prompt has about {tokens:,} tokens or more and an arm takes "
                f"{context_tokens:,}: leave it out or shorten it"
            )
    if any(isinstance(item, EvalItem) and item.runs_program for item in evals.items):
        await check_sandbox()
    if evals.harness.tasks:
        check_harness()


def _tokens_at_least(item: Item) -> int:
    if isinstance(item, PairItem):
        texts = [max(item.good, item.bad, key=len)]
    else:
        texts = [item.prompt] if item.prompt is not None else [one.content for one in item.messages]
    return int(ESTIMATE_LEAST * sum(estimate_tokens(text) for text in texts))


def check_schemas(evals: EvalSet) -> None:
    """Raise `LaunchError` where a schema is none, or is to be checked and the package for it is missing."""
    checks = [
        (item.id, check.value)
        for item in evals.items
        if isinstance(item, EvalItem)
        for check in item.checks
        if isinstance(check, SchemaCheck)
    ]
    if not checks:
        return
    try:
        import jsonschema  # noqa: F401
    except ImportError as error:
        raise LaunchError(
            "json_schema checks need the jsonschema package: pip install 'trimtab[quantize]'"
        ) from error
    for name, schema in checks:
        if fault := schema_fault(schema):
            raise LaunchError(f"eval item {name}: its json_schema is none: {fault}")
