"""Tests say what must hold."""

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
SUITES = sorted(TESTS.rglob("test_*.py"))


def lacking_docstring(text: str) -> list[str]:
    return [
        node.name
        for node in ast.walk(ast.parse(text))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and node.name.startswith("test_")
        and not ast.get_docstring(node)
    ]


@pytest.mark.parametrize("path", SUITES, ids=lambda path: str(path.relative_to(TESTS)))
def test_every_test_says_what_must_hold(path: Path) -> None:
    """The docstring of a test states the law or the behaviour, apart from how it is tried."""
    assert lacking_docstring(path.read_text()) == []


def test_missing_docstring_is_found() -> None:
    """The search itself, in methods and coroutines too."""
    text = "class A:\n async def test_a(self): pass\ndef test_b():\n '''Holds.'''\n"
    assert lacking_docstring(text) == ["test_a"]
