"""The layers hold, and no package escapes the contracts."""

import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOES_IO = {"interfaces", "runtime"}


def contract(identity: str) -> dict[str, list[str]]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = project["tool"]["importlinter"]["contracts"]
    [found] = [each for each in contracts if each["id"] == identity]
    return found


def test_imports_keep_every_contract() -> None:
    """Imports point inward, and what lies inside runtime does no I/O."""
    lint = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    run = subprocess.run(
        [sys.executable, "-c", lint, "--no-logo", "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_every_pure_package_is_forbidden_to_do_io() -> None:
    """A new package is pure until it is named as one that does I/O."""
    packages = {path.parent.name for path in (ROOT / "src" / "trimtab").glob("*/__init__.py")}
    pure = {f"trimtab.{name}" for name in packages - DOES_IO}
    assert pure == set(contract("no-io")["source_modules"])
