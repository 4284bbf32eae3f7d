"""Laws of the statistics that hold for all inputs."""

import math
import random
from itertools import pairwise

import numpy
from hypothesis import assume, given
from hypothesis import strategies as st

from trimtab.core.sketch import RELATIVE_ACCURACY, LatencySketch
from trimtab.core.stats import (
    Observation,
    Unit,
    difference_bounds,
    difference_e_value,
    e_max_above,
    e_max_below,
    e_value_below,
    exact_no_harm,
    mean_interval,
    pair_units,
    percentile,
    proportion_bounds,
    ratio_estimate,
)

arms = st.sampled_from(["baseline", "candidate"])
latencies = st.floats(min_value=1e-3, max_value=1e6)
observations = st.lists(
    st.builds(
        Observation,
        block=st.integers(0, 12),
        arm=arms,
        value=latencies,
        # Eighths, so that a shift of whole seconds is exact and keeps what is before and after.
        at_s=st.integers(0, 8_000_000).map(lambda eighths: eighths / 8.0),
    ),
    max_size=60,
)
log_ratios = st.lists(st.floats(-3.0, 3.0) | st.sampled_from([-0.1, 0.0, 0.1]), max_size=60)
alphas = st.sampled_from([0.01, 0.05, 0.2])
minimum = st.integers(1, 4)


def units_of(values: list[float]) -> list[Unit]:
    return [Unit(i, i, 1, 1, value) for i, value in enumerate(values)]


@st.composite
def counts(draw: st.DrawFn) -> tuple[int, int]:
    n = draw(st.integers(0, 400))
    return draw(st.integers(0, n)), n


@given(observations, minimum, st.integers(-1000, 1000), st.randoms(use_true_random=False))
def test_units_do_not_depend_on_time_or_order_of_arrival(
    seen: list[Observation], min_per_arm: int, shift: int, rng: random.Random
) -> None:
    """Shifted in time and shuffled, the same blocks give bit-identical ratios."""
    units = pair_units(seen, min_per_arm=min_per_arm)
    moved = [Observation(o.block + shift, o.arm, o.value, o.at_s + shift) for o in seen]
    rng.shuffle(moved)
    expected = [
        Unit(u.first_block + shift, u.last_block + shift, u.n_baseline, u.n_candidate, u.log_ratio)
        for u in units
    ]
    assert list(pair_units(moved, min_per_arm=min_per_arm)) == expected


@given(observations, minimum, st.integers(0, 12))
def test_closed_units_never_change(
    seen: list[Observation], min_per_arm: int, last_block: int
) -> None:
    """What was known when block `last_block` had ended is a prefix of what is known later."""
    early = pair_units((o for o in seen if o.block <= last_block), min_per_arm=min_per_arm)
    late = pair_units(seen, min_per_arm=min_per_arm)
    assert late[: len(early)] == early


@given(observations, minimum)
def test_units_partition_the_observations(seen: list[Observation], min_per_arm: int) -> None:
    """Units are in order, do not overlap, have their minimum, and hold every observation but the tail's."""
    units = pair_units(seen, min_per_arm=min_per_arm)
    assert all(min(u.n_baseline, u.n_candidate) >= min_per_arm for u in units)
    assert all(a.last_block < b.first_block for a, b in pairwise(units))
    end = units[-1].last_block if units else -1
    counted = sum(u.n_baseline + u.n_candidate for u in units)
    assert counted == sum(o.block <= end for o in seen)
    tail = [o.arm for o in seen if o.block > end]
    assert min(tail.count("baseline"), tail.count("candidate")) < min_per_arm


@given(log_ratios, alphas)
def test_bounds_only_tighten(values: list[float], alpha: float) -> None:
    """Another unit never loosens an end, and drift, once seen, stays."""
    estimates = [ratio_estimate(units_of(values[:n]), alpha=alpha) for n in range(len(values) + 1)]
    for before, after in pairwise(estimates[1:]):
        assert before.interval is not None
        assert after.interval is not None
        assert before.interval.low <= after.interval.low
        assert after.interval.high <= before.interval.high
        assert before.drifted <= after.drifted


@given(log_ratios, alphas, st.floats(-3.5, 3.5))
def test_interval_is_exactly_what_evidence_has_not_refuted(
    values: list[float], alpha: float, log_ratio: float
) -> None:
    """A ratio lies above the interval if and only if some prefix made 1/alpha against it; so too below."""
    # exp and log may move a number by its last digit, across a unit that lies on it
    assume(all(abs(value - log_ratio) > 1e-9 for value in values))
    units = units_of(values)
    estimate = ratio_estimate(units, alpha=alpha)
    if estimate.drifted or estimate.interval is None:
        return
    ratio = math.exp(log_ratio)
    target = (1.0 - 1e-9) / alpha
    assert (ratio > estimate.interval.high) == (e_max_below(units, ratio) >= target)
    assert (ratio < estimate.interval.low) == (e_max_above(units, ratio) >= target)


@given(log_ratios, st.floats(-3.5, 3.5), st.floats(0.0, 2.0))
def test_evidence_is_monotone_in_the_ratio(
    values: list[float], log_ratio: float, further: float
) -> None:
    """The median is below a larger ratio at least as evidently; and the maximum is at least the last."""
    units = units_of(values)
    near, far = math.exp(log_ratio), math.exp(log_ratio + further)
    assert e_value_below(units, near) <= e_value_below(units, far)
    assert e_max_below(units, near) <= e_max_below(units, far)
    assert e_value_below(units, near) <= e_max_below(units, near)


