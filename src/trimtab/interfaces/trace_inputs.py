"""Traces as arrivals: every format that `trimtab load` reads, and requests as a fleet recorded them."""

import gzip
import random
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Final

from trimtab.sim.arrivals import Arrival, from_records, join
from trimtab.sim.bodies import from_bodies
from trimtab.workloads.base import WorkloadError
from trimtab.workloads.files import from_jsonl
from trimtab.workloads.recorded import RECORDED_BLOCK_TOKENS, recorded_records
from trimtab.workloads.trace_files import (
    AZURE_BLOCK_TOKENS,
    MOONCAKE_BLOCK_TOKENS,
    azure_records,
    coding_records,
    mooncake_records,
    numbered,
)
from trimtab.workloads.traces import TraceParams

FORMATS: Final = ("mooncake", "azure", "sessions", "jsonl", "recorded")
SESSION_GAP_S: Final = 30.0


def read_arrivals(
    paths: Sequence[Path], kind: str, *, block_tokens: int, seed: int, gap_s: float
) -> list[Arrival]:
    """Read traces of one format, each after the one before with `gap_s` between; raises `WorkloadError`.

    Prompts share blocks only within a file.
    """
    parts = []
    for number, path in enumerate(paths):
        try:
            with _opened(path) as lines:
                found = _arrivals(kind, list(lines), str(path), block_tokens, seed + number)
        except (OSError, UnicodeDecodeError, EOFError) as error:
            raise WorkloadError(f"{path} cannot be read: {error}") from error
        parts.append(found)
    return parts[0] if len(parts) == 1 else join(parts, gap_s)


def _opened(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8")
    return path.open(encoding="utf-8")


def _arrivals(
    kind: str, lines: Sequence[str], file: str, block_tokens: int, seed: int
) -> list[Arrival]:
    rng = random.Random(seed)
    match kind:
        case "mooncake":
            records, size = mooncake_records(lines, file=file), MOONCAKE_BLOCK_TOKENS
        case "azure":
            records, size = azure_records(lines, file=file), AZURE_BLOCK_TOKENS
        case "sessions":
            records, size = coding_records(lines, rng, file=file, session_gap_s=SESSION_GAP_S)
        case "recorded":
            records, size = recorded_records(lines, file=file), RECORDED_BLOCK_TOKENS
        case _:
            bodies = from_jsonl(lines, TraceParams(seed=seed), rng, file=file)
            numbers = [number for number, _ in numbered(lines)]
            return from_bodies(bodies, block_tokens=block_tokens, file=file, lines=numbers)
    if not records:
        raise WorkloadError(f"{file}: the trace has no request; give one with at least one")
    return from_records(
        records, trace_block_tokens=size, block_tokens=block_tokens, shared=kind != "azure"
    )
