"""The model of drafting: what a step costs, which depth gives most tokens per time, where it stops to pay."""

import pytest

from trimtab.policies.ngram_drafts import DraftCounts
from trimtab.policies.speculation_model import (
    StepMeasured,
    StepTimes,
    on_line,
    predict,
)


def times(base: float = 10.0, token: float = 1.0, looking: float = 0.0) -> StepTimes:
    """Steps of `base` + `token` for each token computed."""
    batches = (1, 4, 16)
    return StepTimes(
        plain=tuple(StepMeasured(batch=b, drafted=0.0, ms=base + token * b) for b in batches),
        drafting=tuple(
            StepMeasured(batch=b, drafted=d, ms=base + token * b * (1 + d) + looking)
            for b in batches
            for d in (0.0, 4.0, 8.0)
        ),
    )


def counts(drafts: int, accepted: tuple[int, ...], steps: int = 10) -> DraftCounts:
    """Ten steps of which some drafted as many tokens as there are positions."""
    return DraftCounts(
        requests=1,
        tokens=steps + sum(accepted),
        steps=steps,
        drafted=(drafts,) * len(accepted),
        accepted=accepted,
    )


def test_step_of_independent_drafts_costs_their_mean_where_steps_are_linear() -> None:
    """Half the steps draft 4 tokens: 2 tokens more in the mean, at every batch."""
    half = counts(5, (5, 5, 5, 5))
    for batch in (1, 4, 16):
        expected = 10.0 + batch * (1 + 2.0)
        assert times().expected_ms(batch, half) == pytest.approx(expected)


def test_step_that_drafts_nothing_costs_what_looking_costs() -> None:
    """Off inside the engine is not the plain engine."""
    nothing = counts(0, ())
    assert times(looking=0.5).expected_ms(4, nothing) == pytest.approx(14.5)
    assert predict(times(looking=0.5), 4, 0, nothing).step_ms == pytest.approx(14.0)


def best(batch: int, by_depth: dict[int, DraftCounts]) -> int:
    """The depth of most predicted tokens per second; 0 of equals."""
    every = [
        predict(times(), batch, depth, of) for depth, of in {0: counts(0, ()), **by_depth}.items()
    ]
    return max(every, key=lambda one: (one.tokens_per_s, -one.depth)).depth


def test_depth_is_the_one_with_most_tokens_per_time() -> None:
    """Acceptance that falls fast makes the deeper draft a loss."""
    by_depth = {4: counts(10, (9, 8, 7, 6)), 8: counts(10, (9, 8, 7, 6, 0, 0, 0, 0))}
    assert best(1, by_depth) == 4


def test_depth_is_none_where_nothing_is_accepted() -> None:
    """Zero is allowed: with every draft refused no depth is worth its step."""
    by_depth = {4: counts(10, (0, 0, 0, 0))}
    assert best(1, by_depth) == 0


def test_depth_goes_to_none_as_the_batch_grows() -> None:
    """What one stream gains, sixteen lose: their step is computing already."""
    by_depth = {4: counts(10, (7, 6, 5, 4))}
    assert best(1, by_depth) == 4
    assert best(16, by_depth) == 0


def test_rate_and_time_per_token_are_of_the_same_step() -> None:
    """Streams times a thousand over a stream's milliseconds a token."""
    found = predict(times(), 4, 4, counts(10, (5, 5, 0, 0)))
    assert found.tokens_per_step == pytest.approx(2.0)
    assert found.tokens_per_s == pytest.approx(1000.0 * 4 / found.tpot_ms)


def test_line_goes_on_beyond_its_points_but_not_before_them() -> None:
    """Larger batches than measured are guessed from the last two."""
    points = [(1.0, 10.0), (2.0, 12.0), (4.0, 20.0)]
    assert on_line(points, 3.0) == pytest.approx(16.0)
    assert on_line(points, 6.0) == pytest.approx(28.0)
    assert on_line(points, 0.5) == pytest.approx(10.0)
    assert on_line([(1.0, 10.0), (1.0, 14.0), (2.0, 20.0)], 1.0) == pytest.approx(12.0)
    assert on_line([(1.0, 10.0), (1.0, 14.0)], 5.0) == pytest.approx(12.0)
    with pytest.raises(ValueError, match="no step"):
        on_line([], 1.0)


def test_depths_that_drafted_alike_make_no_slope_of_their_noise() -> None:
    """Three depths whose drafts ended at 1.5 tokens are one point: nothing falls below a step without drafts."""
    seen = [(0.0, 10.0), (1.48, 13.2), (1.49, 12.9), (1.50, 12.6)]
    alike = StepTimes(
        plain=(StepMeasured(batch=4, drafted=0.0, ms=9.9),),
        drafting=tuple(StepMeasured(batch=4, drafted=d, ms=ms) for d, ms in seen),
    )
    assert alike.drafting_ms(4, 1.49) == pytest.approx(12.9)
    assert alike.drafting_ms(4, 6.0) == pytest.approx(10.0 + 2.9 / 1.49 * 6.0)


def test_step_with_drafts_is_never_shorter_than_one_without() -> None:
    """Noise that makes a longer draft look cheaper gives the step that drafts nothing, however far it is drawn out."""
    falling = StepTimes(
        plain=(StepMeasured(batch=1, drafted=0.0, ms=10.0),),
        drafting=tuple(
            StepMeasured(batch=1, drafted=d, ms=ms)
            for d, ms in [(0.0, 10.5), (4.0, 9.0), (8.0, 7.0)]
        ),
    )
    assert [falling.drafting_ms(1, drafted) for drafted in (4.0, 8.0, 40.0)] == [10.5] * 3
    cheap = StepTimes(
        plain=(StepMeasured(batch=1, drafted=0.0, ms=10.0),),
        drafting=(StepMeasured(batch=1, drafted=0.0, ms=9.5),),
    )
    assert cheap.drafting_ms(1, 0.0) == pytest.approx(10.0)
