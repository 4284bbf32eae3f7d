"""Recorded requests out of the lines of a trace: times, lengths and block ids, nothing scaled and no text made.

A reader is handed the lines and the file's name, never a path. A line that cannot be read is an error that names file,
line, field and fix; nothing is skipped silently except blank lines. Lines out of order of time are refused: sorting
them would hide a damaged or wrongly joined file.

With `horizon_s`, seconds after the first request, what comes later is neither read nor checked, so that the beginning
of a trace costs no more than it is long.
"""

import math
import random
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import Meta

from trimtab.workloads.base import WorkloadError
from trimtab.workloads.traces import TraceRecord, to_runs

MOONCAKE_BLOCK_TOKENS: Final = 512
# The trace names no blocks; its prompts are written in pieces of this size.
AZURE_BLOCK_TOKENS: Final = 512
_AZURE_HEADER: Final = "TIMESTAMP,ContextTokens,GeneratedTokens"

_Count = Annotated[int, Meta(ge=0)]
_Seconds = Annotated[float, Meta(ge=0)]
_T = TypeVar("_T")


class _MooncakeLine(msgspec.Struct, frozen=True):
    timestamp: _Seconds
    input_length: Annotated[int, Meta(ge=1)]
    output_length: _Count
    hash_ids: list[int]


class _AgentRequest(msgspec.Struct, frozen=True, kw_only=True):
    t: _Seconds
    type: str
    input_tokens: _Count = msgspec.field(name="in", default=0)
    output_tokens: _Count = msgspec.field(name="out", default=0)
    lcp: _Count = 0
    new: list[int] = msgspec.field(default_factory=list)
    agent_id: str = ""
    requests: list["_AgentRequest"] = msgspec.field(default_factory=list)


class _AgentSession(msgspec.Struct, frozen=True, kw_only=True):
    id: Annotated[str, Meta(min_length=1)]
    same_as: str | None = None
    block_size: Annotated[int, Meta(ge=1)] | None = None
    requests: list[_AgentRequest] = msgspec.field(default_factory=list)


def mooncake_records(
    lines: Iterable[str], *, file: str, horizon_s: float = math.inf
) -> list[TraceRecord]:
    """Read a Mooncake trace: timestamp (ms), input_length, output_length, hash_ids (512 tokens each).

    Block ids are global to the file: the same id is the same text in every request.
    """
    decoder = msgspec.json.Decoder(_MooncakeLine)
    records: list[TraceRecord] = []
    for line, text in numbered(lines):
        entry = decode_line(decoder, text, file, line)
        blocks_due = math.ceil(entry.input_length / MOONCAKE_BLOCK_TOKENS)
        if len(entry.hash_ids) != blocks_due:
            raise WorkloadError(
                f"{file}, line {line}, hash_ids: {len(entry.hash_ids)} ids, but input_length"
                f" {entry.input_length} takes {blocks_due} blocks of {MOONCAKE_BLOCK_TOKENS} tokens;"
                " correct one of them"
            )
        _refuse_step_back(records, entry.timestamp / 1_000.0, file, line, "timestamp")
        if _is_beyond(records, entry.timestamp / 1_000.0, horizon_s):
            break
        records.append(
            TraceRecord(
                line=line,
                at_s=entry.timestamp / 1_000.0,
                session=f"line-{line}",
                input_tokens=entry.input_length,
                output_tokens=entry.output_length,
                scope="",
                runs=to_runs(entry.hash_ids),
                label="mooncake",
            )
        )
    return records


def azure_records(
    lines: Iterable[str], *, file: str, horizon_s: float = math.inf
) -> list[TraceRecord]:
    """Read an Azure LLM inference trace (TIMESTAMP,ContextTokens,GeneratedTokens; CC-BY-4.0).

    The trace says nothing about shared text, so no two prompts share any.
    """
    rows = numbered(lines)
    first_line, header = next(rows, (1, ""))
    if header.strip() != _AZURE_HEADER:
        raise WorkloadError(
            f"{file}, line {first_line}: the header is {header.strip()[:80]!r}; it must be {_AZURE_HEADER}"
        )
    records: list[TraceRecord] = []
    for line, text in rows:
        cells = text.strip().split(",")
        if len(cells) != 3:
            raise WorkloadError(
                f"{file}, line {line}: {len(cells)} fields instead of 3; give {_AZURE_HEADER}"
            )
        at_s = _azure_seconds(cells[0], file, line)
        _refuse_step_back(records, at_s, file, line, "TIMESTAMP")
        if _is_beyond(records, at_s, horizon_s):
            break
        input_tokens = _azure_count(cells[1], file, line, "ContextTokens")
        records.append(
            TraceRecord(
                line=line,
                at_s=at_s,
                session=f"line-{line}",
                input_tokens=input_tokens,
                output_tokens=_azure_count(cells[2], file, line, "GeneratedTokens"),
                scope=f"line-{line}",
                runs=((0, math.ceil(input_tokens / AZURE_BLOCK_TOKENS)),),
                label="azure",
            )
        )
    return records


