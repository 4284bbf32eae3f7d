"""Corrects an estimate by a few measurements of the same hardware, engine and model, so that it cannot explode.

The logarithm of measured over expected is a Gaussian process over what was run: a level common to all runs of the
group, and deviations that runs share the more, the nearer they are in layout, clients, prompt and answer tokens,
precision, engine version, and in the expected time itself (what an estimate leaves out weighs more on short times).
What few measurements say is thereby shrunk towards the prior, counts fully only near where it was measured, and leaves
a stated deviation everywhere. A group whose rows lie farther off than the prior holds likely is less sure of
everything, one whose rows lie nearer is surer (a Student-t process: its scale is learned with its values). A single
measurement far outside counts less, and a factor beyond the bounds is clamped and reported.

Regimes: without measurements the factor is the prior's own bias and the deviation the prior's; with many near the
point asked for, the factor is their mean and the deviation the noise between repeated runs. Fails where a server
changes regime between measured and asked (it queues, or speculates): bounds and deviation then promise too much.
Rasmussen and Williams, Gaussian Processes for Machine Learning (2006), algorithm 2.1; Shah, Wilson and Ghahramani,
Student-t Processes as Alternatives to Gaussian Processes (2014), equation 6.
"""

import math
from collections.abc import Sequence
from enum import StrEnum
from typing import Final

import msgspec

from trimtab.core.layout import Layout
from trimtab.planning.measured import Load

OBSERVATIONS_MAX: Final = 64
"""Solving grows with the cube of these; the newest are kept."""
SCALE_MAX: Final = 5.0
"""However far off a group's rows lie, its deviations grow no more than this."""

_REWEIGHTINGS: Final = 3


class Phase(StrEnum):
    """Which time is corrected: the first token (waiting and prefill) or each one after it (decode)."""

    FIRST_TOKEN = "ttft"
    DECODE = "tpot"


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """One measured time beside what was expected of that run, milliseconds."""

    load: Load
    expected_ms: float
    measured_ms: float


class Prior(msgspec.Struct, frozen=True, kw_only=True):
    """What is believed of an estimate's error before anything is measured; all in natural logarithms.

    `bias`: its mean. `*_sd`: how far runs differ that differ in one respect only; `*_reach`: after how many doublings
    of that quantity two runs are nearly strangers. `bound`: the largest correction either way. `tail`: degrees of
    freedom of the Student-t, of single measurements and of the whole group.
    """

    bias: float
    level_sd: float
    layout_sd: float
    clients_sd: float
    input_sd: float
    output_sd: float
    expected_sd: float
    precision_sd: float
    run_sd: float
    noise_sd: float
    layout_reach: float
    clients_reach: float
    tokens_reach: float
    expected_reach: float
    bound: float
    tail: float = 4.0


class Factor(msgspec.Struct, frozen=True, kw_only=True):
    """What to multiply an expected time by, the standard deviation of its logarithm, and whether a bound cut it."""

    factor: float
    log_sd: float
    pegged: bool


class Correction(msgspec.Struct, frozen=True, kw_only=True):
    """A fitted correction of one phase: the solved process, and `scale`, which multiplies its deviations."""

    phase: Phase
    prior: Prior
    observations: tuple[Observation, ...]
    weights: tuple[float, ...]
    triangle: tuple[tuple[float, ...], ...]
    scale: float

    def at(self, load: Load, expected_ms: float) -> Factor:
        """Return the factor for a run; O(n) for its mean and O(n²) for its deviation in the n observations."""
        asked = Observation(load=load, expected_ms=expected_ms, measured_ms=expected_ms)
        shared = [covariance(self.prior, asked, seen) for seen in self.observations]
        mean = self.prior.bias + sum(
            weight * value for weight, value in zip(self.weights, shared, strict=True)
        )
        solved = _solve_lower(self.triangle, shared)
        variance = covariance(self.prior, asked, asked) - sum(value * value for value in solved)
        bounded = min(max(mean, -self.prior.bound), self.prior.bound)
        return Factor(
            factor=math.exp(bounded),
            log_sd=self.scale * math.sqrt(max(variance, 0.0) + self.prior.noise_sd**2),
            pegged=bounded != mean,
        )


