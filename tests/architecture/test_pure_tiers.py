"""The tiers that need nothing outside the process cannot reach it."""

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

CONFTEST = Path(__file__).resolve().parents[1] / "conftest.py"
REACHES_OUT = """
import socket, subprocess, time

def test_sleeps(): time.sleep(0)
def test_listens(): socket.create_server(("127.0.0.1", 0)).close()
def test_starts_a_process(): subprocess.run(["true"])
"""


@pytest.mark.parametrize(
    ("folder", "passed", "failed"), [("unit", 0, 3), ("property", 0, 3), ("integration", 3, 0)]
)
def test_unit_and_property_tests_cannot_reach_outside(
    pytester: pytest.Pytester, folder: str, passed: int, failed: int
) -> None:
    """Sleeps, sockets and child processes are refused there, and only there."""
    pytester.makeconftest(CONFTEST.read_text())
    (pytester.path / "allowed_skips.txt").write_text("")
    pytester.mkdir(folder)
    (pytester.path / folder / "test_it.py").write_text(REACHES_OUT)
    run = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    run.assert_outcomes(passed=passed, failed=failed)
