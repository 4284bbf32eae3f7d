"""What `trimtab calibrate` reads: ledgers, and requests with the engine's own times."""

from collections.abc import Iterable
from pathlib import Path

from trimtab.core.events import AnyEvent, RequestServed
from trimtab.runtime.ledger_reader import SqliteReader
from trimtab.sim.measured import Measured, read_engine_times
from trimtab.workloads.base import WorkloadError


def read_measurement(path: Path) -> list[Measured]:
    """Read a measurement; raises `WorkloadError` or `LedgerError`."""
    if path.suffix in {".sqlite", ".db"}:
        with SqliteReader(path) as reader:
            return of_ledger((envelope.event for envelope in reader.read()), source=str(path))
    try:
        with path.open(encoding="utf-8") as lines:
            return read_engine_times(lines, file=str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise WorkloadError(f"{path} cannot be read: {error}") from error


def of_ledger(events: Iterable[AnyEvent], *, source: str) -> list[Measured]:
    """Return the requests of the replica that served most, as one replica is what is fitted.

    Prompts count with what was computed of them: what the engine reused is left out, because the ledger does not say
    which requests shared it. Raises `WorkloadError` without finished requests.
    """
    by_replica: dict[str, list[Measured]] = {}
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
        computed = max(1, tokens.prompt - (tokens.delivered or 0))
        by_replica.setdefault(record.replica, []).append(
            Measured(
                at_s=record.arrived_at_s,
                input_tokens=computed,
                output_tokens=tokens.output,
                first_token_s=record.arrived_at_s + record.ttft_ms / 1000.0,
                last_token_s=record.finished_at_s,
            )
        )
    if not by_replica:
        raise WorkloadError(f"{source}: no finished request with its times is in it")
    most = max(by_replica, key=lambda replica: len(by_replica[replica]))
    found = sorted(by_replica[most], key=lambda one: one.at_s)
    return [_from(one, found[0].at_s) for one in found]


def _from(one: Measured, start_s: float) -> Measured:
    return Measured(
        at_s=one.at_s - start_s,
        input_tokens=one.input_tokens,
        output_tokens=one.output_tokens,
        first_token_s=one.first_token_s - start_s,
        last_token_s=one.last_token_s - start_s,
    )
