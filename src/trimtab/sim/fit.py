"""Fits the step cost of an engine to measured requests: simulate, compare, adjust.

Law: the parameters are those that make the simulated times of the fitted requests agree with the measured ones, by the
mean absolute logarithm of the ratio of TTFT, TPOT and end-to-end time. All requests are simulated, on as many replicas
as served them and each on its own, because the later ones slow the earlier ones down; only the fitted part counts. The
search is Nelder and Mead's on the logarithms of the parameters, each kept within a factor of `REACH` of the starting
guess (the one of two that agrees better, `guess` and `sim.growth`), so that no parameter explodes that the measurement
does not speak of. Replicas with slots have one parameter more, the time before a request can be scheduled, and where
they share a host four others: what they take from each other, and the unrest of its cores (`sim.unrest`).

Unrest is found in a second search, over its own parameters alone: its law leaves the median pace at 1, and the first
search finds costs of the median, as what it minimises is absolute. Each try is simulated `DRAWS` times, with the same
chances in every try, and what counts is how well the *distribution* of each request's times fits its measured one
(`sim.agreement`): its middle, its spread and its tails at once. Few draws would be a trap: of four paths the one that
happens to be slow where the measurement was gets its spread blown up.

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
from trimtab.sim.agreement import disagreement, mean_errors
from trimtab.sim.growth import by_growth, was_full
from trimtab.sim.jobs import HostSpec, Job, Listener, ReplicaSpec
from trimtab.sim.kernel import Kernel
from trimtab.sim.measured import Error, Measured, Served, errors_of, held_blocks, regimes_of
from trimtab.sim.replicas import Hosts, make_replica
from trimtab.sim.streams import Streams

PARAMETERS: Final = (
    "overhead_ms",
    "weights_ms",
    "token_ms",
    "stream_ms",
    "context_ms",
    "pair_ms",
)
SLOT_PARAMETERS: Final = ("start_ms",)
"""Fitted beside the others for replicas with slots, which share a host with their gateway."""

HOST_PARAMETERS: Final = ("contention",)
UNREST_PARAMETERS: Final = ("unrest_prefill", "unrest_decode", "unrest_s")
"""Both of a host that replicas share; the second ones in a search of their own."""

CONTENTION_GUESS: Final = 0.1
UNREST_GUESSES: Final = (0.2, 0.1, 10.0)
REACH: Final = 20.0
UNREST_REACH: Final = 5.0
"""The same for the second search."""

STEP: Final = 0.4
TRIES_MAX: Final = 250
UNREST_TRIES_SHARE, UNREST_TRIES_MIN, UNREST_TRIES_MAX = 0.1, 8, 40
"""Tries of the second search, of those of the first: each is as dear as `DRAWS` of them."""

DRAWS: Final = 24
"""Simulations of each of its tries, and of what is scored."""


class Fitted(msgspec.Struct, frozen=True, kw_only=True):
    """A fitted step cost and how well it does on requests that it was not fitted on.

    `throughput_error`: of output tokens per second over the whole measurement. `loss`: `sim.agreement` on the fitted
    part. `host`: with its contention and unrest, None where replicas share none. `replicas`: that served.
    `preemptions`: the mean of all simulations, where there is unrest.
    """

    cost: StepCost
    host: HostSpec | None
    loss: float
    tries: int
    fitted: int
    scored: int
    errors: tuple[Error, ...]
    throughput_error: float
    preemptions: float
    replicas: int


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine was started with; these are not fitted.

    `similarity` and `host` are of replicas with slots (`ReplicaSpec`); the host's contention and unrest are fitted.
    """

    kv_tokens: int
    block_tokens: int = 16
    budget_tokens: int = 2048
    streams_max: int = 256
    similarity: float | None = None
    host: HostSpec | None = None

    @property
    def parameters(self) -> tuple[str, ...]:
        """What is fitted of such a replica, unrest apart."""
        slots = () if self.similarity is None else SLOT_PARAMETERS
        return (*PARAMETERS, *slots, *(() if self.host is None else HOST_PARAMETERS))

    def spec(self, cost: StepCost, host: HostSpec | None = None) -> ReplicaSpec:
        """Return a replica with these limits and a cost; `host`: as it was fitted."""
        return ReplicaSpec(
            cost=cost,
            kv_tokens=self.kv_tokens,
            block_tokens=self.block_tokens,
            budget_tokens=self.budget_tokens,
            streams_max=self.streams_max,
            similarity=self.similarity,
            host=host or self.host,
        )


