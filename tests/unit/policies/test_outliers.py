"""A failing replica is left out, tried again with care, and never are all of them out."""

import pytest

from trimtab.core.types import Health, HealthReason
from trimtab.policies.outliers import HealthChange, Outcome, OutlierRules, Outliers

FLEET = ("r0", "r1", "r2", "r3")
RULES = OutlierRules(
    consecutive=3,
    window=10,
    window_min=6,
    failed_share=0.5,
    ejection_s=10.0,
    ejection_s_max=60.0,
    trials_to_pass=2,
)


def fail(outliers: Outliers, replica: str, now_s: float, times: int = 3) -> HealthChange | None:
    """Let a replica fail some times; return the last change."""
    change = None
    for _ in range(times):
        change = outliers.saw(replica, Outcome.FAILED, now_s, could_serve=FLEET) or change
    return change


def test_failures_in_a_row_leave_a_replica_out_until_its_time_is_over() -> None:
    """Three in a row are enough; the change says why and until when."""
    outliers = Outliers(RULES)
    change = fail(outliers, "r1", 100.0)
    assert change is not None
    assert (change.health, change.reason, change.until_s) == (
        Health.EJECTED,
        HealthReason.CONSECUTIVE_FAILURES,
        110.0,
    )
    assert outliers.left_out(FLEET, 100.0) == frozenset({"r1"})
    assert outliers.tick(109.9) == ()


def test_one_success_between_failures_does_not_save_a_replica_that_fails_half_the_time() -> None:
    """Never three in a row, but every second one: the share of the window counts."""
    outliers = Outliers(RULES)
    changes = [
        outliers.saw("r0", outcome, 1.0, could_serve=FLEET)
        for outcome in (Outcome.OK, Outcome.FAILED) * 3
    ]
    assert [change.reason for change in changes if change] == [HealthReason.FAILURE_SHARE]


def test_aborts_of_clients_say_nothing_about_a_replica() -> None:
    """A hundred clients that leave do not eject, and do not interrupt a row of failures."""
    outliers = Outliers(RULES)
    fail(outliers, "r0", 1.0, times=2)
    for _ in range(100):
        assert outliers.saw("r0", Outcome.NEUTRAL, 1.0, could_serve=FLEET) is None
    assert fail(outliers, "r0", 1.0, times=1) is not None


def test_never_are_all_left_out() -> None:
    """Of four failing replicas half are ejected, of two one, of one none."""
    for fleet, most in ((FLEET, 2), (("r0", "r1"), 1), (("r0",), 0), (("r0", "r1", "r2"), 1)):
        outliers = Outliers(RULES)
        for replica in fleet * 20:
            outliers.saw(replica, Outcome.FAILED, 5.0, could_serve=fleet)
        assert len(outliers.left_out(fleet, 5.0)) == most


def test_where_only_ejected_replicas_are_left_they_serve() -> None:
    """The healthy ones went away for another reason: a replica in doubt is better than no answer."""
    outliers = Outliers(RULES)
    fail(outliers, "r1", 1.0)
    assert outliers.left_out(("r1",), 1.0) == frozenset()
    assert outliers.left_out(("r0", "r1"), 1.0) == frozenset({"r1"})


def test_a_half_open_replica_gets_one_trial_at_a_time_and_comes_back_after_enough() -> None:
    """After its time a replica is tried by one request at once; two that end well make it healthy."""
    outliers = Outliers(RULES)
    fail(outliers, "r1", 0.0)
    assert [change.health for change in outliers.tick(10.0)] == [Health.HALF_OPEN]
    assert outliers.left_out(FLEET, 10.0) == frozenset()
    outliers.sent("r1", 10.0)
    assert outliers.left_out(FLEET, 10.0) == frozenset({"r1"})
    assert outliers.saw("r1", Outcome.OK, 11.0, could_serve=FLEET) is None
    outliers.sent("r1", 11.0)
    back = outliers.saw("r1", Outcome.OK, 12.0, could_serve=FLEET)
    assert back is not None
    assert (back.health, back.reason) == (Health.HEALTHY, HealthReason.TRIALS_PASSED)
    assert outliers.quiet


