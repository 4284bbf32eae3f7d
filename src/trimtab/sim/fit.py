"""Fits the step cost of an engine to measured requests: simulate, compare, adjust.

Law: the parameters are those that make the simulated times of the fitted requests agree with the measured ones, by the
mean absolute logarithm of the ratio of TTFT, TPOT and end-to-end time. All requests are simulated, on as many replicas
as served them and each on its own, because the later ones slow the earlier ones down; only the fitted part counts. The
search is Nelder and Mead's on the logarithms of the parameters, each kept within a factor of `REACH` of the starting
guess, so that no parameter explodes that the measurement does not speak of. Replicas with slots have two parameters
more: the time before a request can be scheduled, and what replicas on one host take from each other.

Failure modes: a parameter that nothing in the measurement depends on stays at its guess (the reading of context where
contexts are short); a wrong KV size or batch limit is fitted away into the costs, so both must be right.

Source: Nelder, Mead, "A simplex method for function minimization", 1965.
"""

import math
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from trimtab.core.step_cost import StepCost
from trimtab.sim.jobs import HostSpec, Job, Listener, ReplicaSpec
from trimtab.sim.kernel import Kernel
from trimtab.sim.measured import Error, Measured, Served, errors_of, regimes_of
from trimtab.sim.replicas import Hosts, make_replica

PARAMETERS: Final = (
    "overhead_ms",
    "weights_ms",
    "token_ms",
    "stream_ms",
    "context_ms",
    "pair_ms",
)
SHARED_PARAMETERS: Final = ("start_ms", "contention")
"""Fitted beside the others for replicas with slots, which share a host with their gateway."""

CONTENTION_GUESS: Final = 0.1
REACH: Final = 20.0
STEP: Final = 0.4
TRIES_MAX: Final = 250
FLOOR_MS: Final = 20.0
"""Added to both times of a ratio, so that a few milliseconds of a short time do not outweigh seconds of a long one."""


