"""Under which pressure simulated requests were served, and whether the engine model was ever measured there.

The regimes are those of `sim.measured`, told of simulated requests as of measured ones: by the wait to be scheduled and
by how many were on the replica at arrival. A scenario says in which of them its costs were measured (`trimtab
calibrate` writes it); what is said of another regime is an extrapolation, whatever the figures look like.
"""

import itertools
from collections import Counter
from collections.abc import Collection
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from trimtab.sim.measured import QUEUED_MS, Regime, light_streams
from trimtab.sim.records import Outcome, Records

BEYOND: Final = "never measured, so an extrapolation of the engine model: "
"""What the words on unmeasured regimes begin with."""


class RegimeFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Finished requests of a regime and their share, 0 where none finished.

    `measured`: the engine model was; None: nobody said.
    """

    regime: Regime
    requests: int
    share: float
    measured: bool | None


def regime_figures(
    records: Records,
    *,
    from_s: float,
    to_s: float,
    streams_max: int,
    measured: Collection[str] | None,
) -> tuple[RegimeFigures, ...]:
    """Return the regimes of the requests that arrived in a stretch of time and finished, those that have any.

    Where no request finished it is all regimes, with none.
    """
    at, done = records.column("at_s"), records.outcomes() == Outcome.FINISHED
    inside = done & (at >= from_s) & (at < to_s)
    total = int(inside.sum())
    queued = inside & (records.column("queue_ms") >= QUEUED_MS)
    light = inside & ~queued & (_there(records, done) <= light_streams(streams_max))
    counts = {
        Regime.LIGHT: int(light.sum()),
        Regime.BATCHED: total - int(light.sum()) - int(queued.sum()),
        Regime.QUEUED: int(queued.sum()),
    }
    return tuple(
        RegimeFigures(
            regime=regime,
            requests=count,
            share=count / max(1, total),
            measured=None if measured is None else regime.value in measured,
        )
        for regime, count in counts.items()
        if count or not total
    )


def pooled(found: Collection[tuple[RegimeFigures, ...]]) -> tuple[RegimeFigures, ...]:
    """Return the regimes of several runs, as those of one run with the requests of all."""
    counts: Counter[Regime] = Counter()
    measured: dict[Regime, bool | None] = {}
    for one in itertools.chain.from_iterable(found):
        counts[one.regime] += one.requests
        measured[one.regime] = one.measured
    total = counts.total()
    return tuple(
        RegimeFigures(
            regime=regime,
            requests=counts[regime],
            share=counts[regime] / max(1, total),
            measured=measured[regime],
        )
        for regime in Regime
        if regime in counts and (counts[regime] or not total)
    )


def _there(records: Records, done: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return how many finished requests were on a request's replica when it came, itself included."""
    at, replicas = records.column("at_s"), records.replicas()
    end = at + records.column("e2e_ms") / 1000.0
    there = np.zeros(len(records))
    order = np.argsort(replicas[done], kind="stable")
    rows = np.flatnonzero(done)[order]
    edges = np.flatnonzero(np.diff(replicas[rows])) + 1
    for mine in np.split(rows, edges):
        # Rows are in order of arrival.
        begun = np.searchsorted(at[mine], at[mine], side="right")
        there[mine] = begun - np.searchsorted(np.sort(end[mine]), at[mine], side="right")
    return there


def extrapolated(found: tuple[RegimeFigures, ...]) -> str | None:
    """Say in words what was simulated and never measured; None where all of it was."""
    if any(one.measured is None for one in found):
        return "the scenario does not say in which regimes its engine model was measured"
    if found and not any(one.requests for one in found):
        return "no request finished, so in which regime of the engine model they were is unknown"
    beyond = [one for one in found if not one.measured]
    if not beyond:
        return None
    told = ", ".join(f"{one.regime.value} ({one.share:.1%} of the requests)" for one in beyond)
    return f"{BEYOND}{told}"
