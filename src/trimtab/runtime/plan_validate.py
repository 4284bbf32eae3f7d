"""Validates the planner's estimates against a table of measured layouts.

Every row is asked of the same estimator that plans: one for each hardware, engine, model and precision, uncorrected. A
row that cannot be estimated (a model, device or precision nobody knows) lowers the coverage and stops nothing.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from trimtab.core.layout import Demand, PlanInputError
from trimtab.planning.calibrate import Run
from trimtab.planning.measured import Group, MeasuredLayout, read_measured
from trimtab.planning.plan_ports import Estimator
from trimtab.planning.validate import Validation, validate
from trimtab.runtime.served_sources import SourceError

BuildEstimator = Callable[[Group, str], Estimator]
"""An estimator of a hardware, engine and model at a precision ("" is as the checkpoint stores it)."""


class Estimated(msgspec.Struct, frozen=True, kw_only=True):
    """The rows that could be estimated, and why groups could not, by their label."""

    runs: tuple[Run, ...]
    refused: dict[str, str]


def validate_table(path: Path, seed: int, build: BuildEstimator) -> Validation:
    """Validate estimates against the table in a file; raises `SourceError` and `PlanInputError`."""
    refused: dict[str, str] = {}
    rows = read_table(path, refused)
    estimated = estimate_rows(rows, build)
    found = validate(rows, estimated.runs, seed)
    return msgspec.structs.replace(found, refused=refused | estimated.refused)


def read_table(path: Path, refused: dict[str, str] | None = None) -> tuple[MeasuredLayout, ...]:
    """Read a table of measured layouts from a file, see `read_measured`; raises `SourceError`, `PlanInputError`."""
    try:
        with path.open(encoding="utf-8", newline="") as lines:
            return read_measured(lines, refused)
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"{path} cannot be read: {error}") from error


def estimate_rows(rows: Sequence[MeasuredLayout], build: BuildEstimator) -> Estimated:
    """Ask for every row what would have been expected of it."""
    servers: dict[tuple[Group, str], list[MeasuredLayout]] = defaultdict(list)
    for row in rows:
        servers[(row.group, row.load.precision)].append(row)
    runs: list[Run] = []
    refused: dict[str, str] = {}
    for (group, precision), theirs in sorted(servers.items(), key=lambda item: item[0]):
        try:
            estimator = build(group, precision)
        except PlanInputError as error:
            refused[f"{group.label} {precision}".strip()] = str(error)
            continue
        found = [estimate_row(row, estimator) for row in theirs]
        runs += [run for run in found if run is not None]
    return Estimated(runs=tuple(runs), refused=refused)


def estimate_row(row: MeasuredLayout, estimator: Estimator) -> Run | None:
    """Return a row with what is expected of it; None where the layout cannot be, or no time is expected."""
    demand = Demand(
        input_tokens=row.load.input_tokens,
        output_tokens=row.load.output_tokens,
        concurrency=row.load.clients,
    )
    try:
        expected = estimator.expected(row.load.layout, demand)
    except ValueError:
        return None
    times = (expected.tpot_ms.value, expected.ttft_ms.value)
    if not all(math.isfinite(time) and time > 0.0 for time in times):
        return None
    return Run(row=row, tpot_ms=times[0], ttft_ms=times[1])
