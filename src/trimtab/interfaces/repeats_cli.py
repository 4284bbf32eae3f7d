"""`trimtab repeats`: which part of recorded traffic repeats, before any speculation is switched on."""

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from trimtab.core.cuts import Dimension, temperature_bucket
from trimtab.core.ports import EngineFormatError, RequestFacts
from trimtab.core.types import Constraint
from trimtab.engines.openai import CHAT_PATH, COMPLETIONS_PATH, read_request
from trimtab.interfaces.repeats_view import print_repeats
from trimtab.interfaces.request_lines import RequestLine, read_lines, request_line
from trimtab.levers.speculation_repeats import (
    Asked,
    Lookup,
    Recorded,
    RepeatCounter,
    Repeats,
    Rule,
    Worth,
)
from trimtab.workloads.base import WorkloadError
from trimtab.workloads.foretold import Token, pieces
from trimtab.workloads.prompt_bodies import comparable

UNREADABLE: Final = 3
CANNOT_TELL: Final = 4
ANSWERS_SEEN_MAX: Final = 200_000
"""Answers of histories that are known by a hash, so that none counts twice."""

NOT_COMPARED: Final = "requests have prompts of which a part is no text and was not looked at"
ONLY_LENGTHS: Final = "requests are records of lengths: what their answers repeat is known only where drafts were made"
OTHER_KIND: Final = "requests have token ids on one side and text on the other: their answers are taken as not recorded"


class _UnreadableError(click.ClickException):
    exit_code = UNREADABLE


class _Tokens(msgspec.Struct, frozen=True):
    output: int | None = None


class _Drafting(msgspec.Struct, frozen=True):
    drafted: int | None = None
    accepted: int | None = None


class _Record(msgspec.Struct, frozen=True):
    """What is needed of a request's record."""

    tokens: _Tokens = _Tokens()
    drafting: _Drafting = _Drafting()
    label: str | None = None
    temperature: float | None = None
    constraint: Constraint = Constraint.FREE
    repetition: float | None = None
    looping: bool | None = None
    status: int = 200


@click.command()
@click.argument(
    "path", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False, exists=True)
)
@click.option(
    "--match-tokens",
    type=click.IntRange(1, 64),
    default=Lookup().match_tokens,
    show_default=True,
    help="Tokens that a drafter looks up in the text so far.",
)
@click.option(
    "--draft-tokens",
    type=click.IntRange(1, 64),
    default=Lookup().draft_tokens_max,
    show_default=True,
    help="Longest draft.",
)
@click.option(
    "--engine",
    type=click.Choice([each.value for each in Rule]),
    default=Rule.VLLM.value,
    show_default=True,
    help="By whose rule drafts are looked up.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the whole result as JSON.")
def repeats(path: Path, match_tokens: int, draft_tokens: int, engine: str, as_json: bool) -> None:
    """Say which part of recorded traffic repeats, so that n-gram drafts would hit it, before anything drafts.

    FILE has one request a line, as for `trimtab prompts`, with its answer: "output" (text) or "output_ids" beside the
    body, the engine's "response", or the assistant's turns in the history of a later request. An exported ledger holds
    lengths only. Nothing is printed but counts and shares.

    Exit code 0: told; 2: wrong usage; 3: a file that cannot be read; 4: cannot tell for any part of the traffic.
    """
    lookup = Lookup(rule=Rule(engine), match_tokens=match_tokens, draft_tokens_max=draft_tokens)
    reader = _Reader(lookup)
    try:
        for number, line in read_lines(path):
            found = request_line(line, number, str(path))
            if found is not None:
                reader.take(found)
    except WorkloadError as error:
        raise _UnreadableError(str(error)) from error
    result = reader.result()
    if as_json:
        click.echo(msgspec.json.encode(result).decode())
    else:
        print_repeats(result)
    told = any(group.worth is not Worth.CANNOT_TELL for group in result.groups)
    raise SystemExit(0 if told else CANNOT_TELL)


