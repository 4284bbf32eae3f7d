"""Fits the step cost of an engine to measured requests: simulate, compare, adjust.

Law: the parameters are those that make the simulated times of the fitted requests agree with the measured ones, by the
mean absolute logarithm of the ratio of TTFT, TPOT and end-to-end time. All requests are simulated, because the later
ones slow the earlier ones down; only the fitted part counts. The search is Nelder and Mead's on the logarithms of the
six parameters, each kept within a factor of `REACH` of the starting guess, so that no parameter explodes that the
measurement does not speak of.

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
from trimtab.sim.jobs import Job, Listener, ReplicaSpec
from trimtab.sim.kernel import Kernel
from trimtab.sim.measured import Error, Measured, Served, errors_of, regimes_of
from trimtab.sim.replica import Replica

PARAMETERS: Final = (
    "overhead_ms",
    "weights_ms",
    "token_ms",
    "stream_ms",
    "context_ms",
    "pair_ms",
)
REACH: Final = 20.0
STEP: Final = 0.4
TRIES_MAX: Final = 250
FLOOR_MS: Final = 20.0
"""Added to both times of a ratio, so that a few milliseconds of a short time do not outweigh seconds of a long one."""


class Fitted(msgspec.Struct, frozen=True, kw_only=True):
    """A fitted step cost and how well it does on requests that it was not fitted on.

    `throughput_error`: of output tokens per second over the whole measurement. `loss`: mean absolute log ratio on the
    fitted part.
    """

    cost: StepCost
    loss: float
    tries: int
    fitted: int
    scored: int
    errors: tuple[Error, ...]
    throughput_error: float
    preemptions: int


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine was started with; these are not fitted."""

    kv_tokens: int
    block_tokens: int = 16
    budget_tokens: int = 2048
    streams_max: int = 256

    def spec(self, cost: StepCost) -> ReplicaSpec:
        """Return a replica with these limits and a cost."""
        return ReplicaSpec(
            cost=cost,
            kv_tokens=self.kv_tokens,
            block_tokens=self.block_tokens,
            budget_tokens=self.budget_tokens,
            streams_max=self.streams_max,
        )


def serve(measured: Sequence[Measured], spec: ReplicaSpec) -> tuple[list[Served], int]:
    """Simulate the requests of a measurement on one replica; returns their times and the preemptions.

    Raises ValueError if one of them could never run, which means that the limits are wrong.
    """
    kernel = Kernel()
    listener = Listener(first_token=lambda *_: None, ended=lambda *_: None)
    replica = Replica(spec, kernel, listener)
    jobs = []
    for number, one in enumerate(measured):
        job = Job(
            id=number,
            input_tokens=one.input_tokens,
            output_tokens=one.output_tokens,
            hashes=one.hashes,
        )
        jobs.append(job)
        kernel.at(one.at_s, replica.submit, job)
    kernel.run()
    return [_served(one, job) for one, job in zip(measured, jobs, strict=True)], replica.preemptions


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
    per_token = [one.ttft_ms / one.input_tokens for one in chosen]
    token_ms = float(np.percentile(per_token, 5))
    context = float(np.mean([one.input_tokens + one.output_tokens / 2.0 for one in chosen]))
    streams = min(limits.streams_max, limits.kv_tokens / context)
    return StepCost(
        overhead_ms=0.1 * fast,
        weights_ms=0.8 * fast,
        token_ms=token_ms,
        stream_ms=0.002 * fast,
        context_ms=max(1e-9, (slow - fast) / 2.0 / max(1.0, streams * context)),
        pair_ms=token_ms * 1e-5,
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
    """Fit on the first `fit_share` of the requests by arrival, score on the rest.

    `on_try(number, best loss)` is told of every simulation. Raises ValueError with too few requests for two parts.
    """
    cut = round(len(measured) * fit_share)
    if cut < len(PARAMETERS) or len(measured) - cut < len(PARAMETERS):
        raise ValueError(
            f"{len(measured)} requests are too few: {len(PARAMETERS)} parameters need at least as many "
            "requests to be fitted on and as many again to be scored on"
        )
    part, rest = range(cut), range(cut, len(measured))
    start = guess(measured, limits, part)
    origin = np.log([getattr(start, name) for name in PARAMETERS])
    best, loss, tries = _search(
        lambda point: _loss(measured, limits, part, origin, point), origin, tries_max, on_try
    )
    cost = _cost(best, f"fitted to {cut} requests of {source}")
    served, preemptions = serve(measured, limits.spec(cost))
    return Fitted(
        cost=cost,
        loss=loss,
        tries=tries,
        fitted=cut,
        scored=len(rest),
        errors=tuple(errors_of(measured, served, regimes_of(measured), rest, part)),
        throughput_error=_throughput_error(measured, served),
        preemptions=preemptions,
    )


def _cost(point: NDArray[np.float64], source: str) -> StepCost:
    values = dict(zip(PARAMETERS, (float(value) for value in np.exp(point)), strict=True))
    return StepCost(**values, source=source)


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
    served, _ = serve(measured, limits.spec(_cost(point, "tried")))
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


def _search(
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
        corners = [point, *(point + STEP * unit for unit in np.eye(len(PARAMETERS)))]
        options = {
            "maxfev": max(len(PARAMETERS) + 2, round(tries_max * share)),
            "initial_simplex": np.vstack(corners),
        }
        point = minimize(told, point, method="Nelder-Mead", options=options).x
    return point, loss(point), tries
