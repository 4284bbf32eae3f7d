"""Texts as TOML has them, whatever stands in them: in values and in comments."""

import json
import re
from collections.abc import Sequence
from typing import Final

_CONTROL: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]+")
_DELETE: Final = "\x7f"


def toml_text(value: str | Sequence[str]) -> str:
    """Write a text, or a list of texts, as a TOML value.

    JSON's escapes are TOML's too, but for pairs of surrogates, which TOML refuses, and DEL, which JSON leaves bare.
    """
    return json.dumps(value, ensure_ascii=False).replace(_DELETE, "\\u007f")


def toml_comment(text: str) -> str:
    """Write a text so that it stays in one comment: ends of lines and other controls become a blank."""
    return _CONTROL.sub(" ", text)
