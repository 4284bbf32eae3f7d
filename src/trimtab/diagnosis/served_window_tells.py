"""What a source's window tells, rank by rank, and which of several sources is asked for what.

Law: engines are asked before front ends, for a front end sees only what passes through it. Times of requests are asked
of one side only, and so are the gauges of what is in flight: the side that tells more of them, engines if both tell as
much. Times of the one and gauges of the other are of different requests.
"""

from collections.abc import Sequence

from trimtab.core.served import (
    Counter,
    Distribution,
    EngineKind,
    Gauge,
    RankSample,
    ServerWindow,
)

FRONT_ENDS = frozenset({EngineKind.DYNAMO_FRONTEND})
"""Sources that see the same requests as the engines behind them."""

Key = Gauge | Counter | Distribution
LOAD = frozenset({Gauge.RUNNING, Gauge.WAITING, Gauge.KV_USED_SHARE})
PHASES: frozenset[Key] = frozenset(
    {
        Distribution.TTFT,
        Distribution.TPOT,
        Distribution.E2E,
        Distribution.QUEUE_TIME,
        Distribution.PREFILL_TIME,
        Distribution.DECODE_TIME,
        Distribution.PROMPT_LENGTH,
        Distribution.OUTPUT_LENGTH,
    }
)
"""Times and lengths of requests that are set against each other, and so must be of the same requests."""


_RUNNING_AND_WAITING = (Gauge.RUNNING, Gauge.WAITING)
IN_FLIGHT: frozenset[Key] = frozenset(_RUNNING_AND_WAITING)


def serving_ranks(window: ServerWindow) -> tuple[RankSample, ...]:
    """Return the ranks that tell their load; series without a rank beside those of ranks are no rank."""
    loaded = tuple(rank for rank in window.ranks if rank.gauges.keys() & LOAD)
    return loaded or tuple(rank for rank in window.ranks if rank.distributions or rank.counters)


def ranks_telling(window: ServerWindow, keys: Sequence[Counter]) -> Sequence[RankSample]:
    """Return the ranks that tell all of some counters; all ranks where they stand at different ones."""
    joint = [rank for rank in window.ranks if all(key in rank.counters for key in keys)]
    return joint or window.ranks


def untimed_ranks(window: ServerWindow, key: Distribution) -> Sequence[str]:
    """Return the ranks without a histogram that others of the window have, though they have some, in words."""
    told = {rank.rank for rank in window.ranks if key in rank.distributions}
    if not told or "" in told:
        return ()
    return [
        f"rank {rank.rank}"
        for rank in window.ranks
        if rank.rank and rank.distributions and rank.rank not in told
    ]


def silent_ranks(window: ServerWindow, key: Gauge | Counter) -> Sequence[str]:
    """Return the serving ranks without a value, in words; what a page says of the whole server is of them all."""
    told = {rank.rank for rank in window.ranks if key in rank.gauges or key in rank.counters}
    ranks = serving_ranks(window)
    if not ranks or "" in told:
        return ()
    if not told:
        return ("the server",)
    return [f"rank {rank.rank}" for rank in ranks if rank.rank not in told]


def needs_none(window: ServerWindow, key: Gauge | Counter) -> bool:
    """Say whether an engine has nothing of the kind to tell: llama.cpp's slots hold their KV from the start."""
    return key is Gauge.KV_USED_SHARE and window.engine is EngineKind.LLAMACPP


def tells(window: ServerWindow, key: Key) -> bool:
    """Say whether any rank of a window has a value of that name."""
    match key:
        case Gauge():
            return any(key in rank.gauges for rank in window.ranks)
        case Counter():
            return any(key in rank.counters for rank in window.ranks)
        case Distribution():
            return any(key in rank.distributions for rank in window.ranks)


def has_requests(window: ServerWindow) -> bool:
    """Say whether a source may have served requests, though it times none: not where it tells that it was idle."""
    ranks = serving_ranks(window)
    quiet = all(rank.gauges.get(key, 1.0) == 0.0 for rank in ranks for key in _RUNNING_AND_WAITING)
    grew = any(value > 0 for rank in window.ranks for value in rank.counters.values())
    return bool(ranks) and not (quiet and not grew)


def asked(windows: Sequence[ServerWindow], key: Key) -> Sequence[ServerWindow]:
    """Return the windows whose word on a key counts: those of one side where the key is set against others."""
    together = PHASES if key in PHASES else IN_FLIGHT if key in IN_FLIGHT else frozenset[Key]()
    front = [window for window in windows if window.engine in FRONT_ENDS]
    if not together or not front or len(front) == len(windows):
        return windows
    engines = [window for window in windows if window.engine not in FRONT_ENDS]
    return front if _told(front, together) > _told(engines, together) else engines


def _told(windows: Sequence[ServerWindow], keys: frozenset[Key]) -> int:
    return sum(any(tells(window, key) for window in windows) for key in keys)
