"""Where drafting stops to pay: point and range from intervals, and what few rounds leave unknown."""

import pytest
from situations import table

from trimtab.core.break_even import BreakEven, MeasuredRatio, break_even


def test_break_even_lies_between_the_batches_where_the_ratio_crosses() -> None:
    """Its bounds are the crossings of the interval's ends."""
    ratios = [
        MeasuredRatio(batch=1, ratio=1.5, low=1.4, high=1.6),
        MeasuredRatio(batch=4, ratio=1.1, low=0.9, high=1.3),
        MeasuredRatio(batch=8, ratio=0.9, low=0.8, high=0.95),
    ]
    found = break_even(ratios)
    assert found.batch == pytest.approx(6.0)
    assert found.low == pytest.approx(1.0 + 3.0 * 0.4 / 0.5)
    assert found.high == pytest.approx(4.0 + 4.0 * 0.3 / 0.35)


def test_break_even_beyond_what_was_measured_is_told_as_none() -> None:
    """It paid everywhere: where it stops is not known."""
    found = break_even([MeasuredRatio(batch=1, ratio=1.5, low=1.2, high=1.8)])
    assert (found.batch, found.low, found.high, found.measured_to) == (None, None, None, 1)


def test_break_even_without_intervals_has_the_widest_bounds() -> None:
    """One round tells no bound."""
    found = break_even([MeasuredRatio(batch=1, ratio=1.5), MeasuredRatio(batch=2, ratio=0.9)])
    assert found.batch == pytest.approx(1.0 + 0.5 / 0.6)
    assert (found.low, found.high) == (0.0, None)


def test_break_even_needs_a_measured_batch() -> None:
    """Nothing measured is no break-even of 0."""
    with pytest.raises(ValueError, match="no batch"):
        break_even([])


def test_batches_from_the_first_without_an_interval_on_are_as_if_not_measured() -> None:
    """Shown at 1 and 2, one round at 4: drafts end at 2, and it is said why."""
    found = table({1: 1.6, 2: 1.4, 4: 1.2, 8: 1.1}, rounds={4: 1}).break_even()
    assert (found.batch, found.low, found.high) == (None, None, None)
    assert (found.off_at, found.untold_from) == (2.0, 4)
    assert found.told == (
        "not reached up to batch 2 measured; batch 4 has too few paired rounds for an interval"
    )


def test_loss_below_the_first_batch_without_an_interval_still_counts() -> None:
    """What is known ends the gain before the unknown begins."""
    found = table({1: 1.5, 2: 0.5, 4: 1.2}, rounds={4: 1}).break_even()
    assert (found.low, found.high) == pytest.approx((1.5, 1.5))
    assert found.off_at == 1.5


def test_gain_within_its_noise_ends_drafting_where_its_lower_end_crosses() -> None:
    """Tight at 1 and at 4, where the ratio still gains but its interval does not lie above 1."""
    measured = table({1: 1.6, 4: 1.2, 8: 0.9}, noise={4: 1.5})
    (_, at_4, _) = measured.gains()
    assert at_4.ratio > 1.0
    assert not at_4.is_shown
    found = measured.break_even()
    assert found.batch is not None
    assert found.low is not None
    assert found.low < 4.0 < found.batch


def test_table_whose_rounds_were_not_kept_shows_nothing() -> None:
    """A table of an older ledger has ratios alone: no gain is shown by them."""
    found = table({1: 1.8, 2: 1.5}, rounds={1: 0, 2: 0})
    assert found.break_even() == BreakEven(
        batch=None, low=0.0, high=None, measured_to=2, untold_from=1
    )
    assert "too few paired rounds" in found.gains()[0].told
