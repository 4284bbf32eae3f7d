"""Which tokens of a text the tokens before them foretell: in a prompt, and in the answers of earlier requests.

Law: a token is foretold if the `match_tokens` before it have stood before, and the same token followed them last time.
Text is cut into pieces that stand for tokens. A ratio over answers has the interval of the ratio estimator, an answer
being its unit: the tokens of one answer are not independent of each other.

Failure mode: pieces are not the tokenizer's tokens, so that matches are a little longer or shorter than an engine's.
"""

import re
from collections.abc import Hashable, Sequence
from typing import Final

import msgspec

from trimtab.core.stats import Interval, mean_interval

_PIECE: Final = re.compile(r" ?\w{1,6}|[^\w\s]|\s+")
"""About a token of the usual vocabularies: up to six letters with the blank before them, one sign, white space."""

PROMPT_TOKENS_MAX: Final = 65_536
"""Tokens at the end of a prompt that are looked at."""

EARLIER_GRAMS_MAX: Final = 2_000_000
"""Pieces of earlier answers that are remembered; later ones are compared with those."""

Token = Hashable


def pieces(text: str) -> list[str]:
    """Return a text in pieces that stand for tokens."""
    return _PIECE.findall(text)


def foretold(text: Sequence[Token], match_tokens: int) -> tuple[int, int]:
    """Return how many tokens of a text the tokens before them foretell, and how many there are to be foretold."""
    size, tail = match_tokens, list(text[-PROMPT_TOKENS_MAX:])
    after: dict[tuple[Token, ...], Token] = {}
    hit = 0
    for at in range(size, len(tail)):
        key = tuple(tail[at - size : at])
        hit += after.get(key) == tail[at]
        after[key] = tail[at]
    return hit, max(0, len(tail) - size)


class Earlier:
    """The answers of earlier requests, as hashes of their pieces; bounded. They never leave this object."""

    def __init__(self, match_tokens: int) -> None:
        self._size = match_tokens + 1
        self._grams: set[int] = set()

    @property
    def is_full(self) -> bool:
        """Whether nothing more is remembered."""
        return len(self._grams) >= EARLIER_GRAMS_MAX

    def take(self, answer: Sequence[Token]) -> tuple[int, int]:
        """Return how many tokens of an answer earlier answers foretell, and of how many; then remember it."""
        size = self._size
        grams = [hash(tuple(answer[at - size : at])) for at in range(size, len(answer) + 1)]
        hit = sum(gram in self._grams for gram in grams)
        if not self.is_full:
            self._grams.update(grams)
        return hit, len(grams)


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """A share or ratio over answers with its interval; None where nothing was counted or one answer alone."""

    value: float | None
    interval: Interval | None
    n: int


def ratio_of(above: Sequence[float], below: Sequence[float], *, level: float = 0.95) -> Share:
    """Return sum over sum, with the interval of the ratio estimator over answers (Cochran, 1977, section 2.11)."""
    whole, n = sum(below), len(below)
    if not whole:
        return Share(value=None, interval=None, n=n)
    value = sum(above) / whole
    found = mean_interval(
        [one - value * other for one, other in zip(above, below, strict=True)], level=level
    )
    mean = whole / n
    interval = found and Interval(
        low=value + found.low / mean, high=value + found.high / mean, level=level
    )
    return Share(value=value, interval=interval, n=n)
