"""Stands before the fleet: who asks, how much it may, which replicas are left out, what is sent a second time.

All of it is decided by pure policies (`policies.fair_limits`, `policies.outliers`, `policies.retry_budget`); here are
the keys, the salts and the counters. One guard for each gateway; nothing in it waits.
"""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

import msgspec

from trimtab.core.config_guard import Auth, GuardConfig, TenantsConfig
from trimtab.core.tenants import ANONYMOUS, ApiKey, Priority, salt_of
from trimtab.core.types import Health
from trimtab.policies.fair_limits import FairLimits, Refusal, Ruling, Shares, TenantLimits
from trimtab.policies.loadstate import LoadState
from trimtab.policies.outliers import HealthChange, Outcome, OutlierRules, Outliers
from trimtab.policies.retry_budget import RetryBudget
from trimtab.runtime.admin import HeaderLike, bearer_of
from trimtab.runtime.guard_metrics import (
    EJECTED,
    REFUSED,
    RETRIED,
    RETRY_REFUSED,
    SALT_IGNORED,
    UNAUTHENTICATED,
)
from trimtab.runtime.isolation import SALT_PURPOSE
from trimtab.runtime.keys import KeyRing
from trimtab.runtime.secret import Secret
from trimtab.runtime.wire import ApiError

PRIORITY_HEADER: Final = "x-trimtab-priority"
KEY_HEADERS: Final = ("x-api-key", "api-key")
SALTS_MAX: Final = 10_000
RETRIED_STATUSES: Final = frozenset({502, 503, 504})
"""Answers that say "not I, not now": another replica may do better. Others are the answer."""


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """Who asks, as far as that is proven. `salt`: of its tenant; None where nobody had to show a key."""

    tenant: str
    priority: Priority
    salt: str | None = None
    key_id: str | None = None


class Ring(Protocol):
    """The keys that open a gateway now (`keys.KeyRing`)."""

    has_file: bool

    def look(self, now_s: float) -> None:
        """Take in changes."""
        ...

    def find(self, said: str, now_s: float) -> ApiKey | None:
        """Return the key that a client showed, None if it opens nothing."""
        ...


class Guard:
    """What a request passes before it is read, and what hears how replicas answer."""

    def __init__(
        self,
        *,
        places: int,
        load: LoadState,
        secret: Secret,
        tenants: TenantsConfig | None = None,
        guard: GuardConfig | None = None,
        ring: Ring | None = None,
        on_change: Callable[[HealthChange], None] = lambda _: None,
    ) -> None:
        """Take how many requests may be in flight, and the rest; without a ring nobody has to show a key."""
        self._tenants = tenants or TenantsConfig()
        self._guard = guard or GuardConfig()
        self._places = places
        self._load = load
        self._ring = ring
        self._salt_key = secret.derive(SALT_PURPOSE)
        self._salts: dict[str, str] = {}
        self._on_change = on_change
        self.limits = FairLimits(*_limits(self._tenants), _shares(self._guard))
        self.budget = RetryBudget(self._guard.retry_share, self._guard.retry_free)
        self.outliers = Outliers(_rules(self._guard))
        self.counts: Counter[str] = Counter()
        """How often what was met, by the names in `guard_metrics`."""

    def renew(self, places: int, tenants: TenantsConfig, guard: GuardConfig, now_s: float) -> None:
        """Go by another configuration from now on; who is in flight and what is known of replicas stays."""
        self._places, self._tenants, self._guard = places, tenants, guard
        self.limits.renew(*_limits(tenants), _shares(guard), now_s)
        self.budget = RetryBudget(guard.retry_share, guard.retry_free)
        self.outliers.rules = _rules(guard)

    @property
    def needs_key(self) -> bool:
        """Whether requests have to show a key."""
        match self._tenants.auth:
            case Auth.OFF:
                return False
            case Auth.REQUIRED:
                return True
            case Auth.AUTO:
                return self._ring is not None and self._ring.has_file

    def admit(self, headers: HeaderLike, now_s: float) -> Caller:
        """Let a request in and count it, until `release`; raises `ApiError`: 400, 401, 429 or 503."""
        caller = self._caller(headers, now_s)
        ruling = self.limits.decide(caller.tenant, caller.priority, self._places, now_s)
        if ruling.refusal is not None:
            self.counts[REFUSED + ruling.refusal] += 1
            raise _refused(ruling, ruling.refusal, caller)
        self.limits.admit(caller.tenant, now_s)
        self.budget.saw_request(now_s)
        return caller

    def check_key(self, headers: HeaderLike, now_s: float) -> None:
        """Raise what `admit` would raise for want of a key; counts nothing as in flight."""
        self._caller(headers, now_s)

    def release(self, caller: Caller, now_s: float, *, tokens: int | None = None) -> None:
        """Let a request out that was admitted. `tokens`: prompt and output together, None is unknown."""
        self.limits.release(caller.tenant, now_s, tokens=tokens or 0)

    def ignored_salt(self, caller: Caller, said: str | None) -> bool:
        """Whether a body's own salt gives way to its tenant's; if so that is counted."""
        is_ignored = caller.salt is not None and said is not None and said != caller.salt
        if is_ignored:
            self.counts[SALT_IGNORED] += 1
        return is_ignored

    def before_route(self, now_s: float) -> None:
        """Take replicas out of the load state that get no request now, and back in. Nothing while all are well."""
        outliers = self.outliers
        if outliers.quiet:
            return
        for change in outliers.tick(now_s):
            self._tell(change)
        self._show(now_s)

    def sent(self, replica: str, now_s: float) -> None:
        """Note that a request is being sent to a replica."""
        self.outliers.sent(replica, now_s)

    def saw(self, replica: str, outcome: Outcome, now_s: float) -> None:
        """Note how a request that was sent to a replica ended, once for each."""
        if not self._guard.eject:
            return
        change = self.outliers.saw(replica, outcome, now_s, could_serve=self._load.could_serve())
        if change is not None:
            self._tell(change)
            self._show(now_s)

    def forget(self, replica: str, now_s: float) -> None:
        """Start anew with a replica that restarted or left."""
        change = self.outliers.forget(replica, now_s)
        if change is not None:
            self._tell(change)
            self._show(now_s)

    def may_retry(self, now_s: float, *, attempt: int) -> bool:
        """Spend a retry if there is one, nothing having reached the client. `attempt`: 1 after the first try."""
        if attempt > self._guard.retries_max or not self.budget.may_retry(now_s):
            self.counts[RETRY_REFUSED] += 1
            return False
        self.counts[RETRIED] += 1
        return True

    def _tell(self, change: HealthChange) -> None:
        if change.health is Health.EJECTED:
            self.counts[EJECTED + change.replica] += 1
        self._on_change(change)

    def _show(self, now_s: float) -> None:
        self._load.set_ejected(self.outliers.left_out(self._load.could_serve(), now_s))

    def _caller(self, headers: HeaderLike, now_s: float) -> Caller:
        tenant, salt, key_id = ANONYMOUS, None, None
        if self._ring is not None:
            self._ring.look(now_s)
        if self.needs_key:
            tenant, key_id = self._authenticated(headers, now_s)
            salt = self._salt(tenant)
        asked = _priority(headers.get(PRIORITY_HEADER))
        most = self.limits.limits(tenant).priority_max
        priority = asked if asked.rank <= most.rank else most
        return Caller(tenant=tenant, priority=priority, salt=salt, key_id=key_id)

    def _authenticated(self, headers: HeaderLike, now_s: float) -> tuple[str, str]:
        said = bearer_of(headers)
        for name in KEY_HEADERS:
            said = said or headers.get(name)
        found = None if self._ring is None or not said else self._ring.find(said, now_s)
        if found is None:
            self.counts[REFUSED + UNAUTHENTICATED] += 1
            raise ApiError(
                401,
                "invalid_request_error",
                "invalid_api_key",
                "no API key was sent (Authorization: Bearer KEY)"
                if not said
                else "the API key is not known here, or was revoked",
            )
        return found.tenant, found.id

    def _salt(self, tenant: str) -> str:
        salt = self._salts.get(tenant)
        if salt is None:
            if len(self._salts) >= SALTS_MAX:
                self._salts.clear()
            salt = self._salts[tenant] = salt_of(tenant, self._salt_key)
        return salt


