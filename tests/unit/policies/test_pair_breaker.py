"""A pair whose hand-overs keep failing is left out for a while, and let in again by one that is delivered."""

import pytest

from trimtab.core.handover import HandOverCause, HandOverOutcome
from trimtab.policies.pair_breaker import (
    IN_A_ROW,
    PAIRS_MAX,
    PAUSE_MAX_S,
    PAUSE_S,
    FailureKind,
    PairBreakers,
    kind_of,
)

FAILED, DELIVERED = HandOverOutcome.FAILED, HandOverOutcome.DELIVERED


class Fleet:
    """Breakers, and hand-overs from `p` to `d` that end as they are told to."""

    def __init__(self) -> None:
        self.breakers = PairBreakers()

    def hand_over(
        self,
        now_s: float = 0.0,
        outcome: HandOverOutcome = FAILED,
        failed: FailureKind | None = FailureKind.TRANSFER,
        target: str = "d",
    ) -> None:
        self.breakers.begun("p", target, "q")
        self.breakers.ended("p", target, "q", now_s, outcome=outcome, failed=failed)

    def is_out(self, now_s: float, target: str = "d") -> bool:
        return self.breakers.is_left_out("p", target, now_s)


def broken() -> Fleet:
    """Return a fleet whose pair has just been left out, at second 0."""
    fleet = Fleet()
    for _ in range(IN_A_ROW):
        fleet.hand_over()
    return fleet


def test_pair_is_left_out_after_failures_in_a_row_and_no_other_pair_is() -> None:
    """One failure less leaves it in."""
    fleet = Fleet()
    for _ in range(IN_A_ROW - 1):
        fleet.hand_over()
    assert not fleet.is_out(0.0)
    fleet.hand_over()
    assert fleet.is_out(0.0)
    assert fleet.is_out(PAUSE_S - 0.1)
    assert not fleet.is_out(0.0, target="e")


def test_one_that_is_delivered_between_begins_the_count_anew() -> None:
    """Failures now and then are no broken pair."""
    fleet = Fleet()
    for _ in range(5):
        for _ in range(IN_A_ROW - 1):
            fleet.hand_over()
        fleet.hand_over(outcome=DELIVERED, failed=None)
    assert not fleet.is_out(0.0)


def test_failures_of_several_kinds_do_not_add_up() -> None:
    """Each kind is counted by itself."""
    fleet = Fleet()
    for kind in FailureKind:
        for _ in range(IN_A_ROW - 1):
            fleet.hand_over(failed=kind)
    assert not fleet.is_out(0.0)


def test_after_the_pause_one_goes_as_a_probe_and_the_others_wait_for_it() -> None:
    """Delivered, it lets all in again; a client that leaves with it decides nothing, and the next may probe."""
    fleet = broken()
    assert not fleet.is_out(PAUSE_S)
    fleet.breakers.begun("p", "d", "probe")
    assert fleet.is_out(PAUSE_S)
    abandoned = HandOverOutcome.ABANDONED
    fleet.breakers.ended("p", "d", "probe", PAUSE_S, outcome=abandoned, failed=None)
    assert not fleet.is_out(PAUSE_S)
    fleet.hand_over(PAUSE_S, DELIVERED, None)
    fleet.hand_over(PAUSE_S)
    assert not fleet.is_out(PAUSE_S)


def test_pause_doubles_with_every_probe_that_fails_up_to_a_bound() -> None:
    """10 s, 20 s, 40 s, ..., 600 s."""
    fleet, now_s, pauses = broken(), 0.0, []
    for _ in range(10):
        pause_s = next(each for each in range(1, 2000) if not fleet.is_out(now_s + each))
        pauses.append(pause_s)
        now_s += pause_s
        fleet.hand_over(now_s)
    assert pauses[:4] == [PAUSE_S, 2 * PAUSE_S, 4 * PAUSE_S, 8 * PAUSE_S]
    assert max(pauses) == pauses[-1] == PAUSE_MAX_S


def test_failures_that_were_under_way_do_not_lengthen_the_pause() -> None:
    """Those sent before the pair was left out fail after it."""
    fleet = broken()
    for _ in range(5):
        fleet.hand_over(now_s=1.0)
    assert not fleet.is_out(PAUSE_S)


def test_replica_that_left_is_forgotten() -> None:
    """A new one of its name is no broken one."""
    fleet = broken()
    fleet.breakers.forget("d")
    assert not fleet.is_out(0.0)


def test_pairs_that_are_counted_are_bounded() -> None:
    """The one whose failures began first is forgotten."""
    fleet = broken()
    for number in range(PAIRS_MAX):
        fleet.hand_over(target=f"d{number}")
    assert not fleet.is_out(0.0)
    assert len(fleet.breakers._failures) == PAIRS_MAX


@pytest.mark.parametrize("cause", [None, *HandOverCause])
def test_only_what_the_decode_side_or_the_transfer_did_counts(cause: HandOverCause | None) -> None:
    """A prefill replica is the guard's to leave out, and what a client does is nobody's failure."""
    others = {
        None,
        HandOverCause.PREFILL_UNREACHABLE,
        HandOverCause.PREFILL_REFUSED,
        HandOverCause.PREFILL_BROKE_OFF,
        HandOverCause.EXPORT_FAILED,
        HandOverCause.CLIENT_LEFT,
        HandOverCause.STOPPING,
    }
    assert (kind_of(cause, has_parcel=True) is None) is (cause in others)
    if cause is HandOverCause.TIMED_OUT:
        assert kind_of(cause, has_parcel=False) is None
