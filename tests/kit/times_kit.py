"""Step times that follow a plain law, so that what an estimate adds to them can be computed by hand."""

from trimtab.core.layout import EstimateSource


class LawTimes:
    """A step of `base` ms, `stream` ms more for each stream, `token` ms for each token of a prompt."""

    source = EstimateSource.KERNEL_TABLES

    def __init__(
        self,
        base: float = 10.0,
        stream: float = 0.1,
        token: float = 0.05,
        communication: float | None = 1.0,
        *,
        extended: bool = False,
    ) -> None:
        self.extended = extended
        self.base = base
        self.stream = stream
        self.token = token
        self.communication = communication
        self.notes: tuple[str, ...] = (f"a law of {base:g} ms",)

    def decode_ms(self, batch: float, context_tokens: float) -> float:
        return self.base + self.stream * batch

    def communication_ms(self, batch: float, context_tokens: float) -> float | None:
        return self.communication

    def prefill_ms(
        self, prompt_tokens: float, cached_tokens: float, *, busy_share: float = 1.0
    ) -> float:
        return self.token * (prompt_tokens - cached_tokens) * busy_share

    def beside_ms(
        self,
        chunk_tokens: float,
        prompt_tokens: float,
        cached_tokens: float,
        batch: float,
        *,
        busy_share: float = 1.0,
    ) -> float:
        return self.token * chunk_tokens * busy_share
