"""Short real functions out of Python sources, and small edits of them.

An edit turn needs code that a person could have written and an answer that is known exactly, so
blocks are whole functions of given sources and an edit changes one name or one comment.
"""

import ast
import random
import re
import textwrap
from collections.abc import Mapping
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from trimtab.workloads.base import WorkloadError, estimate_tokens

BLOCK_LINES_MIN: Final = 3
BLOCK_LINES_MAX: Final = 8
_LINE_BYTES_MAX: Final = 88


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """One whole function of a source file, dedented."""

    module: str
    name: str
    code: str


class Edit(msgspec.Struct, frozen=True, kw_only=True):
    """One small change: what the user asks and the code that answers it."""

    ask: str
    code: Annotated[str, Meta(min_length=1)]


def find_blocks(sources: Mapping[str, str], *, tokens_max: int) -> dict[str, tuple[Block, ...]]:
    """Find per module the functions of 3 to 8 plain lines and at most `tokens_max` tokens.

    Sources that are not valid Python are a WorkloadError that names the source: a text that was
    cut off must not pass as one with few functions.
    """
    found: dict[str, tuple[Block, ...]] = {}
    for module in sorted(sources):
        try:
            tree = ast.parse(sources[module])
        except SyntaxError as error:
            raise WorkloadError(
                f"{module}, line {error.lineno}: not valid Python ({error.msg}); give whole source files"
            ) from error
        lines = sources[module].splitlines()
        nodes = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        nodes.sort(key=lambda node: node.lineno)
        blocks: dict[str, Block] = {}
        for node in nodes:
            code = _plain_code(node, lines)
            if code is not None and estimate_tokens(code) <= tokens_max:
                blocks.setdefault(node.name, Block(module=module, name=node.name, code=code))
        found[module] = tuple(blocks.values())
    return found


def _plain_code(node: ast.FunctionDef, lines: list[str]) -> str | None:
    """Cut a function out of its file; None where it is no plain short function."""
    end = node.end_lineno or node.lineno
    size = end - node.lineno + 1
    if node.decorator_list or not BLOCK_LINES_MIN <= size <= BLOCK_LINES_MAX:
        return None
    if node.name.startswith("__") or ast.get_docstring(node) is not None:
        return None
    code = textwrap.dedent("\n".join(lines[node.lineno - 1 : end]))
    if not code.isascii() or "#" in code or "`" in code or "\n\n" in code:
        return None
    if any(len(line) > _LINE_BYTES_MAX for line in code.splitlines()):
        return None
    return code if code.startswith("def ") and "):\n" in code else None


_SUFFIXES: Final = ("fast", "safe", "once", "local", "raw", "strict", "cached", "inner", "checked")
_NAMES: Final = ("value", "entry", "source", "target", "record", "current", "given", "subject")
_NOTES: Final = (
    "checked",
    "hot path",
    "keep in order",
    "see the tests",
    "may be slow",
    "public",
    "no copy",
    "caller locks",
)
_COMMENT: Final = re.compile(r"  # [a-z ]+$")
_DEF_NAME: Final = re.compile(r"^def (\w+)\(")
_PARAMETERS: Final = re.compile(r"^def \w+\(([^)]*)\):")


def draw_edit(code: str, rng: random.Random) -> Edit:
    """Draw one small change of a block: its name, a parameter's name, or the comment at its end."""
    kind = rng.choice(("name", "name", "comment", "comment", "parameter"))
    if kind == "parameter":
        parameters = _own_parameters(code)
        fresh = [name for name in _NAMES if not re.search(rf"\b{name}\b", code)]
        if parameters and fresh:
            return _rename_parameter(code, rng.choice(parameters), rng.choice(fresh))
    return _rename_function(code, rng) if kind == "name" else _set_comment(code, rng)


def function_name(code: str) -> str:
    """Give the name of the function that a block defines."""
    match = _DEF_NAME.match(code)
    if match is None:
        raise WorkloadError(f"a block must start with a function: {code[:40]!r}")
    return match[1]


def _rename_function(code: str, rng: random.Random) -> Edit:
    name = function_name(code)
    stem, _, last = name.rpartition("_")
    base = stem if stem and last in _SUFFIXES else name
    new = f"{base}_{rng.choice([suffix for suffix in _SUFFIXES if suffix != last])}"
    return Edit(ask=f"Rename `{name}` to `{new}`.", code=re.sub(rf"\b{name}\b", new, code))


def _set_comment(code: str, rng: random.Random) -> Edit:
    present = _COMMENT.search(code)
    old = present[0].removeprefix("  # ") if present else ""
    note = rng.choice([note for note in _NOTES if note != old])
    ask = f"In `{function_name(code)}`, end the last line with the comment `# {note}`."
    return Edit(ask=ask, code=f"{_COMMENT.sub('', code)}  # {note}")


def _own_parameters(code: str) -> list[str]:
    match = _PARAMETERS.match(code)
    names = re.findall(r"(?:^|,)\s*\*{0,2}(\w+)", match[1]) if match else []
    return [name for name in names if name not in {"self", "cls"}]


def _rename_parameter(code: str, old: str, new: str) -> Edit:
    ask = f"In `{function_name(code)}`, rename `{old}` to `{new}`."
    return Edit(ask=ask, code=re.sub(rf"\b{old}\b", new, code))
