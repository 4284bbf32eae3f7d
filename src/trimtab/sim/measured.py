"""Requests as they were measured on a real engine, and how a simulation of the same requests compares.

Errors are of the statistic, not of single requests: mean, median and 95th percentile of a metric over the same requests
in both, as a share of the measured one. Throughput is output tokens over the time from the first arrival to the last
token.

Regimes say under which pressure a request was served: `light` (it was scheduled within a step's time of its arrival and
the running requests were few), `batched` (scheduled at once among many), `queued` (it waited). A regime that the fitted
part does not have was never measured; whatever is said of it is an extrapolation and is marked so.
"""

import itertools
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Annotated, Final

import msgspec
import numpy as np
from msgspec import Meta

from trimtab.workloads.base import WorkloadError
from trimtab.workloads.trace_files import decode_line, numbered

QUEUED_MS: Final = 250.0
"""From this wait on a request counts as queued: longer than any step of a usual engine."""

LIGHT_STREAMS: Final = 8
"""With so many requests in an engine, or a quarter of what it runs at once if that is fewer, traffic is light."""

REGIME_SAMPLES_MIN: Final = 10
"""A regime with fewer requests in the fitted part counts as not measured."""

SHARING_PROVEN: Final = 1.25
"""So many times the KV held by requests at once cannot be preempted ones alone, which count as if they held theirs."""


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """One request of a measurement. Times in seconds from the first arrival.

    `scheduled_s` None: the engine did not say. `hashes` name the prompt's blocks where the measurement knows them.
    `replica`: which served it, where there are several. `cached_tokens`: of the prompt, reused; None: not told.
    """

    at_s: float
    input_tokens: int
    output_tokens: int
    first_token_s: float
    last_token_s: float
    scheduled_s: float | None = None
    hashes: tuple[int, ...] = ()
    replica: str = ""
    cached_tokens: int | None = None

    @property
    def computed_tokens(self) -> int:
        """Prompt tokens that were computed, all of them where nothing was told."""
        return max(1, self.input_tokens - (self.cached_tokens or 0))

    @property
    def ttft_ms(self) -> float:
        """Milliseconds from arrival to the first token."""
        return (self.first_token_s - self.at_s) * 1000.0

    @property
    def e2e_ms(self) -> float:
        """Milliseconds from arrival to the last token."""
        return (self.last_token_s - self.at_s) * 1000.0

    @property
    def tpot_ms(self) -> float | None:
        """Milliseconds per output token after the first, None where there is one token only."""
        if self.output_tokens < 2:
            return None
        return (self.last_token_s - self.first_token_s) * 1000.0 / (self.output_tokens - 1)


class _EngineTimes(msgspec.Struct, frozen=True):
    input_toks: Annotated[int, Meta(ge=1)]
    output_toks: Annotated[int, Meta(ge=1)]
    queued_ts: float
    scheduled_ts: float
    first_token_ts: float
    last_token_ts: float


def read_engine_times(lines: Iterable[str], *, file: str) -> list[Measured]:
    """Read one request a line with the engine's own times, as LLMServingSim records vLLM, in order of arrival.

    Fields: input_toks, output_toks, queued_ts, scheduled_ts, first_token_ts, last_token_ts (seconds of one clock).
    Raises `WorkloadError` that names line and field.
    """
    decoder = msgspec.json.Decoder(_EngineTimes)
    found: list[_EngineTimes] = []
    for line, text in numbered(lines):
        entry = decode_line(decoder, text, file, line)
        order = (entry.queued_ts, entry.scheduled_ts, entry.first_token_ts, entry.last_token_ts)
        if list(order) != sorted(order):
            raise WorkloadError(
                f"{file}, line {line}, queued_ts: queued, scheduled, first and last token are out of order"
            )
        found.append(entry)
    if not found:
        raise WorkloadError(f"{file}: no request in it; give a file with at least one")
    found.sort(key=lambda entry: entry.queued_ts)
    start_s = found[0].queued_ts
    return [
        Measured(
            at_s=entry.queued_ts - start_s,
            input_tokens=entry.input_toks,
            output_tokens=entry.output_toks,
            scheduled_s=entry.scheduled_ts - start_s,
            first_token_s=entry.first_token_ts - start_s,
            last_token_s=entry.last_token_ts - start_s,
        )
        for entry in found
    ]


