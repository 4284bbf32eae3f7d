"""The confidence sequences agree with those of an independent library, as recorded from it.

`tests/data/confseq.json` holds what `confseq.betting.betting_mart` (Waudby-Smith, Howard, Ramdas; its commit is in the
file) made of coin flips and of counts: the capital of the very bets that `core.stats_betting` mixes, and of bets placed
by the running estimates of the priors in `core.stats_proportions`, which are a mixture over them by another way.
"""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from trimtab.core.stats import Unit, e_value_above, e_value_below, proportion_bounds, ratio_estimate
from trimtab.core.stats_betting import log_wealth, wins_needed

RECORDED: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "data" / "confseq.json").read_text()
)
FLIPS, SHARES = RECORDED["flips"], RECORDED["shares"]


def units_of(flips: str) -> list[Unit]:
    """A unit above 1 for each win, below it for each loss."""
    return [Unit(i, i, 1, 1, 0.1 if flip == "1" else -0.1) for i, flip in enumerate(flips)]


@pytest.mark.parametrize("row", FLIPS, ids=lambda row: f"{len(row['flips'])} flips")
def test_capital_of_the_bets_is_the_librarys(row: dict[str, Any]) -> None:
    """After every recorded number of flips, to ten digits, for wins and for losses."""
    for n, expected in row["capital"].items():
        flips = row["flips"][: int(n)]
        wins = flips.count("1")
        assert math.exp(log_wealth(wins, len(flips) - wins)) == pytest.approx(expected, rel=1e-10)
        units = units_of(flips)
        assert e_value_above(units, 1.0) == pytest.approx(expected, rel=1e-10)
        turned = [Unit(u.first_block, u.last_block, 1, 1, -u.log_ratio) for u in units]
        assert e_value_below(turned, 1.0) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("row", FLIPS, ids=lambda row: f"{len(row['flips'])} flips")
def test_bound_excludes_one_where_the_librarys_capital_crossed(row: dict[str, Any]) -> None:
    """A capital of 1/alpha at a recorded number of flips puts the lower bound above 1 from there on."""
    for n, capital in row["capital"].items():
        for alpha in (0.2, 0.05, 0.01):
            flips = row["flips"][: int(n)]
            if abs(capital * alpha - 1.0) < 1e-6:
                continue
            assert (flips.count("1") >= wins_needed(int(n), alpha)) == (capital >= 1.0 / alpha)
            interval = ratio_estimate(units_of(flips), alpha=alpha).interval
            assert interval is not None
            assert interval.low > 1.0 or capital < 1.0 / alpha


@pytest.mark.parametrize("row", SHARES, ids=lambda row: f"{row['bad']} of {row['n']}")
def test_share_is_excluded_where_the_librarys_capital_says_so(row: dict[str, Any]) -> None:
    """A share lies outside the bounds exactly where betting against it made 1/alpha."""
    for share, evidence in row["evidence"].items():
        for alpha in (0.2, 0.05, 0.01):
            bounds = proportion_bounds(row["bad"], row["n"], alpha=alpha)
            inside = bounds.low <= float(share) <= bounds.high
            assert inside == (evidence < 1.0 / alpha)


@pytest.mark.parametrize("row", SHARES, ids=lambda row: f"{row['bad']} of {row['n']}")
def test_bound_lies_where_the_librarys_capital_reaches_its_mark(row: dict[str, Any]) -> None:
    """At alpha = 1 / capital the share itself is an end of the interval."""
    for share, evidence in row["evidence"].items():
        if not 2.5 < evidence < 1e12:
            continue
        bounds = proportion_bounds(row["bad"], row["n"], alpha=1.0 / evidence)
        nearest = min((bounds.low, bounds.high), key=lambda end: abs(end - float(share)))
        assert nearest == pytest.approx(float(share), rel=1e-6)
