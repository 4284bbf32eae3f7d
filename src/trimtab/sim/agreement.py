"""How well simulated times agree with measured ones, request by request, where the simulation has chance in it.

Law: of each request's time y and its times x_1..x_n in n simulations with chances of their own, all as logarithms,

    mean |x_i - y|  -  1/2 mean |x_i - x_j| over i != j

the continuous ranked probability score, which is the mean over all quantiles of what each is off, and lowest in
expectation for the true distribution: a spread that is too narrow or too wide costs as much as a centre that is off.
Of one simulation it is the mean absolute logarithm of the ratio.

Source: Gneiting, Raftery, "Strictly proper scoring rules, prediction, and estimation", 2007; the pairs i != j make it
unbiased for few simulations (Ferro, 2014).
"""

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from trimtab.sim.measured import METRICS, Error, Measured, Served

FLOOR_MS: Final = 20.0
"""Added to both times of a ratio, so that a few milliseconds of a short time do not outweigh seconds of a long one."""


def disagreement(
    measured: Sequence[Measured], draws: Sequence[Sequence[Served]], part: Sequence[int]
) -> float:
    """Return the score of the requests `part` (numbers), mean over TTFT, TPOT and end-to-end time; 0 is perfect."""
    total = 0.0
    for metric in METRICS:
        real = _logs([measured[at] for at in part], metric)
        made = np.array([_logs([draw[at] for at in part], metric) for draw in draws])
        known = ~(np.isnan(real) | np.isnan(made).any(axis=0))
        if known.any():
            total += float(_scores(made[:, known], real[known]).mean())
    return total / len(METRICS)


def _scores(made: NDArray[np.float64], real: NDArray[np.float64]) -> NDArray[np.float64]:
    """The score of each request; draws are rows."""
    off: NDArray[np.float64] = np.abs(made - real).mean(axis=0)
    count = len(made)
    if count == 1:
        return off
    # Of sorted values the sum over pairs is linear: each is larger than those before it, smaller than those after.
    weights = 2.0 * np.arange(count) - (count - 1)
    between: NDArray[np.float64] = weights @ np.sort(made, axis=0) * 2.0 / (count * (count - 1))
    return off - between / 2.0


def _logs(times: Sequence[Measured] | Sequence[Served], metric: str) -> NDArray[np.float64]:
    floor = 0.0 if metric == "tpot_ms" else FLOOR_MS
    values = [getattr(one, metric) for one in times]
    return np.log([value + floor if value else np.nan for value in values])


def mean_errors(draws: Sequence[Sequence[Error]]) -> tuple[Error, ...]:
    """Return the errors of several simulations of the same requests as one: the simulated statistic is their mean."""
    made = []
    for same in zip(*draws, strict=True):
        first = same[0]
        simulated = sum(one.simulated for one in same) / len(same)
        error = simulated / first.measured - 1.0 if first.measured > 0.0 else 0.0
        made.append(msgspec.structs.replace(first, simulated=simulated, error=error))
    return tuple(made)
