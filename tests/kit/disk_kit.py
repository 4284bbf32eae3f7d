"""A file system of its own with little room, for what must hold on a full disk."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def disk_of(folder: Path, kib: int) -> Iterator[Path]:
    """Mount so many KiB at a folder that is made for it; where that cannot be the test is skipped."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False).returncode != 0:
        pytest.skip("small disk: file systems cannot be mounted here (needs root)")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
