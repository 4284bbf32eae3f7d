"""Whether one replica fewer carries the load of all."""

import pytest

from trimtab.levers.replicas import judge_removal


def test_calm_replica_may_leave() -> None:
    """Three at 30% become two at 45%, and the streams find slots."""
    found = judge_removal(replicas=3, busy_share=0.30, streams_max=6, slots_after=8)
    assert (found.allowed, found.busy_share_after) == (True, pytest.approx(0.45))
    assert "2 of 3 get 1.50 of their load" in found.because


def test_busy_replica_stays_with_the_figures() -> None:
    """Two at 60% would be one at 120%."""
    found = judge_removal(replicas=2, busy_share=0.60, streams_max=2, slots_after=4)
    assert found.allowed is False
    assert "busy 60% becomes 120% (at most 70%)" in found.because


def test_streams_need_slots_even_on_idle_processors() -> None:
    """Nine requests at once do not fit on eight slots, however little they compute."""
    found = judge_removal(replicas=3, busy_share=0.05, streams_max=9, slots_after=8)
    assert (found.allowed, "9 requests at once lately on 8 slots" in found.because) == (False, True)


def test_unknown_business_is_no_permission() -> None:
    """What was not measured is unknown, never idle."""
    found = judge_removal(replicas=2, busy_share=None, streams_max=0, slots_after=4)
    assert (found.allowed, "unknown" in found.because) == (False, True)


def test_only_replica_stays() -> None:
    """With none left nothing serves, and N/(N-1) has no value."""
    found = judge_removal(replicas=1, busy_share=0.0, streams_max=0, slots_after=0)
    assert (found.allowed, found.busy_share_after) == (False, None)


@pytest.mark.parametrize("replicas", [2, 3, 8])
def test_removal_never_leads_to_asking_for_a_replica(replicas: int) -> None:
    """What is allowed leaves the others below the share at which one more is asked for."""
    shares = [number / 100 for number in range(101)]
    after = [
        judge_removal(replicas=replicas, busy_share=share, streams_max=0, slots_after=1)
        for share in shares
    ]
    assert max(each.busy_share_after or 0.0 for each in after if each.allowed) <= 0.70 + 1e-9
