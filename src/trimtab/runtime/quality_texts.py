"""Texts to judge precision by: code and prose that every installation of Python has, or files that a user names."""

import importlib
from pathlib import Path
from typing import Final

import msgspec

from trimtab.runtime.sources import standard_library

CODE, PROSE = "code", "prose"
TEXT_BYTES_MAX: Final = 4 * 1024 * 1024
CHARS_MAX: Final = 24_000
"""Of one text; what a window needs is far less."""


class TextError(RuntimeError):
    """A text cannot be used; the message names the file."""


class QualityText(msgspec.Struct, frozen=True):
    """A text with its kind and a name for reports."""

    kind: str
    name: str
    text: str


def standard_texts(each: int) -> tuple[QualityText, ...]:
    """Return `each` texts of code (the standard library's sources) and of prose (the language reference inside it)."""
    sources = sorted(standard_library().items())
    step = max(1, len(sources) // each)
    code = [QualityText(CODE, name, text) for name, text in sources[::step]][:each]
    # The reference ships as Python data: prose on many subjects, in whole sentences.
    topics: dict[str, str] = importlib.import_module("pydoc_data.topics").topics
    longest = sorted(topics.items(), key=lambda item: (-len(item[1]), item[0]))[:each]
    prose = [QualityText(PROSE, f"reference/{name}", text) for name, text in longest]
    return (*code, *prose)


def named_texts(named: tuple[tuple[str, Path], ...]) -> tuple[QualityText, ...]:
    """Read the texts that a user named, each with its kind; raises `TextError`."""
    return tuple(QualityText(kind, path.name, _read(path)) for kind, path in named)


def _read(path: Path) -> str:
    try:
        size = path.stat().st_size
        if size > TEXT_BYTES_MAX:
            raise TextError(f"{path} has {size:,} bytes, at most {TEXT_BYTES_MAX:,} are read")
        text = path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise TextError(f"{path} is no UTF-8 text (byte {error.start})") from error
    except OSError as error:
        raise TextError(f"{path} cannot be read: {error.strerror}") from error
    if not text.strip():
        raise TextError(f"{path} is empty")
    return text
