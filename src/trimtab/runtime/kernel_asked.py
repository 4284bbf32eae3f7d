"""What points of a grid are asked of: compiled configurations of the kernel tables' package, or those less a part."""

from functools import cache
from typing import Any, Final

from trimtab.planning.grid_times import Asked, GridTimes
from trimtab.runtime.kernel_sdk import (
    EXCHANGES,
    EXPERTS,
    PROBE,
    Compiled,
    compiled,
    only,
    overlaps,
    without,
)
from trimtab.runtime.kernel_stages import Remembered, Staged

_COLLECTIVES: Final = ("_ar", "dispatch", "p2p", "allreduce", "all_gather", "all2all", "combine")


class EngineAsked:
    """Asks one compiled configuration for the points of a grid."""

    def __init__(self, engine: Any, *, exchanges: bool = True) -> None:
        """`exchanges`: experts' tokens are exchanged in its steps."""
        self._engine = engine
        self._exchanges = exchanges

    def decode_ms(self, batch: int, context_tokens: int) -> float:
        """Return one decode step; the package puts it at input plus half of the output."""
        return float(self._engine.decode_step_latency(batch, max(1, context_tokens - 1), 2))

    def collectives_ms(self, batch: int) -> float | None:
        """Return the collectives of a decode step; None where the package lets an exchange overlap with other work."""
        steps = self._engine.decode_step_per_op(batch, PROBE[1], 2)
        if any("overlap" in name and self._exchanges for name, *_ in steps):
            return None
        return float(sum(ms for name, ms, *_ in steps if _is_collective(name)))

    def prefill_ms(self, prompt_tokens: int, cached_tokens: int) -> float:
        """Return one step of a prompt."""
        return float(self._engine.predict_prefill_latency(1, prompt_tokens, cached_tokens))

    def beside_ms(
        self, chunk_tokens: int, prompt_tokens: int, cached_tokens: int, batch: int
    ) -> float:
        """Return what a chunk adds to a decode step."""
        return max(0.0, self.added_ms(chunk_tokens, prompt_tokens, cached_tokens, batch))

    def added_ms(
        self, chunk_tokens: int, prompt_tokens: int, cached_tokens: int, batch: int
    ) -> float:
        """Return the same as the tables have it, which may be below 0: some kernels are faster with more tokens."""
        mixed = self._engine.mixed_step_latency(
            chunk_tokens, batch, prompt_tokens, 2, cached_tokens
        )
        return float(mixed) - self.decode_ms(batch, prompt_tokens + 1)


class LessAsked:
    """Times of a configuration less those of a part of its operations, which run one after the other."""

    def __init__(self, whole: GridTimes, part: EngineAsked) -> None:
        self._whole = whole
        self._part = part

    def decode_ms(self, batch: int, context_tokens: int) -> float:
        """Return one decode step without the part."""
        return self._whole.decode_ms(batch, context_tokens) - self._part.decode_ms(
            batch, context_tokens
        )

    def collectives_ms(self, batch: int) -> float | None:
        """Return its collectives without those of the part."""
        whole = self._whole.communication_ms(batch, PROBE[1])
        part = self._part.collectives_ms(batch)
        return None if whole is None or part is None else max(0.0, whole - part)

    def prefill_ms(self, prompt_tokens: int, cached_tokens: int) -> float:
        """Return one step of a prompt without the part."""
        whole = self._whole.prefill_ms(prompt_tokens, cached_tokens)
        return whole - self._part.prefill_ms(prompt_tokens, cached_tokens)

    def beside_ms(
        self, chunk_tokens: int, prompt_tokens: int, cached_tokens: int, batch: int
    ) -> float:
        """Return what a chunk adds to a decode step without the part."""
        whole = self._whole.beside_ms(chunk_tokens, prompt_tokens, cached_tokens, batch)
        part = self._part.added_ms(chunk_tokens, prompt_tokens, cached_tokens, batch)
        return max(0.0, whole - part)


def part_engines(found: Compiled) -> tuple[Remembered, Remembered]:
    """Return what a mixture's steps without its exchange, and without its experts too, are asked of.

    Asking for the experts alone spares asking for attention again, which takes longest; where operations overlap,
    their times cannot be subtracted.
    """
    keep = without if overlaps(found.spec) else only
    exchange, experts = (
        Remembered(compiled(keep(found.spec, each), found.root))
        for each in (EXCHANGES, (*EXCHANGES, *EXPERTS))
    )
    return exchange, experts


def parts_asked(
    found: Compiled, whole: GridTimes, engines: tuple[Remembered, Remembered]
) -> tuple[Asked, Asked]:
    """Return a mixture's steps without its exchange, and without its experts too; `engines`: as `part_engines` has."""
    if overlaps(found.spec):
        first, second = (
            EngineAsked(each if found.sends is None else Staged(each, found.sends), exchanges=False)
            for each in engines
        )
        return first, second
    less, least = (LessAsked(whole, EngineAsked(each)) for each in engines)
    return less, least


@cache
def _is_collective(name: str) -> bool:
    return any(name.endswith(part) or f"{part}_" in name for part in _COLLECTIVES)
