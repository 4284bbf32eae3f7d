"""Tests say what must hold, and can fail."""

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
SUITES = sorted(TESTS.rglob("test_*.py"))
# a call of any of these, or of a helper named after them, judges something
JUDGES = ("assert", "raises", "check", "expect", "fail", "fnmatch_lines", "run_state_machine")

# the folders that the Makefile reads for the tests of a tier
TIER_MARK = re.compile(r"mark\.(engine_llamacpp|browser)\b")
VLLM_MARK = re.compile(r"mark\.engine_vllm\b")
TIER_FOLDERS = ("browser", "engines", "faults")

Test = ast.FunctionDef | ast.AsyncFunctionDef


def tests_of(text: str) -> list[Test]:
    return [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and node.name.startswith("test_")
    ]


def judges(test: Test) -> bool:
    nodes = list(ast.walk(test))
    calls = [node.func for node in nodes if isinstance(node, ast.Call)]
    names = [getattr(call, "attr", getattr(call, "id", "")) for call in calls]
    return any(isinstance(node, ast.Assert) for node in nodes) or any(
        name.lstrip("_").startswith(JUDGES) for name in names
    )


@pytest.mark.parametrize("path", SUITES, ids=lambda path: str(path.relative_to(TESTS)))
def test_every_test_says_what_must_hold(path: Path) -> None:
    """The docstring of a test states the law or the behaviour, apart from how it is tried."""
    tests = tests_of(path.read_text())
    assert [test.name for test in tests if not ast.get_docstring(test)] == []


@pytest.mark.parametrize("path", SUITES, ids=lambda path: str(path.relative_to(TESTS)))
def test_every_test_can_fail(path: Path) -> None:
    """A test asserts something, itself or through a helper whose name says so."""
    tests = tests_of(path.read_text())
    assert [test.name for test in tests if not judges(test)] == []


def test_silent_tests_are_found() -> None:
    """The search itself, in methods and coroutines too."""
    text = (
        "class A:\n async def test_a(self): check_all()\n"
        "def test_b():\n 'Holds.'\n run()\n"
        "def test_c():\n 'Holds.'\n assert x\n"
    )
    found = {test.name: (bool(ast.get_docstring(test)), judges(test)) for test in tests_of(text)}
    expected = {"test_a": (False, True), "test_b": (True, False), "test_c": (True, True)}
    assert expected == found


def test_tests_of_a_tier_are_where_make_looks_for_them() -> None:
    """A test that needs an engine or a browser and lies elsewhere would never run; the searches find what there is."""
    texts = {path.relative_to(TESTS).parts[0]: "" for path in SUITES}
    for path in SUITES:
        texts[path.relative_to(TESTS).parts[0]] += path.read_text()
    del texts["architecture"]
    assert {one for one, text in texts.items() if TIER_MARK.search(text)} == set(TIER_FOLDERS)
    assert {one for one, text in texts.items() if VLLM_MARK.search(text)} == {"engines"}
    looked_in = "TIER_TESTS := " + " ".join(f"tests/{one}" for one in TIER_FOLDERS)
    assert looked_in in (TESTS.parent / "Makefile").read_text()


def test_test_that_runs_alone_is_of_a_tier() -> None:
    """Those without an engine or a browser run two at a time: the mark would promise what nobody keeps."""
    alone = [path for path in SUITES if re.search(r"mark\.alone\b", path.read_text())]
    tiers = [
        path
        for path in alone
        if TIER_MARK.search(path.read_text()) or VLLM_MARK.search(path.read_text())
    ]
    assert alone
    assert alone == [path for path in tiers if path.name != Path(__file__).name]