@given(log_ratios, alphas)
def test_exchanged_arms_mirror_the_interval(values: list[float], alpha: float) -> None:
    """Candidate over baseline and baseline over candidate tell the same story."""
    there = ratio_estimate(units_of(values), alpha=alpha)
    back = ratio_estimate(units_of([-value for value in values]), alpha=alpha)
    assert there.drifted == back.drifted
    if there.interval is None or back.interval is None:
        assert values == []
        return
    assert math.isclose(back.interval.high * there.interval.low, 1.0, rel_tol=1e-9) or (
        back.interval.high == math.inf and there.interval.low == 0.0
    )


@given(counts(), alphas)
def test_share_bounds_hold_the_share_and_nest(seen: tuple[int, int], alpha: float) -> None:
    """0 <= low <= observed share <= high <= 1, mirrored for good requests, wider for a smaller alpha."""
    bad, n = seen
    bounds = proportion_bounds(bad, n, alpha=alpha)
    share = bad / n if n else 0.5
    assert 0.0 <= bounds.low <= share <= bounds.high <= 1.0
    wider = proportion_bounds(bad, n, alpha=alpha / 2.0)
    assert wider.low <= bounds.low
    assert bounds.high <= wider.high


@given(counts(), counts(), st.floats(-0.9, 0.9), st.floats(0.0, 0.09))
def test_difference_evidence_is_positive_finite_and_falls_with_the_margin(
    baseline: tuple[int, int], candidate: tuple[int, int], margin: float, more: float
) -> None:
    """Forgiving more never shows more."""
    strict = difference_e_value(*baseline, *candidate, margin=margin)
    lenient = difference_e_value(*baseline, *candidate, margin=margin + more)
    assert 0.0 < strict < math.inf
    assert lenient <= strict * (1.0 + 1e-9)


@given(counts(), counts(), alphas)
def test_difference_bounds_hold_the_observed_difference(
    baseline: tuple[int, int], candidate: tuple[int, int], alpha: float
) -> None:
    """The observed difference is never refuted, and exchanging the arms mirrors the interval."""
    bounds = difference_bounds(*baseline, *candidate, alpha=alpha)
    mirrored = difference_bounds(*candidate, *baseline, alpha=alpha)
    if baseline[1] and candidate[1]:
        observed = candidate[0] / candidate[1] - baseline[0] / baseline[1]
        assert bounds.low - 1e-9 <= observed <= bounds.high + 1e-9
    assert math.isclose(bounds.low, -mirrored.high, abs_tol=1e-9)
    assert math.isclose(bounds.high, -mirrored.low, abs_tol=1e-9)


@given(counts(), counts(), st.floats(0.0, 0.5), alphas)
def test_harm_and_its_absence_are_never_both_shown(
    baseline: tuple[int, int], candidate: tuple[int, int], margin: float, alpha: float
) -> None:
    """At one look the evidence for one answer is at most 1 when the other has any."""
    harm = difference_e_value(*baseline, *candidate, margin=margin)
    no_harm = difference_e_value(*candidate, *baseline, margin=-margin)
    assert min(harm, no_harm) <= 1.0
    answer = exact_no_harm(*baseline, *candidate, margin=margin, alpha=alpha)
    assert (answer is False) == (harm >= 1.0 / alpha)
    assert (answer is True) == (no_harm >= 1.0 / alpha)


@given(st.lists(latencies, min_size=1), st.floats(0.0, 1.0))
def test_percentile_is_numpys(values: list[float], q: float) -> None:
    """The default of numpy is the oracle."""
    assert math.isclose(percentile(values, q), float(numpy.quantile(values, q)), rel_tol=1e-9)


@given(st.lists(st.tuples(st.integers(0, 5), latencies), min_size=2, max_size=60))
def test_mean_interval_surrounds_the_mean(values: list[tuple[int, float]]) -> None:
    """Whatever the blocks, the mean of all values is in the middle."""
    blocks, numbers = [b for b, _ in values], [v for _, v in values]
    interval = mean_interval(numbers, blocks=blocks)
    if interval is None:
        assert len(set(blocks)) == 1
        return
    middle = 0.5 * (interval.low + interval.high)
    assert math.isclose(middle, math.fsum(numbers) / len(numbers), rel_tol=1e-6)


def sketch_of(values: list[float]) -> LatencySketch:
    sketch = LatencySketch()
    for value in values:
        sketch.add(value)
    return sketch


sketched = st.lists(st.just(0.0) | st.floats(1e-6, 1e9), max_size=80)


@given(sketched, sketched)
def test_merged_sketches_equal_the_sketch_of_both(a: list[float], b: list[float]) -> None:
    """Merging loses nothing: same buckets, count and mean as if one had seen all."""
    merged, both = sketch_of(a), sketch_of(a + b)
    merged.merge(sketch_of(b))
    assert merged.to_dict()["buckets"] == both.to_dict()["buckets"]
    assert merged.count == both.count
    assert (merged.mean is None) == (both.mean is None)
    assert math.isclose(merged.mean or 0.0, both.mean or 0.0, rel_tol=1e-9)
    assert [merged.quantile(q) for q in (0.0, 0.5, 1.0)] == [
        both.quantile(q) for q in (0.0, 0.5, 1.0)
    ]


@given(sketched.filter(bool), st.floats(0.0, 1.0))
def test_sketch_quantile_is_near_the_order_statistic(values: list[float], q: float) -> None:
    """Within the relative accuracy, and the same after storage."""
    sketch = sketch_of(values)
    quantile = sketch.quantile(q)
    assert quantile is not None
    exact = sorted(values)[math.floor(q * (len(values) - 1))]
    assert math.isclose(quantile, exact, rel_tol=1.05 * RELATIVE_ACCURACY)
    assert LatencySketch.from_dict(sketch.to_dict()).quantile(q) == quantile