def test_a_failed_trial_leaves_it_out_for_twice_as_long_up_to_the_most() -> None:
    """10, 20, 40, 60, 60 seconds."""
    outliers, now_s, lengths = Outliers(RULES), 0.0, []
    change = fail(outliers, "r1", now_s)
    for _ in range(5):
        assert change is not None
        assert change.until_s is not None
        lengths.append(change.until_s - now_s)
        now_s = change.until_s
        outliers.tick(now_s)
        outliers.sent("r1", now_s)
        change = outliers.saw("r1", Outcome.FAILED, now_s, could_serve=FLEET)
    assert lengths == [10.0, 20.0, 40.0, 60.0, 60.0]


def test_a_trial_that_its_client_left_gives_its_place_to_the_next() -> None:
    """Neither passed nor failed: the next request may try."""
    outliers = Outliers(RULES)
    fail(outliers, "r1", 0.0)
    outliers.tick(10.0)
    outliers.sent("r1", 10.0)
    outliers.saw("r1", Outcome.NEUTRAL, 11.0, could_serve=FLEET)
    assert outliers.left_out(FLEET, 11.0) == frozenset()


def test_a_trial_that_takes_very_long_does_not_keep_a_replica_out() -> None:
    """A long stream is under way for its trial's wait: then the next may try."""
    outliers = Outliers(RULES)
    fail(outliers, "r1", 0.0)
    outliers.tick(10.0)
    outliers.sent("r1", 10.0)
    assert outliers.left_out(FLEET, 39.9) == frozenset({"r1"})
    assert outliers.left_out(FLEET, 40.0) == frozenset()


def test_a_replica_that_relapses_soon_is_out_for_longer_and_one_that_held_is_not() -> None:
    """Back at 12 s and failing at 13 s: 20 s out. Failing again after more than a minute of health: 10 s."""
    outliers = Outliers(RULES)
    fail(outliers, "r1", 0.0)
    outliers.tick(10.0)
    for now_s in (10.0, 12.0):
        outliers.sent("r1", now_s)
        outliers.saw("r1", Outcome.OK, now_s, could_serve=FLEET)
    relapsed = fail(outliers, "r1", 13.0)
    assert relapsed is not None
    assert relapsed.until_s == 33.0
    outliers.tick(33.0)
    for now_s in (33.0, 34.0):
        outliers.sent("r1", now_s)
        outliers.saw("r1", Outcome.OK, now_s, could_serve=FLEET)
    held = fail(outliers, "r1", 100.0)
    assert held is not None
    assert held.until_s == 110.0


def test_a_restarted_replica_starts_anew() -> None:
    """What failed before the restart is not held against the new process."""
    outliers = Outliers(RULES)
    fail(outliers, "r1", 0.0)
    change = outliers.forget("r1", 2.0)
    assert change is not None
    assert (change.health, change.reason) == (Health.HEALTHY, HealthReason.CAME_BACK)
    assert outliers.left_out(FLEET, 2.0) == frozenset()
    assert outliers.forget("r0", 2.0) is None


def test_requests_sent_before_an_ejection_do_not_end_it_early() -> None:
    """A success that was on its way when the replica was left out changes nothing."""
    outliers = Outliers(RULES)
    fail(outliers, "r1", 0.0)
    assert outliers.saw("r1", Outcome.OK, 1.0, could_serve=FLEET) is None
    assert outliers.health("r1") is Health.EJECTED


@pytest.mark.parametrize(
    "wrong",
    [
        {"consecutive": 0},
        {"window": 3, "window_min": 4},
        {"failed_share": 0.0},
        {"ejected_share_max": 1.5},
        {"ejection_s": 10.0, "ejection_s_max": 5.0},
        {"trial_wait_s": 0.0},
    ],
)
def test_rules_that_contradict_themselves_are_refused(wrong: dict[str, float]) -> None:
    """A wrong number ends the start, not the first failure."""
    with pytest.raises(ValueError, match="outlier rules"):
        OutlierRules(**wrong)  # type: ignore[arg-type]
