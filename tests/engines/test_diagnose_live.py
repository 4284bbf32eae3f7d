"""`trimtab diagnose` on real engines under loads that bind differently, through its own benchmark.

How often it is right is measured by `bench/live_diagnosis.py` with many runs. Here each load is put on once, on a
machine that may be slow or busy: a load without an answer in time, or of which too few requests ended within the
window to answer, tells nothing; and one answer may be wrong.
"""

import json
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
from cli_kit import ROOT, environment, processes

pytestmark = [pytest.mark.alone, pytest.mark.timeout(1300)]

WINDOW_S = 9
CALIBRATE_S = 4
RUN_TIMEOUT_S = 1200
AGAIN = 1
"""A machine that is busy with something else binds otherwise for a while; twice in a row is no coincidence."""

WRONG_MAX = 1
EMBEDDED = {"long prompts", "short decodes", "evicted context", "more arrivals"}
VLLM = {"long prompts", "short decodes", "filled context"}


def rows_of(engine: str, loads: set[str], folder: Path) -> dict[str, Any]:
    """Put each load once on a fleet of the engine; return the rows by load. Nothing that was started may stay."""
    rows, mark = folder / "rows.json", uuid.uuid4().hex
    script = str(ROOT / "bench" / "live_diagnosis.py")
    short = ("--runs", "1", "--window", str(WINDOW_S), "--calibrate", str(CALIBRATE_S))
    chosen = [word for load in sorted(loads) for word in ("--load", load)]
    run = subprocess.run(
        [
            *(sys.executable, script, "--engine", engine, *short, *chosen),
            *("--again", str(AGAIN), "--rows", str(rows)),
        ],
        env=environment(mark, folder / "state"),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
        check=False,
    )
    assert (run.returncode, processes(mark)) == (0, {}), run.stdout + run.stderr
    return {row["load"]: row for row in json.loads(rows.read_text())}


def check_told(rows: dict[str, Any], loads: set[str]) -> None:
    """Every load has its row, at least one was told rightly, and among the answers at most one is wrong."""
    assert rows.keys() == loads
    told = [
        row
        for row in rows.values()
        if not row["late"] and "requests are too few" not in row["because"]
    ]
    assert [row for row in told if row["right"]], rows
    assert len([row for row in told if not row["right"]]) <= WRONG_MAX, rows


@pytest.mark.engine_llamacpp
def test_each_load_on_the_embedded_fleet_is_told_by_what_it_binds(tmp_path: Path) -> None:
    """Each load once, over a short window: phase and resource are those the load was made for."""
    check_told(rows_of("embedded", EMBEDDED, tmp_path), EMBEDDED)


@pytest.mark.engine_vllm
def test_each_load_on_vllm_is_told_by_what_it_binds(tmp_path: Path) -> None:
    """The same, and a KV cache that overflows is read from the engine's own gauge."""
    rows = rows_of("vllm", VLLM, tmp_path)
    check_told(rows, VLLM)
    filled = rows["filled context"]
    assert not filled["right"] or "of the KV cache is in use" in filled["because"]
