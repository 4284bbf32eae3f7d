"""Intervals and the conformal width."""

import math
from random import Random

import pytest

from trimtab.planning.correction import Factor, Phase
from trimtab.planning.intervals import Widths, conformal_width, span


def test_span_is_symmetric_in_logarithms() -> None:
    """Low and high are the corrected value divided and multiplied by the same reach."""
    found = span(10.0, Factor(factor=1.2, log_sd=0.1, pegged=False), 2.0)
    assert found.value == pytest.approx(12.0)
    assert found.low == pytest.approx(12.0 / math.exp(0.2))
    assert found.high == pytest.approx(12.0 * math.exp(0.2))


def test_conformal_width_covers_new_errors() -> None:
    """A width from 199 errors holds nine of ten new ones, up to sampling."""
    rng = Random(1)
    covers = []
    for _ in range(200):
        width = conformal_width([abs(rng.gauss(0.0, 1.0)) for _ in range(199)])
        covers.append(sum(abs(rng.gauss(0.0, 1.0)) <= width for _ in range(50)) / 50)
    assert sum(covers) / len(covers) == pytest.approx(0.9, abs=0.01)


def test_too_few_errors_promise_nothing() -> None:
    """Eight errors cannot promise 90%."""
    with pytest.raises(ValueError, match="cannot promise"):
        conformal_width([1.0] * 8)


def test_unknown_server_gets_the_overall_width() -> None:
    """A hardware and engine without a width of their own take that of all."""
    widths = Widths(
        overall={Phase.DECODE: ((0, 2.0), (4, 1.8))}, by_server={(Phase.DECODE, "a", "b"): 1.5}
    )
    assert widths.of(Phase.DECODE, "a", "b", 0) == 1.5
    assert widths.of(Phase.DECODE, "a", "c", 0) == 2.0


def test_width_follows_the_rows_that_calibrate() -> None:
    """The width of the largest number of rows that there are; a server's own one holds without rows only."""
    widths = Widths(
        overall={Phase.DECODE: ((0, 2.0), (2, 1.9), (4, 1.8))},
        by_server={(Phase.DECODE, "a", "b"): 1.5},
    )
    assert [widths.of(Phase.DECODE, "a", "b", rows) for rows in (1, 2, 3, 9)] == [
        2.0,
        1.9,
        1.9,
        1.8,
    ]
