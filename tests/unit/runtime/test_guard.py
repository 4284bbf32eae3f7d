"""The guard lets in who may, says why not with the right status, and keeps failing replicas out of the load state."""

from typing import Any

import msgspec
import pytest
from guard_kit import ALICE, BOB, MemoryRing, bearer, two_tenants

from trimtab.core.config import GuardConfig, TenantsConfig
from trimtab.core.config_guard import Auth, TenantConfig
from trimtab.core.tenants import Priority
from trimtab.core.types import Health, ReplicaState, Role
from trimtab.policies.loadstate import LoadState
from trimtab.policies.outliers import HealthChange, Outcome
from trimtab.runtime.guard import Caller, Guard
from trimtab.runtime.secret import Secret
from trimtab.runtime.wire import ApiError

SECRET = Secret(bytes(range(32)))


def fleet(*ids: str) -> LoadState:
    """Return a load state of ready replicas."""
    load = LoadState()
    for id_ in ids:
        load.set_replica(
            id=id_, url="", role=Role.MIXED, revision="r", state=ReplicaState.READY, slots=4
        )
    return load


def guard(
    ring: MemoryRing | None = None, *, places: int = 100, secret: Secret = SECRET, **more: Any
) -> Guard:
    """Return a guard of two tenants' keys."""
    ring = ring if ring is not None else two_tenants()
    more.setdefault("load", fleet("r0", "r1", "r2", "r3"))
    return Guard(places=places, secret=secret, ring=ring, **more)


def refusal(guard_: Guard, headers: dict[str, str], now_s: float = 0.0) -> tuple[int, str]:
    """Return status and code of a request that is refused."""
    with pytest.raises(ApiError) as caught:
        guard_.admit(headers, now_s)
    return caught.value.status, caught.value.code


@pytest.mark.parametrize("name", ["authorization", "x-api-key", "api-key"])
def test_a_key_makes_its_tenant_the_caller_in_any_usual_header(name: str) -> None:
    """OpenAI's, Anthropic's and Azure's way to say it."""
    said = f"Bearer {ALICE}" if name == "authorization" else ALICE
    caller = guard().admit({name: said}, 0.0)
    assert (caller.tenant, caller.key_id) == ("alice", "01010101")


def test_without_a_key_or_with_a_wrong_one_nobody_gets_in() -> None:
    """401 in both cases, and nothing is counted as in flight."""
    guarded = guard()
    assert refusal(guarded, {}) == (401, "invalid_api_key")
    assert refusal(guarded, bearer("sk-nothing")) == (401, "invalid_api_key")
    assert refusal(guarded, {"authorization": f"Basic {ALICE}"}) == (401, "invalid_api_key")
    assert guarded.counts["refused:unauthenticated"] == 3
    assert guarded.limits.in_flight == 0


@pytest.mark.parametrize(
    ("auth", "keys", "needs"),
    [
        (Auth.AUTO, True, True),
        (Auth.AUTO, False, False),
        (Auth.REQUIRED, False, True),
        (Auth.OFF, True, False),
    ],
)
def test_whether_a_key_is_needed_follows_the_configuration(
    auth: Auth, keys: bool, needs: bool
) -> None:
    """`auto` needs one once any was added; `required` closes even an empty gateway."""
    ring = MemoryRing((ALICE, "alice")) if keys else MemoryRing()
    guarded = guard(ring, tenants=TenantsConfig(auth=auth))
    if needs:
        assert refusal(guarded, {}) == (401, "invalid_api_key")
    else:
        assert guarded.admit({}, 0.0) == Caller(tenant="anonymous", priority=Priority.NORMAL)


def test_salts_are_of_tenants_and_gateways_that_share_the_secret_agree() -> None:
    """Two keys of one tenant have one salt, two tenants two; no key, no salt."""
    both = MemoryRing((ALICE, "alice"), (BOB, "alice"))
    one, two = guard(both), guard(both)
    salts = {each.admit(bearer(key), 0.0).salt for each in (one, two) for key in (ALICE, BOB)}
    assert len(salts) == 1
    assert guard().admit(bearer(BOB), 0.0).salt not in salts
    other = guard(both, secret=Secret(bytes(32)))
    assert other.admit(bearer(ALICE), 0.0).salt not in salts


def test_a_salt_in_the_body_gives_way_to_the_tenants() -> None:
    """Another's or an own made-up one is ignored and counted; the tenant's own, or none, is nothing to tell."""
    guarded = guard()
    alice, bob = (guarded.admit(bearer(key), 0.0) for key in (ALICE, BOB))
    assert guarded.ignored_salt(bob, alice.salt)
    assert guarded.ignored_salt(bob, "made up")
    assert not guarded.ignored_salt(bob, bob.salt)
    assert not guarded.ignored_salt(bob, None)
    assert not guarded.ignored_salt(Caller(tenant="anonymous", priority=Priority.LOW), "mine")
    assert guarded.counts["salt_ignored"] == 2


