"""A second starting point for the fit: costs of a step read off how TPOT grows with the KV that is read beside it.

Law: while a stream decodes, each step reads the KV of all streams on its replica, so over requests

    TPOT ~ a + b x (KV of the streams that decode, mean over the time of the answer)

and least squares give `a`, which is overhead and weights, and `b`, which is `context_ms`. The mean counts each other
request with half of its answer, for the part of the time that both answers were under way.

It is for engines that were never full. In a full one an answer's time has preemptions in it, which grow with the KV
too; there the first guess is better, which takes the slowest answers to be those of a full engine.

Failure modes: prefills beside the answer raise TPOT too and are put down to the context; with contexts of one length
streams and context grow together, so that `b` has the cost of a stream in it. A search begins here, nothing more.
"""

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from trimtab.core.step_cost import StepCost
from trimtab.sim.measured import Measured, answering_most

ROWS_MAX: Final = 500
"""Requests that the line is drawn through at most, evenly from all: each is held against every other."""

LEAST_SHARE: Final = 0.2
"""`a` is at least this part of the fastest TPOT, however steep the line is."""


def was_full(measured: Sequence[Measured], *, streams_max: int, kv_tokens: int) -> bool:
    """Say whether answers under way at once took more than half of the places or of the KV of any replica."""
    for name in {one.replica for one in measured}:
        streams, tokens = answering_most(measured, name)
        if 2 * streams > streams_max or 2 * tokens > kv_tokens:
            return True
    return False


def by_growth(measured: Sequence[Measured], part: Sequence[int], first: StepCost) -> StepCost:
    """Return a guess with another cost of a step and of its context; fewer than three answers leave it as it is."""
    chosen = [measured[at] for at in part if measured[at].tpot_ms is not None]
    rows = chosen[:: max(1, len(chosen) // ROWS_MAX)]
    if len(rows) < 3:
        return first
    read = np.array([_read_beside(measured, one) for one in rows])
    tpots = np.array([one.tpot_ms for one in rows], dtype=np.float64)
    if float(np.ptp(read)) <= 0.0:
        return first
    slope, start = (float(found) for found in np.polyfit(read, tpots, 1))
    usual = first.overhead_ms + first.weights_ms
    base = min(1.0, max(LEAST_SHARE, start / float(tpots.min())))
    return msgspec.structs.replace(
        first,
        overhead_ms=first.overhead_ms * base,
        weights_ms=usual * base - first.overhead_ms * base,
        context_ms=max(1e-9, slope),
    )


def _read_beside(measured: Sequence[Measured], one: Measured) -> float:
    """Return the tokens of KV that were read on a request's replica while it was answered, mean over that time."""
    own_s = one.last_token_s - one.first_token_s
    if own_s <= 0.0:
        return float(one.input_tokens)
    there = [
        (other.first_token_s, other.last_token_s, other.input_tokens + other.output_tokens / 2.0)
        for other in measured
        if other.replica == one.replica
    ]
    begun, ended, tokens = np.array(there, dtype=np.float64).T
    both = np.minimum(ended, one.last_token_s) - np.maximum(begun, one.first_token_s)
    return float((np.maximum(0.0, both) / own_s * tokens).sum())
