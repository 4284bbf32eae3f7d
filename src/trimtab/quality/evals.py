"""Product evals: a file of prompts with what a good answer must fulfil, one JSON object a line.

    {"id": "refund-3", "kind": "support", "prompt": "...", "max_tokens": 64,
     "checks": [{"type": "contains", "value": "14 days"}]}          (in one line)

`messages` (a chat) may stand for `prompt` (plain text). An answer is right if it fulfils every check:

| type | fulfilled where |
|---|---|
| exact | the answer without white space around it is `value` |
| contains | `value` stands in the answer; `ignore_case` |
| regex | the pattern `value` is found (re.search) |
| json_schema | the whole answer is JSON that fits the schema `value` |
| number | the last number of the answer is `value` within `tolerance` (absolute) |

Public sets are read as they are published: HumanEval needs a sandbox and is refused; GSM8K (`question`, `answer` with
`#### n`) becomes a number check; BLiMP (`sentence_good`, `sentence_bad`) is scored by which sentence is likelier.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

ITEMS_MAX: Final = 100_000
LINE_BYTES_MAX: Final = 1024 * 1024
KIND_DEFAULT: Final = "eval"
NUMBER: Final = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


class EvalError(ValueError):
    """An eval file cannot be used; the message names the line and the field."""


class ExactCheck(
    msgspec.Struct, frozen=True, tag="exact", tag_field="type", forbid_unknown_fields=True
):
    """The answer is the value."""

    value: str


class ContainsCheck(
    msgspec.Struct, frozen=True, tag="contains", tag_field="type", forbid_unknown_fields=True
):
    """The value stands in the answer."""

    value: Annotated[str, Meta(min_length=1)]
    ignore_case: bool = False


class RegexCheck(
    msgspec.Struct, frozen=True, tag="regex", tag_field="type", forbid_unknown_fields=True
):
    """The pattern is found in the answer."""

    value: str


class SchemaCheck(
    msgspec.Struct, frozen=True, tag="json_schema", tag_field="type", forbid_unknown_fields=True
):
    """The whole answer is JSON that fits a schema."""

    value: dict[str, Any]


class NumberCheck(
    msgspec.Struct, frozen=True, tag="number", tag_field="type", forbid_unknown_fields=True
):
    """The last number of the answer is the value."""

    value: float
    tolerance: Annotated[float, Meta(ge=0.0)] = 0.0


Check: TypeAlias = ExactCheck | ContainsCheck | RegexCheck | SchemaCheck | NumberCheck


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
    checks: Annotated[tuple[Check, ...], Meta(min_length=1)]


class PairItem(msgspec.Struct, frozen=True, kw_only=True):
    """Two sentences of which one is right; an arm is right where it finds that one likelier."""

    id: str
    kind: str
    good: str
    bad: str


Item: TypeAlias = EvalItem | PairItem
SchemaChecker: TypeAlias = Callable[[Any, Mapping[str, Any]], bool]
"""(value, schema) to whether it fits."""


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
    if "canonical_solution" in fields or "test_list" in fields:
        raise EvalError(
            f"{where} holds a program to be run (HumanEval, MBPP): answers that are code are only run in a sandbox, "
            "and this version has none; give checks on the text instead"
        )
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


def is_right(answer: str, item: EvalItem, fits: SchemaChecker) -> bool:
    """Whether an answer fulfils every check of its item."""
    return all(_fulfils(answer, check, fits) for check in item.checks)


def _fulfils(answer: str, check: Check, fits: SchemaChecker) -> bool:
    match check:
        case ExactCheck():
            return answer.strip() == check.value.strip()
        case ContainsCheck():
            if check.ignore_case:
                return check.value.casefold() in answer.casefold()
            return check.value in answer
        case RegexCheck():
            return re.search(check.value, answer) is not None
        case SchemaCheck():
            try:
                return fits(json.loads(answer), check.value)
            except ValueError:
                return False
        case NumberCheck():
            found = NUMBER.findall(answer)
            if not found:
                return False
            return abs(float(found[-1].replace(",", "")) - check.value) <= check.tolerance
