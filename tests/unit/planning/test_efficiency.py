"""What each added accelerator does: efficiency, what did not divide, where the gain turns, and what to do about it."""

import itertools

import msgspec
import pytest

from trimtab.core.layout import Layout, PlanInputError
from trimtab.planning.efficiency import EfficiencyReport, Run, Step, Verdict, efficiency_report

SPREAD = (0.99, 1.0, 1.01)
"""Three runs of a layout, one percent around its figures."""


def runs(tp: int, tokens_per_s: float, *, tpot_ms: float | None = None, pp: int = 1) -> list[Run]:
    """Three runs; without a TPOT of its own that of 16 streams at that throughput."""
    tpot = 16_000.0 / tokens_per_s if tpot_ms is None else tpot_ms
    return [
        Run(
            layout=Layout(tp=tp, pp=pp),
            accelerators=tp * pp,
            ttft_ms=100.0 * factor,
            tpot_ms=tpot / factor,
            tokens_per_s=tokens_per_s * factor,
            requests=16,
        )
        for factor in SPREAD
    ]


def report(*found: list[Run], tpot_ms: float | None = None) -> EfficiencyReport:
    return efficiency_report(list(itertools.chain(*found)), tpot_ms=tpot_ms)


def steps(*found: list[Run], tpot_ms: float | None = None) -> tuple[Step, ...]:
    return report(*found, tpot_ms=tpot_ms).steps


def test_public_case_of_a_32b_on_eight_devices_is_told_to_add_replicas() -> None:
    """528, 660 and 760 tok/s on 2, 4 and 8: 62% and 36% for each accelerator, so replicas of two instead."""
    four, eight = steps(runs(2, 528.0), runs(4, 660.0), runs(8, 760.0))
    assert four.efficiency.value == pytest.approx(0.625)
    assert eight.efficiency.value == pytest.approx(0.36, abs=0.001)
    assert (four.verdict, eight.verdict) == (Verdict.ADD_REPLICA, Verdict.ADD_REPLICA)
    assert "4 replicas of TP2 on the same 8 would give 4.0 times the work" in eight.because


def test_what_did_not_divide_is_the_rest_of_the_ideal_step() -> None:
    """Half the step is ideal on twice as many; of a step of 0.8 that leaves 0.3 of 0.8."""
    (step,) = steps(runs(2, 528.0), runs(4, 660.0))
    assert step.excess_share.value == pytest.approx(1.0 - 0.5 / (528.0 / 660.0))


def test_public_case_of_one_stream_keeps_what_a_target_needs() -> None:
    """36, 50 and 63 tok/s of one stream: only eight devices meet 17 ms, and the cost of it is said."""
    found = [
        runs(count, rate, tpot_ms=1000.0 / rate)
        for count, rate in ((2, 36.0), (4, 50.0), (8, 63.0))
    ]
    four, eight = steps(*found, tpot_ms=17.0)
    assert (four.verdict, eight.verdict) == (Verdict.ADD_REPLICA, Verdict.KEEP)
    assert "only it meets 17 ms" in eight.because
    assert "44% for each accelerator" in eight.because


def test_public_case_without_peer_access_goes_back() -> None:
    """One card 66 tok/s, two over a bus without peer access 50: slower and less, so back to one."""
    found = report(runs(1, 66.0, tpot_ms=1000 / 66), runs(2, 50.0, tpot_ms=1000 / 50))
    assert (found.steps[0].verdict, found.reverses_at) == (Verdict.GO_BACK, 2)
    assert "add a replica of it if more work is needed" in found.steps[0].because


def test_gain_turns_where_more_is_slower_than_before() -> None:
    """Four are better than two, eight worse than four: the turn is at eight."""
    found = report(runs(2, 528.0), runs(4, 660.0), runs(8, 500.0))
    assert found.reverses_at == 8


def test_perfect_scaling_is_kept() -> None:
    """Twice the work on twice as many is no less than a replica brings."""
    (step,) = steps(runs(1, 100.0), runs(2, 210.0))
    assert (step.verdict, "no less than a replica" in step.because) == (Verdict.KEEP, True)


def test_one_pair_of_runs_is_no_proof() -> None:
    """Without a spread nothing is decided, whatever the ratio."""
    (step,) = steps(runs(1, 100.0)[:1], runs(2, 60.0)[:1])
    assert (step.verdict, step.pairs, step.throughput_ratio.low) == (Verdict.MEASURE_MORE, 1, None)


def test_interval_that_reaches_one_asks_for_more_runs() -> None:
    """A median under 100% whose range holds 100% decides nothing."""
    wide = [
        msgspec.structs.replace(run, tokens_per_s=rate)
        for run, rate in zip(runs(2, 190.0), (180.0, 190.0, 210.0), strict=True)
    ]
    (step,) = steps(runs(1, 100.0), wide)
    assert step.verdict is Verdict.MEASURE_MORE


def test_same_layout_on_more_threads_is_a_size_of_its_own() -> None:
    """One process on two CPUs is compared with one on one CPU, beside two ranks on two."""
    both = [msgspec.structs.replace(run, accelerators=2) for run in runs(1, 150.0)]
    found = steps(runs(1, 100.0), both, runs(2, 120.0))
    assert [(one.larger.tp, one.accelerators) for one in found] == [(1, (1, 2)), (2, (1, 2))]


def test_traced_share_is_the_median_of_the_traces() -> None:
    """The second reading stands beside the first, and is unknown without a trace."""
    traced = [
        msgspec.structs.replace(run, communication_share=share)
        for run, share in zip(runs(2, 120.0), (0.2, 0.3, 0.4), strict=True)
    ]
    (with_trace,) = steps(runs(1, 100.0), traced)
    (without,) = steps(runs(1, 100.0), runs(2, 120.0))
    assert (with_trace.traced_share, without.traced_share) == (0.3, None)


def test_one_layout_alone_is_refused() -> None:
    """Efficiency compares; one layout has nothing to be compared with."""
    with pytest.raises(PlanInputError, match="compares at least two"):
        efficiency_report(runs(1, 100.0))
