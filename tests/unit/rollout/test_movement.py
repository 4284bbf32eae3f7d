"""What follows from how a lever is moved, the same for a record that a person writes and one of a scenario."""

import pytest

from trimtab.core.lever import Actuation, Comparison, QualityExposure
from trimtab.rollout.movement import comparison_of, narrowness_of, reverse_of
from trimtab.sim.lever_records import record_of
from trimtab.sim.sections import CandidateSection, RolloutSection


def test_policy_swaps_live_and_is_narrower_than_a_restart() -> None:
    """Its arms share caches, so blocks of time are compared; replicas of a revision stand side by side."""
    live, restart = (narrowness_of(QualityExposure.NONE, live=live) for live in (True, False))
    assert live < restart
    assert (live.actuation, restart.actuation) == (Actuation.LIVE, Actuation.RESTART)
    assert comparison_of(live=True) is Comparison.SWITCHBACK
    assert comparison_of(live=False) is Comparison.SIDE_BY_SIDE


@pytest.mark.parametrize("live", [True, False])
def test_record_of_a_scenario_is_moved_as_a_live_one_is(live: bool) -> None:
    """One rule for both: what is simulated is the rollout that would run."""
    section = (
        RolloutSection(policy="prefix_affine")
        if live
        else RolloutSection(candidate=CandidateSection())
    )
    record = record_of(section)
    assert record.narrowness == narrowness_of(QualityExposure.NONE, live=live)
    assert record.ramp.comparison is comparison_of(live=live)
    assert record.reverse == reverse_of(live=live)
