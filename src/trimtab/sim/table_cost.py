"""The step cost of an engine that nobody measured, from the step times that plans rest on.

Law: the five costs of `core.step_cost` that come nearest, by the mean absolute logarithm of the ratio, to the times of
a grid: decodes of 1 to `streams_max` streams at several contexts, and prompts of up to a step's budget at several
offsets. What is left is the error of the formula against the table, which is told; how far the table is off the
engine is another question, and `trimtab plan --validate` answers it.

Failure modes: times of tables are the devices' alone, so the time of the host (scheduling, sampling) is not in the
costs and steps come out a little short. A layout whose ranks do not all work on every step (pipelines, attention
data-parallel) is no one step and is refused by whoever asks.
"""

import math
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from trimtab.core.step_cost import StepCost
from trimtab.planning.kernel_port import StepTimes
from trimtab.sim.fit import PARAMETERS, Limits, search

CONTEXTS: Final = (512.0, 2048.0, 8192.0)
OFFSETS: Final = (0.0, 4096.0)
PROMPT_TOKENS_MIN: Final = 32
TRIES_MAX: Final = 1500


class TableCost(msgspec.Struct, frozen=True, kw_only=True):
    """A step cost, and how far its steps are off the table's: mean and largest absolute share over `points`."""

    cost: StepCost
    error_mean: float
    error_max: float
    points: int


class _Point(msgspec.Struct, frozen=True):
    tokens: float
    streams: float
    context_tokens: float
    pairs: float
    ms: float


def cost_of_times(times: StepTimes, limits: Limits, *, source: str) -> TableCost:
    """Return the cost of a replica's steps; `limits` says which streams, prompts and contexts it can have.

    Raises ImportError without scipy.
    """
    points = [
        *_decodes(times, limits.streams_max, limits.kv_tokens),
        *_prompts(times, limits.budget_tokens, limits.kv_tokens),
    ]
    first = times.decode_ms(1, CONTEXTS[0])
    per_token = times.prefill_ms(limits.budget_tokens, 0.0) / limits.budget_tokens
    guess = (0.1 * first, 0.8 * first, per_token, 0.002 * first, 1e-6 * first, per_token * 1e-5)
    origin = np.log(np.array(guess))
    best, _, _ = search(lambda point: _loss(points, point), origin, TRIES_MAX, lambda *_: None)
    errors = [abs(math.exp(one) - 1.0) for one in _logs(points, best)]
    return TableCost(
        cost=_cost(best, source),
        error_mean=sum(errors) / len(errors),
        error_max=max(errors),
        points=len(errors),
    )


def _decodes(times: StepTimes, streams_max: int, kv_tokens: int) -> list[_Point]:
    sizes = [2**power for power in range(streams_max.bit_length())]
    return [
        _Point(batch, batch, batch * context, 0.0, times.decode_ms(batch, context))
        for batch in sizes
        for context in CONTEXTS
        if batch <= streams_max and (batch * context <= kv_tokens or (batch, context) == (1, 512.0))
    ]


def _prompts(times: StepTimes, budget_tokens: int, kv_tokens: int) -> list[_Point]:
    most = max(PROMPT_TOKENS_MIN, budget_tokens)
    sizes = [2**power for power in range(PROMPT_TOKENS_MIN.bit_length() - 1, most.bit_length())]
    return [
        _Point(size, 0.0, 0.0, size * (held + size / 2.0), times.prefill_ms(held + size, held))
        for size in sizes
        for held in OFFSETS
        if held + size <= max(kv_tokens, PROMPT_TOKENS_MIN)
    ]


def _cost(point: NDArray[np.float64], source: str) -> StepCost:
    values = dict(zip(PARAMETERS, (float(value) for value in np.exp(point)), strict=True))
    return StepCost(**values, source=source)


def _logs(points: Sequence[_Point], point: NDArray[np.float64]) -> list[float]:
    cost = _cost(point, "tried")
    return [
        math.log(
            cost.step_ms(
                tokens=one.tokens,
                streams=one.streams,
                context_tokens=one.context_tokens,
                pairs=one.pairs,
            )
            / one.ms
        )
        for one in points
    ]


def _loss(points: Sequence[_Point], point: NDArray[np.float64]) -> float:
    logs = _logs(points, point)
    return sum(abs(one) for one in logs) / len(logs)
