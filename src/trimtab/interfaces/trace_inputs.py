"""Traces as arrivals: every format that `trimtab load` reads, and requests as a fleet recorded them."""

import gzip
import math
import random
from collections.abc import Iterable, Sequence
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
    paths: Sequence[Path],
    kind: str,
    *,
    block_tokens: int,
    seed: int,
    gap_s: float,
    horizon_s: float = math.inf,
) -> list[Arrival]:
    """Read traces of one format, each after the one before with `gap_s` between; raises `WorkloadError`.

    Prompts share blocks only within a file. What comes later than `horizon_s` after the first request is left out, and
    no more of a file is read than that takes (jsonl and recorded: all of it).
    """
    parts: list[list[Arrival]] = []
    left_s = horizon_s
    for number, path in enumerate(paths):
        if left_s < 0.0:
            break
        try:
            with _opened(path) as lines:
                found = _arrivals(kind, lines, str(path), block_tokens, seed + number, left_s)
        except (OSError, UnicodeDecodeError, EOFError) as error:
            raise WorkloadError(f"{path} cannot be read: {error}") from error
        except MemoryError as error:
            raise WorkloadError(
                f"{path} does not fit the memory there is when named by {block_tokens} tokens; "
                "simulate less of it (duration_s) or larger blocks (block_tokens)"
            ) from error
        parts.append(found)
        left_s -= found[-1].at_s + gap_s
    return parts[0] if len(parts) == 1 else join(parts, gap_s)


def _opened(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8")
    return path.open(encoding="utf-8")


def _arrivals(
    kind: str, lines: Iterable[str], file: str, block_tokens: int, seed: int, horizon_s: float
) -> list[Arrival]:
    rng = random.Random(seed)
    match kind:
        case "mooncake":
            records = mooncake_records(lines, file=file, horizon_s=horizon_s)
            size = MOONCAKE_BLOCK_TOKENS
        case "azure":
            records = azure_records(lines, file=file, horizon_s=horizon_s)
            size = AZURE_BLOCK_TOKENS
        case "sessions":
            records, size = coding_records(
                lines, rng, file=file, session_gap_s=SESSION_GAP_S, horizon_s=horizon_s
            )
        case "recorded":
            records, size = recorded_records(lines, file=file), RECORDED_BLOCK_TOKENS
        case _:
            kept = list(lines)
            bodies = from_jsonl(kept, TraceParams(seed=seed), rng, file=file)
            numbers = [number for number, _ in numbered(kept)]
            made = from_bodies(bodies, block_tokens=block_tokens, file=file, lines=numbers)
            return [one for one in made if one.at_s - made[0].at_s <= horizon_s]
    return from_records(
        records,
        trace_block_tokens=size,
        block_tokens=block_tokens,
        shared=kind != "azure",
        horizon_s=horizon_s,
        file=file,
    )
