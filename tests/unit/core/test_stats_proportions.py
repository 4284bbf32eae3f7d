"""Bounds and evidence on shares of bad requests."""

import math
from itertools import product

import pytest

from trimtab.core.stats import (
    Interval,
    StatsError,
    difference_bounds,
    difference_e_value,
    discordance_e_value,
    exact_no_harm,
    proportion_bounds,
)


def binomial(k: int, n: int, p: float) -> float:
    return math.comb(n, k) * p**k * (1.0 - p) ** (n - k)


def test_errors_of_a_bad_candidate_are_strong_evidence() -> None:
    """10 of 50 against 1 of 200 exceed a margin of one point beyond doubt."""
    assert difference_e_value(1, 200, 10, 50, margin=0.01) > 100.0


def test_zero_baseline_errors_are_exact() -> None:
    """With no bad baseline request and p_b = 0 the most likely harmless world, the null is p_c = margin."""
    evidence = difference_e_value(0, 300, 6, 40, margin=0.02)
    null = 6 * math.log(0.02) + 34 * math.log(0.98)
    best = 6 * math.log(6 / 40) + 34 * math.log(34 / 40)
    assert 20.0 < evidence < math.exp(best - null)


@pytest.mark.parametrize("counts", [(0, 0, 5, 5), (0, 50, 0, 0), (0, 0, 0, 0)])
def test_arm_without_requests_gives_no_evidence(counts: tuple[int, int, int, int]) -> None:
    """Unknown is no evidence of harm, and none of its absence."""
    assert difference_e_value(*counts, margin=0.0) <= 1.0
    assert exact_no_harm(*counts, margin=0.01, alpha=0.05) is None


def test_equal_arms_give_no_evidence() -> None:
    """Counts inside the null never exceed 1."""
    assert difference_e_value(5, 100, 5, 100, margin=0.0) < 1.0
    assert difference_e_value(5, 100, 6, 100, margin=0.02) < 1.0


@pytest.mark.parametrize("margin", [0.0, 0.1, -0.2])
def test_expected_evidence_is_at_most_one_in_every_harmless_world(margin: float) -> None:
    """Exact sums over all outcomes, on the edge of the null and inside it: the law of an e-value."""
    n_b, n_c = 9, 7
    evidence = {
        (b, c): difference_e_value(b, n_b, c, n_c, margin=margin)
        for b, c in product(range(n_b + 1), range(n_c + 1))
    }
    for p_b, inside in product((0.0, 0.02, 0.2, 0.25, 0.5, 0.9, 1.0), (0.0, 0.05)):
        p_c = min(1.0, p_b + margin - inside)
        if p_c < 0.0:
            continue
        expected = sum(
            binomial(b, n_b, p_b) * binomial(c, n_c, p_c) * e for (b, c), e in evidence.items()
        )
        assert expected <= 1.0 + 1e-9


def test_evidence_falls_with_the_margin_and_rises_with_bad_candidates() -> None:
    """More is forgiven, less is shown; more errors, more is shown."""
    by_margin = [difference_e_value(1, 100, 20, 100, margin=m) for m in (0.0, 0.05, 0.1, 0.2, 0.5)]
    by_errors = [difference_e_value(1, 100, bad, 100, margin=0.05) for bad in range(7, 100)]
    assert sorted(by_margin, reverse=True) == by_margin
    assert sorted(by_errors) == by_errors


def test_no_harm_is_shown_refuted_or_undecided() -> None:
    """Three answers: enough clean requests, too many errors, too little of either."""
    assert exact_no_harm(0, 500, 0, 500, margin=0.01, alpha=0.05) is True
    assert exact_no_harm(1, 200, 10, 50, margin=0.01, alpha=0.05) is False
    assert exact_no_harm(0, 50, 0, 50, margin=0.01, alpha=0.05) is None


def test_outputs_that_differ_beyond_the_noise_floor_are_found() -> None:
    """The floor is what the baseline differs from itself."""
    assert discordance_e_value(20, 40, 1, 40, margin=0.05) > 20.0
    assert discordance_e_value(15, 40, 15, 40, margin=0.05) < 1.0


def test_bounds_without_requests_say_nothing() -> None:
    """The whole range is possible."""
    assert Interval(0.0, 1.0, 0.95) == proportion_bounds(0, 0, alpha=0.05)
    assert Interval(-1.0, 1.0, 0.9) == difference_bounds(0, 0, 0, 0, alpha=0.05)


@pytest.mark.parametrize(("bad", "n"), [(0, 200), (1, 200), (100, 200), (200, 200), (0, 1)])
def test_bounds_hold_the_observed_share(bad: int, n: int) -> None:
    """The observed share is inside, and all-good or all-bad reaches its end exactly."""
    bounds = proportion_bounds(bad, n, alpha=0.05)
    assert bounds.low <= bad / n <= bounds.high
    assert (bad == 0) == (bounds.low == 0.0)
    assert (bad == n) == (bounds.high == 1.0)
    assert bounds.level == 0.95


def test_bounds_shrink_with_requests_and_grow_with_confidence() -> None:
    """Each multiple of the same share is tighter; a smaller alpha is wider."""
    widths = [
        bounds.high - bounds.low
        for bounds in (proportion_bounds(2 * k, 20 * k, alpha=0.05) for k in (1, 2, 5, 20, 100))
    ]
    assert sorted(widths, reverse=True) == widths
    wide, narrow = proportion_bounds(5, 50, alpha=0.01), proportion_bounds(5, 50, alpha=0.05)
    assert wide.low < narrow.low < narrow.high < wide.high


def test_clean_requests_bound_the_share_within_reach_of_the_rule_of_three() -> None:
    """After 200 clean requests a fixed look would say 1.5%; looking all the time costs less than a half more."""
    assert 0.015 < proportion_bounds(0, 200, alpha=0.05).high < 0.0225


def test_difference_bounds_agree_with_the_evidence() -> None:
    """Just outside the interval harm is shown or excluded, just inside it is not."""
    counts = (1, 200, 10, 50)
    bounds = difference_bounds(*counts, alpha=0.05)
    assert bounds.level == 0.9
    assert exact_no_harm(*counts, margin=bounds.low - 1e-6, alpha=0.05) is False
    assert exact_no_harm(*counts, margin=bounds.low + 1e-6, alpha=0.05) is None
    assert exact_no_harm(*counts, margin=bounds.high - 1e-6, alpha=0.05) is None
    assert exact_no_harm(*counts, margin=bounds.high + 1e-6, alpha=0.05) is True


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ((3, 2, 0, 1), "baseline: 3 of 2 is not a count"),
        ((0, 2, -1, 1), "candidate: -1 of 1 is not a count"),
    ],
)
def test_impossible_counts_are_refused_by_arm(
    counts: tuple[int, int, int, int], message: str
) -> None:
    """The error says whose counts they are."""
    with pytest.raises(StatsError, match=message):
        difference_e_value(*counts, margin=0.0)


def test_parameters_out_of_range_are_refused() -> None:
    """A margin in percent and an alpha of zero are caught."""
    with pytest.raises(StatsError, match="margin must be above -1 and below 1, got 5"):
        difference_e_value(0, 1, 0, 1, margin=5)
    with pytest.raises(StatsError, match="alpha must be"):
        proportion_bounds(0, 1, alpha=0.0)
    with pytest.raises(StatsError, match="requests: 2 of 1"):
        proportion_bounds(2, 1, alpha=0.05)
