"""Where a request should go among servers, and whether they are balanced: load bound first, then the longest prefix.

Law: a server is within the bound if its KV share and its waiting requests are at most 1.25 times their means (or below
what is worth naming). Among those the longest match wins, then the least load. The gap that counts is that of the
engines: each of n routers sees about one n-th of it.
"""

from collections.abc import Iterator, Sequence

from trimtab.diagnosis.served_advice import Answer, Judgement, Subject
from trimtab.diagnosis.served_facts import BalanceFacts, ReplicaLoad, ServedFacts

LOAD_BOUND = 1.25
KV_NAMED_SHARE = 0.5
"""KV below this share is no load worth moving a prefix for."""

WAITING_NAMED = 2.0


def balance_judgements(facts: ServedFacts) -> Iterator[Judgement]:
    """Give what the facts of several servers say; nothing without them."""
    told = facts.balance
    if told is None:
        return
    if told.replicas:
        yield _placement(told.replicas)
    if told.threshold is not None or told.seen_gap is not None or told.true_gap is not None:
        yield _balance(told)


def _placement(replicas: Sequence[ReplicaLoad]) -> Judgement:
    subject = Subject.PLACEMENT
    dark = [each.name for each in replicas if each.kv_used_share is None and each.waiting is None]
    if dark:
        return Judgement(
            subject=subject,
            answer=None,
            because=f"the load of {', '.join(dark)} is unknown: absent is not idle",
            would_tell=f"KV usage or waiting requests of {', '.join(dark)}",
        )
    within = [each for each in replicas if not _over(each, replicas)]
    chosen = min(within or replicas, key=lambda each: (-each.match_share, *_load(each), each.name))
    over = [each.name for each in replicas if each not in within]
    text = f"{chosen.name} holds {chosen.match_share:.0%} of the prompt within the load bound"
    if over:
        text += f"; over {LOAD_BOUND} times the mean: {', '.join(over)}"
    return Judgement(subject=subject, answer=Answer.CHOSEN, because=text, choice=chosen.name)


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


def _balance(told: BalanceFacts) -> Judgement:
    subject = Subject.BALANCE
    flights = [each.in_flight for each in told.replicas if each.in_flight is not None]
    gap = told.true_gap
    if gap is None and len(flights) == len(told.replicas) > 1:
        gap = max(flights) - min(flights)
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
    text = f"the engines differ by {gap:g} requests, the threshold is {told.threshold:g}"
    if told.seen_gap is not None:
        numbers["seen_gap"] = told.seen_gap
        text += f"; one router sees {told.seen_gap:g} of it"
    return Judgement(
        subject=subject,
        answer=Answer.IMBALANCED if gap > told.threshold else Answer.BALANCED,
        because=text,
        numbers=numbers,
    )