def test_priority_is_asked_for_and_bounded_by_the_tenant() -> None:
    """A tenant with `priority_max` normal gets normal for high; nonsense is an error with the allowed values."""
    config = TenantsConfig(limits=(TenantConfig(name="bob", priority_max=Priority.NORMAL),))
    guarded = guard(tenants=config)
    asked = [
        guarded.admit(bearer(key, x_trimtab_priority=said), 0.0).priority
        for key, said in ((ALICE, "high"), (BOB, "high"), (BOB, " LOW "))
    ]
    assert asked == [Priority.HIGH, Priority.NORMAL, Priority.LOW]
    assert refusal(guarded, bearer(ALICE, x_trimtab_priority="urgent")) == (400, "bad_priority")


def test_a_tenants_own_limit_is_429_and_a_full_gateway_503_both_say_when() -> None:
    """Who asked too much is told apart from a gateway that has no place."""
    guarded = guard(places=3, tenants=TenantsConfig(requests_per_minute=2.0))
    for _ in range(2):
        guarded.admit(bearer(ALICE), 0.0)
    with pytest.raises(ApiError) as caught:
        guarded.admit(bearer(ALICE), 0.0)
    assert (caught.value.status, caught.value.retry_after_s) == (429, 30)
    assert "alice" in caught.value.message
    guarded.admit(bearer(BOB), 0.0)
    with pytest.raises(ApiError) as caught:
        guarded.admit(bearer(BOB), 0.0)
    assert (caught.value.status, caught.value.retry_after_s) == (503, 1)


def test_a_released_request_gives_its_place_back() -> None:
    """One place, used a hundred times."""
    guarded = guard(places=1)
    for turn in range(100):
        guarded.release(guarded.admit(bearer(ALICE), float(turn)), float(turn), tokens=5)
    assert guarded.limits.in_flight == 0


def test_a_failing_replica_leaves_the_load_state_and_comes_back_through_trials() -> None:
    """Five failures: not ready any more, with a state of its own. After 10 s one trial at a time, then ready."""
    load = fleet("r0", "r1")
    changes: list[HealthChange] = []
    guarded = guard(load=load, on_change=changes.append)
    for _ in range(5):
        guarded.sent("r0", 0.0)
        guarded.saw("r0", Outcome.FAILED, 0.0)
    assert load.ready() == ("r1",)
    assert load.could_serve() == ("r0", "r1")
    replica = load.replica("r0")
    assert replica is not None
    assert replica.state is ReplicaState.EJECTED
    assert [bool(each) for each in load.view(0.0).columns.ready] == [False, True]
    guarded.before_route(9.9)
    assert load.ready() == ("r1",)
    for trial in range(3):
        guarded.before_route(10.0 + trial)
        assert load.ready() == ("r0", "r1")
        guarded.sent("r0", 10.0 + trial)
        guarded.before_route(10.0 + trial)
        assert load.ready() == ("r1",)
        guarded.saw("r0", Outcome.OK, 10.5 + trial)
    assert load.ready() == ("r0", "r1")
    assert [change.health for change in changes] == [
        Health.EJECTED,
        Health.HALF_OPEN,
        Health.HEALTHY,
    ]


def test_ejection_can_be_switched_off() -> None:
    """`guard.eject = false`: failures are not counted."""
    load = fleet("r0", "r1")
    guarded = guard(load=load, guard=GuardConfig(eject=False))
    for _ in range(100):
        guarded.saw("r0", Outcome.FAILED, 0.0)
    assert load.ready() == ("r0", "r1")


def test_retries_are_bounded_for_one_request_and_for_all() -> None:
    """Two of one request; without free ones and with few requests none at all."""
    guarded = guard()
    assert [guarded.may_retry(0.0, attempt=attempt) for attempt in (1, 2, 3)] == [True, True, False]
    poor = guard(guard=GuardConfig(retry_free=0, retry_share=0.1))
    for _ in range(9):
        poor.admit(bearer(ALICE), 0.0)
    assert not poor.may_retry(0.0, attempt=1)
    poor.admit(bearer(ALICE), 0.0)
    assert poor.may_retry(0.0, attempt=1)
    assert not poor.may_retry(0.0, attempt=1)


def test_another_configuration_holds_from_the_next_request_on() -> None:
    """A reload changes limits without losing who is in flight."""
    guarded = guard()
    first = guarded.admit(bearer(ALICE), 0.0)
    guarded.renew(100, TenantsConfig(concurrent_max=1), GuardConfig(), 1.0)
    assert refusal(guarded, bearer(ALICE), 1.0) == (429, "concurrency_limit_exceeded")
    guarded.release(first, 2.0)
    assert guarded.admit(bearer(ALICE), 2.0).tenant == "alice"


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"tenants": {"limits": [{"name": "No Name"}]}}, "is no tenant name"),
        ({"tenants": {"limits": [{"name": "a"}, {"name": "a"}]}}, "more than one entry for a"),
        ({"tenants": {"auth": "maybe"}}, "Invalid enum value 'maybe' - at `$.auth`"),
        ({"guard": {"shed_low_at": 0.99}}, "shed_low_at must not be above"),
        ({"guard": {"ejection_s": 400.0}}, "ejection_s must not be above"),
    ],
)
def test_a_wrong_configuration_says_where_it_is_wrong(section: dict[str, Any], said: str) -> None:
    """The path of the key, or the bound that was crossed."""
    kind: Any = TenantsConfig if "tenants" in section else GuardConfig
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert(next(iter(section.values())), kind)
    assert said in str(caught.value)
