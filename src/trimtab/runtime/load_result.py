"""What a load run returns: one row per request, and the figures over them. No text is kept."""

from collections.abc import Sequence

import msgspec

from trimtab.core.stats import percentile


class SentRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request as the client saw it; times in seconds from the start of the run, latencies in milliseconds.

    `lateness_ms`: how long after its intended time it was sent, because an earlier turn of its session ran or
    the generator was slow. `tpot_ms` is over the server's token counts. None is unknown.
    """

    index: int
    session: str
    turn: int
    label: str
    intended_s: float
    sent_s: float
    lateness_ms: float
    finished_s: float
    status: int
    ttft_ms: float | None = None
    e2e_ms: float = 0.0
    tpot_ms: float | None = None
    chunks: int = 0
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    replica: str | None = None
    request_id: str | None = None
    error: str | None = None

    @property
    def ok(self) -> bool:
        """Whether a complete answer came."""
        return self.error is None


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Mean, median, p95 and maximum of `n` values."""

    n: int
    mean: float
    p50: float
    p95: float
    max: float


class LoadSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a run. Latencies are of complete answers; None where there is no value.

    `output_tokens_per_s` is over the makespan: from the first send to the last end.
    """

    n: int
    ok: int
    errors: dict[str, int]
    unsent: int
    makespan_s: float
    ttft_ms: Spread | None
    tpot_ms: Spread | None
    e2e_ms: Spread | None
    lateness_ms: Spread | None
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    output_tokens_per_s: float | None


class LoadResult(msgspec.Struct, frozen=True, kw_only=True):
    """A run: the workload's name and seed, when it began (seconds since 1970), its requests in order of index."""

    workload: str
    seed: int
    started_at_s: float
    requests: tuple[SentRequest, ...]
    summary: LoadSummary


def summarise(requests: Sequence[SentRequest], *, unsent: int) -> LoadSummary:
    """Return the figures over requests; `unsent`: how many were not sent because the run was stopped."""
    good = [request for request in requests if request.ok]
    errors: dict[str, int] = {}
    for request in requests:
        if request.error is not None:
            errors[request.error] = errors.get(request.error, 0) + 1
    begin_s = min((request.sent_s for request in requests), default=0.0)
    makespan_s = max((request.finished_s for request in requests), default=0.0) - begin_s
    output = sum(request.output_tokens or 0 for request in good)
    return LoadSummary(
        n=len(requests),
        ok=len(good),
        errors=errors,
        unsent=unsent,
        makespan_s=makespan_s,
        ttft_ms=spread([r.ttft_ms for r in good if r.ttft_ms is not None]),
        tpot_ms=spread([r.tpot_ms for r in good if r.tpot_ms is not None]),
        e2e_ms=spread([r.e2e_ms for r in good]),
        lateness_ms=spread([r.lateness_ms for r in requests]),
        prompt_tokens=sum(r.prompt_tokens or 0 for r in good),
        cached_tokens=sum(r.cached_tokens or 0 for r in good),
        output_tokens=output,
        output_tokens_per_s=output / makespan_s if makespan_s > 0 else None,
    )


def spread(values: Sequence[float]) -> Spread | None:
    """Return the spread of values, None of none."""
    if not values:
        return None
    return Spread(
        n=len(values),
        mean=sum(values) / len(values),
        p50=percentile(values, 0.5),
        p95=percentile(values, 0.95),
        max=max(values),
    )