class Fitted(msgspec.Struct, frozen=True, kw_only=True):
    """A fitted step cost and how well it does on requests that it was not fitted on.

    `throughput_error`: of output tokens per second over the whole measurement. `loss`: mean absolute log ratio on the
    fitted part. `contention`: of the host (`sim.hosts`), 0 where replicas share none. `replicas`: that served.
    """

    cost: StepCost
    contention: float
    loss: float
    tries: int
    fitted: int
    scored: int
    errors: tuple[Error, ...]
    throughput_error: float
    preemptions: int
    replicas: int


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine was started with; these are not fitted.

    `similarity` and `host` are of replicas with slots (`ReplicaSpec`); the host's contention is fitted.
    """

    kv_tokens: int
    block_tokens: int = 16
    budget_tokens: int = 2048
    streams_max: int = 256
    similarity: float | None = None
    host: HostSpec | None = None

    @property
    def parameters(self) -> tuple[str, ...]:
        """What is fitted of such a replica."""
        return PARAMETERS if self.similarity is None else (*PARAMETERS, *SHARED_PARAMETERS)

    def spec(self, cost: StepCost, contention: float = 0.0) -> ReplicaSpec:
        """Return a replica with these limits and a cost."""
        host = self.host
        if host is not None:
            host = msgspec.structs.replace(host, contention=contention)
        return ReplicaSpec(
            cost=cost,
            kv_tokens=self.kv_tokens,
            block_tokens=self.block_tokens,
            budget_tokens=self.budget_tokens,
            streams_max=self.streams_max,
            similarity=self.similarity,
            host=host,
        )


def serve(measured: Sequence[Measured], spec: ReplicaSpec) -> tuple[list[Served], int]:
    """Simulate the requests of a measurement, each on its replica; returns their times and the preemptions.

    Prompt tokens that were told as reused are taken as reused. Raises ValueError if a request could never run, which
    means that the limits are wrong.
    """
    kernel, hosts = Kernel(), Hosts(spec)
    listener = Listener(first_token=lambda *_: None, ended=lambda *_: None)
    names = sorted({one.replica for one in measured})
    replicas = {
        name: make_replica(spec, kernel, listener, hosts.of(number))
        for number, name in enumerate(names)
    }
    jobs = []
    for number, one in enumerate(measured):
        slots = spec.similarity is not None
        job = Job(
            id=number,
            # Of paged blocks a measurement does not tell which ones were reused, so what was counts as not there.
            input_tokens=one.input_tokens if slots else one.computed_tokens,
            output_tokens=one.output_tokens,
            hashes=one.hashes,
            told_cached=one.cached_tokens,
        )
        jobs.append(job)
        kernel.at(one.at_s, replicas[one.replica].submit, job)
    kernel.run()
    preemptions = sum(replica.preemptions for replica in replicas.values())
    return [_served(one, job) for one, job in zip(measured, jobs, strict=True)], preemptions


def _served(one: Measured, job: Job) -> Served:
    if job.failed is not None:
        raise ValueError(
            f"a request of {one.input_tokens} + {one.output_tokens} tokens was served and cannot run with these "
            f"limits: {job.failed}; give the engine's own kv_tokens"
        )
    assert job.first_token_s is not None
    assert job.finished_s is not None
    gaps = one.output_tokens - 1
    return Served(
        ttft_ms=(job.first_token_s - one.at_s) * 1000.0,
        e2e_ms=(job.finished_s - one.at_s) * 1000.0,
        tpot_ms=(job.finished_s - job.first_token_s) * 1000.0 / gaps if gaps else None,
    )


def guess(measured: Sequence[Measured], limits: Limits, part: Sequence[int]) -> StepCost:
    """Return a starting point read off the measurement: fastest steps, fastest prefills, growth with the context."""
    chosen = [measured[at] for at in part]
    tpots = [tpot for one in chosen if (tpot := one.tpot_ms) is not None] or [10.0]
    fast, slow = (float(found) for found in np.percentile(tpots, (2, 95)))
    per_token = [one.ttft_ms / one.computed_tokens for one in chosen if one.computed_tokens >= 32]
    per_token = per_token or [one.ttft_ms / one.computed_tokens for one in chosen]
    token_ms = float(np.percentile(per_token, 5))
    context = float(np.mean([one.input_tokens + one.output_tokens / 2.0 for one in chosen]))
    streams = min(limits.streams_max, limits.kv_tokens / context)
    context_ms = max(1e-9, (slow - fast) / 2.0 / max(1.0, streams * context))
    # A processor without tensor cores computes as slowly as it reads: each stream costs a good part of a step, and a
    # prompt's token reads its context as a decoded one does.
    plain = limits.similarity is not None
    return StepCost(
        overhead_ms=(0.2 if plain else 0.1) * fast,
        weights_ms=(0.4 if plain else 0.8) * fast,
        token_ms=token_ms,
        stream_ms=(0.2 if plain else 0.002) * fast,
        context_ms=context_ms,
        pair_ms=context_ms if plain else token_ms * 1e-5,
        source="a guess",
    )


def fit(
    measured: Sequence[Measured],
    limits: Limits,
    *,
    source: str,
    fit_share: float = 0.5,
    tries_max: int = TRIES_MAX,
    on_try: Callable[[int, float], None] = lambda *_: None,
) -> Fitted:
    """Fit on the first `fit_share` of the requests by arrival, score on the rest; of a share of 1 nothing is left.

    `on_try(number, best loss)` is told of every simulation. Raises ValueError with too few requests for two parts.
    """
    names = limits.parameters
    cut = round(len(measured) * fit_share)
    if cut < len(names) or 0 < len(measured) - cut < len(names):
        raise ValueError(
            f"{len(measured)} requests are too few: {len(names)} parameters need at least as many "
            "requests to be fitted on and as many again to be scored on"
        )
    part, rest = range(cut), range(cut, len(measured))
    origin = np.log(_values(guess(measured, limits, part), limits))
    best, loss, tries = search(
        lambda point: _loss(measured, limits, part, origin, point), origin, tries_max, on_try
    )
    cost, contention = _cost(best, limits, f"fitted to {cut} requests of {source}")
    served, preemptions = serve(measured, limits.spec(cost, contention))
    regimes = regimes_of(measured, streams_max=limits.streams_max)
    return Fitted(
        cost=cost,
        contention=contention,
        loss=loss,
        tries=tries,
        fitted=cut,
        scored=len(rest),
        errors=tuple(errors_of(measured, served, regimes, rest, part)),
        throughput_error=_throughput_error(measured, served),
        preemptions=preemptions,
        replicas=len({one.replica for one in measured}),
    )


def _values(cost: StepCost, limits: Limits) -> list[float]:
    known = {"start_ms": max(1.0, cost.overhead_ms), "contention": CONTENTION_GUESS}
    return [known.get(name) or getattr(cost, name) for name in limits.parameters]


def _cost(point: NDArray[np.float64], limits: Limits, source: str) -> tuple[StepCost, float]:
    found = (float(value) for value in np.exp(point))
    values = dict(zip(limits.parameters, found, strict=True))
    contention = values.pop("contention", 0.0)
    return StepCost(**values, source=source), contention


def _loss(
    measured: Sequence[Measured],
    limits: Limits,
    part: Sequence[int],
    origin: NDArray[np.float64],
    point: NDArray[np.float64],
) -> float:
    beyond = float(np.maximum(0.0, np.abs(point - origin) - math.log(REACH)).sum())
    if beyond > 0.0:
        return 10.0 + beyond
    served, _ = serve(measured, limits.spec(*_cost(point, limits, "tried")))
    total = 0.0
    for metric in ("ttft_ms", "tpot_ms", "e2e_ms"):
        pairs = [(getattr(measured[at], metric), getattr(served[at], metric)) for at in part]
        floor = 0.0 if metric == "tpot_ms" else FLOOR_MS
        ratios = [abs(math.log((b + floor) / (a + floor))) for a, b in pairs if a and b]
        total += sum(ratios) / max(1, len(ratios))
    return total / 3.0


def _throughput_error(measured: Sequence[Measured], served: Sequence[Served]) -> float:
    real = max(one.last_token_s for one in measured)
    made = max(one.at_s + two.e2e_ms / 1000.0 for one, two in zip(measured, served, strict=True))
    return real / made - 1.0


def search(
    loss: Callable[[NDArray[np.float64]], float],
    origin: NDArray[np.float64],
    tries_max: int,
    on_try: Callable[[int, float], None],
) -> tuple[NDArray[np.float64], float, int]:
    """Minimise by Nelder and Mead's simplex, twice: the second time around what the first one found."""
    from scipy.optimize import minimize

    tries, best = 0, math.inf

    def told(point: NDArray[np.float64]) -> float:
        nonlocal tries, best
        found = loss(point)
        tries, best = tries + 1, min(best, found)
        on_try(tries, best)
        return found

    point = origin
    for share in (0.6, 0.4):
        corners = [point, *(point + STEP * unit for unit in np.eye(len(point)))]
        options = {
            "maxfev": max(len(point) + 2, round(tries_max * share)),
            "initial_simplex": np.vstack(corners),
        }
        point = minimize(told, point, method="Nelder-Mead", options=options).x
    return point, loss(point), tries
