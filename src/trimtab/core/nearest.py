"""The nearest valid choice to one that is not: what an error about a question offers."""

import difflib
from collections.abc import Iterable
from typing import Final

NEAREST_MAX: Final = 3
_ALIKE: Final = 0.5


def nearest_names(wanted: str, known: Iterable[str]) -> tuple[str, ...]:
    """Return the known names that resemble one, the most alike first; empty if none does."""
    by_plain = {plain_name(name): name for name in known}
    wanted = plain_name(wanted)
    inside = [plain for plain in by_plain if wanted and (wanted in plain or plain in wanted)]
    alike = difflib.get_close_matches(wanted, list(by_plain), n=NEAREST_MAX, cutoff=_ALIKE)
    found = dict.fromkeys((*alike, *sorted(inside, key=len, reverse=True)))
    return tuple(by_plain[plain] for plain in list(found)[:NEAREST_MAX])


def plain_name(name: str) -> str:
    """Return lower case without spaces and signs: what names are compared by."""
    return "".join(sign for sign in name.lower() if sign.isalnum())
