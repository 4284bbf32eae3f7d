"""Step times of a mixture's layout with the exchange, the load of the ranks and the width that were asked for.

Kernel tables know experts under one skewed choice of theirs, an exchange of each engine, groups of up to eight ranks.
A step is taken apart into experts, exchange and the rest, and put together again:

    experts     load of the busiest rank told as S times the mean: what evenly loaded ranks take for S times the tokens.
                Even load is read off tensor parallelism over as many ranks, where each does exactly the mean's work
                (the same operations, the same bytes); own times where those are lower.
                Load unknown: as the tables have it, which hold a skew of their own.
    more than 8 ranks   a rank computes tokens x experts a token, however many ranks there are, and reads fewer
                experts than one of eight: never more than eight ranks do with as many tokens each. Tables of wider
                groups charge several times that, and no measured server stands behind them.
    exchange    by formula where its kind was told (see `exchange`), else as the tables have it
    prompts     of groups that have a prompt in the same step, all go through the experts: `busy_share` of the tokens
                of a step in which every group has one

Fails where experts and exchange overlap (then the sum is too long), and for kernels that are slower when narrow: even
load is then too slow.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from trimtab.core.layout import EstimateSource, Layout
from trimtab.planning.exchange import Exchange
from trimtab.planning.grid_times import CHUNK_TOKENS
from trimtab.planning.kernel_port import Parted, StepTimes

MEASURED_RANKS: Final = 8
"""The widest group of ranks of which measured servers confirm the tables."""


class Reference(msgspec.Struct, frozen=True, kw_only=True):
    """Another layout's times that bound the experts', and its tokens of a step for each of this layout's."""

    times: Parted
    tokens_ratio: float


def even_reference(layout: Layout) -> tuple[Layout, float]:
    """Return the layout whose ranks all do the mean's work, and its tokens for each of a rank of this one."""
    ranks = layout.tp * layout.attention_dp
    width = min(ranks, MEASURED_RANKS)
    return Layout(tp=width, moe_tp=width), layout.attention_dp * width / ranks


def near_reference(layout: Layout) -> tuple[Layout, float] | None:
    """Return the widest measured layout that deals experts out like a wider one; None for one that is not wider."""
    ranks = layout.tp * layout.attention_dp
    if ranks <= MEASURED_RANKS:
        return None
    return Layout(attention_dp=MEASURED_RANKS, moe_ep=MEASURED_RANKS), layout.attention_dp / ranks


class MixtureTimes:
    """Times of a layout whose ranks share experts, put together from their parts."""

    def __init__(
        self,
        own: Parted,
        layout: Layout,
        *,
        exchange: Exchange | None = None,
        skew: float | None = None,
        even: Reference | None = None,
        near: Reference | None = None,
    ) -> None:
        self._own = own
        self._bare = own.no_exchange
        self._rest = own.no_experts
        # Ranks of an attention group share its tokens out before they send them.
        self._sent_share = 1.0 / layout.tp
        self._exchange = exchange
        self._skew = skew
        self._bounds = tuple(each for each in (even if skew else near,) if each is not None)
        tables = own.whole.source is EstimateSource.KERNEL_TABLES
        by_formula = exchange is not None or near is not None
        self.source = EstimateSource.EXTENDED_TABLES if tables and by_formula else own.whole.source
        self.extended: bool = own.whole.extended
        told = [exchange.words] if exchange else []
        if skew:
            told.append(f"experts at {skew:g} times the mean load of a rank")
        elif self._bounds:
            told.append(f"experts of a rank bounded by those of {MEASURED_RANKS} ranks")
        self.notes: tuple[str, ...] = (*own.whole.notes, *told)

    def decode_ms(self, batch: float, context_tokens: float) -> float:
        """Return one decode step of a batch at a context."""
        return (
            self._rest.decode_ms(batch, context_tokens)
            + self._experts_ms(batch, lambda times, tokens: times.decode_ms(tokens, context_tokens))
            + self._exchange_ms(batch, lambda times, tokens: times.decode_ms(tokens, context_tokens))
        )  # fmt: skip

    def communication_ms(self, batch: float, context_tokens: float) -> float | None:
        """Return the exchange, and the collectives of the rest where those can be told."""
        rest = self._rest.communication_ms(batch, context_tokens)
        sent = self._exchange_ms(
            batch, lambda times, tokens: times.decode_ms(tokens, context_tokens)
        )
        return sent + (rest or 0.0)

    def prefill_ms(
        self, prompt_tokens: float, cached_tokens: float, *, busy_share: float = 1.0
    ) -> float:
        """Return one step of a whole prompt of a rank."""
        fresh = prompt_tokens - cached_tokens

        def ask(times: StepTimes, tokens: float) -> float:
            return times.prefill_ms(tokens + cached_tokens, cached_tokens)

        shared = fresh * busy_share
        return (
            self._rest.prefill_ms(prompt_tokens, cached_tokens)
            + self._experts_ms(shared, ask)
            + self._exchange_ms(shared, ask)
        )

    def beside_ms(
        self,
        chunk_tokens: float,
        prompt_tokens: float,
        cached_tokens: float,
        batch: float,
        *,
        busy_share: float = 1.0,
    ) -> float:
        """Return what a prompt's chunk adds to a step of decoding streams; never below 0."""

        def ask(times: StepTimes, tokens: float) -> float:
            # Times of more than one chunk are those of a chunk, once for each.
            chunk = min(tokens, CHUNK_TOKENS)
            each = times.beside_ms(chunk, chunk + cached_tokens, cached_tokens, batch)
            return each * tokens / chunk

        shared = chunk_tokens * busy_share
        added = (
            self._rest.beside_ms(chunk_tokens, prompt_tokens, cached_tokens, batch)
            + self._experts_ms(shared, ask)
            + self._exchange_ms(shared, ask, beside=batch)
        )
        return max(0.0, added)

    def _experts_ms(self, tokens: float, ask: Callable[[StepTimes, float], float]) -> float:
        """Return the routed experts' part of a step of so many tokens on a rank."""
        loaded = tokens * (self._skew or 1.0)
        own = ask(self._bare, loaded) - ask(self._rest, loaded)
        others = [_experts(each, loaded, ask) for each in self._bounds]
        return max(0.0, min([own, *others]))

    def _exchange_ms(
        self, tokens: float, ask: Callable[[StepTimes, float], float], *, beside: float = 0.0
    ) -> float:
        """Return the exchange of a step of so many tokens on a rank, or what they add to one of `beside` others."""
        if self._exchange is None:
            return max(0.0, ask(self._own.whole, tokens) - ask(self._bare, tokens))
        whole = self._exchange.ms((tokens + beside) * self._sent_share)
        return whole - (self._exchange.ms(beside * self._sent_share) if beside else 0.0)


def _experts(
    reference: Reference, tokens: float, ask: Callable[[StepTimes, float], float]
) -> float:
    there = tokens * reference.tokens_ratio
    return ask(reference.times.no_exchange, there) - ask(reference.times.no_experts, there)
