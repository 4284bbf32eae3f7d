"""What one engine step costs when prefill chunks and decodes share it (continuous batching).

    step = overhead + max(weights, token * tokens) + stream * streams + context * context_tokens + pair * pairs

    tokens           new tokens of the step: one a decoding stream (more with drafts) and those of prefill chunks
    streams          decoding streams
    context_tokens   KV that the decoding streams read, summed over them
    pairs            attention of the prefill chunks: for a chunk of n tokens after p others n * (p + n / 2)

`weights` is the time to read the weights once, which hides the multiplications while tokens are few; from there on
the step grows by `token` with each of them. All in milliseconds. Regimes: few tokens and short context are bound by
memory bandwidth (weights), long contexts by reading KV, large chunks by compute. It is the roofline with an
overhead, so it cannot show a kernel that changes its way of working at some batch.

Source: Williams, Waterman, Patterson, "Roofline", 2009; the terms of chunked prefill as in Agrawal et al.,
"Sarathi-Serve", 2024.
"""

import msgspec

from trimtab.core.cost import CostModel


class StepCost(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds of a step by what it computes; `source` says how the figures came to be.

    `start_ms`: what a request waits before it can be scheduled (parsing, tokenizing); it costs no step anything.
    """

    overhead_ms: float
    weights_ms: float
    token_ms: float
    stream_ms: float
    context_ms: float
    pair_ms: float
    start_ms: float = 0.0
    source: str

    def __post_init__(self) -> None:
        """Refuse costs below 0 and steps that take no time."""
        for name in (
            "overhead_ms",
            "weights_ms",
            "token_ms",
            "stream_ms",
            "context_ms",
            "pair_ms",
            "start_ms",
        ):
            value = getattr(self, name)
            if not 0.0 <= value < float("inf"):
                raise ValueError(f"{name} must be a number of at least 0, got {value}")
        if self.overhead_ms + self.weights_ms + self.token_ms <= 0.0:
            raise ValueError(
                "a step must take time: overhead_ms, weights_ms and token_ms are all 0"
            )

    @property
    def formula(self) -> str:
        """The law with its figures, for a reader."""
        terms = (
            f"{self.overhead_ms:.3g}",
            f"max({self.weights_ms:.3g}, {self.token_ms:.3g} x tokens)",
            f"{self.stream_ms:.3g} x streams",
            f"{self.context_ms:.3g} x context",
            f"{self.pair_ms:.3g} x pairs",
        )
        return f"step = {' + '.join(terms)} ms"

    def step_ms(
        self,
        *,
        tokens: float,
        streams: float = 0.0,
        context_tokens: float = 0.0,
        pairs: float = 0.0,
    ) -> float:
        """Return the milliseconds of one step."""
        return (
            self.overhead_ms
            + max(self.weights_ms, self.token_ms * tokens)
            + self.stream_ms * streams
            + self.context_ms * context_tokens
            + self.pair_ms * pairs
        )

    def as_cost_model(self, *, context_tokens: float, chunk_tokens: int) -> CostModel:
        """Return the two lines that routing uses, at a context of so many tokens a stream and full prefill chunks."""
        chunk = float(chunk_tokens)
        per_chunk = self.step_ms(tokens=chunk, pairs=chunk * context_tokens / 2.0)
        return CostModel(
            prefill_base_ms=self.start_ms + self.overhead_ms,
            prefill_ms_per_token=per_chunk / chunk,
            step_base_ms=self.overhead_ms + self.weights_ms,
            step_ms_per_stream=self.stream_ms + self.context_ms * context_tokens,
            prefill_samples=0,
            step_samples=0,
            source=self.source,
        )