def coding_records(
    lines: Iterable[str],
    rng: random.Random,
    *,
    file: str,
    session_gap_s: float,
    horizon_s: float = math.inf,
) -> tuple[list[TraceRecord], int]:
    """Read coding-agent sessions, one a line, and the tokens of their blocks (1 where there is no session).

    Block ids are local to a session. A sub-agent is a session of its own with the ids of its parent. Sessions carry
    times from their own start; starts are drawn `session_gap_s` apart on average. A session that is marked as the
    same as another is left out, as the marking asks.
    """
    decoder = msgspec.json.Decoder(_AgentSession)
    records: list[TraceRecord] = []
    start_s, first_s = 0.0, math.inf
    block_tokens: int | None = None
    for line, text in numbered(lines):
        if start_s - first_s > horizon_s:
            break
        session = decode_line(decoder, text, file, line)
        if session.same_as is not None:
            continue
        if session.block_size is None or session.block_size != (block_tokens or session.block_size):
            raise WorkloadError(
                f"{file}, line {line}, block_size: {session.block_size}, expected"
                f" {block_tokens or 'a number of tokens'}; give every session the same block_size"
            )
        block_tokens = session.block_size
        where = f"{file}, line {line}"
        unfolded = _agent_records(
            session.requests, session.id, session.id, start_s, line, where, block_tokens
        )
        for one in unfolded:
            first_s = min(first_s, one.at_s)
            # Sub-agents go on beside their session, so that times step back and no request ends it.
            if one.at_s - first_s <= horizon_s:
                records.append(one)
        if session_gap_s:
            start_s += rng.expovariate(1.0 / session_gap_s)
    return records, block_tokens or 1


def _agent_records(
    requests: list[_AgentRequest],
    name: str,
    scope: str,
    start_s: float,
    line: int,
    where: str,
    block_tokens: int,
) -> Iterator[TraceRecord]:
    """Unfold one session: each prompt keeps `lcp` blocks of the one before and adds runs of ids."""
    runs: list[tuple[int, int]] = []
    block_count = 0
    last_s = 0.0
    for at, request in enumerate(requests):
        field = f"{where}, requests[{at}]"
        if request.t < last_s:
            raise WorkloadError(
                f"{field}.t: {request.t} s after {last_s} s; times must not step back, sort the requests"
            )
        last_s = request.t
        if request.type == "subagent":
            agent = f"{name}/{request.agent_id or at}"
            yield from _agent_records(
                request.requests, agent, scope, start_s + request.t, line, field, block_tokens
            )
            continue
        if request.lcp > block_count:
            raise WorkloadError(
                f"{field}.lcp: {request.lcp} blocks kept of a prompt of {block_count}; correct lcp"
            )
        if len(request.new) % 2 or min(request.new, default=0) < 0:
            raise WorkloadError(f"{field}.new: give pairs of first id and count, none below 0")
        runs = _keep_blocks(runs, request.lcp)
        runs.extend(zip(request.new[::2], request.new[1::2], strict=True))
        block_count = sum(count for _, count in runs)
        if abs(block_count * block_tokens - request.input_tokens) > block_tokens:
            raise WorkloadError(
                f"{field}.in: {request.input_tokens} tokens do not match {block_count} blocks of"
                f" {block_tokens}; correct in, lcp or new"
            )
        yield TraceRecord(
            line=line,
            at_s=start_s + request.t,
            session=name,
            input_tokens=max(1, request.input_tokens),
            output_tokens=request.output_tokens,
            scope=scope,
            runs=tuple(runs),
            label="subagent" if name != scope else "agent",
        )


def _keep_blocks(runs: list[tuple[int, int]], kept: int) -> list[tuple[int, int]]:
    """Cut runs of block ids to the first `kept` blocks."""
    head: list[tuple[int, int]] = []
    for first, count in runs:
        taken = min(count, kept)
        if taken:
            head.append((first, taken))
        kept -= taken
    return head


def numbered(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Number the lines from 1 and leave blank ones out."""
    return ((number, text) for number, text in enumerate(lines, start=1) if text.strip())


def decode_line(decoder: "msgspec.json.Decoder[_T]", text: str, file: str, line: int) -> _T:
    """Decode one line; msgspec's message names the field."""
    try:
        return decoder.decode(text)
    except msgspec.DecodeError as error:
        raise WorkloadError(f"{file}, line {line}: {error}; correct or remove the line") from error


def _refuse_step_back(
    records: list[TraceRecord], at_s: float, file: str, line: int, field: str
) -> None:
    if records and at_s < records[-1].at_s:
        raise WorkloadError(
            f"{file}, line {line}, {field}: earlier than line {records[-1].line}; sort the lines by time"
        )


def _is_beyond(records: list[TraceRecord], at_s: float, horizon_s: float) -> bool:
    """Say whether a time is later after the first request than anyone wants to read."""
    return bool(records) and at_s - records[0].at_s > horizon_s


def _azure_seconds(cell: str, file: str, line: int) -> float:
    try:
        return datetime.fromisoformat(cell).replace(tzinfo=UTC).timestamp()
    except ValueError as error:
        raise WorkloadError(
            f"{file}, line {line}, TIMESTAMP: {cell!r} is no time like 2023-11-16 18:17:03.9799600"
        ) from error


def _azure_count(cell: str, file: str, line: int, field: str) -> int:
    if not cell.isascii() or not cell.isdigit():
        raise WorkloadError(f"{file}, line {line}, {field}: {cell!r} is no count of tokens")
    return int(cell)
