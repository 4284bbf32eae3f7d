"""An estimator corrected by measurements: near them most, exact where they are, honest without."""

import pytest
from plan_kit import LawEstimator, dense

from trimtab.core.layout import Demand, EstimateSource, Layout
from trimtab.planning.corrected import CorrectedEstimator
from trimtab.planning.measured import Group, Load, MeasuredLayout

MODEL = dense(weight_gb=30)
GROUP = Group(system="h100_sxm", engine="vllm", model="dense")


def row(tpot_ms: float, *, tp: int = 1, clients: float = 8.0) -> MeasuredLayout:
    return MeasuredLayout(
        id=f"tp{tp}",
        group=GROUP,
        engine_version="",
        load=Load(layout=Layout(tp=tp), clients=clients, input_tokens=1000, output_tokens=200),
        ttft_ms=100.0,
        tpot_ms=tpot_ms,
    )


def corrected(*rows: MeasuredLayout) -> CorrectedEstimator:
    return CorrectedEstimator(LawEstimator(MODEL, spread=None), "h100_sxm", "vllm", rows)


def asked(clients: float) -> Demand:
    return Demand(input_tokens=1000, output_tokens=200, concurrency=clients)


def test_estimate_without_measurements_has_an_interval() -> None:
    """The error that estimates have shown elsewhere is around it."""
    found = corrected().expected(Layout(), asked(8)).tpot_ms
    assert found.low is not None
    assert found.high is not None
    assert found.low < found.value < found.high


def test_measured_run_is_taken_as_measured() -> None:
    """The same layout under the same load is not estimated, and the source says so."""
    found = corrected(row(33.0)).expected(Layout(), asked(8))
    assert found.tpot_ms.value == pytest.approx(33.0)
    assert found.ttft_ms.value == pytest.approx(100.0)
    assert found.source is EstimateSource.MEASURED
    assert "measured: tp1" in found.notes


def test_repeated_runs_are_averaged() -> None:
    """Two measurements of one run: their geometric mean."""
    found = corrected(row(20.0), row(45.0)).expected(Layout(), asked(8))
    assert found.tpot_ms.value == pytest.approx(30.0)


def test_correction_is_felt_nearby_and_keeps_its_source() -> None:
    """Three times slower than expected at 8 streams is slower at 12 too, which stays an estimate."""
    bare = corrected().expected(Layout(), asked(12))
    near = corrected(row(3.0 * corrected().expected(Layout(), asked(8)).tpot_ms.value)).expected(
        Layout(), asked(12)
    )
    assert bare.tpot_ms.value < near.tpot_ms.value <= 3.0 * bare.tpot_ms.value
    assert near.source is EstimateSource.ROOFLINE
    assert near.output_tokens_per_s < bare.output_tokens_per_s


def test_arrivals_make_what_arrives_whatever_is_corrected() -> None:
    """Output tokens per second of an open loop are those that come in."""
    demand = Demand(input_tokens=1000, output_tokens=200, rate_per_s=0.5)
    assert corrected(row(99.0)).expected(Layout(), demand).output_tokens_per_s == 100.0


def test_memory_is_passed_through() -> None:
    """Measured times say nothing of bytes."""
    inner = LawEstimator(MODEL)
    assert corrected(row(20.0)).fit(Layout(), asked(8)) == inner.fit(Layout(), asked(8))
