"""Who is admitted: a rate and a number in flight for each tenant, fair shares as the gateway fills up, then shedding.

The order of the questions, each with a reason of its own:
1. the tenant's own limits: requests per minute, tokens per minute, requests in flight;
2. is the gateway full for this priority? low leaves first, high keeps the last places;
3. from a share of the places on, a tenant that holds more than its weighted share of them waits its turn, so that one
   tenant cannot keep the others out.

Rates are token buckets: as much as a minute's worth at once after a quiet minute, the rate afterwards. Tokens are known
only afterwards, so they are taken off at the end of a request and the bucket may fall below zero: the tenant is then
refused until it is paid back. Times are seconds of a clock that never goes back. Deciding changes nothing; `admit`
takes what `decide` allowed.
"""

import math
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import msgspec

from trimtab.core.tenants import Priority

MINUTE_S: Final = 60.0
IDLE_TENANTS_MAX: Final = 4096
BUSY_RETRY_S: Final = 1


class Refusal(StrEnum):
    """Why a request is not admitted. Closed: a new rule needs a new reason."""

    REQUEST_RATE = "request_rate"
    TOKEN_RATE = "token_rate"
    CONCURRENCY = "concurrency"
    FAIR_SHARE = "fair_share"
    FULL = "full"

    @property
    def of_tenant(self) -> bool:
        """Whether the tenant itself asked too much, and not all together."""
        return self is not Refusal.FULL


class TenantLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What one tenant may; 0 is no limit. `weight`: its part of the places where they run short."""

    requests_per_minute: float = 0.0
    tokens_per_minute: float = 0.0
    concurrent_max: int = 0
    weight: float = 1.0
    priority_max: Priority = Priority.HIGH


class Shares(msgspec.Struct, frozen=True, kw_only=True):
    """Up to which share of the places each priority is admitted, and from where on shares are fair.

    A share of the places is rounded up, so that a gateway with one place admits everybody to it.
    """

    low: float = 0.8
    normal: float = 0.95
    fair_from: float = 0.5

    def __post_init__(self) -> None:
        """Refuse an order that would admit low before normal; raises ValueError."""
        if not 0.0 < self.low <= self.normal <= 1.0 or not 0.0 <= self.fair_from <= 1.0:
            raise ValueError(
                f"shares need 0 < low <= normal <= 1 and fair_from in [0, 1]: {self.low}, {self.normal},"
                f" {self.fair_from}"
            )

    def places(self, priority: Priority, capacity: int) -> int:
        """Return how many places of the gateway a priority may fill."""
        match priority:
            case Priority.LOW:
                return math.ceil(self.low * capacity)
            case Priority.NORMAL:
                return math.ceil(self.normal * capacity)
            case Priority.HIGH:
                return capacity


class Ruling(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a request is admitted; if not, why, the bound that was met, and when to come back."""

    refusal: Refusal | None = None
    bound: float = 0.0
    retry_after_s: int = 0


ADMITTED: Final = Ruling()


class Bucket:
    """A token bucket that may fall below zero."""

    __slots__ = ("_at_s", "_level", "_per_s", "_size")

    def __init__(self, per_minute: float, now_s: float) -> None:
        self._per_s = per_minute / MINUTE_S
        # Less than one request a minute must still let one through.
        self._size = max(1.0, per_minute)
        self._level = self._size
        self._at_s = now_s

    def wait_s(self, amount: float, now_s: float) -> float:
        """Return how long until `amount` may be taken: 0 now."""
        lacking = min(amount, self._size) - self._filled(now_s)
        return 0.0 if lacking <= 0.0 else lacking / self._per_s

    def take(self, amount: float, now_s: float) -> None:
        """Take an amount, below zero if it must be."""
        self._level = self._filled(now_s) - amount
        self._at_s = max(self._at_s, now_s)

    def is_full(self, now_s: float) -> bool:
        """Whether it is as a new one would be."""
        return self._filled(now_s) >= self._size

    def _filled(self, now_s: float) -> float:
        return min(self._size, self._level + max(0.0, now_s - self._at_s) * self._per_s)


class _Tenant:
    """What a tenant uses."""

    __slots__ = ("in_flight", "limits", "requests", "tokens")

    def __init__(self, limits: TenantLimits, now_s: float) -> None:
        self.limits = limits
        self.in_flight = 0
        self.requests = (
            Bucket(limits.requests_per_minute, now_s) if limits.requests_per_minute else None
        )
        self.tokens = Bucket(limits.tokens_per_minute, now_s) if limits.tokens_per_minute else None

    def is_idle(self, now_s: float) -> bool:
        return not self.in_flight and all(
            bucket is None or bucket.is_full(now_s) for bucket in (self.requests, self.tokens)
        )


