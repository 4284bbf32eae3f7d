"""What a simulation counts and measures, kept in flat arrays so that millions of requests fit.

Every request ends in exactly one outcome, so arrived = finished + shed + failed + in flight at any time. Times are in
milliseconds; a value that does not exist (no first token, one output token only) is not a number and is left out of
quantiles, never taken as 0.
"""

from array import array
from enum import IntEnum
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

_COLUMNS: Final = (
    "at_s",
    "ttft_ms",
    "tpot_ms",
    "e2e_ms",
    "queue_ms",
    "input_tokens",
    "output_tokens",
    "cached_tokens",
    "promised_tokens",
    "best_tokens",
    "transfer_ms",
    "moved_tokens",
)


class Outcome(IntEnum):
    """How a request ended."""

    IN_FLIGHT = 0
    FINISHED = 1
    SHED = 2
    FAILED = 3


class Records:
    """One row for each request that arrived; `row` numbers them in order of arrival."""

    def __init__(self) -> None:
        self._values = {name: array("d") for name in _COLUMNS}
        self._fresh = tuple(
            (column.append, _FRESH.get(name, float("nan"))) for name, column in self._values.items()
        )
        self._outcomes = array("b")
        self._replicas = array("i")

    def __len__(self) -> int:
        return len(self._outcomes)

    def arrived(self, at_s: float, input_tokens: int, output_tokens: int) -> int:
        """Open a row and return its number."""
        for append, value in self._fresh:
            append(value)
        row = len(self._outcomes)
        self._values["at_s"][row] = at_s
        self._values["input_tokens"][row] = input_tokens
        self._values["output_tokens"][row] = output_tokens
        self._outcomes.append(Outcome.IN_FLIGHT)
        self._replicas.append(-1)
        return row

    def routed(self, row: int, replica: int, promised_tokens: int, best_tokens: int) -> None:
        """Note where a request went, what that replica was believed to hold, and what the best one did hold."""
        self._replicas[row] = replica
        self._values["promised_tokens"][row] = promised_tokens
        self._values["best_tokens"][row] = best_tokens

    def moved(self, row: int, transfer_ms: float, tokens: int) -> None:
        """Note that a prompt's KV came from a prefill replica: how long it was under way, and how many tokens of it."""
        self._values["transfer_ms"][row] = transfer_ms
        self._values["moved_tokens"][row] = tokens

    def ended(self, row: int, outcome: Outcome, e2e_ms: float) -> None:
        """Close a row; raises AssertionError if it was closed before."""
        assert self._outcomes[row] == 0, f"request {row} ended twice"
        self._outcomes[row] = outcome
        self._values["e2e_ms"][row] = e2e_ms

    def finished(
        self,
        row: int,
        *,
        ttft_ms: float,
        tpot_ms: float,
        e2e_ms: float,
        queue_ms: float,
        cached_tokens: int,
    ) -> None:
        """Close the row of a request that got all of its answer; `tpot_ms` is not a number for a single token."""
        self.ended(row, Outcome.FINISHED, e2e_ms)
        values = self._values
        values["ttft_ms"][row] = ttft_ms
        values["tpot_ms"][row] = tpot_ms
        values["queue_ms"][row] = queue_ms
        values["cached_tokens"][row] = cached_tokens

    def column(self, name: str) -> NDArray[np.float64]:
        """Return a column as an array of one value for each request."""
        return np.frombuffer(self._values[name], dtype=np.float64)

    def outcomes(self) -> NDArray[np.int8]:
        """Return how each request ended."""
        return np.frombuffer(self._outcomes, dtype=np.int8)

    def replicas(self) -> NDArray[np.int32]:
        """Return the number of the replica that each request went to last, -1 for none."""
        return np.frombuffer(self._replicas, dtype=np.int32)

    def good(self, objective: "Objective") -> NDArray[np.bool_]:
        """Return which requests finished and met an objective."""
        good: NDArray[np.bool_] = self.outcomes() == Outcome.FINISHED
        ttft, tpot = self.column("ttft_ms"), self.column("tpot_ms")
        if objective.ttft_ms is not None:
            good &= ttft <= objective.ttft_ms
        if objective.tpot_ms is not None:
            good &= np.isnan(tpot) | (tpot <= objective.tpot_ms)
        return good

    def count(self, outcome: Outcome) -> int:
        """Return how many requests ended so."""
        return int(np.count_nonzero(self.outcomes() == outcome))


