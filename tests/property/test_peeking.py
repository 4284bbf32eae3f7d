"""A few streams of each scenario that `bench/bench_peeking.py` counts whole: rollouts looked at every minute.

Bounds here are loose, as few streams say little; what was shown with how many is in docs/evidence.md.
"""

import os
import sys
from pathlib import Path

import msgspec
import pytest

sys.path.append(str(Path(__file__).resolve().parents[2]))
from bench.bench_peeking import SCENARIOS, wilson
from bench.peeking import Course, Scenario, courses

DEEP = os.environ.get("HYPOTHESIS_PROFILE") == "deep"


def run(name: str, streams: int, **changes: object) -> list[Course]:
    """The first streams of a scenario, or of one that is somewhat shorter."""
    scenario: Scenario = msgspec.structs.replace(SCENARIOS[name][0], **changes)
    return list(courses(scenario, range(streams)))


def test_lever_that_changes_nothing_is_neither_adopted_nor_stopped() -> None:
    """A/A under heavy tails and autocorrelation: of two dozen streams at most one each."""
    found = run("aa", 200 if DEEP else 24, windows=28 if DEEP else 12)
    assert sum(one.state == "adopted" for one in found) <= max(1, len(found) // 20)
    assert sum(bool(one.stopped_by) for one in found) <= max(1, len(found) // 100)
    assert all(one.looks >= 12 * 30 for one in found if one.state != "adopted")


def test_gain_of_a_fifth_is_found_in_most_streams_and_never_taken_for_harm() -> None:
    """20% less time to first token, one in two hundred requests failing in both arms."""
    found = run("gain", 40 if DEEP else 4)
    assert sum(one.gained_at_window is not None for one in found) >= 0.75 * len(found)
    assert not any(one.stopped_by for one in found)


def test_interval_of_a_share_is_wilsons() -> None:
    """Against the published example of 1 of 10, and at the ends."""
    low, high = wilson(1, 10)
    assert (round(low, 4), round(high, 4)) == (0.0179, 0.4042)
    assert wilson(0, 2000)[1] == pytest.approx(0.00192, abs=1e-5)
