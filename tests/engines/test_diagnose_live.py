"""`trimtab diagnose` on the embedded fleet under four loads that bind differently, through its own benchmark."""

import json
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from cli_kit import ROOT, environment, processes

pytestmark = [pytest.mark.engine_llamacpp, pytest.mark.timeout(240)]

WINDOW_S = 8
CALIBRATE_S = 3
RUN_TIMEOUT_S = 220


def test_each_load_is_told_by_what_it_binds(tmp_path: Path) -> None:
    """Each load once, over a short window: phase and resource are those the load was made for, and no replica stays."""
    rows, mark = tmp_path / "rows.json", uuid.uuid4().hex
    script = str(ROOT / "bench" / "live_diagnosis.py")
    short = ("--runs", "1", "--window", str(WINDOW_S), "--calibrate", str(CALIBRATE_S))
    run = subprocess.run(
        [sys.executable, script, *short, "--rows", str(rows)],
        env=environment(mark, tmp_path / "state"),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
        check=False,
    )
    assert (run.returncode, processes(mark)) == (0, {}), run.stdout + run.stderr
    told = {row["load"]: (row["answered"], row["right"]) for row in json.loads(rows.read_text())}
    assert told.keys() == {"long prompts", "short decodes", "evicted context", "more arrivals"}
    assert [load for load, (_, right) in told.items() if not right] == [], run.stdout