_FRESH: Final = {
    "cached_tokens": 0.0,
    "promised_tokens": 0.0,
    "best_tokens": 0.0,
    "moved_tokens": 0.0,
}


class Quantiles(msgspec.Struct, frozen=True, kw_only=True):
    """Mean and quantiles of `samples` values; None where there is none."""

    samples: int
    mean: float | None = None
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None


def quantiles_of(values: NDArray[np.float64]) -> Quantiles:
    """Return mean and quantiles of what is a number."""
    known = values[~np.isnan(values)]
    if known.size == 0:
        return Quantiles(samples=0)
    p50, p95, p99 = (float(found) for found in np.percentile(known, (50, 95, 99)))
    return Quantiles(samples=int(known.size), mean=float(known.mean()), p50=p50, p95=p95, p99=p99)


class Objective(msgspec.Struct, frozen=True, kw_only=True):
    """What a request must get to count as good, in milliseconds; None asks nothing."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """A simulation in figures, of requests that arrived in [from_s, to_s).

    `goodput_per_s`: requests a second that met the objective, failed ones not; `good_share`: their part of all.
    `hit_share`: part of input tokens that was reused; `lost_share`: part that some replica held when the request
    was sent, known to its gateway or not, and that its own computed anew.
    `spread`: most output tokens of a replica over the mean of all.
    """

    from_s: float
    to_s: float
    arrived: int
    finished: int
    shed: int
    failed: int
    in_flight: int
    ttft_ms: Quantiles
    tpot_ms: Quantiles
    e2e_ms: Quantiles
    queue_ms: Quantiles
    goodput_per_s: float
    good_share: float
    output_tokens_per_s: float
    hit_share: float
    lost_share: float
    spread: float


def summarise(
    records: Records, objective: Objective, *, from_s: float, to_s: float, replicas: int
) -> Summary:
    """Return the figures of the requests that arrived in a stretch of time."""
    at = records.column("at_s")
    inside = (at >= from_s) & (at < to_s)
    outcomes = records.outcomes()
    done = inside & (outcomes == Outcome.FINISHED)
    ttft, tpot = records.column("ttft_ms"), records.column("tpot_ms")
    good = inside & records.good(objective)
    arrived, length_s = int(inside.sum()), max(to_s - from_s, 1e-9)
    asked = float(records.column("input_tokens")[done].sum()) or 1.0
    reused = records.column("cached_tokens")[done]
    lost = np.maximum(0.0, records.column("best_tokens")[done] - reused)
    output = records.column("output_tokens")[done]
    each = np.bincount(records.replicas()[done], weights=output, minlength=replicas)
    return Summary(
        from_s=from_s,
        to_s=to_s,
        arrived=arrived,
        finished=int(done.sum()),
        shed=int((inside & (outcomes == Outcome.SHED)).sum()),
        failed=int((inside & (outcomes == Outcome.FAILED)).sum()),
        in_flight=int((inside & (outcomes == Outcome.IN_FLIGHT)).sum()),
        ttft_ms=quantiles_of(ttft[done]),
        tpot_ms=quantiles_of(tpot[done]),
        e2e_ms=quantiles_of(records.column("e2e_ms")[done]),
        queue_ms=quantiles_of(records.column("queue_ms")[done]),
        goodput_per_s=float(good.sum()) / length_s,
        good_share=float(good.sum()) / max(1, arrived),
        output_tokens_per_s=float(output.sum()) / length_s,
        hit_share=float(reused.sum()) / asked,
        lost_share=float(lost.sum()) / asked,
        spread=float(each.max() / each.mean()) if each.size and each.mean() > 0.0 else 1.0,
    )
