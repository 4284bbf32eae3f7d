"""Requests to judge drafting by: edits of real code, questions about it, free chat, and answers bound to a schema.

An edit repeats most of what stands in the prompt, and what it should be is known; the others do not. Answers are left
to end by themselves.
"""

import random
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from trimtab.workloads.base import (
    Message,
    PlannedRequest,
    WorkloadError,
    estimate_prompt_tokens,
    estimate_tokens,
)
from trimtab.workloads.chat import ChatParams, chat
from trimtab.workloads.coding import CodingParams, coding
from trimtab.workloads.texts import CHAT_SUBJECTS, CHAT_SYSTEM
from trimtab.workloads.trace_files import decode_line, numbered

EDIT_TOKENS_MAX: Final = 128
EDIT_BLOCK_TOKENS: Final = 110
FREE_TOKENS_MAX: Final = 48
SCHEMA_TOKENS_MAX: Final = 96
OWN_TOKENS_MAX: Final = 128
REPOSITORIES: Final = 4
SCHEMA_LABEL: Final = "record"
UNLABELLED: Final = "all"

RECORD_SCHEMA: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {
        "subject": {"type": "string", "maxLength": 40},
        "kind": {"enum": ["thing", "place", "activity", "art", "other"]},
        "facts": {
            "type": "array",
            "items": {"type": "string", "maxLength": 60},
            "minItems": 2,
            "maxItems": 2,
        },
        "for_beginners": {"type": "boolean"},
    },
    "required": ["subject", "kind", "facts", "for_beginners"],
    "additionalProperties": False,
}


class DraftSample(msgspec.Struct, frozen=True, kw_only=True):
    """One request: `messages` of a chat, or else `prompt`. `schema`: of its answer; `expected`: the answer's text."""

    label: str
    messages: tuple[Any, ...] = ()
    prompt: str = ""
    tokens_max: int
    schema: Any = None
    expected: str | None = None


def standard_samples(
    sources: Mapping[str, str], *, each: int, seed: int
) -> tuple[DraftSample, ...]:
    """Make `each` edits, and half as many questions, chats and records; raises `WorkloadError`.

    Records: of as many subjects as there are at most.
    """
    some = max(2, each // 2)
    edits = coding(_coding(each, edits=True, seed=seed), sources, random.Random(seed))
    questions = coding(
        _coding(some, edits=False, seed=seed), sources, random.Random(f"questions {seed}")
    )
    chats = chat(
        ChatParams(
            users=some, requests=some, turns_per_session=1, output_tokens_max=FREE_TOKENS_MAX
        ),
        random.Random(f"chats {seed}"),
    )
    subjects = random.Random(f"records {seed}").sample(CHAT_SUBJECTS, min(some, len(CHAT_SUBJECTS)))
    return (
        *(_sample(one) for one in edits.requests),
        *(_sample(one) for one in questions.requests),
        *(_sample(one) for one in chats.requests),
        *(_record(subject) for subject in subjects),
    )


def _coding(count: int, *, edits: bool, seed: int) -> CodingParams:
    return CodingParams(
        users=count,
        repositories=REPOSITORIES,
        turns_per_session=1,
        requests=count,
        block_tokens_max=EDIT_BLOCK_TOKENS,
        repository_tokens=EDIT_BLOCK_TOKENS * 2,
        edit_share=float(edits),
        edit_output_tokens_max=EDIT_TOKENS_MAX,
        question_output_tokens_max=FREE_TOKENS_MAX,
        seed=seed,
    )


class _Body(msgspec.Struct):
    messages: list[Message]
    max_tokens: int


def _sample(one: PlannedRequest) -> DraftSample:
    body = msgspec.json.decode(one.body, type=_Body)
    return DraftSample(
        label=one.label,
        messages=tuple(msgspec.to_builtins(body.messages)),
        tokens_max=body.max_tokens,
        expected=one.expected_text,
    )


def _record(subject: str) -> DraftSample:
    ask = f"Fill in a record about {subject}, as JSON: subject, kind, two facts, for_beginners."
    return DraftSample(
        label=SCHEMA_LABEL,
        messages=(
            {"role": "system", "content": CHAT_SYSTEM},
            {"role": "user", "content": ask},
        ),
        tokens_max=SCHEMA_TOKENS_MAX,
        schema=RECORD_SCHEMA,
    )


class _Shape(msgspec.Struct):
    schema: Any = None


class _Format(msgspec.Struct):
    type: str = "text"
    json_schema: _Shape | None = None


class _Line(msgspec.Struct):
    """What is read of a line; the rest of a body does not matter here."""

    messages: tuple[dict[str, Any], ...] = ()
    prompt: str = ""
    label: str = UNLABELLED
    max_tokens: Annotated[int, Meta(ge=2, le=4096)] | None = None
    max_completion_tokens: Annotated[int, Meta(ge=2, le=4096)] | None = None
    response_format: _Format | None = None


def read_samples(lines: Iterable[str], *, file: str, most: int) -> tuple[DraftSample, ...]:
    """Read OpenAI bodies, one a line, each with an optional "label"; of more than `most` evenly spread ones.

    Raises `WorkloadError` that names the line.
    """
    decoder = msgspec.json.Decoder(_Line)
    found: list[DraftSample] = []
    for number, text in numbered(lines):
        line = decode_line(decoder, text, file, number)
        if not line.messages and not line.prompt:
            raise WorkloadError(f"{file}, line {number}: neither messages nor prompt")
        found.append(_of_line(line))
    if not found:
        raise WorkloadError(f"{file}: no request in it; give a file with at least one")
    step = max(1.0, len(found) / most)
    return tuple(found[int(at * step)] for at in range(min(most, len(found))))


def _of_line(line: _Line) -> DraftSample:
    shape = line.response_format.json_schema if line.response_format else None
    return DraftSample(
        label=line.label,
        messages=line.messages,
        prompt=line.prompt,
        tokens_max=line.max_tokens or line.max_completion_tokens or OWN_TOKENS_MAX,
        schema=None if shape is None else shape.schema,
    )


def sample_tokens(sample: DraftSample) -> int:
    """Estimate the tokens of a sample's prompt, the model's template included."""
    if sample.prompt:
        return estimate_tokens(sample.prompt)
    return estimate_prompt_tokens(
        [Message("user", _text_of(each.get("content"))) for each in sample.messages]
    )


def _text_of(content: object) -> str:
    """Return the text of a message's content, which may come in parts."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "".join(str(part.get("text", "")) for part in parts if isinstance(part, dict))
