"""Product evals: a file of prompts with what a good answer must fulfil, one JSON object a line.

    {"id": "refund-3", "kind": "support", "prompt": "...", "max_tokens": 64,
     "checks": [{"type": "contains", "value": "14 days"}]}          (in one line)

`messages` (a chat) may stand for `prompt` (plain text). An answer is right if it fulfils every check
(`quality.eval_checks`). With a `temperature` above 0 an item is a sampled task: it is asked several times, by seeds.

Public sets are read as they are published: HumanEval (`prompt`, `test`, `entry_point`) and MBPP (`test_list`) become
program checks; GSM8K (`question`, `answer` with `#### n`) becomes a number check; BLiMP (`sentence_good`,
`sentence_bad`) is scored by which sentence is likelier.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from trimtab.quality.eval_checks import (
    Check,
    JudgeCheck,
    NumberCheck,
    ProgramCheck,
    RegexCheck,
    SchemaChecker,
    fulfils,
)

ITEMS_MAX: Final = 100_000
LINE_BYTES_MAX: Final = 1024 * 1024
KIND_DEFAULT: Final = "eval"
FUNCTION_ENDS: Final = ("\nclass ", "\ndef ", "\n#", "\nif ", "\nprint(", "\n@")
"""Where the body of a function that was to be continued is over; as HumanEval's own harness has it."""
DOCSTRING: Final = '"""'


class EvalError(ValueError):
    """An eval file cannot be used; the message names the line and the field."""


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One turn of a chat."""

    role: Literal["system", "user", "assistant"]
    content: str


class EvalItem(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One prompt with its checks."""

    id: str = ""
    kind: Annotated[str, Meta(min_length=1, max_length=64)] = KIND_DEFAULT
    prompt: str | None = None
    messages: tuple[Message, ...] = ()
    max_tokens: Annotated[int, Meta(ge=1, le=32_768)] = 128
    temperature: Annotated[float, Meta(ge=0.0, le=2.0)] = 0.0
    stop: Annotated[tuple[Annotated[str, Meta(min_length=1)], ...], Meta(max_length=16)] = ()
    checks: Annotated[tuple[Check, ...], Meta(min_length=1)]

    @property
    def runs_program(self) -> bool:
        """Whether its answer is run."""
        return any(isinstance(check, ProgramCheck) for check in self.checks)

    @property
    def is_sampled(self) -> bool:
        """Whether asking it twice may give two results: it is sampled, or a judge decides."""
        judged = any(isinstance(check, JudgeCheck) for check in self.checks)
        return self.temperature > 0.0 or judged


class PairItem(msgspec.Struct, frozen=True, kw_only=True):
    """Two sentences of which one is right; an arm is right where it finds that one likelier."""

    id: str
    kind: str
    good: str
    bad: str


Item: TypeAlias = EvalItem | PairItem


def read_items(lines: Iterator[bytes], *, name: str) -> tuple[Item, ...]:
    """Read the items of a file; empty lines are passed over. Raises `EvalError` that names `name` and the line."""
    items: list[Item] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{name}, line {number}"
        if len(line) > LINE_BYTES_MAX:
            raise EvalError(f"{where}: {len(line):,} bytes, at most {LINE_BYTES_MAX:,} are read")
        if len(items) >= ITEMS_MAX:
            raise EvalError(f"{where}: more than {ITEMS_MAX:,} items; give a part of them")
        items.append(_read(line, where, f"{name}:{number}"))
    if not items:
        raise EvalError(f"{name} has no items")
    return tuple(items)


def _read(line: bytes, where: str, fallback: str) -> Item:
    try:
        fields = msgspec.json.decode(line, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise EvalError(f"{where} is no JSON object: {error}") from error
    if "sentence_good" in fields and "sentence_bad" in fields:
        return PairItem(
            id=fallback,
            kind=str(fields.get("field", "pairs")),
            good=str(fields["sentence_good"]),
            bad=str(fields["sentence_bad"]),
        )
    if "question" in fields and "answer" in fields and "checks" not in fields:
        return _gsm8k(fields, where, fallback)
    if "entry_point" in fields and "test" in fields:
        return _human_eval(fields, where, fallback)
    if "checks" not in fields and ("test_list" in fields or "test" in fields):
        return _mbpp(fields, where, fallback)
    try:
        item = msgspec.convert(fields, EvalItem)
    except msgspec.ValidationError as error:
        raise EvalError(f"{where}: {error}") from error
    if (item.prompt is None) == (not item.messages):
        raise EvalError(f"{where}: give either `prompt` or `messages`")
    for check in item.checks:
        _check_pattern(check, where)
    return item if item.id else msgspec.structs.replace(item, id=fallback)


def _check_pattern(check: Check, where: str) -> None:
    if isinstance(check, RegexCheck):
        try:
            re.compile(check.value)
        except re.error as error:
            raise EvalError(f"{where}: the pattern {check.value!r} is none: {error}") from error


def _gsm8k(fields: Mapping[str, Any], where: str, fallback: str) -> EvalItem:
    _, mark, last = str(fields["answer"]).rpartition("####")
    try:
        value = float(last.strip().replace(",", ""))
    except ValueError as error:
        raise EvalError(f"{where}: its answer does not end in `#### NUMBER`") from error
    if not mark:
        raise EvalError(f"{where}: its answer does not end in `#### NUMBER`")
    return EvalItem(
        id=fallback,
        kind="gsm8k",
        messages=(Message("user", str(fields["question"])),),
        max_tokens=256,
        checks=(NumberCheck(value),),
    )


def _human_eval(fields: Mapping[str, Any], where: str, fallback: str) -> EvalItem:
    """A function to be continued behind its docstring; its tests define `check`."""
    prompt, tests, name = (_text(fields, key, where) for key in ("prompt", "test", "entry_point"))
    return EvalItem(
        id=str(fields.get("task_id", fallback)),
        kind="humaneval",
        prompt=prompt,
        max_tokens=256,
        stop=FUNCTION_ENDS,
        checks=(ProgramCheck(f"{tests}\n\ncheck({name})", before=prompt),),
    )


def _mbpp(fields: Mapping[str, Any], where: str, fallback: str) -> EvalItem:
    """A task and its tests in a docstring, to be answered with a function below it."""
    task = _text(fields, "text" if "text" in fields else "prompt", where)
    tests = fields.get("test_list", fields.get("test"))
    if not isinstance(tests, list) or not tests or not all(isinstance(one, str) for one in tests):
        raise EvalError(f"{where}: its tests are no list of assertions")
    asserted = "\n".join(tests)
    setup = str(fields.get("test_setup_code", ""))
    return EvalItem(
        id=f"mbpp/{fields['task_id']}" if "task_id" in fields else fallback,
        kind="mbpp",
        prompt=f"{DOCSTRING}\n{task}\n{asserted}\n{DOCSTRING}\n",
        max_tokens=256,
        stop=("\nassert ", "\nclass ", "\nif ", "\nprint(", f"\n{DOCSTRING}"),
        checks=(ProgramCheck(f"{setup}\n{asserted}"),),
    )


def _text(fields: Mapping[str, Any], key: str, where: str) -> str:
    value = fields.get(key)
    if not isinstance(value, str) or not value:
        raise EvalError(f"{where}: its `{key}` is no text")
    return value


def text_is_right(answer: str, item: EvalItem, fits: SchemaChecker) -> bool:
    """Whether an answer fulfils every check on its text; programs and judges are asked elsewhere."""
    return all(
        fulfils(answer, check, fits)
        for check in item.checks
        if not isinstance(check, ProgramCheck | JudgeCheck)
    )
