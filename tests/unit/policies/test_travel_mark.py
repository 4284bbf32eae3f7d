"""The mark from which prompts travel: up by what is dear, down again, and not to and fro under one load."""

import itertools
from collections.abc import Callable

import pytest

from trimtab.policies.travel_mark import BACK_OFF_MAX, TravelMark, moved_mark

WINDOW_S = 60.0


def factors(
    dearness: Callable[[float, float], float | None], *, hours: float = 1.0
) -> list[tuple[float, float]]:
    """Times and factors of the steps of so many hours in ticks of a second; `dearness` of time and factor."""
    mark, steps = TravelMark(), []
    for tick in range(1, round(3600 * hours)):
        before, now_s = mark.factor, float(tick)
        mark = moved_mark(mark, dearness(now_s, before), now_s=now_s, window_s=WINDOW_S)
        if mark.factor != before:
            steps.append((now_s, mark.factor))
    return steps


@pytest.mark.parametrize("above", [None, 0.2])
def test_mark_does_not_go_to_and_fro_under_one_load(above: float | None) -> None:
    """Where nothing travels above it, or only what is cheap there: each fall waits twice as long as the one before."""
    steps = factors(lambda _, factor: 3.0 if factor < 2.0 else above, hours=6.0)
    falls = [at_s for at_s, factor in steps if factor == 1.0]
    waits = [later - earlier for earlier, later in itertools.pairwise(falls)]
    assert waits == sorted(waits)
    assert waits[0] == pytest.approx(3 * WINDOW_S)
    assert waits[-1] == pytest.approx((BACK_OFF_MAX + 1) * WINDOW_S)
    assert len(steps) < 0.1 * 6 * 3600 / WINDOW_S


def test_mark_falls_within_windows_once_another_load_came() -> None:
    """A fall that stood for long was right, so that the next rise begins anew, without what was waited before."""

    def dearness(now_s: float, factor: float) -> float | None:
        is_dear = now_s < 1800.0 or 7200.0 <= now_s < 7260.0
        return 3.0 if is_dear and factor < 2.0 else None

    steps = [at_s for at_s, _ in factors(dearness, hours=3.0) if at_s >= 7200.0]
    assert steps == [7200.0, 7260.0]


def test_mark_is_never_beyond_its_bounds() -> None:
    """Eight times at most, once at least."""
    steps = factors(lambda now_s, _: 9.0 if now_s < 1800.0 else 0.0)
    assert [factor for _, factor in steps] == [2.0, 4.0, 8.0, 4.0, 2.0, 1.0]
