"""What no line of the package may hold: lint cannot be switched off file by file."""

import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "src" / "trimtab").rglob("*.py"))
# the whole-file switches of the linter and of the type checker
WHOLE_FILE = re.compile(r"#\s*(ruff|flake8):\s*noqa|#\s*mypy:\s*ignore-errors")
BARE = re.compile(r"#\s*noqa\s*$|#\s*type:\s*ignore\s*($|#)")


def comments(path: Path) -> list[tuple[int, str]]:
    with path.open("rb") as file:
        tokens = list(tokenize.tokenize(file.readline))
    return [(token.start[0], token.string) for token in tokens if token.type == tokenize.COMMENT]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_lint_and_types_are_not_switched_off_wholesale(path: Path) -> None:
    """An exception to a rule names the rule, on the line where it is needed."""
    wholesale = [
        (line, text)
        for line, text in comments(path)
        if WHOLE_FILE.search(text) or BARE.search(text)
    ]
    assert wholesale == []
