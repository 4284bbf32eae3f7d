"""What an arm under test is asked so that its texts can be scored: one small port, a class for each engine."""

from collections.abc import Callable, Iterator, Sequence
from typing import Generic, Protocol, TypeVar

import msgspec

T = TypeVar("T")


class Ask(msgspec.Struct, Generic[T], frozen=True):
    """One request. `read` turns the body of its answer into what was asked for; raises `EngineFormatError`."""

    path: str
    body: bytes
    read: Callable[[bytes], T]


class Generated(msgspec.Struct, frozen=True):
    """What an arm wrote by itself: tokens, their text, and whether it ended by itself."""

    tokens: tuple[int, ...]
    text: str
    ended: bool


class ScoreFormat(Protocol):
    """How an engine is asked. No asking changes what a later one is told."""

    @property
    def streams(self) -> int:
        """How many continuations may run at once: 1 where they share a slot's cache."""
        ...

    def tokens(self, text: str) -> Ask[tuple[int, ...]]:
        """Ask for the tokens of a text, with what the model begins a text with."""
        ...

    def forced(self, tokens: Sequence[int], first: int) -> Iterator[Ask[tuple[float, ...]]]:
        """Ask for the raw log-probabilities of the tokens from `first` on, each after all before it, in order."""
        ...

    def continued(
        self, before: Sequence[int], tokens: int, *, temperature: float, seed: int
    ) -> Ask[Generated]:
        """Ask for a continuation of `before`; it may end before `tokens`."""
        ...
