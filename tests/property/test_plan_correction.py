"""Laws of corrections and proposals, whatever was measured."""

import math

from hypothesis import given
from hypothesis import strategies as st

from trimtab.core.layout import Layout
from trimtab.planning.correction import SCALE_MAX, Observation, Phase, fit_correction
from trimtab.planning.measured import Load
from trimtab.planning.measured_errors import PRIORS
from trimtab.planning.propose import Candidate, promise, propose_measurements, rank_layouts

sizes = st.sampled_from((1, 2, 4, 8))
loads = st.builds(
    Load,
    layout=st.builds(Layout, tp=sizes, attention_dp=sizes, moe_ep=sizes),
    clients=st.floats(1.0, 4096.0),
    input_tokens=st.integers(1, 200_000),
    output_tokens=st.integers(1, 50_000),
    precision=st.sampled_from(("fp8", "fp4", "")),
    run=st.sampled_from(("a", "b")),
)
times = st.floats(1e-3, 1e7)
observations = st.lists(
    st.builds(Observation, load=loads, expected_ms=times, measured_ms=times), max_size=6
)
phases = st.sampled_from(tuple(Phase))
candidates = st.lists(
    st.builds(
        Candidate,
        layout=st.builds(Layout, tp=sizes),
        clients=st.sampled_from((4.0, 8.0, 16.0)),
        value=st.floats(0.0, 1e6),
        allowed=st.floats(0.0, 1.0),
    ),
    max_size=10,
    unique_by=lambda one: (one.layout, one.clients),
)


@given(phases, observations, loads, times)
def test_correction_is_bounded_and_certain_of_nothing(
    phase: Phase, seen: list[Observation], asked: Load, expected_ms: float
) -> None:
    """Any measurements, any point: the factor stays in its bounds, the deviation between noise and prior, scaled."""
    prior = PRIORS[phase]
    none = fit_correction(phase, prior, []).at(asked, expected_ms)
    correction = fit_correction(phase, prior, seen)
    found = correction.at(asked, expected_ms)
    least = math.sqrt(prior.tail / (prior.tail + len(seen)))
    assert abs(math.log(found.factor)) <= prior.bound + 1e-9
    assert least * 0.999 <= correction.scale <= SCALE_MAX
    assert prior.noise_sd * 0.999 <= found.log_sd / correction.scale <= none.log_sd + 1e-6


@given(phases, observations, loads, times)
def test_order_of_measurements_does_not_matter(
    phase: Phase, seen: list[Observation], asked: Load, expected_ms: float
) -> None:
    """Measurements are a set."""
    prior = PRIORS[phase]
    one = fit_correction(phase, prior, seen).at(asked, expected_ms)
    other = fit_correction(phase, prior, seen[::-1]).at(asked, expected_ms)
    assert math.isclose(one.factor, other.factor, rel_tol=1e-4)
    assert math.isclose(one.log_sd, other.log_sd, rel_tol=1e-3)


@given(candidates)
def test_promise_is_never_more_than_the_best_load_does(loads: list[Candidate]) -> None:
    """Expected work lies between nothing and the most that any load does."""
    most = max((one.value for one in loads), default=0.0)
    assert -1e-9 <= promise(loads) <= most * (1.0 + 1e-9)


@given(candidates, st.integers(0, 4))
def test_proposals_are_candidates_of_different_layouts_led_by_the_best(
    loads: list[Candidate], count: int
) -> None:
    """What is proposed exists, no layout twice, never more than asked, the best layout first."""
    found = propose_measurements(loads, count)
    known = {(one.layout, one.clients) for one in loads}
    layouts = [one.layout for one in found]
    assert {(one.layout, one.clients) for one in found} <= known
    assert len(set(layouts)) == len(layouts) <= count
    assert layouts == list(rank_layouts(loads)[:count])