def fit_correction(phase: Phase, prior: Prior, observations: Sequence[Observation]) -> Correction:
    """Fit a correction; of more than `OBSERVATIONS_MAX` the last ones count. Raises ValueError for times of zero."""
    kept = observations[-OBSERVATIONS_MAX:]
    if any(seen.expected_ms <= 0.0 or seen.measured_ms <= 0.0 for seen in kept):
        raise ValueError("a correction needs times above zero")
    errors = [math.log(seen.measured_ms / seen.expected_ms) - prior.bias for seen in kept]
    shared = [[covariance(prior, one, other) for other in kept] for one in kept]
    noise = [prior.noise_sd**2] * len(kept)
    triangle, weights = _solve(shared, noise, errors)
    for _ in range(_REWEIGHTINGS if len(kept) > 2 else 0):
        noise = _heavy_tailed(prior, noise, weights)
        triangle, weights = _solve(shared, noise, errors)
    surprise = sum(error * weight for error, weight in zip(errors, weights, strict=True))
    return Correction(
        phase=phase,
        prior=prior,
        observations=tuple(kept),
        weights=tuple(weights),
        triangle=tuple(tuple(line) for line in triangle),
        scale=min(SCALE_MAX, math.sqrt((prior.tail + surprise) / (prior.tail + len(kept)))),
    )


def covariance(prior: Prior, first: Observation, second: Observation) -> float:
    """Return how the errors of two runs vary together, squared natural logarithms; noise is left out."""
    one, other = first.load, second.load
    layout = math.exp(-_layout_distance(one.layout, other.layout) / prior.layout_reach)
    clients = _near(one.clients, other.clients, prior.clients_reach)
    inputs = _near(one.input_tokens, other.input_tokens, prior.tokens_reach)
    outputs = _near(one.output_tokens, other.output_tokens, prior.tokens_reach)
    expected = _near(first.expected_ms, second.expected_ms, prior.expected_reach)
    return (
        prior.level_sd**2
        + prior.layout_sd**2 * layout
        + prior.clients_sd**2 * clients
        + prior.input_sd**2 * inputs
        + prior.output_sd**2 * outputs
        + prior.expected_sd**2 * expected
        + prior.precision_sd**2 * (one.precision == other.precision)
        + prior.run_sd**2 * (one.run == other.run)
    )


def _near(one: float, other: float, reach: float) -> float:
    return math.exp(-0.5 * (math.log2(one / other) / reach) ** 2)


def _layout_distance(one: Layout, other: Layout) -> float:
    """Doublings between two layouts, summed over the ways to spread; the experts' way counts as half."""
    spread = sum(
        abs(math.log2(a / b))
        for a, b in ((one.tp, other.tp), (one.pp, other.pp), (one.attention_dp, other.attention_dp))
    )
    return spread + 0.5 * abs(math.log2(one.moe_ep / other.moe_ep))


def _heavy_tailed(prior: Prior, noise: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Return each observation's noise under Student-t: one step of expectation maximisation on its residual."""
    variance = prior.noise_sd**2
    residuals = [own * weight for own, weight in zip(noise, weights, strict=True)]
    return [
        variance * (prior.tail + residual * residual / variance) / (prior.tail + 1.0)
        for residual in residuals
    ]


def _solve(
    shared: Sequence[Sequence[float]], noise: Sequence[float], errors: Sequence[float]
) -> tuple[list[list[float]], list[float]]:
    """Return the lower Cholesky triangle of covariance plus noise, and what it solves the errors to."""
    triangle: list[list[float]] = []
    for row, line in enumerate(shared):
        done: list[float] = []
        for column in range(row + 1):
            dot = sum(
                a * b
                for a, b in zip(done, triangle[column] if column < row else done, strict=False)
            )
            rest = line[column] + (noise[row] if column == row else 0.0) - dot
            done.append(
                math.sqrt(max(rest, 1e-12)) if column == row else rest / triangle[column][column]
            )
        triangle.append(done)
    half = _solve_lower(triangle, errors)
    weights = [0.0] * len(half)
    for row in range(len(half) - 1, -1, -1):
        later = sum(triangle[below][row] * weights[below] for below in range(row + 1, len(half)))
        weights[row] = (half[row] - later) / triangle[row][row]
    return triangle, weights


def _solve_lower(triangle: Sequence[Sequence[float]], right: Sequence[float]) -> list[float]:
    solved: list[float] = []
    for line, value in zip(triangle, right, strict=True):
        solved.append((value - sum(a * b for a, b in zip(line, solved, strict=False))) / line[-1])
    return solved