class _Reader:
    """Turns lines into requests and counts them."""

    def __init__(self, lookup: Lookup) -> None:
        self._counter = RepeatCounter(lookup)
        self._seen: set[bytes] = set()
        self._exact = True
        self._notes = {NOT_COMPARED: 0, ONLY_LENGTHS: 0, OTHER_KIND: 0}

    def take(self, line: RequestLine) -> None:
        """Take one line; raises `WorkloadError` with its place."""
        if line.is_record:
            self._take_record(line)
            return
        try:
            whole, left_out = comparable(line.body)
            chat = "messages" in whole
            if chat == ("prompt" in whole):
                raise WorkloadError("a body needs exactly one of messages (chat) and prompt")
            path = CHAT_PATH if chat else COMPLETIONS_PATH
            facts = read_request(path, msgspec.json.encode(whole))
            for asked in self._asked(facts, line):
                self._counter.take(asked)
        except (EngineFormatError, WorkloadError) as error:
            raise WorkloadError(f"{line.where}: {error}") from error
        self._notes[NOT_COMPARED] += bool(left_out)

    def _asked(self, facts: RequestFacts, line: RequestLine) -> Iterator[Asked]:
        """Yield the answers that the history tells for the first time, then the request itself."""
        groups = _groups(line.named("label"), facts.temperature, facts.constraint)
        prompt: list[Token] = []
        exact = bool(facts.segments)
        digest = hashlib.blake2b(digest_size=16)
        for kind, text in facts.segments:
            tokens = _tokens(kind, text)
            exact = exact and kind == "prompt_ids"
            digest.update(f"\x1e{kind}\x1f{text}".encode("utf-8", "surrogatepass"))
            if kind == "assistant" and tokens and self._is_new(digest.digest()):
                yield Asked(
                    prompt=tuple(prompt),
                    answer=tokens,
                    answer_text=text,
                    groups=groups,
                    told_later=True,
                )
            prompt += tokens
        answer, text = self._answer(line, exact=exact)
        self._exact = self._exact and exact
        if text:
            digest.update(f"\x1eassistant\x1f{text}".encode("utf-8", "surrogatepass"))
            self._is_new(digest.digest())
        yield Asked(prompt=prompt, answer=answer, answer_text=text, groups=groups)

    def _answer(self, line: RequestLine, *, exact: bool) -> tuple[list[Token] | None, str]:
        """Return the answer that a line tells in what its prompt is told in, and its text; None where it tells none.

        `exact`: the prompt is token ids. Ids and pieces of text never meet: such an answer would repeat nothing.
        """
        ids = line.outer.get("output_ids")
        # As many words as ids: a loop of ids looks like a loop of words.
        words = [str(each) for each in ids] if isinstance(ids, list) else []
        text = line.named("output") or _response_text(line.outer.get("response"))
        if exact and words:
            return [*words], " ".join(words)
        if text and not exact:
            return [*pieces(text)], text
        self._notes[OTHER_KIND] += bool(words or text)
        return None, ""

    def _is_new(self, answer: bytes) -> bool:
        if answer in self._seen or len(self._seen) >= ANSWERS_SEEN_MAX:
            return False
        self._seen.add(answer)
        return True

    def _take_record(self, line: RequestLine) -> None:
        try:
            known = msgspec.convert(line.record, _Record)
        except msgspec.ValidationError as error:
            raise WorkloadError(f"{line.where}: {error}; give a request's record") from error
        if known.status != 200 or known.looping or not known.tokens.output:
            return
        self._notes[ONLY_LENGTHS] += 1
        self._counter.take_recorded(
            Recorded(
                output_tokens=known.tokens.output,
                repetition=known.repetition,
                drafted=known.drafting.drafted,
                accepted=known.drafting.accepted,
                groups=_groups(known.label or "", known.temperature, known.constraint),
            )
        )

    def result(self) -> Repeats:
        """Return what was found."""
        return self._counter.result(exact=self._exact, notes=self._notes)


def _groups(label: str, temperature: float | None, constraint: Constraint) -> tuple[str, ...]:
    named: Mapping[Dimension, str | None] = {
        Dimension.LABEL: label or None,
        Dimension.TEMPERATURE: temperature_bucket(temperature),
        Dimension.CONSTRAINT: constraint.value,
    }
    return tuple(f"{each.value}={value}" for each, value in named.items() if value is not None)


def _tokens(kind: str, text: str) -> list[Token]:
    return [*text.split()] if kind == "prompt_ids" else [*pieces(text)]


def _response_text(response: object) -> str:
    """Return the text of an engine's whole response, itself or as a batch file has it."""
    found: Any = response
    if isinstance(found, str):
        return found
    if isinstance(found, dict) and isinstance(found.get("body"), dict):
        found = found["body"]
    choices = found.get("choices") if isinstance(found, dict) else None
    first = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(first, dict):
        return ""
    message = first.get("message")
    text = message.get("content") if isinstance(message, dict) else first.get("text")
    return text if isinstance(text, str) else ""
