"""Where a request should go among servers, and whether they are balanced: load bound first, then the longest prefix.

Law: a server is within the bound if its KV share and its waiting requests are at most 1.25 times their means (or below
what is worth naming). Among those the longest match wins, then the least load. The gap that counts is that of the
engines: each of n routers sees about one n-th of it. What facts leave out of a server is read from the source of its
name; what neither tells is unknown, and then nothing is chosen.
"""

from collections.abc import Iterator, Sequence

import msgspec

from trimtab.core.evidence import Evidence, Readings
from trimtab.diagnosis.served_advice import Answer, Judgement, Subject
from trimtab.diagnosis.served_facts import BalanceFacts, ReplicaLoad, ServedFacts
from trimtab.diagnosis.served_names import ServedName, of_source

LOAD_BOUND = 1.25
KV_NAMED_SHARE = 0.5
"""KV below this share is no load worth moving a prefix for."""

WAITING_NAMED = 2.0


def balance_judgements(readings: Readings, facts: ServedFacts) -> Iterator[Judgement]:
    """Give what the facts of several servers say, with their loads as their own pages tell them; else nothing."""
    told = facts.balance
    if told is None:
        return
    replicas = tuple(_with_page(each, readings) for each in told.replicas)
    if replicas:
        yield _placement(replicas)
    if told.threshold is not None or told.seen_gap is not None or told.true_gap is not None:
        yield _balance(told, replicas, readings)


def _with_page(told: ReplicaLoad, readings: Readings) -> ReplicaLoad:
    """Return a server's load with what its own page says in place of what the facts leave out."""

    def own(name: str) -> float | None:
        return readings.value(of_source(name, told.name))

    running, waiting = own(ServedName.RUNNING_MEAN), own(ServedName.WAITING_MEAN)
    in_flight = None if running is None or waiting is None else running + waiting
    kv = own(ServedName.KV_USED_SHARE_MAX)
    return msgspec.structs.replace(
        told,
        kv_used_share=kv if told.kv_used_share is None else told.kv_used_share,
        waiting=waiting if told.waiting is None else told.waiting,
        in_flight=in_flight if told.in_flight is None else told.in_flight,
    )


def _placement(replicas: Sequence[ReplicaLoad]) -> Judgement:
    dark = [each.name for each in replicas if each.kv_used_share is None and each.waiting is None]
    if dark:
        return _unplaced(
            f"the load of {', '.join(dark)} is unknown: absent is not idle",
            f"KV usage or waiting requests of {', '.join(dark)}",
        )
    within = [each for each in replicas if not _over(each, replicas)] or list(replicas)
    unmatched = [each.name for each in within if each.match_share is None]
    if unmatched:
        return _unplaced(
            f"how much of the prompt {', '.join(unmatched)} holds is unknown",
            f"match_share of {', '.join(unmatched)}: the router's index, or the engine's own events",
        )
    chosen = min(within, key=lambda each: (-(each.match_share or 0.0), *_load(each), each.name))
    over = [each.name for each in replicas if each not in within]
    text = (
        f"{chosen.name} holds {chosen.match_share or 0.0:.0%} of the prompt within the load bound"
    )
    if over:
        text += f"; over {LOAD_BOUND} times the mean: {', '.join(over)}"
    return Judgement(
        subject=Subject.PLACEMENT, answer=Answer.CHOSEN, because=text, choice=chosen.name
    )


def _unplaced(because: str, would_tell: str) -> Judgement:
    return Judgement(subject=Subject.PLACEMENT, answer=None, because=because, would_tell=would_tell)


def _load(each: ReplicaLoad) -> tuple[float, float, float]:
    return each.waiting or 0.0, each.kv_used_share or 0.0, each.in_flight or 0.0


def _over(each: ReplicaLoad, replicas: Sequence[ReplicaLoad]) -> bool:
    shares = [one.kv_used_share for one in replicas if one.kv_used_share is not None]
    waits = [one.waiting for one in replicas if one.waiting is not None]
    return _above(each.kv_used_share, shares, KV_NAMED_SHARE) or _above(
        each.waiting, waits, WAITING_NAMED
    )


def _above(value: float | None, values: Sequence[float], named: float) -> bool:
    if value is None or not values:
        return False
    return value > named and value > LOAD_BOUND * sum(values) / len(values)


def _gap(
    told: BalanceFacts, replicas: Sequence[ReplicaLoad], readings: Readings
) -> tuple[float | None, str]:
    """Return the difference in requests in flight between the engines, and whose word it is."""
    if told.true_gap is not None:
        return told.true_gap, "as told"
    flights = [each.in_flight for each in replicas if each.in_flight is not None]
    if not replicas:
        flights = _flights(readings)
    elif len(flights) < len(replicas):
        return None, ""
    return (
        (max(flights) - min(flights), "by the engines' own count")
        if len(flights) > 1
        else (None, "")
    )


def _flights(readings: Readings) -> list[float]:
    """Return requests in flight of each source, nothing unless all of them tell."""
    running = readings.get(ServedName.RUNNING_MEAN)
    if not isinstance(running, Evidence) or readings.value(ServedName.WAITING_MEAN) is None:
        return []
    start = of_source(ServedName.RUNNING_MEAN, "")
    ends = [item.name.removeprefix(start) for item in readings.items if item.name.startswith(start)]
    each = [
        (
            readings.value(of_source(ServedName.RUNNING_MEAN, end)),
            readings.value(of_source(ServedName.WAITING_MEAN, end)),
        )
        for end in ends
    ]
    return [runs + waits for runs, waits in each if runs is not None and waits is not None]


def _balance(told: BalanceFacts, replicas: Sequence[ReplicaLoad], readings: Readings) -> Judgement:
    subject = Subject.BALANCE
    gap, basis = _gap(told, replicas, readings)
    if gap is None or told.threshold is None:
        routers = f"; each of {told.routers} routers sees a part of it" if told.routers else ""
        return Judgement(
            subject=subject,
            answer=None,
            because=f"the gap between the engines themselves is unknown{routers}"
            if gap is None
            else "from which gap on to balance is unknown",
            would_tell="requests in flight by engine" if gap is None else "the router's threshold",
        )
    numbers = {"true_gap": gap, "threshold": told.threshold}
    text = f"the engines differ by {gap:g} requests ({basis}), the threshold is {told.threshold:g}"
    if told.seen_gap is not None:
        numbers["seen_gap"] = told.seen_gap
        text += f"; one router sees {told.seen_gap:g} of it"
    return Judgement(
        subject=subject,
        answer=Answer.IMBALANCED if gap > told.threshold else Answer.BALANCED,
        because=text,
        numbers=numbers,
    )
