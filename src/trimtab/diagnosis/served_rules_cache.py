"""Prefix hits by source, keys of salted requests, and isolation of tenants."""

from collections.abc import Iterator

from trimtab.core.evidence import Readings
from trimtab.diagnosis.served_advice import Answer, Judgement, Subject
from trimtab.diagnosis.served_facts import CacheFacts, ServedFacts
from trimtab.diagnosis.served_names import ServedName

DIFFERS_SHARE = 0.2
"""Two hit shares that differ by more are in conflict."""


def cache_judgements(readings: Readings, facts: ServedFacts) -> Iterator[Judgement]:
    """Give what the facts of caching say; nothing without them."""
    told = facts.cache
    if told.proxy_hit_share is not None:
        yield _sources(told.proxy_hit_share, readings)
    if told.salted_predicted_share is not None or told.salted_engine_share is not None:
        yield _salted(told)
    if told.same_tenant_hit is not None or told.other_tenant_hit is not None:
        yield _isolation(told)


def _sources(proxy: float, readings: Readings) -> Judgement:
    subject = Subject.CACHE_SOURCES
    engine = readings.value(ServedName.PREFIX_HIT_SHARE)
    if engine is None:
        return Judgement(
            subject=subject,
            answer=None,
            because=f"the proxy counts {proxy:.0%} hits, and no engine confirms them",
            would_tell="the engine's prefix cache counters over a window",
        )
    numbers = {"proxy_hit_share": proxy, "engine_hit_share": engine}
    if abs(proxy - engine) <= DIFFERS_SHARE:
        return Judgement(
            subject=subject,
            answer=Answer.SOURCES_AGREE,
            because=f"proxy {proxy:.0%}, engine {engine:.0%}",
            numbers=numbers,
        )
    return Judgement(
        subject=subject,
        answer=Answer.TRUST_ENGINE,
        because=f"conflict: the proxy counts {proxy:.0%} hits, the engine {engine:.0%}, and the engine did the work",
        numbers=numbers,
    )


def _salted(told: CacheFacts) -> Judgement:
    subject = Subject.SALTED_KEYS
    predicted, engine = told.salted_predicted_share, told.salted_engine_share
    if predicted is None or engine is None:
        lacking = "the router's predicted hits" if predicted is None else "the engine's hits"
        return Judgement(
            subject=subject,
            answer=None,
            because="predicted and delivered hits of salted requests are not both told",
            would_tell=f"{lacking} for requests with a salt",
        )
    numbers = {"predicted_share": predicted, "engine_share": engine}
    if engine - predicted > DIFFERS_SHARE:
        return Judgement(
            subject=subject,
            answer=Answer.KEY_MISMATCH,
            because=(
                f"the router predicts {predicted:.0%} and the engine has {engine:.0%}: router key mismatch for salted "
                "requests; affinity off for them, and no claim about caching"
            ),
            numbers=numbers,
        )
    if predicted - engine > DIFFERS_SHARE:
        return Judgement(
            subject=subject,
            answer=Answer.TRUST_ENGINE,
            because=f"the router promises {predicted:.0%} and the engine delivers {engine:.0%}: distrust the index",
            numbers=numbers,
        )
    return Judgement(
        subject=subject,
        answer=Answer.KEYS_MATCH,
        because=f"predicted {predicted:.0%}, delivered {engine:.0%}",
        numbers=numbers,
    )


def _isolation(told: CacheFacts) -> Judgement:
    subject = Subject.ISOLATION
    if told.enabled is False:
        return Judgement(
            subject=subject,
            answer=Answer.NOT_PROVEN,
            because="caching is off in the engine: that nothing hits across tenants proves nothing",
        )
    if told.other_tenant_hit:
        return Judgement(
            subject=subject,
            answer=Answer.BROKEN,
            because="a prompt of one tenant was found by another one",
        )
    if told.same_tenant_hit is False:
        return Judgement(
            subject=subject,
            answer=Answer.NOT_PROVEN,
            because="not even the same tenant hits: the test never reached the cache",
        )
    if told.same_tenant_hit is None or told.other_tenant_hit is None or told.enabled is None:
        return Judgement(
            subject=subject,
            answer=None,
            because="a test of isolation needs both sides and a cache that is on",
            would_tell="the same prompt twice by one tenant and once by another, with caching known to be on",
        )
    return Judgement(
        subject=subject,
        answer=Answer.PROVEN,
        because="the same tenant hits and the other one does not",
    )
