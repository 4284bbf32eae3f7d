"""A starting point of a fit by how TPOT grows with what is read beside it."""

import pytest
from sim_kit import LIMITS, TRUTH

from trimtab.sim.fit import guess
from trimtab.sim.growth import by_growth, was_full
from trimtab.sim.measured import Measured

STEP_MS, CONTEXT_MS = 12.0, 2e-4


def in_rounds() -> list[Measured]:
    """Rounds of one to six equal requests, answered together by a step of 12 ms and 2e-4 ms a token of KV."""
    found = []
    for number in range(12):
        streams = 1 + number % 6
        tpot_s = (STEP_MS + CONTEXT_MS * streams * (6_000 + 10)) / 1000.0
        at_s = 10.0 * number
        one = Measured(
            at_s=at_s,
            input_tokens=6_000,
            output_tokens=20,
            first_token_s=at_s + 0.2,
            last_token_s=at_s + 0.2 + 19 * tpot_s,
        )
        found += [one] * streams
    return found


def test_growth_of_tpot_gives_step_and_context() -> None:
    """Both are read off the line, whatever the first guess thought of them."""
    real = in_rounds()
    first = guess(real, LIMITS, range(len(real)))
    found = by_growth(real, range(len(real)), first)
    assert found.context_ms == pytest.approx(CONTEXT_MS, rel=1e-6)
    fastest = min(one.tpot_ms or 0.0 for one in real)
    share = (found.overhead_ms + found.weights_ms) / (first.overhead_ms + first.weights_ms)
    assert share == pytest.approx(STEP_MS / fastest, rel=1e-6)


def test_no_line_leaves_the_guess_as_it_is() -> None:
    """Two answers, or answers beside which the same was read, show no growth."""
    real = in_rounds()
    assert by_growth(real, (0, 1), TRUTH) == TRUTH
    alike = [one for one in real if sum(one.at_s == other.at_s for other in real) == 3]
    assert by_growth(alike, range(len(alike)), TRUTH) == TRUTH


def test_engine_is_full_by_its_places_or_by_its_kv() -> None:
    """Six prompts of 6,000 tokens at once: more than half of 11 places, or of 71,999 tokens."""
    real = in_rounds()
    assert not was_full(real, streams_max=12, kv_tokens=72_000)
    assert was_full(real, streams_max=11, kv_tokens=72_000)
    assert was_full(real, streams_max=12, kv_tokens=71_999)
