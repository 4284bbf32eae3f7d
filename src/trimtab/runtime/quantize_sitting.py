"""What a walk has measured so far, kept beside its report, so that one that was interrupted goes on where it was.

Every rung is measured beside the original, so rungs of several sittings stand in one table. What must be equal is all
that a row depends on: the model's file, engine, machine, texts, evals, and how carefully was measured.
"""

import hashlib
from typing import Final

import msgspec

from trimtab.core.ports import LaunchError
from trimtab.core.types import Verdict
from trimtab.quality.eval_scores import EvalOutcome
from trimtab.quality.ladder import RungResult
from trimtab.quality.loss import TextScore
from trimtab.quality.sensitivity import Sensitivity
from trimtab.runtime.model_copy import write_parts
from trimtab.runtime.quality_pair import Writing
from trimtab.runtime.quantize_ask import QuantizeAsk

NAME: Final = "walk.json"
VERSION: Final = 2
"""Raised when rows of an earlier version mean something else."""


class Base(msgspec.Struct, frozen=True, kw_only=True):
    """What the original scored, wrote and answered; `own`: what it wrote, scored by itself."""

    scores: tuple[TextScore, ...]
    writings: tuple[Writing, ...]
    own: tuple[TextScore, ...]
    items: tuple[EvalOutcome, ...]


class Sitting(msgspec.Struct, frozen=True, kw_only=True):
    """Rungs measured so far, by label. `taken_over`: how many of them an earlier sitting measured."""

    fingerprint: str
    base: Base | None = None
    sensitivity: Sensitivity | None = None
    results: dict[str, RungResult] = {}
    taken_over: int = 0


def fingerprint_of(ask: QuantizeAsk, *, engine: str, machine: str, sha256: str) -> str:
    """Return a hash of everything that a row depends on."""
    parts = (
        *(VERSION, engine, machine, sha256, ask.texts, ask.evals, ask.ignore, ask.positions),
        *(ask.rounds, ask.concurrencies, ask.margin_nats, ask.free_prompts, ask.eval_margin),
        ask.sensitivity,
    )
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()


def begun(ask: QuantizeAsk, fingerprint: str) -> Sitting:
    """Return what an earlier sitting left, if it is to be resumed, but for rungs that could not be judged.

    Raises `LaunchError` where it cannot be resumed.
    """
    path = ask.folder / NAME
    if not ask.resume:
        return Sitting(fingerprint=fingerprint)
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Sitting)
    except FileNotFoundError as error:
        raise LaunchError(
            f"there is nothing to resume in {ask.folder}: no walk into it was interrupted; leave out --resume"
        ) from error
    except OSError as error:
        raise LaunchError(f"{path} cannot be read: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise LaunchError(
            f"{path} is damaged ({error}): remove it and leave out --resume"
        ) from error
    if found.fingerprint != fingerprint:
        raise LaunchError(
            f"the walk in {path} was another: the model, the engine, the machine, the texts, the evals or how "
            "carefully was measured differ; ask as it was asked, or leave out --resume"
        )
    # What could not be judged then may be now: its cause can have been the machine of that hour.
    results = {
        label: one for label, one in found.results.items() if one.verdict is not Verdict.ERROR
    }
    return msgspec.structs.replace(found, results=results, taken_over=len(results))


def kept(ask: QuantizeAsk, sitting: Sitting) -> None:
    """Write what was measured so far; raises `LaunchError`."""
    path = ask.folder / NAME
    try:
        write_parts(path, [msgspec.json.encode(sitting)])
    except OSError as error:
        raise LaunchError(f"{path} cannot be written: {error.strerror}") from error


def ended(ask: QuantizeAsk) -> None:
    """Remove what is needed no longer: the walk is over."""
    (ask.folder / NAME).unlink(missing_ok=True)


def words_of(sitting: Sitting) -> tuple[str, ...]:
    """Say that rows come of several sittings, if they do."""
    if not sitting.taken_over:
        return ()
    return (
        f"the walk was interrupted: {sitting.taken_over} of {len(sitting.results)} rungs were measured in an earlier "
        "sitting, each beside the original",
    )
