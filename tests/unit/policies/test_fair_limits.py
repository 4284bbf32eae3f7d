"""A tenant gets what it may, no more; as the gateway fills, shares are fair and the least important leaves first."""

import pytest

from trimtab.core.tenants import Priority
from trimtab.policies.fair_limits import FairLimits, Refusal, Ruling, Shares, TenantLimits

NORMAL = Priority.NORMAL


def fill(limits: FairLimits, tenant: str, places: int, now_s: float = 0.0) -> None:
    """Let a tenant hold some places."""
    for _ in range(places):
        limits.admit(tenant, now_s)


def test_without_limits_everybody_is_admitted_up_to_the_places() -> None:
    """The last place is kept for high priority, the one after it is nobody's."""
    limits = FairLimits()
    fill(limits, "a", 19)
    assert limits.decide("a", NORMAL, 20, 0.0) == Ruling(
        refusal=Refusal.FULL, bound=19, retry_after_s=1
    )
    assert limits.decide("a", Priority.HIGH, 20, 0.0).refusal is None
    fill(limits, "a", 1)
    assert limits.decide("a", Priority.HIGH, 20, 0.0).refusal is Refusal.FULL


def test_low_priority_is_shed_first() -> None:
    """At 80 of 100 places low is shed, at 95 normal, at 100 high."""
    limits = FairLimits()
    admitted = []
    for held in range(101):
        admitted.append(
            tuple(one for one in Priority if limits.decide("a", one, 100, 0.0).refusal is None)
        )
        limits.admit("a", 0.0)
        assert limits.in_flight == held + 1
    assert [len(each) for each in admitted] == [3] * 80 + [2] * 15 + [1] * 5 + [0]
    assert admitted[90] == (Priority.NORMAL, Priority.HIGH)


def test_one_place_admits_any_priority() -> None:
    """Shares are rounded up: a gateway of one place is not closed to low priority."""
    assert FairLimits().decide("a", Priority.LOW, 1, 0.0).refusal is None


def test_rate_lets_a_minute_through_at_once_and_says_when_the_next_may_come() -> None:
    """6 a minute: six at once, the seventh after 10 seconds, rounded up."""
    limits = FairLimits(TenantLimits(requests_per_minute=6.0))
    for _ in range(6):
        assert limits.decide("a", NORMAL, 100, 0.0).refusal is None
        limits.admit("a", 0.0)
        limits.release("a", 0.0)
    ruling = limits.decide("a", NORMAL, 100, 0.5)
    assert ruling == Ruling(refusal=Refusal.REQUEST_RATE, bound=6.0, retry_after_s=10)
    assert limits.decide("a", NORMAL, 100, 10.0).refusal is None
    assert limits.decide("b", NORMAL, 100, 0.5).refusal is None


def test_tokens_are_paid_back_before_the_next_request() -> None:
    """600 a minute and an answer of 1,200: 60 s in debt, then a moment until there is one again."""
    limits = FairLimits(TenantLimits(tokens_per_minute=600.0))
    limits.admit("a", 0.0)
    limits.release("a", 0.0, tokens=1200)
    ruling = limits.decide("a", NORMAL, 100, 0.0)
    assert (ruling.refusal, ruling.retry_after_s) == (Refusal.TOKEN_RATE, 61)
    assert limits.decide("a", NORMAL, 100, 61.0).refusal is None


def test_concurrency_is_of_each_tenant() -> None:
    """Two at once for each: the third of one waits, the first of another does not."""
    limits = FairLimits(TenantLimits(concurrent_max=2))
    fill(limits, "a", 2)
    assert limits.decide("a", NORMAL, 100, 0.0).refusal is Refusal.CONCURRENCY
    assert limits.decide("b", NORMAL, 100, 0.0).refusal is None
    limits.release("a", 0.0)
    assert limits.decide("a", NORMAL, 100, 0.0).refusal is None


def test_limits_by_name_go_over_the_default() -> None:
    """One tenant may more than the others."""
    limits = FairLimits(
        TenantLimits(concurrent_max=1), {"big": TenantLimits(concurrent_max=10, weight=3.0)}
    )
    fill(limits, "big", 9)
    fill(limits, "small", 1)
    assert limits.decide("big", NORMAL, 100, 0.0).refusal is None
    assert limits.decide("small", NORMAL, 100, 0.0).refusal is Refusal.CONCURRENCY


def test_a_tenant_alone_may_fill_the_gateway_and_gives_way_when_another_comes() -> None:
    """Alone 95 of 100 places; with a second one there the first waits until it holds less than half."""
    limits = FairLimits()
    fill(limits, "a", 80)
    assert limits.decide("a", NORMAL, 100, 0.0).refusal is None
    fill(limits, "b", 1)
    assert limits.decide("a", NORMAL, 100, 0.0) == Ruling(
        refusal=Refusal.FAIR_SHARE, bound=50.0, retry_after_s=1
    )
    assert limits.decide("b", NORMAL, 100, 0.0).refusal is None


def test_shares_go_by_weight() -> None:
    """Three to one: 75 and 25 places of 100."""
    limits = FairLimits(named={"a": TenantLimits(weight=3.0)})
    fill(limits, "a", 60)
    fill(limits, "b", 25)
    assert limits.decide("a", NORMAL, 100, 0.0).refusal is None
    assert limits.decide("b", NORMAL, 100, 0.0).refusal is Refusal.FAIR_SHARE


def test_deciding_changes_nothing() -> None:
    """Asked ten times, a bucket of one still lets one through."""
    limits = FairLimits(TenantLimits(requests_per_minute=1.0))
    assert {limits.decide("a", NORMAL, 10, 0.0).refusal for _ in range(10)} == {None}


def test_new_limits_count_what_is_in_flight() -> None:
    """A reload does not forget running requests, and releasing them works as before."""
    limits = FairLimits()
    fill(limits, "a", 3)
    limits.renew(TenantLimits(concurrent_max=3), {}, Shares(), 1.0)
    assert limits.decide("a", NORMAL, 100, 1.0).refusal is Refusal.CONCURRENCY
    limits.release("a", 2.0)
    assert limits.in_flight_of("a") == 2


def test_only_a_full_gateway_is_nobodys_fault() -> None:
    """Of the reasons one is answered with 503, the others with 429."""
    assert [one for one in Refusal if not one.of_tenant] == [Refusal.FULL]


def test_shares_in_the_wrong_order_are_refused() -> None:
    """Low may not outlive normal."""
    with pytest.raises(ValueError, match="low <= normal"):
        Shares(low=0.9, normal=0.8)
