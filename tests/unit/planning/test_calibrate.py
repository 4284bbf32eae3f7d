"""Calibrated expectations."""

import math

import pytest

from trimtab.core.layout import Demand, EstimateSource, Expected, Layout, Span
from trimtab.planning.calibrate import Run, calibrate, load_of
from trimtab.planning.correction import Phase
from trimtab.planning.measured import Group, Load, MeasuredLayout

DEMAND = Demand(input_tokens=1024, output_tokens=256, concurrency=16.0)


def expected(tpot_ms: float = 10.0, ttft_ms: float = 200.0) -> Expected:
    return Expected(
        layout=Layout(tp=2),
        batch=16.0,
        ttft_ms=Span(value=ttft_ms),
        tpot_ms=Span(value=tpot_ms),
        queue_ms=100.0,
        prefill_ms=100.0,
        step_ms=8.0,
        output_tokens_per_s=1500.0,
        communication_share=None,
        source=EstimateSource.KERNEL_TABLES,
    )


def run(factor: float) -> Run:
    load = Load(layout=Layout(tp=2), clients=16.0, input_tokens=1024, output_tokens=256)
    row = MeasuredLayout(
        id="r",
        group=Group(system="h100_sxm", engine="vllm", model="m"),
        engine_version="",
        load=load,
        ttft_ms=200.0 * factor,
        tpot_ms=10.0 * factor,
    )
    return Run(row=row, tpot_ms=10.0, ttft_ms=200.0)


def corrected(*runs: Run) -> Expected:
    found = expected()
    return calibrate("h100_sxm", "vllm", runs).correct(load_of(found.layout, DEMAND, found), found)


def test_without_rows_an_interval_is_stated_and_the_source_stays() -> None:
    """Nothing measured: still an interval around the estimate, which says that it rests on tables."""
    found = corrected()
    assert found.source is EstimateSource.KERNEL_TABLES
    assert found.tpot_ms.low is not None
    assert found.tpot_ms.high is not None
    assert found.tpot_ms.low < found.tpot_ms.value < found.tpot_ms.high


def test_measured_row_moves_the_estimate_and_narrows_its_interval() -> None:
    """A row 30% slower than expected slows the estimate, and what is known is known better."""
    before, after = corrected(), corrected(run(1.3))
    assert after.source is EstimateSource.MEASURED
    assert before.tpot_ms.value < after.tpot_ms.value <= 13.0
    assert width(after.tpot_ms) < width(before.tpot_ms)
    assert after.output_tokens_per_s < before.output_tokens_per_s


def width(span: Span) -> float:
    assert span.low is not None
    assert span.high is not None
    return span.high / span.low


def test_overload_is_not_corrected() -> None:
    """A wait without end stays one, without bounds."""
    found = expected(ttft_ms=math.inf)
    load = load_of(found.layout, DEMAND, found)
    assert calibrate("h100_sxm", "vllm").correct(load, found).ttft_ms == Span(value=math.inf)


def test_clients_of_a_rate_are_the_batch_expected() -> None:
    """Arrivals at a rate have as many requests in flight as the estimate expects to run."""
    rate = Demand(input_tokens=1024, output_tokens=256, rate_per_s=3.0)
    assert load_of(Layout(tp=2, replicas=3), rate, expected()).clients == 16.0


def test_replicas_do_not_change_what_a_replica_runs() -> None:
    """A load speaks of one replica."""
    assert load_of(Layout(tp=2, replicas=3), DEMAND, expected()).layout == Layout(tp=2)


@pytest.mark.parametrize("phase", list(Phase))
def test_run_speaks_of_each_phase(phase: Phase) -> None:
    """Expected and measured of the phase asked for."""
    seen = run(1.5).observation(phase)
    assert seen.measured_ms / seen.expected_ms == pytest.approx(1.5)
