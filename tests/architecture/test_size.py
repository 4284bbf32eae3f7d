"""Modules and functions stay small enough to be read in one go."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "src" / "trimtab").rglob("*.py"))
MODULE_LINES_MAX = 400
FUNCTION_LINES_MAX = 60
NESTING_MAX = 3

NESTS = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Try, ast.Match)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(tree: ast.AST) -> list[Function]:
    return [node for node in ast.walk(tree) if isinstance(node, FUNCTIONS)]


def line_count(function: Function) -> int:
    assert function.end_lineno is not None
    return function.end_lineno - function.lineno + 1


def nesting(node: ast.AST, level: int = 0) -> int:
    """Give the deepest level of blocks below `node`, functions inside it apart."""
    deepest = level
    for field, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, (*FUNCTIONS, ast.ClassDef)):
                continue
            # an elif is an If inside the orelse of an If, but no level deeper for a reader
            is_elif = isinstance(node, ast.If) and field == "orelse" and len(value) == 1
            nests = isinstance(child, NESTS) and not (is_elif and isinstance(child, ast.If))
            deepest = max(deepest, nesting(child, level + nests))
    return deepest


def test_there_are_sources_to_measure() -> None:
    """The measurements below look at the package, not at an empty list."""
    assert ROOT / "src" / "trimtab" / "__init__.py" in SOURCES


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_module_and_its_functions_are_small(path: Path) -> None:
    """At most 400 lines a module, 60 lines a function, 3 levels of nesting."""
    text = path.read_text()
    found = functions(ast.parse(text))
    too_much = []
    if len(text.splitlines()) > MODULE_LINES_MAX:
        too_much.append(f"{path.name}: {len(text.splitlines())} lines")
    for function in found:
        where = f"{path.name}:{function.lineno} {function.name}"
        if line_count(function) > FUNCTION_LINES_MAX:
            too_much.append(f"{where}: {line_count(function)} lines")
        if nesting(function) > NESTING_MAX:
            too_much.append(f"{where}: {nesting(function)} levels")
    assert too_much == []


def test_nesting_counts_blocks_and_not_elif() -> None:
    """The measure itself: three blocks are three levels, an elif chain is one."""
    three = "def f():\n for a in b:\n  if a:\n   while a: pass\n"
    chain = "def f():\n if a: pass\n elif b: pass\n elif c: pass\n else: pass\n"
    assert [nesting(function) for function in functions(ast.parse(three + chain))] == [3, 1]