class FairLimits:
    """What every tenant uses against what it may. `decide`, then `admit`; at the end `release`."""

    def __init__(
        self,
        default: TenantLimits | None = None,
        named: Mapping[str, TenantLimits] | None = None,
        shares: Shares | None = None,
    ) -> None:
        """Take the limits of tenants that have none of their own, those that do, and the shares."""
        self._default = default or TenantLimits()
        self._named = dict(named or {})
        self._shares = shares or Shares()
        self._tenants: dict[str, _Tenant] = {}
        self._in_flight = 0

    @property
    def in_flight(self) -> int:
        """Requests admitted and not released."""
        return self._in_flight

    def in_flight_of(self, tenant: str) -> int:
        """Requests of one tenant admitted and not released."""
        found = self._tenants.get(tenant)
        return 0 if found is None else found.in_flight

    def limits(self, tenant: str) -> TenantLimits:
        """Return what a tenant may."""
        return self._named.get(tenant, self._default)

    def decide(self, tenant: str, priority: Priority, capacity: int, now_s: float) -> Ruling:
        """Say whether a request would be admitted to a gateway of that many places. Changes nothing."""
        found = self._tenants.get(tenant)
        limits = self.limits(tenant)
        if found is not None:
            ruling = _within(found, limits, now_s)
            if ruling.refusal is not None:
                return ruling
        places = self._shares.places(priority, capacity)
        if self._in_flight >= places:
            return Ruling(refusal=Refusal.FULL, bound=places, retry_after_s=BUSY_RETRY_S)
        if self._in_flight >= self._shares.fair_from * capacity:
            mine = 0 if found is None else found.in_flight
            share = self._fair_share(tenant, limits, capacity)
            if mine >= share:
                return Ruling(refusal=Refusal.FAIR_SHARE, bound=share, retry_after_s=BUSY_RETRY_S)
        return ADMITTED

    def admit(self, tenant: str, now_s: float) -> None:
        """Count a request in that was allowed."""
        found = self._tenants.get(tenant)
        if found is None:
            self._make_room(now_s)
            found = self._tenants[tenant] = _Tenant(self.limits(tenant), now_s)
        if found.requests is not None:
            found.requests.take(1.0, now_s)
        found.in_flight += 1
        self._in_flight += 1

    def release(self, tenant: str, now_s: float, *, tokens: int = 0) -> None:
        """Count a request out that was admitted, with the tokens that it took."""
        found = self._tenants[tenant]
        assert found.in_flight > 0, f"a request of {tenant} was released twice"
        found.in_flight -= 1
        self._in_flight -= 1
        if found.tokens is not None and tokens > 0:
            found.tokens.take(tokens, now_s)

    def renew(
        self, default: TenantLimits, named: Mapping[str, TenantLimits], shares: Shares, now_s: float
    ) -> None:
        """Go by other limits from now on; requests in flight stay counted, buckets whose rate changed start full."""
        self._default, self._named, self._shares = default, dict(named), shares
        for name, found in tuple(self._tenants.items()):
            limits = self.limits(name)
            if limits != found.limits:
                changed = self._tenants[name] = _Tenant(limits, now_s)
                changed.in_flight = found.in_flight

    def _fair_share(self, tenant: str, limits: TenantLimits, capacity: int) -> float:
        """Return how many places are a tenant's by weight, among those who hold any and itself; one at least."""
        weights = limits.weight + sum(
            other.limits.weight
            for name, other in self._tenants.items()
            if other.in_flight and name != tenant
        )
        return max(1.0, capacity * limits.weight / weights)

    def _make_room(self, now_s: float) -> None:
        """Forget tenants of which nothing is left to know, once there are many."""
        if len(self._tenants) < IDLE_TENANTS_MAX:
            return
        for name in [name for name, one in self._tenants.items() if one.is_idle(now_s)]:
            del self._tenants[name]


def _within(found: _Tenant, limits: TenantLimits, now_s: float) -> Ruling:
    """Hold a tenant against its own limits."""
    if limits.concurrent_max and found.in_flight >= limits.concurrent_max:
        return Ruling(
            refusal=Refusal.CONCURRENCY,
            bound=limits.concurrent_max,
            retry_after_s=BUSY_RETRY_S,
        )
    for refusal, bucket, amount, rate in (
        (Refusal.REQUEST_RATE, found.requests, 1.0, limits.requests_per_minute),
        (Refusal.TOKEN_RATE, found.tokens, 1.0, limits.tokens_per_minute),
    ):
        wait_s = 0.0 if bucket is None else bucket.wait_s(amount, now_s)
        if wait_s > 0.0:
            return Ruling(refusal=refusal, bound=rate, retry_after_s=max(1, math.ceil(wait_s)))
    return ADMITTED
