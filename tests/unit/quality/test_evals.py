"""Eval files: what is read, what is refused with its line, and what is right."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from trimtab.quality.eval_checks import (
    JudgeCheck,
    ProgramCheck,
    SchemaCheck,
    fulfils,
    program_of,
)
from trimtab.quality.evals import EvalError, EvalItem, PairItem, read_items, text_is_right


def read(*objects: object) -> tuple[object, ...]:
    lines = [json.dumps(one).encode() if not isinstance(one, bytes) else one for one in objects]
    return read_items(iter(lines), name="evals.jsonl")


def item(check: dict[str, Any]) -> EvalItem:
    [found] = read({"prompt": "x", "checks": [check]})
    assert isinstance(found, EvalItem)
    return found


def fits(value: Any, schema: Mapping[str, Any]) -> bool:
    return isinstance(value, dict) and set(schema["required"]) <= set(value)


@pytest.mark.parametrize(
    ("check", "right", "wrong"),
    [
        ({"type": "exact", "value": "yes"}, " yes\n", "yes."),
        ({"type": "contains", "value": "14 days"}, "within 14 days.", "14  days"),
        ({"type": "contains", "value": "Yes", "ignore_case": True}, "oh yes", "no"),
        ({"type": "regex", "value": r"\bdef add\("}, "def add(a, b):", "def adds("),
        ({"type": "json_schema", "value": {"required": ["a"]}}, '{"a": 1}', "{"),
        ({"type": "json_schema", "value": {"required": ["a"]}}, '{"a": 1}', '{"b": 1}'),
        ({"type": "number", "value": 1234}, "so it is 1,234", "1,235"),
        ({"type": "number", "value": 0.3, "tolerance": 0.01}, "about 0.305", "about 0.32"),
        ({"type": "number", "value": 3}, "12 - 9 = 3", "three"),
    ],
)
def test_check_tells_right_from_wrong(check: dict[str, Any], right: str, wrong: str) -> None:
    """Each kind of check, with an answer that fulfils it and one that does not."""
    assert text_is_right(right, item(check), fits)
    assert not text_is_right(wrong, item(check), fits)


def test_every_check_must_hold() -> None:
    """One that fails makes the answer wrong."""
    checks = [{"type": "contains", "value": "a"}, {"type": "contains", "value": "b"}]
    [found] = read({"prompt": "x", "checks": checks})
    assert isinstance(found, EvalItem)
    assert not text_is_right("only a", found, fits)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"prompt": ', "line 2 is no JSON object"),
        ({"prompt": "x"}, "line 2: Object missing required field `checks`"),
        ({"prompt": "x", "checks": []}, "line 2: Expected `array` of length >= 1"),
        (
            {"checks": [{"type": "exact", "value": "y"}]},
            "line 2: give either `prompt` or `messages`",
        ),
        ({"prompt": "x", "checks": [{"type": "regex", "value": "("}]}, "line 2: the pattern '('"),
        (
            {"prompt": "x", "checks": [{"type": "vibe", "value": "y"}]},
            "line 2: Invalid value 'vibe'",
        ),
        (
            {"question": "q", "answer": "no mark"},
            "line 2: its answer does not end in `#### NUMBER`",
        ),
        (
            {"task_id": "HumanEval/0", "prompt": "def", "entry_point": "f", "test": ""},
            "line 2: its `test` is no text",
        ),
        ({"task_id": 3, "prompt": "Add.", "test": "assert"}, "line 2: its tests are no list"),
        (
            {"prompt": "x", "checks": [{"type": "judge", "url": "localhost:9"}]},
            "line 2: Expected `str` matching regex",
        ),
    ],
)
def test_broken_line_is_named(line: object, said: str) -> None:
    """The error says which line of which file, and what is wrong with it."""
    with pytest.raises(EvalError) as told:
        read({"prompt": "x", "checks": [{"type": "exact", "value": "y"}]}, line)
    assert "evals.jsonl" in str(told.value)
    assert said in str(told.value)


def test_public_sets_are_read_as_published() -> None:
    """GSM8K ends in a number; BLiMP is a pair of sentences."""
    gsm, pair = read(
        {"question": "How many?", "answer": "Two and two.\n#### 1,004"},
        {
            "sentence_good": "He runs.",
            "sentence_bad": "He run.",
            "UID": "agreement",
            "field": "morphology",
        },
    )
    assert isinstance(gsm, EvalItem)
    assert text_is_right("The answer is 1004.", gsm, fits)
    assert pair == PairItem(id="evals.jsonl:2", kind="morphology", good="He runs.", bad="He run.")


def test_file_without_items_is_refused() -> None:
    """Nothing asked proves nothing."""
    with pytest.raises(EvalError, match="has no items"):
        read(b"\n")


HUMAN_EVAL = {
    "task_id": "HumanEval/7",
    "prompt": 'def add(a, b):\n    """Add."""\n',
    "entry_point": "add",
    "canonical_solution": "    return a + b\n",
    "test": "def check(candidate):\n    assert candidate(1, 2) == 3\n",
}
MBPP = {"task_id": 11, "prompt": "Add two numbers.", "test": ["assert add(1, 2) == 3"], "code": ""}


def program(line: dict[str, Any], answer: str) -> str:
    [found] = read(line)
    assert isinstance(found, EvalItem)
    [check] = found.checks
    assert isinstance(check, ProgramCheck)
    return program_of(answer, check)


def ends_well(source: str) -> bool:
    try:
        exec(compile(source, "answer", "exec"), {})
    except AssertionError:
        return False
    return True


@pytest.mark.parametrize(
    ("line", "right", "wrong"),
    [
        (HUMAN_EVAL, "    return a + b\n", "    return a - b\n"),
        (MBPP, "def add(a, b):\n    return a + b\n", "def add(a, b):\n    return a\n"),
        (
            MBPP,
            "Here:\n```python\ndef add(a, b):\n    return a + b\n```\nIt adds.",
            "```\ndef add(a, b):\n    return 0\n```",
        ),
    ],
)
def test_answers_of_published_programs_meet_their_tests(
    line: dict[str, Any], right: str, wrong: str
) -> None:
    """HumanEval continues its prompt, MBPP stands alone; of a fenced answer the fence is what counts."""
    assert ends_well(program(line, right))
    assert not ends_well(program(line, wrong))


def test_published_programs_have_names_and_ends() -> None:
    """Their published ids, one kind each, and where the body of a function is over."""
    human, mbpp = read(HUMAN_EVAL, MBPP)
    assert isinstance(human, EvalItem)
    assert isinstance(mbpp, EvalItem)
    assert (human.id, human.kind, mbpp.id, mbpp.kind) == (
        "HumanEval/7",
        "humaneval",
        "mbpp/11",
        "mbpp",
    )
    assert "\ndef " in human.stop
    assert "assert add(1, 2) == 3" in str(mbpp.prompt)


def test_item_is_sampled_where_asking_twice_may_differ() -> None:
    """A temperature above 0, or a judge."""
    judged = {"type": "judge", "url": "http://judge/score"}
    plain, warm, by_judge = read(
        {"prompt": "x", "checks": [{"type": "exact", "value": "y"}]},
        {"prompt": "x", "temperature": 0.7, "checks": [{"type": "exact", "value": "y"}]},
        {"prompt": "x", "checks": [judged]},
    )
    told = [one.is_sampled for one in (plain, warm, by_judge) if isinstance(one, EvalItem)]
    assert told == [False, True, True]
    assert isinstance(by_judge, EvalItem)
    assert by_judge.checks == (JudgeCheck("http://judge/score"),)


def test_answer_nested_without_measure_is_wrong_and_no_failure() -> None:
    """Reading it must not end a walk."""
    assert not fulfils("[" * 100_000, SchemaCheck({}), lambda *_: True)