def serve(
    measured: Sequence[Measured], spec: ReplicaSpec, seed: int = 1
) -> tuple[list[Served], int]:
    """Simulate the requests of a measurement, each on its replica; returns their times and the preemptions.

    `seed` is of the host's unrest.
    Prompt tokens that were told as reused are not computed; they are context and KV like the others, held once where
    `measured.held_blocks` says that requests share them. Raises ValueError if a request could never run, which
    means that the limits are wrong.
    """
    kernel, hosts, streams = Kernel(), Hosts(spec), Streams(seed)
    listener = Listener(first_token=lambda *_: None, ended=lambda *_: None)
    names = sorted({one.replica for one in measured})
    replicas = {
        name: make_replica(
            spec, kernel, listener, hosts.of(number), streams.stream(f"unrest of {number}")
        )
        for number, name in enumerate(names)
    }
    jobs = []
    blocks: list[Sequence[int]] = [one.hashes for one in measured]
    if spec.similarity is None:
        blocks = held_blocks(measured, kv_tokens=spec.kv_tokens, block_tokens=spec.block_tokens)
    for number, (one, hashes) in enumerate(zip(measured, blocks, strict=True)):
        job = Job(
            id=number,
            input_tokens=one.input_tokens,
            output_tokens=one.output_tokens,
            hashes=hashes,
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
    names = limits.parameters if limits.host is None else _with_unrest(limits)
    cut = round(len(measured) * fit_share)
    if cut < len(names) or 0 < len(measured) - cut < len(names):
        raise ValueError(
            f"{len(measured)} requests are too few: {len(names)} parameters need at least as many "
            "requests to be fitted on and as many again to be scored on"
        )
    part, rest = range(cut), range(cut, len(measured))
    task = _Task(measured=measured, limits=limits, part=part)
    best, loss, tries = _search(task, tries_max, on_try)
    # Without unrest the point is the shorter one.
    spec = task.spec(best, names[: len(best)], f"fitted to {cut} requests of {source}")
    runs = task.runs(spec)
    draws = [served for served, _ in runs]
    regimes = regimes_of(measured, streams_max=limits.streams_max)
    errors = [errors_of(measured, served, regimes, rest, part) for served in draws]
    return Fitted(
        cost=spec.cost,
        host=spec.host,
        loss=loss,
        tries=tries,
        fitted=cut,
        scored=len(rest),
        errors=mean_errors(errors),
        throughput_error=sum(_throughput_error(measured, one) for one in draws) / len(draws),
        preemptions=sum(preemptions for _, preemptions in runs) / len(runs),
        replicas=len({one.replica for one in measured}),
    )


def _with_unrest(limits: Limits) -> tuple[str, ...]:
    return (*limits.parameters, *UNREST_PARAMETERS)


class _Task(msgspec.Struct, frozen=True, kw_only=True):
    """What is fitted: the requests, those of them that count, and the limits of the replica."""

    measured: Sequence[Measured]
    limits: Limits
    part: Sequence[int]

    def spec(self, point: NDArray[np.float64], names: Sequence[str], source: str) -> ReplicaSpec:
        """Return the replica at a point, whose coordinates are logarithms of the parameters named."""
        values = dict(zip(names, (float(value) for value in np.exp(point)), strict=True))
        shared = (*HOST_PARAMETERS, *UNREST_PARAMETERS)
        on_host = {name: values.pop(name) for name in shared if name in values}
        host = self.limits.host
        if host is not None:
            host = msgspec.structs.replace(host, **on_host)
        return self.limits.spec(StepCost(**values, source=source), host)

    def runs(self, spec: ReplicaSpec) -> list[tuple[list[Served], int]]:
        """Simulate once, or with unrest as often as its chances are drawn."""
        restless = spec.host is not None and spec.host.is_restless
        return [serve(self.measured, spec, seed) for seed in range(1, DRAWS + 1 if restless else 2)]

    def loss(
        self, names: Sequence[str], origin: NDArray[np.float64], reach: float
    ) -> Callable[[NDArray[np.float64]], float]:
        """Return what a search minimises; beyond its reach of the origin it grows with the distance."""

        def found(point: NDArray[np.float64]) -> float:
            beyond = float(np.maximum(0.0, np.abs(point - origin) - math.log(reach)).sum())
            if beyond > 0.0:
                return 10.0 + beyond
            runs = self.runs(self.spec(point, names, "tried"))
            return disagreement(self.measured, [served for served, _ in runs], self.part)

        return found


def _search(
    task: _Task, tries_max: int, on_try: Callable[[int, float], None]
) -> tuple[NDArray[np.float64], float, int]:
    """Search for the costs without unrest, then for the unrest that goes with them, where replicas share a host.

    Returns the costs alone where no unrest agrees better than none.
    """
    limits, names = task.limits, task.limits.parameters
    origin = _start(task)
    best, loss, tries = search(task.loss(names, origin, REACH), origin, tries_max, on_try)
    if limits.host is None:
        return best, loss, tries
    calm_loss, start = loss, np.log(UNREST_GUESSES)
    whole = task.loss(_with_unrest(limits), np.concatenate([best, start]), UNREST_REACH)
    unrest, unrest_loss, more = search(
        lambda point: whole(np.concatenate([best, point])),
        start,
        min(UNREST_TRIES_MAX, max(UNREST_TRIES_MIN, round(tries_max * UNREST_TRIES_SHARE))),
        lambda number, found: on_try(tries + number, min(calm_loss, found)),
    )
    if unrest_loss >= calm_loss:
        return best, calm_loss, tries + more
    return np.concatenate([best, unrest]), unrest_loss, tries + more


def _start(task: _Task) -> NDArray[np.float64]:
    """Return the guess, or the other starting point where the engine was never full and that one agrees better."""
    limits, measured = task.limits, task.measured
    first = guess(measured, limits, task.part)
    point = np.log(_values(first, limits))
    if was_full(measured, streams_max=limits.streams_max, kv_tokens=limits.kv_tokens):
        return point
    other = np.log(_values(by_growth(measured, task.part, first), limits))
    return min(point, other, key=lambda at: task.loss(limits.parameters, at, REACH)(at))


def _values(cost: StepCost, limits: Limits) -> list[float]:
    known = {"contention": CONTENTION_GUESS, "start_ms": max(1.0, cost.overhead_ms)}
    return [known.get(name) or getattr(cost, name) for name in limits.parameters]


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
