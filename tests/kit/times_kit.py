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

    def decode_ms(self, batch: int, context_tokens: int) -> float:
        return self.base + self.stream * batch

    def communication_ms(self, batch: int, context_tokens: int) -> float | None:
        return self.communication

    def prefill_ms(self, prompts: int, prompt_tokens: int, cached_tokens: int) -> float:
        return prompts * self.token * (prompt_tokens - cached_tokens)

    def beside_ms(
        self,
        chunk_tokens: int,
        prompt_tokens: int,
        cached_tokens: int,
        batch: int,
        context_tokens: int,
    ) -> float:
        return self.token * chunk_tokens
