"""Reads the text of a stream's events without decoding them, once one of them has shown what they look like.

Events that follow each other in a stream differ in their text alone: before it and after it stand the same bytes.
Where an event has both and what is between them is a JSON string's inside, its text is just that and the rest says
what it said in the event that was decoded. Anything else (other fields, usage, the end) is for whoever decodes.
"""

import re
from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from trimtab.core.ports import StreamEvent

_TEXT = re.compile(
    rb'"(?:content|text|reasoning_content|reasoning)": ?"((?:[^"\\]|\\.)+)"', re.DOTALL
)
_INSIDE = re.compile(rb'(?:[^"\\]|\\.)*', re.DOTALL)
_STRING = msgspec.json.Decoder(str)
_FORMS_MAX = 1024
_FORMED_BYTES_MAX = 2048

LF, CR, QUOTE, BACKSLASH = b'\n\r"\\'
"""Bytes as numbers: Python looks for bytes in bytes by way of an exception that it makes and throws away."""

Form: TypeAlias = tuple[bytes, slice, slice]
"""What stands before the text in a chunk of one size, where that is, and where the text is."""


class StreamText:
    """What the events of one stream have in common, as it was last seen."""

    __slots__ = ("_after", "_before", "_shorter", "_size", "back", "forms", "is_known", "tail")

    def __init__(self) -> None:
        self.is_known = False
        """Whether an event has shown what they look like."""
        self._before = self._after = b""
        self._size = self._shorter = 0
        self.tail = b""
        """What follows the text in a chunk of one event, the end of its frame included."""
        self.back = slice(None)
        """Where that is."""
        self.forms: dict[int, Form] = {}
        """Of chunks by their size: of sizes up to 2 KiB that were seen."""

    def learn(self, data: bytes, event: StreamEvent) -> None:
        """Take an event's data and what it was decoded to as the pattern of those that follow."""
        self.is_known = False
        found = _TEXT.search(data)
        if found is None or not _is_text_alone(event) or text_of([found[1]]) != event.text:
            return
        self._before = b"data: " + data[: found.start(1)]
        self._after = data[found.end(1) :] + b"\n\n"
        self._size, self._shorter = len(self._before), len(self._before) + len(self._after)
        self.tail = self._after + b"\r\n"
        self.back = slice(-len(self.tail), None)
        self.forms.clear()
        self.is_known = True

    def insides(self, chunks: bytes) -> list[bytes] | None:
        """Return what `inside` would return of each event, where `chunks` is whole HTTP chunks of one event each.

        None where any of it is something else: other events, other frames, a part of a chunk.
        """
        if not self.is_known:
            return None
        tail, forms = self.tail, self.forms
        parts = chunks.split(tail)
        if parts.pop():
            return None
        for at, part in enumerate(parts):
            size = len(part) + len(tail)
            form = forms.get(size) or self._form(size)
            if form is None or not part.startswith(form[0]):
                return None
            text = part[len(form[0]) :]
            if LF in text or CR in text:
                return None
            if not is_inside(text):
                return None
            parts[at] = text
        return parts

    def _form(self, size: int) -> Form | None:
        """Return the form of a chunk that has this size, its frame included.

        None where no chunk has this size: 255 bytes are one more with their length, 256 bytes two more.
        """
        # The length is said of the event alone, and how many digits it takes depends on itself.
        event = size - 2
        digits = next(n for n in range(1, 17) if event - n - 2 < 16**n)
        length = b"%x" % max(0, event - digits - 2)
        if len(length) != digits:
            return None
        head = b"%b\r\n%b" % (length, self._before)
        form = head, slice(len(head)), slice(len(head), -len(self.tail))
        if size <= _FORMED_BYTES_MAX:
            if len(self.forms) >= _FORMS_MAX:
                self.forms.clear()
            self.forms[size] = form
        return form

    def data(self, part: bytes) -> bytes:
        """Return the data of the event that has this between what all have in common."""
        return self._before[len(b"data: ") :] + part + self._after[: -len(b"\n\n")]

    def inside(self, raw: bytes) -> bytes | None:
        """Return the inside of the JSON string that is the text of one whole event, None where it does not fit."""
        if (
            not self.is_known
            or len(raw) < self._shorter
            or not raw.startswith(self._before)
            or not raw.endswith(self._after)
        ):
            return None
        part = raw[self._size : len(raw) + self._size - self._shorter]
        if LF in part or CR in part:
            return None
        return part if is_inside(part) else None


def is_inside(part: bytes) -> bool:
    """Say whether bytes between two quotes are one JSON string's inside: no quote ends it before the last."""
    return (BACKSLASH not in part and QUOTE not in part) or _INSIDE.fullmatch(part) is not None


def _is_text_alone(event: StreamEvent) -> bool:
    return (
        bool(event.text)
        and event.finish_reason is None
        and event.report is None
        and event.error is None
        and not event.done
    )


def text_of(parts: Sequence[bytes]) -> str | None:
    """Return the text that the insides of JSON strings make together, None where they are no UTF-8 or no JSON."""
    joined = b"".join(parts)
    try:
        return _STRING.decode(b'"%b"' % joined) if BACKSLASH in joined else joined.decode()
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