def held_blocks(
    measured: Sequence[Measured], *, kv_tokens: int, block_tokens: int
) -> list[Sequence[int]]:
    """Return the names of the prompt blocks of each request: equal names are one block of a replica's KV.

    A measurement that names none tells how much of a prompt was reused, not which requests share it. Then every request
    holds a copy of its own, unless a replica's requests that answered at once would so have held more than
    `SHARING_PROVEN` times its KV: they did run, so what they reused is taken to be one beginning, held once.
    """
    crowded = {
        name
        for name in {one.replica for one in measured}
        if answering_most(measured, name)[1] > SHARING_PROVEN * kv_tokens
    }
    return [
        one.hashes
        or (
            range(1, (one.cached_tokens or 0) // block_tokens + 1) if one.replica in crowded else ()
        )
        for one in measured
    ]


def answering_most(measured: Sequence[Measured], replica: str) -> tuple[int, int]:
    """Return the most answers that were under way at once on a replica, and the most tokens of their prompts."""
    changes: list[tuple[float, int, int]] = []
    for one in measured:
        if one.replica == replica:
            changes += [
                (one.first_token_s, 1, one.input_tokens),
                (one.last_token_s, -1, -one.input_tokens),
            ]
    # At the same moment what ends goes first.
    changes.sort()
    streams = max(itertools.accumulate(change[1] for change in changes), default=0)
    tokens = max(itertools.accumulate(change[2] for change in changes), default=0)
    return streams, tokens


class Regime(StrEnum):
    """Under which pressure a request was served."""

    LIGHT = "light"
    BATCHED = "batched"
    QUEUED = "queued"


def light_streams(streams_max: int) -> int:
    """Return up to how many requests in an engine its traffic is light."""
    return max(1, min(LIGHT_STREAMS, streams_max // 4))


def regimes_of(
    measured: Sequence[Measured], *, streams_max: int = 4 * LIGHT_STREAMS
) -> list[Regime]:
    """Return the regime of each request on its replica, which runs at most `streams_max` at once.

    Where the engine did not say when it scheduled, a request counts as not queued.
    """
    light = light_streams(streams_max)
    times = {name: _times(measured, name) for name in {one.replica for one in measured}}
    found = []
    for one in measured:
        begun = one.scheduled_s
        if begun is not None and (begun - one.at_s) * 1000.0 >= QUEUED_MS:
            found.append(Regime.QUEUED)
            continue
        starts, ends = times[one.replica]
        there = np.searchsorted(starts, one.at_s, side="right") - np.searchsorted(ends, one.at_s)
        found.append(Regime.LIGHT if there <= light else Regime.BATCHED)
    return found


def _times(measured: Sequence[Measured], replica: str) -> tuple[list[float], list[float]]:
    mine = [one for one in measured if one.replica == replica]
    return sorted(one.at_s for one in mine), sorted(one.last_token_s for one in mine)


class Statistic(StrEnum):
    """What is compared of a metric."""

    MEAN = "mean"
    P50 = "p50"
    P95 = "p95"


class Error(msgspec.Struct, frozen=True, kw_only=True):
    """A simulated statistic against the measured one. `error`: (simulated - measured) / measured."""

    metric: str
    statistic: Statistic
    regime: Regime | None
    samples: int
    measured: float
    simulated: float
    error: float
    extrapolated: bool = False


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """The same request in the simulation, in milliseconds from its arrival."""

    ttft_ms: float
    e2e_ms: float
    tpot_ms: float | None


METRICS: Final = ("ttft_ms", "tpot_ms", "e2e_ms")


def errors_of(
    measured: Sequence[Measured],
    served: Sequence[Served],
    regimes: Sequence[Regime],
    scored: Sequence[int],
    fitted: Sequence[int],
) -> list[Error]:
    """Return the errors over the requests `scored` (numbers), of all and of each regime that is among them.

    `fitted` are the requests that the model was fitted on: a regime with fewer than REGIME_SAMPLES_MIN of them is
    marked as extrapolated.
    """
    made: list[Error] = []
    for regime in (None, *Regime):
        chosen = [at for at in scored if regime is None or regimes[at] is regime]
        seen = sum(1 for at in fitted if regimes[at] is regime)
        beyond = regime is not None and seen < REGIME_SAMPLES_MIN
        for metric in METRICS:
            made.extend(_errors(measured, served, chosen, metric, regime, beyond))
    return made


def _errors(
    measured: Sequence[Measured],
    served: Sequence[Served],
    chosen: Sequence[int],
    metric: str,
    regime: Regime | None,
    beyond: bool,
) -> list[Error]:
    pairs = [(getattr(measured[at], metric), getattr(served[at], metric)) for at in chosen]
    known = np.array([pair for pair in pairs if None not in pair], dtype=np.float64)
    if known.size == 0:
        return []
    found = []
    for statistic in Statistic:
        real, made = (_statistic(known[:, side], statistic) for side in (0, 1))
        found.append(
            Error(
                metric=metric,
                statistic=statistic,
                regime=regime,
                samples=len(known),
                measured=real,
                simulated=made,
                error=made / real - 1.0 if real > 0.0 else 0.0,
                extrapolated=beyond,
            )
        )
    return found


def _statistic(
    values: "np.ndarray[tuple[int], np.dtype[np.float64]]", statistic: Statistic
) -> float:
    match statistic:
        case Statistic.MEAN:
            return float(values.mean())
        case Statistic.P50:
            return float(np.median(values))
        case Statistic.P95:
            return float(np.percentile(values, 95))
