"""`trimtab prompts`: what in recorded prompts keeps a prefix cache from reusing what is the same."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click
import msgspec

from trimtab.core.ports import EngineFormatError
from trimtab.diagnosis.roofline import floors_of, prefill_work
from trimtab.engines.openai import CHAT_PATH, COMPLETIONS_PATH, read_request
from trimtab.interfaces.common import FiniteRange
from trimtab.interfaces.prompts_view import print_lint
from trimtab.interfaces.request_lines import Line, read_lines, request_line
from trimtab.runtime.served_known import find_hardware, read_model
from trimtab.runtime.served_sources import SourceError
from trimtab.workloads.base import WorkloadError
from trimtab.workloads.prompt_bodies import comparable
from trimtab.workloads.prompt_lint import HitShare, PromptLint, lint
from trimtab.workloads.prompt_parts import (
    BYTES_PER_TOKEN,
    Prompt,
    hashed_part,
    text_parts,
)

FINDINGS: Final = 1
UNREADABLE: Final = 3
CANNOT_TELL: Final = 4
PREFILL_TOKENS: Final = 2048.0
"""The length of prompt at which a model on its hardware is asked for its prefill rate."""


class _UnreadableError(click.ClickException):
    exit_code = UNREADABLE


class _Segment(msgspec.Struct, frozen=True):
    """What a record says of one part of a prompt."""

    kind: str
    hash: str
    tokens: int


class _Record(msgspec.Struct, frozen=True):
    """What is needed of a request's record."""

    segments: tuple[_Segment, ...] = ()


@click.command()
@click.argument(
    "path", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False, exists=True)
)
@click.option(
    "--bytes-per-token",
    type=FiniteRange(0.1, 64.0),
    default=BYTES_PER_TOKEN,
    show_default=True,
    help="Turns text into tokens; prompts given as token ids are counted exactly.",
)
@click.option(
    "--prefill-tokens-per-s",
    type=FiniteRange(0.0, min_open=True),
    help="Measured prefill rate of the server: turns tokens into TTFT.",
)
@click.option(
    "--model",
    metavar="FILE|NAME",
    help="config.json, GGUF file or name: with --hardware the least TTFT, where no rate is given.",
)
@click.option(
    "--hardware",
    metavar="NAME",
    help='Accelerator, for example H100; "cpu" measures this machine.',
)
@click.option(
    "--hit-share",
    "hit_shares",
    metavar="WHO=SHARE",
    multiple=True,
    help="A hit share (0 to 1) that somebody states, for example proxy=0.95; engine=0 is trusted over others.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the whole result as JSON.")
def prompts(
    path: Path,
    bytes_per_token: float,
    prefill_tokens_per_s: float | None,
    model: str | None,
    hardware: str | None,
    hit_shares: tuple[str, ...],
    as_json: bool,
) -> None:
    """Say what in recorded prompts keeps a prefix cache from reusing what is the same, and the fix.

    FILE has one request a line, in order: OpenAI bodies (with an optional "session"; a system text beside the messages
    is read too), lines of an OpenAI batch file, or an exported ledger, whose records hold hashes only. Nothing is
    rewritten and no text of a prompt is printed.

    Exit code 0: nothing to fix; 1: findings or conflicts; 2: wrong usage; 3: a file that cannot be read; 4: cannot
    tell (no two requests to compare, or nothing found in prompts of which a part cannot be compared).
    """
    stated = tuple(_hit_share(text) for text in hit_shares)
    try:
        rate = prefill_tokens_per_s or _rate(model, hardware)
        result = lint(_read(path, bytes_per_token), prefill_tokens_per_s=rate, hit_shares=stated)
    except (WorkloadError, SourceError) as error:
        raise _UnreadableError(str(error)) from error
    if as_json:
        click.echo(msgspec.json.encode(result).decode())
    else:
        at_least = rate is not None and prefill_tokens_per_s is None
        print_lint(result, at_least=at_least)
    raise SystemExit(_code(result))


def _code(result: PromptLint) -> int:
    if result.findings or any(text.startswith("conflict") for text in result.warnings):
        return FINDINGS
    return 0 if result.compared and not result.left_out else CANNOT_TELL


def _hit_share(text: str) -> HitShare:
    who, _, share = text.partition("=")
    try:
        value = float(share)
    except ValueError:
        value = -1.0
    if not who or not 0.0 <= value <= 1.0:
        raise click.BadParameter(f"{text!r} is not of the form WHO=SHARE with a share from 0 to 1")
    return HitShare(source=who, share=value)


def _rate(model: str | None, hardware: str | None) -> float | None:
    """The prefill rate that a model's hardware allows at most, in tokens per second."""
    if model is None and hardware is None:
        return None
    if model is None or hardware is None:
        raise click.UsageError("--model and --hardware tell a rate only together")
    shape, device = read_model(model), find_hardware(hardware)
    work = prefill_work(shape, tokens=PREFILL_TOKENS)
    floor_ms = floors_of(work, device).floor_ms
    return None if not floor_ms else 1000.0 * PREFILL_TOKENS / floor_ms


def _read(path: Path, bytes_per_token: float) -> Iterator[Prompt]:
    """Read a file line by line; raises `WorkloadError` with file and line."""
    for number, line in read_lines(path):
        found = prompt_of_line(line, number, str(path), bytes_per_token)
        if found is not None:
            yield found


def prompt_of_line(line: bytes, number: int, file: str, bytes_per_token: float) -> Prompt | None:
    """Read one line; None for an empty one and for an event of a ledger that is no request."""
    read = request_line(line, number, file)
    if read is None:
        return None
    if read.is_record:
        return _recorded(read.record, number, read.where)
    session = read.named("session", "session_id")
    return _of_body(read.body, session, number, read.where, bytes_per_token)


def _of_body(body: Line, session: str, number: int, where: str, bytes_per_token: float) -> Prompt:
    if ("messages" in body) == ("prompt" in body):
        raise WorkloadError(f"{where}: a body needs exactly one of messages (chat) and prompt")
    kind = CHAT_PATH if "messages" in body else COMPLETIONS_PATH
    try:
        whole, left_out = comparable(body)
        facts = read_request(kind, msgspec.json.encode(whole))
        parts = text_parts(facts.segments, bytes_per_token=bytes_per_token)
    except (EngineFormatError, WorkloadError) as error:
        raise WorkloadError(f"{where}: {error}") from error
    return Prompt(line=number, session=session, parts=parts, left_out=left_out)


def _recorded(record: object, number: int, where: str) -> Prompt:
    try:
        known = msgspec.convert(record, _Record)
    except msgspec.ValidationError as error:
        raise WorkloadError(f"{where}: {error}; give a request's record") from error
    # The recorded session is told by how the prompt begins, which is the very thing in question.
    parts = tuple(hashed_part(each.kind, each.hash, each.tokens) for each in known.segments)
    return Prompt(line=number, session="", parts=parts)
