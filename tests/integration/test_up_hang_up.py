"""A hang-up while `trimtab up` starts: it asks for a reload, and a start reads its configuration anyway."""

import os
import signal
import subprocess
import sys
from pathlib import Path


def test_hang_up_before_the_start_is_over_ends_nothing(tmp_path: Path) -> None:
    """It comes while the configuration is being read; what ends the command is what stands in that."""
    config = tmp_path / "trimtab.toml"
    os.mkfifo(config)
    command = [sys.executable, "-m", "trimtab.interfaces.cli", "up", "--config", str(config)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as started:
        with config.open("w") as text:  # opened once the command reads it
            started.send_signal(signal.SIGHUP)
            text.write("[engine]\nslots = 0\n")
        _, said = started.communicate(timeout=60)
    assert started.returncode == 1
    assert "engine.slots" in said
