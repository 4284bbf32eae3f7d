"""What changed between two texts that should have been equal: where, how much stayed, and what kind of thing it is.

A changing value in the middle of a text leaves a common head and a common tail. Where more than one place changed, what
lies between is compared line by line as two sets: a line that stands in both is stable wherever it stands, because a
layout may put it first. Costs are linear in the length, so that prompts of any length can be compared.
"""

import re
from collections import Counter
from typing import Final

import msgspec

_WORD: Final = re.compile(r"[\w.:+/@=-]")
_WORD_CHARS_MAX: Final = 64

# What a changed word looks like; the first that fits is taken, so the narrow ones stand first.
_KINDS: Final = (
    (
        "a UUID",
        re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE),
    ),
    ("a date with a time", re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}")),
    ("a date", re.compile(r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[/.]\d{1,2}[/.]\d{2,4}")),
    ("a time of day", re.compile(r"\b\d{1,2}:\d{2}(:\d{2})?")),
    ("a time stamp", re.compile(r"\b1[5-9]\d{8}(\d{3})?(\.\d+)?\b")),
)
_HEX: Final = re.compile(r"[0-9a-f]{4,64}", re.IGNORECASE)
_NUMBER: Final = re.compile(r"[+-]?\d[\d.,_]*")
_RANDOM: Final = re.compile(r"(?=.*\d)(?=.*[A-Za-z])[\w+/=-]{12,}")
# The value may stand behind a name, as in `cch=a3f9c`.
_VALUE: Final = re.compile(r"[^=:]*[=:](.+)")


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """How the second of two texts differs from the first. All counts are characters of the second.

    `head`: common beginning; `stable`: all that stands in both texts, head included. `kinds`: what changed, in words
    that hold no text. `line`: the line (from 1) of the first change.
    """

    head: int
    stable: int
    line: int
    kinds: tuple[str, ...]


def common_head(first: str, second: str) -> int:
    """Return the length of the common beginning of two texts, by bisection over slices."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _common_tail(first: str, second: str, most: int) -> int:
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if first[len(first) - middle :] == second[len(second) - middle :]:
            low = middle
        else:
            high = middle - 1
    return low


def changes(first: str, second: str) -> Changes:
    """Compare two texts; equal ones have no kinds."""
    head = common_head(first, second)
    if head == len(first) == len(second):
        return Changes(head=head, stable=head, line=0, kinds=())
    line = second.count("\n", 0, head) + 1
    tail = _common_tail(first, second, min(len(first), len(second)) - head)
    was, now = first[head : len(first) - tail], second[head : len(second) - tail]
    if "\n" not in was and "\n" not in now:
        kind = kind_of(
            _whole_word(first, head, len(was), tail), _whole_word(second, head, len(now), tail)
        )
        return Changes(head=head, stable=head + tail, line=line, kinds=(kind,))
    kept, kinds = _lines(first, second)
    return Changes(head=head, stable=max(kept, head + tail), line=line, kinds=kinds)


def alike_share(first: str, second: str) -> float:
    """Return the part (0 to 1) of the longer text that stands in both."""
    longer = max(len(first), len(second))
    return 1.0 if longer == 0 else changes(first, second).stable / longer


def _whole_word(text: str, start: int, length: int, tail: int) -> str:
    """The changed part, widened to the word it is part of."""
    begin, end = start, start + length
    while begin > 0 and start - begin < _WORD_CHARS_MAX and _WORD.match(text[begin - 1]):
        begin -= 1
    last = min(len(text), end + min(tail, _WORD_CHARS_MAX))
    while end < last and _WORD.match(text[end]):
        end += 1
    return text[begin:end]


def _lines(first: str, second: str) -> tuple[int, tuple[str, ...]]:
    """Compare two texts as sets of lines: characters of the second that are in both, and what changed."""
    before, after = first.splitlines(keepends=True), second.splitlines(keepends=True)
    had, has = Counter(before), Counter(after)
    kept = sum(len(line) * count for line, count in (had & has).items())
    gone, new = _left(before, had - has), _left(after, has - had)
    kinds: list[str] = []
    if not gone and not new:
        return kept, ("the order of its lines",)
    if len(gone) == len(new):
        for was, now in zip(gone, new, strict=True):
            head = common_head(was, now)
            tail = _common_tail(was, now, min(len(was), len(now)) - head)
            kept += head + tail
            kinds.append(
                kind_of(
                    _whole_word(was, head, len(was) - head - tail, tail),
                    _whole_word(now, head, len(now) - head - tail, tail),
                )
            )
    else:
        kinds.append(f"lines ({len(gone)} before, {len(new)} after)")
    return kept, tuple(dict.fromkeys(kinds))


def _left(lines: list[str], wanted: Counter[str]) -> list[str]:
    """The lines of a difference, in their order."""
    rest, found = Counter(wanted), []
    for line in lines:
        if rest[line] > 0:
            rest[line] -= 1
            found.append(line)
    return found


def kind_of(was: str, now: str) -> str:
    """Say what kind of thing changed without quoting it."""
    for name, pattern in _KINDS:
        if pattern.search(was) and pattern.search(now):
            return name
    old, new = _value(was), _value(now)
    if _NUMBER.fullmatch(old) and _NUMBER.fullmatch(new):
        return "a number"
    if _HEX.fullmatch(old) and _HEX.fullmatch(new) and len(old) == len(new):
        return f"{len(new)} hexadecimal digits"
    if _RANDOM.fullmatch(old) and _RANDOM.fullmatch(new):
        return "a random-looking id"
    return "words" if was.strip() and now.strip() else "words that come and go"


def _value(word: str) -> str:
    named = _VALUE.fullmatch(word)
    return (named[1] if named else word).strip(".,;:/@")
