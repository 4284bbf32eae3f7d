"""Corrections by a few measurements: exact where measured, shrunk elsewhere, never without bounds."""

import math

import pytest

from trimtab.core.layout import Layout
from trimtab.planning.correction import (
    OBSERVATIONS_MAX,
    Observation,
    Phase,
    fit_correction,
)
from trimtab.planning.measured import Load
from trimtab.planning.measured_errors import PRIORS

PRIOR = PRIORS[Phase.DECODE]


def load(tp: int = 1, clients: float = 16.0, precision: str = "fp8") -> Load:
    return Load(
        layout=Layout(tp=tp),
        clients=clients,
        input_tokens=1024,
        output_tokens=256,
        precision=precision,
    )


def seen(
    factor: float, tp: int = 1, clients: float = 16.0, expected_ms: float = 10.0
) -> Observation:
    return Observation(
        load=load(tp, clients), expected_ms=expected_ms, measured_ms=expected_ms * factor
    )


def test_without_measurements_the_prior_stands() -> None:
    """Nothing measured: the factor is the prior's bias, the deviation the whole prior's."""
    factor = fit_correction(Phase.DECODE, PRIOR, []).at(load(), 10.0)
    assert factor.factor == pytest.approx(math.exp(PRIOR.bias))
    assert factor.log_sd > 2.0 * PRIOR.noise_sd
    assert not factor.pegged


def test_measured_point_is_nearly_reproduced() -> None:
    """At the measured run the factor lies between the prior's and the measured one, much nearer to the latter."""
    factor = fit_correction(Phase.DECODE, PRIOR, [seen(1.3)]).at(load(), 10.0)
    assert 1.22 < factor.factor < 1.3


def test_a_farther_run_is_corrected_less_and_known_less() -> None:
    """What was measured counts less the farther away a run is, and the deviation grows."""
    correction = fit_correction(Phase.DECODE, PRIOR, [seen(1.3)])
    near, far = correction.at(load(2, 16.0), 8.0), correction.at(load(8, 128.0), 2.0)
    assert 1.0 < far.factor < near.factor < 1.3
    assert near.log_sd < far.log_sd


def test_repeated_measurements_agree_on_their_mean() -> None:
    """Equal runs with differing results are averaged, in logarithms."""
    runs = [seen(1.1), seen(1.2), seen(1.15), seen(1.13)]
    factor = fit_correction(Phase.DECODE, PRIOR, runs).at(load(), 10.0).factor
    assert factor == pytest.approx(1.145, abs=0.02)


def test_correction_cannot_explode() -> None:
    """However absurd a measurement, the factor stays within the prior's bound and says that it was cut."""
    factor = fit_correction(Phase.DECODE, PRIOR, [seen(1e4), seen(1e4, clients=32.0)]).at(
        load(), 10.0
    )
    assert factor.factor == pytest.approx(math.exp(PRIOR.bound))
    assert factor.pegged


def test_one_wild_measurement_among_sane_ones_counts_less() -> None:
    """With three runs that agree and one tenfold off, the factor stays with the three."""
    sane = [seen(1.1, clients=8.0), seen(1.1, clients=12.0), seen(1.1, clients=16.0)]
    factor = fit_correction(Phase.DECODE, PRIOR, [*sane, seen(10.0, clients=14.0)]).at(load(), 10.0)
    assert 1.0 < factor.factor < 1.5


def test_only_the_newest_measurements_are_kept() -> None:
    """The process is bounded: beyond its maximum the first ones are forgotten."""
    runs = [seen(3.0)] * 10 + [seen(1.0)] * OBSERVATIONS_MAX
    correction = fit_correction(Phase.DECODE, PRIOR, runs)
    assert len(correction.observations) == OBSERVATIONS_MAX
    assert correction.at(load(), 10.0).factor == pytest.approx(1.0, abs=0.01)


def test_times_of_zero_are_refused() -> None:
    """A logarithm needs times above zero."""
    with pytest.raises(ValueError, match="above zero"):
        fit_correction(Phase.DECODE, PRIOR, [seen(0.0)])


def test_group_that_surprises_is_less_sure_of_itself() -> None:
    """Rows as near as the prior likes narrow the deviation far away; rows far off the prior widen it."""
    asked = load(8, 256.0)
    calm = fit_correction(Phase.DECODE, PRIOR, [seen(1.01), seen(0.99, clients=64.0)])
    wild = fit_correction(Phase.DECODE, PRIOR, [seen(1.8), seen(0.5, clients=64.0)])
    assert calm.at(asked, 3.0).log_sd < wild.at(asked, 3.0).log_sd
    assert calm.scale < 1.0 < wild.scale
