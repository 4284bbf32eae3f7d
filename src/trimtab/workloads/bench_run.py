"""One measured run of a server, whoever measured it."""

import msgspec


class BenchFileError(ValueError):
    """A text that is no benchmark result, or one without the figures needed; the message says which."""


class BenchRun(msgspec.Struct, frozen=True, kw_only=True):
    """One measured run. Means over its successful requests, milliseconds and tokens; `clients` in flight.

    `prefix_share`: part (0 to 1) of input tokens that a cache held, 0 where a tool does not tell.
    """

    tool: str
    model: str | None
    clients: float
    input_tokens: float
    output_tokens: float
    ttft_ms: float
    tpot_ms: float
    requests: int | None
    prefix_share: float = 0.0
