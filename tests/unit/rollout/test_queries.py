"""Questions to the ledger: why, what changed before, what would be lost, how good predictions were."""

import math

import msgspec
import pytest
from events_kit import LEVER, OTHER, envelopes, lever_record, moved, story, trigger_moved

from trimtab.core.events import AnyEvent, ConfigReloaded, Effect, LeverProposed, RolloutMoved
from trimtab.core.lever import Bottleneck
from trimtab.core.state import rebuild
from trimtab.core.types import Phase, Resource, RolloutState
from trimtab.rollout import queries

STORY = envelopes(story())


def effect(lever: str, ratio: float, *, units: int = 9, metric: str = "ttft_ms") -> Effect:
    return Effect(
        lever=lever,
        metric=metric,
        cut="all",
        ratio=ratio,
        low=ratio - 0.1,
        high=ratio + 0.1,
        n_baseline=100,
        n_candidate=110,
        n_units=units,
    )


def elsewhere(name: str) -> LeverProposed:
    """A lever that shares nothing with the story's."""
    record = lever_record(name)
    other = Bottleneck(
        phase=Phase.TRANSFER,
        resource=Resource.COMMUNICATION,
        share=None,
        diagnosis="dg-1",
        evidence=("ev-1",),
    )
    moves = tuple(move for move in record.moves if move.budget.value == "quality")
    return LeverProposed(
        record=msgspec.structs.replace(record, bottleneck=other, moves=moves, expected=())
    )


def test_why_names_the_events_that_put_a_lever_where_it_is() -> None:
    """The proposal, the last look, what was kept, the effect, the last move and trigger; not the moves between."""
    found = queries.why(LEVER, STORY)
    texts = [each.text.partition("\n")[0] for each in found]
    assert [each.at_s for each in found] == sorted(each.at_s for each in found)
    assert texts[0].startswith(f"Proposed {LEVER}")
    assert any(text.startswith("Look 3") for text in texts)
    moves = [text for text in texts if text.startswith("The rollout moved")]
    assert len(moves) == 1
    assert "to adopted" in moves[0]
    assert {each.event_id for each in found} <= {each.id for each in STORY}


def test_before_a_regression_what_shares_comes_first() -> None:
    """A lever that moves the same budget an hour ago comes before a reload a minute ago."""
    rows: list[tuple[AnyEvent, int | None]] = [
        (LeverProposed(record=lever_record()), None),
        (LeverProposed(record=lever_record(OTHER)), None),
        (moved(RolloutState.ADOPTED, 1.0), 0),
        (
            RolloutMoved(
                lever=OTHER, before=None, after=RolloutState.ADOPTED, share=1.0, reason="x"
            ),
            1,
        ),
        (elsewhere("third"), None),
        (
            RolloutMoved(
                lever="third", before=None, after=RolloutState.CANARY, share=0.1, reason="x"
            ),
            4,
        ),
        (ConfigReloaded(changed={"routing.load_bound": "1.25 -> 2.0"}), None),
        (trigger_moved(True, 4.6), 2),
    ]
    told = envelopes(tuple(rows))
    found = queries.before(told[-1], told, at_s=told[-1].at_s, window_s=3600.0)
    assert [each.lever for each in found] == [OTHER, LEVER, None, "third"]
    assert [bool(each.shares) for each in found] == [True, True, False, False]
    assert "prefill" in found[0].shares
    assert [each.before_s for each in found] == [4.0, 5.0, 1.0, 2.0]


@pytest.mark.parametrize(("window_s", "n"), [(0.5, 0), (1.5, 1), (100.0, 5)])
def test_before_looks_back_no_further_than_asked(window_s: float, n: int) -> None:
    """By time alone, when only the time is known."""
    rows = tuple((moved(RolloutState.CANARY, 0.1), None) for _ in range(5))
    told = envelopes(rows)
    found = queries.before(None, told, at_s=told[-1].at_s + 1.0, window_s=window_s)
    assert len(found) == n
    assert all(not each.shares for each in found)


def test_without_a_lever_its_effects_are_turned_round() -> None:
    """0.5 of the TTFT with it is twice without; ends of the interval change places, an open one stays unknown."""
    rows: tuple[tuple[AnyEvent, int | None], ...] = (
        (LeverProposed(record=lever_record()), None),
        (moved(RolloutState.ADOPTED, 1.0), 0),
        (effect(LEVER, 0.5), 1),
        (msgspec.structs.replace(effect(LEVER, 0.8, metric="tpot_ms"), high=math.inf), 1),
        (LeverProposed(record=lever_record(OTHER)), None),
        (
            RolloutMoved(
                lever=OTHER, before=None, after=RolloutState.ADOPTED, share=1.0, reason=""
            ),
            4,
        ),
    )
    found = queries.without(LEVER, rebuild(envelopes(rows)))
    ttft, tpot = found.metrics
    assert (ttft.metric, ttft.ratio) == ("ttft_ms", 2.0)
    assert (ttft.low, ttft.high) == (pytest.approx(1 / 0.6), pytest.approx(1 / 0.4))
    assert (tpot.low, tpot.high) == (None, pytest.approx(1 / 0.7))
    assert found.is_on
    assert found.verify == (OTHER,)


def test_predictions_are_scored_per_proposal_and_per_technique() -> None:
    """A proposal anew starts anew; what was never measured is not counted as right or wrong."""
    rows: tuple[tuple[AnyEvent, int | None], ...] = (
        (LeverProposed(record=lever_record()), None),
        (effect(LEVER, 0.7), 0),
        (effect(LEVER, 0.3, units=3), 0),
        (LeverProposed(record=lever_record()), None),
        (effect(LEVER, 0.9), 3),
        (LeverProposed(record=lever_record(OTHER)), None),
    )
    found = queries.predictions(envelopes(rows))
    assert [(row.lever, row.measured, row.held) for row in found] == [
        (LEVER, 0.7, True),
        (LEVER, 0.9, False),
        (OTHER, None, None),
    ]
    assert found[0].error == pytest.approx(math.log(0.7 / 0.6))
    caching, speculating = queries.track_record(found)
    assert (caching.made, caching.measured, caching.held) == (2, 2, 1)
    assert caching.error_mean == pytest.approx((math.log(0.7 / 0.6) + math.log(0.9 / 0.6)) / 2)
    assert (speculating.measured, speculating.error_mean) == (0, None)
