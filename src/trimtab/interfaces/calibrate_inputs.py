"""What `trimtab calibrate` reads: ledgers, and requests with the engine's own times."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from trimtab.core.events import AnyEvent, RequestServed
from trimtab.runtime.ledger_reader import SqliteReader
from trimtab.sim.arrivals import from_records
from trimtab.sim.measured import Measured, read_engine_times
from trimtab.workloads.base import WorkloadError
from trimtab.workloads.recorded import (
    RECORDED_BLOCK_TOKENS,
    Recorded,
    read_recorded,
    records_of,
)


def read_measurement(path: Path, *, block_tokens: int | None = None) -> list[Measured]:
    """Read a measurement; raises `WorkloadError` or `LedgerError`.

    `block_tokens`: of a paged engine, whose prompt blocks are named where the measurement tells what prompts share.
    """
    if path.suffix in {".sqlite", ".db"}:
        with SqliteReader(path) as reader:
            return of_ledger((envelope.event for envelope in reader.read()), source=str(path))
    try:
        with path.open(encoding="utf-8") as lines:
            first = lines.readline()
            lines.seek(0)
            if '"at_s"' in first:
                recorded = read_recorded(lines, file=str(path))
                return of_recorded(recorded, source=str(path), block_tokens=block_tokens)
            return read_engine_times(lines, file=str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise WorkloadError(f"{path} cannot be read: {error}") from error


def of_recorded(
    recorded: Sequence[Recorded], *, source: str, block_tokens: int | None = None
) -> list[Measured]:
    """Return recorded requests as they were measured; raises `WorkloadError` where a line has no times.

    `block_tokens` as in `read_measurement`.
    """
    made = []
    names = _names(recorded, block_tokens)
    for number, one in enumerate(recorded, start=1):
        if one.first_token_s is None or one.last_token_s is None:
            raise WorkloadError(
                f"{source}, line {number}, first_token_s: a measurement needs the times of first and last token"
            )
        made.append(
            Measured(
                at_s=one.at_s - recorded[0].at_s,
                input_tokens=one.input_tokens,
                output_tokens=one.output_tokens,
                first_token_s=one.first_token_s - recorded[0].at_s,
                last_token_s=one.last_token_s - recorded[0].at_s,
                replica=one.replica,
                cached_tokens=one.cached_tokens,
                hashes=names[number - 1],
            )
        )
    return made


def _names(recorded: Sequence[Recorded], block_tokens: int | None) -> list[tuple[int, ...]]:
    """Return names of the full blocks of each prompt, none where no request tells what it shares."""
    if block_tokens is None or all(one.like is None for one in recorded):
        return [()] * len(recorded)
    arrivals = from_records(
        records_of(recorded),
        trace_block_tokens=RECORDED_BLOCK_TOKENS,
        block_tokens=block_tokens,
    )
    return [one.hashes for one in arrivals]


def of_ledger(events: Iterable[AnyEvent], *, source: str) -> list[Measured]:
    """Return the requests that a fleet finished, each with the replica that served it and what was reused."""
    found: list[Measured] = []
    for event in events:
        if not isinstance(event, RequestServed) or not event.record.ok:
            continue
        record, tokens = event.record, event.record.tokens
        if (
            record.replica is None
            or record.ttft_ms is None
            or not tokens.prompt
            or not tokens.output
        ):
            continue
        queued = record.phases.queue_ms
        found.append(
            Measured(
                at_s=record.arrived_at_s,
                input_tokens=tokens.prompt,
                output_tokens=tokens.output,
                scheduled_s=None if queued is None else record.arrived_at_s + queued / 1000.0,
                first_token_s=record.arrived_at_s + record.ttft_ms / 1000.0,
                last_token_s=record.finished_at_s,
                replica=record.replica,
                cached_tokens=tokens.delivered or 0,
            )
        )
    if not found:
        raise WorkloadError(f"{source}: no finished request with its times is in it")
    found.sort(key=lambda one: one.at_s)
    return [_from(one, found[0].at_s) for one in found]


def _from(one: Measured, start_s: float) -> Measured:
    return msgspec.structs.replace(
        one,
        at_s=one.at_s - start_s,
        scheduled_s=None if one.scheduled_s is None else one.scheduled_s - start_s,
        first_token_s=one.first_token_s - start_s,
        last_token_s=one.last_token_s - start_s,
    )
