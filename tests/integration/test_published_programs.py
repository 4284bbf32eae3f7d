"""HumanEval and MBPP as they are published: their own solutions pass in the sandbox, and empty ones do not."""

import gzip
import json
from pathlib import Path

import pytest

from trimtab.quality.eval_checks import ProgramCheck, program_of
from trimtab.quality.evals import EvalItem, read_items
from trimtab.runtime.sandbox import ProgramEnd, SandboxError, check_sandbox, run_program

FIRST = 8
SETS = {"HumanEval.jsonl.gz": "canonical_solution", "mbpp_test.jsonl": "code"}


@pytest.fixture(params=list(SETS))
def published(request: pytest.FixtureRequest, public_data: Path) -> tuple[str, bytes]:
    path = public_data / "evals" / request.param
    if not path.is_file():
        pytest.skip("public data: the sets of programs are absent")
    data = path.read_bytes()
    return request.param, gzip.decompress(data) if path.suffix == ".gz" else data


def test_every_item_is_read(published: tuple[str, bytes]) -> None:
    """164 and 500 items with ids of their own, one program check each."""
    name, data = published
    items = read_items(iter(data.splitlines()), name=name)
    assert len(items) == {"HumanEval.jsonl.gz": 164, "mbpp_test.jsonl": 500}[name]
    assert len({item.id for item in items}) == len(items)
    assert all(isinstance(item, EvalItem) and item.runs_program for item in items)


async def test_published_solutions_pass_and_empty_ones_fail(published: tuple[str, bytes]) -> None:
    """Of the first items of each set; the tests are those that were published."""
    try:
        await check_sandbox()
    except SandboxError as error:
        pytest.skip(f"sandbox: {error}")
    name, data = published
    lines = data.splitlines()[:FIRST]
    ends: list[tuple[ProgramEnd, ProgramEnd]] = []
    for line, item in zip(lines, read_items(iter(lines), name=name), strict=True):
        assert isinstance(item, EvalItem)
        [check] = item.checks
        assert isinstance(check, ProgramCheck)
        solution = json.loads(line)[SETS[name]]
        answers = (solution, "    pass\n" if check.before else "pass\n")
        right, empty = [await run_program(program_of(answer, check)) for answer in answers]
        ends.append((right, empty))
    assert ends == [(ProgramEnd.PASSED, ProgramEnd.FAILED)] * FIRST
