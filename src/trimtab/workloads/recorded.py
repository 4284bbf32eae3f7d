"""Requests as a fleet served them, one a line of JSON: when, how long, which prompts share a beginning, which times.

No text and no hash is in such a file. What a prompt shares is told by reference: `like` is the number of an earlier
request, counted from 0, and `shared_tokens` the tokens that this prompt begins with as that request's prompt and answer
do. The reference that shares most is enough: by it every request is a path in one tree, and two share as many tokens as
their paths do.

Fields: at_s (seconds from any origin, in order), input_tokens, output_tokens, like, shared_tokens, session, label,
replica, cached_tokens (prompt tokens that were reused), first_token_s, last_token_s. The times are of the origin of
at_s. A trace needs the first three; what is measured needs the times too.
"""

from collections.abc import Iterable
from typing import Annotated

import msgspec
from msgspec import Meta

from trimtab.workloads.base import WorkloadError
from trimtab.workloads.trace_files import decode_line, numbered
from trimtab.workloads.traces import TraceRecord

RECORDED_BLOCK_TOKENS = 1
"""What is shared is told to the token."""


class Recorded(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of the file."""

    at_s: Annotated[float, Meta(ge=0)]
    input_tokens: Annotated[int, Meta(ge=1)]
    output_tokens: Annotated[int, Meta(ge=1)]
    like: Annotated[int, Meta(ge=0)] | None = None
    shared_tokens: Annotated[int, Meta(ge=0)] = 0
    session: str = ""
    label: str = ""
    replica: str = ""
    cached_tokens: Annotated[int, Meta(ge=0)] | None = None
    first_token_s: float | None = None
    last_token_s: float | None = None


def read_recorded(lines: Iterable[str], *, file: str) -> list[Recorded]:
    """Read a file of recorded requests; raises `WorkloadError` that names line and field."""
    decoder = msgspec.json.Decoder(Recorded)
    found: list[Recorded] = []
    for line, text in numbered(lines):
        one = decode_line(decoder, text, file, line)
        problem = _problem(one, found)
        if problem is not None:
            raise WorkloadError(f"{file}, line {line}, {problem}")
        found.append(one)
    if not found:
        raise WorkloadError(f"{file}: no request in it; give a file with at least one")
    return found


def _problem(one: Recorded, before: list[Recorded]) -> str | None:
    if before and one.at_s < before[-1].at_s:
        return f"at_s: {one.at_s:g} comes after {before[-1].at_s:g}; sort the lines by time"
    if one.like is not None and one.like >= len(before):
        return f"like: {one.like} is no earlier request; they are counted from 0"
    other = None if one.like is None else before[one.like]
    most = 0 if other is None else min(one.input_tokens, other.input_tokens + other.output_tokens)
    if one.shared_tokens > most:
        return f"shared_tokens: {one.shared_tokens} is more than the {most} that both have"
    if (one.cached_tokens or 0) > one.input_tokens:
        return f"cached_tokens: {one.cached_tokens} is more than input_tokens {one.input_tokens}"
    if one.first_token_s is not None and one.first_token_s < one.at_s:
        return f"first_token_s: {one.first_token_s:g} is before at_s {one.at_s:g}"
    if one.last_token_s is not None and one.last_token_s < (one.first_token_s or one.at_s):
        return f"last_token_s: {one.last_token_s:g} is before the first token"
    return None


def recorded_records(lines: Iterable[str], *, file: str) -> list[TraceRecord]:
    """Read such a file as a trace whose blocks are single tokens; raises `WorkloadError`."""
    return records_of(read_recorded(lines, file=file))


def records_of(recorded: Iterable[Recorded]) -> list[TraceRecord]:
    """Return recorded requests, in order of time, as those of a trace whose blocks are single tokens."""
    made: list[TraceRecord] = []
    fresh = 0
    for number, one in enumerate(recorded):
        shared: tuple[tuple[int, int], ...] = ()
        if one.like is not None:
            other = made[one.like]
            shared = _head((*other.runs, *other.answer_runs), one.shared_tokens)
        own = one.input_tokens - one.shared_tokens
        made.append(
            TraceRecord(
                line=number + 1,
                at_s=one.at_s,
                session=one.session or f"line-{number + 1}",
                input_tokens=one.input_tokens,
                output_tokens=one.output_tokens,
                scope="",
                runs=(*shared, (fresh, own)) if own else shared,
                label=one.label,
                answer_runs=((fresh + own, one.output_tokens),),
            )
        )
        fresh += own + one.output_tokens
    return made


def _head(runs: tuple[tuple[int, int], ...], count: int) -> tuple[tuple[int, int], ...]:
    """Return the first `count` blocks of runs."""
    kept: list[tuple[int, int]] = []
    for first, length in runs:
        taken = min(length, count)
        if taken:
            kept.append((first, taken))
        count -= taken
    return tuple(kept)
