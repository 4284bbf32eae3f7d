"""Laws of what guards the fleet: whatever happens in whatever order, no bound is broken."""

from hypothesis import given
from hypothesis import strategies as st

from trimtab.core.tenants import Priority
from trimtab.policies.fair_limits import FairLimits, TenantLimits
from trimtab.policies.outliers import Outcome, OutlierRules, Outliers
from trimtab.policies.retry_budget import RetryBudget

REPLICAS = ("a", "b", "c", "d", "e")
steps = st.floats(min_value=0.0, max_value=30.0)


@given(
    st.lists(st.tuples(steps, st.booleans()), max_size=200),
    st.floats(min_value=0.0, max_value=1.0),
    st.integers(min_value=0, max_value=5),
)
def test_retries_never_exceed_the_share_of_a_window(
    moves: list[tuple[float, bool]], share: float, free: int
) -> None:
    """In any window of 10 s (to a slice) there are at most `free` plus the share of two windows' requests."""
    budget, now_s = RetryBudget(share=share, free=free, window_s=10.0), 0.0
    requests: list[float] = []
    retries: list[float] = []
    for step_s, is_request in moves:
        now_s += step_s / 10.0
        if is_request:
            budget.saw_request(now_s)
            requests.append(now_s)
        elif budget.may_retry(now_s):
            retries.append(now_s)
            recent = sum(at_s > now_s - 10.0 for at_s in requests)
            spent = sum(at_s > now_s - 9.0 for at_s in retries)
            assert spent <= free + share * recent + 1e-9


@given(
    st.integers(min_value=1, max_value=5),
    st.lists(
        st.tuples(st.sampled_from(REPLICAS), st.sampled_from(Outcome), st.booleans(), steps),
        max_size=300,
    ),
)
def test_some_replica_always_serves_and_only_known_ones_are_left_out(
    size: int, moves: list[tuple[str, Outcome, bool, float]]
) -> None:
    """No sequence of outcomes leaves a fleet, or any part of it, without a replica that takes requests."""
    fleet = REPLICAS[:size]
    outliers = Outliers(OutlierRules(consecutive=2, window=6, window_min=3, trials_to_pass=1))
    now_s = 0.0
    for replica, outcome, sends, step_s in moves:
        now_s += step_s
        outliers.tick(now_s)
        if replica in fleet:
            if sends:
                outliers.sent(replica, now_s)
            outliers.saw(replica, outcome, now_s, could_serve=fleet)
        out = outliers.left_out(fleet, now_s)
        assert out < frozenset(fleet)
        for each in fleet:
            assert outliers.left_out((each,), now_s) == frozenset()


@given(st.lists(st.tuples(st.sampled_from(REPLICAS), steps), max_size=100))
def test_every_replica_that_serves_well_comes_back(moves: list[tuple[str, float]]) -> None:
    """After any failures, time and answers that end well make all replicas healthy again."""
    outliers, now_s = Outliers(), 0.0
    for replica, step_s in moves:
        now_s += step_s
        outliers.saw(replica, Outcome.FAILED, now_s, could_serve=REPLICAS)
    now_s += outliers.rules.ejection_s_max
    outliers.tick(now_s)
    for _ in range(outliers.rules.trials_to_pass):
        for replica in REPLICAS:
            outliers.sent(replica, now_s)
            outliers.saw(replica, Outcome.OK, now_s, could_serve=REPLICAS)
    assert outliers.quiet


@given(
    st.integers(min_value=1, max_value=30),
    st.lists(
        st.tuples(st.sampled_from(REPLICAS), st.sampled_from(Priority), st.booleans(), steps),
        max_size=300,
    ),
)
def test_places_are_never_overfilled_and_always_given_back(
    capacity: int, moves: list[tuple[str, Priority, bool, float]]
) -> None:
    """In flight is what was admitted and not released, at most the places; a tenant keeps its own bound."""
    limits = FairLimits(TenantLimits(concurrent_max=4), {"a": TenantLimits(weight=2.0)})
    held: list[str] = []
    now_s = 0.0
    for tenant, priority, leaves, step_s in moves:
        now_s += step_s
        if leaves and held:
            limits.release(held.pop(), now_s, tokens=3)
        elif limits.decide(tenant, priority, capacity, now_s).refusal is None:
            limits.admit(tenant, now_s)
            held.append(tenant)
        assert limits.in_flight == len(held) <= capacity
        assert all(held.count(one) <= 4 for one in REPLICAS if one != "a")
    for tenant in held:
        limits.release(tenant, now_s)
    assert limits.in_flight == 0


@given(st.lists(steps, min_size=1, max_size=300), st.floats(min_value=0.5, max_value=120.0))
def test_a_rate_is_kept_over_any_stretch(gaps: list[float], per_minute: float) -> None:
    """However requests come, no more are admitted than the burst and the rate times the time."""
    limits = FairLimits(TenantLimits(requests_per_minute=per_minute))
    now_s, admitted = 0.0, 0
    for gap_s in gaps:
        now_s += gap_s / 30.0
        ruling = limits.decide("t", Priority.NORMAL, 1_000, now_s)
        if ruling.refusal is None:
            limits.admit("t", now_s)
            limits.release("t", now_s)
            admitted += 1
        else:
            assert ruling.retry_after_s >= 1
            later = limits.decide("t", Priority.NORMAL, 1_000, now_s + ruling.retry_after_s)
            assert later.refusal is None
    assert admitted <= max(1.0, per_minute) + per_minute * now_s / 60.0 + 1e-6
