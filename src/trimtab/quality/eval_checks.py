"""What a good answer must fulfil: checks on its text, programs that must end well, judges that must agree.

| type | fulfilled where |
|---|---|
| exact | the answer without white space around it is `value` |
| contains | `value` stands in the answer; `ignore_case` |
| regex | the pattern `value` is found (re.search) |
| json_schema | the whole answer is JSON that fits the schema `value` |
| number | the last number of the answer is `value` within `tolerance` (absolute) |
| program | `before`, the answer and the tests `value`, one after the other, end well as a Python program in a sandbox |
| judge | the judge at `url` scores the answer at least `score_min`, of 1 |
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, TypeAlias, assert_never

import msgspec
from msgspec import Meta

NUMBER: Final = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
FENCE: Final = re.compile(r"```[a-zA-Z0-9_+-]*\n(.*?)(?:```|\Z)", re.DOTALL)
PROGRAM_CHARS_MAX: Final = 200_000

SchemaChecker: TypeAlias = Callable[[Any, Mapping[str, Any]], bool]
"""(value, schema) to whether it fits."""


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


class ProgramCheck(
    msgspec.Struct, frozen=True, tag="program", tag_field="type", forbid_unknown_fields=True
):
    """The answer is Python that passes tests. `before`: what it continues; `value`: the tests."""

    value: Annotated[str, Meta(min_length=1, max_length=PROGRAM_CHARS_MAX)]
    before: Annotated[str, Meta(max_length=PROGRAM_CHARS_MAX)] = ""


class JudgeCheck(
    msgspec.Struct, frozen=True, tag="judge", tag_field="type", forbid_unknown_fields=True
):
    """A judge scores the answer from 0 to 1. `rubric`: what it is to look at, passed on as it is."""

    url: Annotated[str, Meta(pattern=r"^https?://[^\s/]+")]
    rubric: str = ""
    score_min: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.5


TextCheck: TypeAlias = ExactCheck | ContainsCheck | RegexCheck | SchemaCheck | NumberCheck
"""Fulfilled or not by the text alone."""

Check: TypeAlias = TextCheck | ProgramCheck | JudgeCheck


def fulfils(answer: str, check: TextCheck, fits: SchemaChecker) -> bool:
    """Whether an answer fulfils a check on its text."""
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
            except (ValueError, RecursionError):
                # No JSON, or JSON that is nested too deeply to be looked at.
                return False
        case NumberCheck():
            found = NUMBER.findall(answer)
            if not found:
                return False
            return abs(float(found[-1].replace(",", "")) - check.value) <= check.tolerance
        case _:
            assert_never(check)


def program_of(answer: str, check: ProgramCheck) -> str:
    """Return the program that an answer makes: of an answer with fenced code, the first fence alone.

    An answer that continues `before` is taken as it is, for its indentation belongs to it.
    """
    fenced = None if check.before else FENCE.search(answer)
    code = answer if fenced is None else fenced[1]
    return f"{check.before}{code}\n\n{check.value}\n"