def open_ring(config: TenantsConfig, default: Path, say: Callable[[str], None]) -> KeyRing | None:
    """Return the keys that a configuration names, else those in `default`; None where none are looked at.

    Raises `TenantError` for a file that cannot be used.
    """
    if config.auth is Auth.OFF:
        return None
    return KeyRing(Path(config.keys) if config.keys else default, say)


def _limits(config: TenantsConfig) -> tuple[TenantLimits, dict[str, TenantLimits]]:
    default = TenantLimits(
        requests_per_minute=config.requests_per_minute,
        tokens_per_minute=config.tokens_per_minute,
        concurrent_max=config.concurrent_max,
    )
    named = {
        one.name: TenantLimits(
            requests_per_minute=one.requests_per_minute,
            tokens_per_minute=one.tokens_per_minute,
            concurrent_max=one.concurrent_max,
            weight=one.weight,
            priority_max=one.priority_max,
        )
        for one in config.limits
    }
    return default, named


def _shares(config: GuardConfig) -> Shares:
    return Shares(low=config.shed_low_at, normal=config.shed_normal_at, fair_from=config.fair_from)


def _rules(config: GuardConfig) -> OutlierRules:
    return OutlierRules(
        consecutive=config.eject_after,
        failed_share=config.eject_failed_share,
        ejection_s=config.ejection_s,
        ejection_s_max=config.ejection_s_max,
        ejected_share_max=config.ejected_share_max,
        trials_to_pass=config.trials_to_pass,
    )


def _priority(said: str | None) -> Priority:
    if said is None:
        return Priority.NORMAL
    try:
        return Priority(said.strip().lower())
    except ValueError:
        allowed = ", ".join(Priority)
        raise ApiError(
            400, "invalid_request_error", "bad_priority", f"{PRIORITY_HEADER} is one of {allowed}"
        ) from None


def _refused(ruling: Ruling, refusal: Refusal, caller: Caller) -> ApiError:
    """Say a refusal: 429 where the tenant asked too much, 503 where the gateway is full."""
    bound = f"{ruling.bound:g}"
    match refusal:
        case Refusal.REQUEST_RATE:
            code, why = "rate_limit_exceeded", f"more than {bound} requests a minute"
        case Refusal.TOKEN_RATE:
            code, why = "rate_limit_exceeded", f"more than {bound} tokens a minute"
        case Refusal.CONCURRENCY:
            code, why = "concurrency_limit_exceeded", f"{bound} requests are in flight already"
        case Refusal.FAIR_SHARE:
            code, why = "fair_share_exceeded", f"others wait and {bound} places are its part"
        case Refusal.FULL:
            said = f"{bound} requests are in flight already, all that {caller.priority} priority may fill"
            return ApiError(
                503, "server_error", "overloaded", said, retry_after_s=ruling.retry_after_s
            )
    return ApiError(
        429,
        "rate_limit_error",
        code,
        f"tenant {caller.tenant}: {why}",
        retry_after_s=ruling.retry_after_s,
    )
