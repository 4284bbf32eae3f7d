"""A run in figures: counts, rates and latencies from its records alone."""

import pytest
from rollout_kit import served

from trimtab.core.record import RequestRecord
from trimtab.core.types import Arm, ErrorClass
from trimtab.runtime.result import distributions, summarise


def record(number: int, **changes: object) -> RequestRecord:
    """A request at `number` seconds that takes 1.1 s."""
    return served(None, Arm.BASELINE, number=number, at=float(number), **changes)  # type: ignore[arg-type]


def test_run_without_requests_has_counts_of_zero_and_unknown_figures() -> None:
    """Nothing is not fast."""
    found = summarise("baseline", [])
    assert (found.n, found.errors, found.makespan_s) == (0, 0, 0.0)
    assert (found.ttft_ms.mean, found.output_tokens_per_s, found.accepted_per_step) == (None,) * 3
    assert found.output_share_by_replica == {}


def test_tokens_and_rates_are_over_the_makespan() -> None:
    """First arrival to last answer; computed is prompt less cached."""
    found = summarise("baseline", [record(0), record(9)])
    assert (found.window_s, found.makespan_s) == (9.0, pytest.approx(10.1))
    assert (found.prompt_tokens, found.cached_tokens, found.computed_tokens) == (1000, 200, 800)
    assert found.output_tokens_per_s == pytest.approx(100 / 10.1)


def test_errors_are_counted_and_kept_out_of_the_latencies() -> None:
    """Their time still belongs to the makespan."""
    bad = record(20, error=ErrorClass.OVERLOADED, ttft=9e6)
    found = summarise("baseline", [record(0), bad])
    assert (found.n, found.errors, found.ttft_ms.mean) == (1, 1, 100.0)
    assert found.window_s == 20.0


def test_unknown_latencies_are_left_out_not_zero() -> None:
    """The count says how many were known."""
    found = summarise("baseline", [record(0), record(1, tpot=None)])
    assert (found.n, found.tpot_ms.n, found.tpot_ms.mean) == (2, 1, 20.0)


def test_percentiles_and_interval_describe_the_values() -> None:
    """The mean lies in its interval, which blocks of ten seconds widen."""
    values = [record(number, ttft=100.0 + 10.0 * (number // 10)) for number in range(40)]
    ttft = summarise("baseline", values).ttft_ms
    assert (ttft.n, ttft.mean, ttft.p50, ttft.p95) == (40, 115.0, 115.0, 130.0)
    assert ttft.mean_interval is not None
    assert ttft.mean_interval.low < 100.0
    assert ttft.mean_interval.high > 130.0


def test_drafting_is_accepted_over_drafted_and_output_over_steps() -> None:
    """50 output tokens of which 20 were accepted took 30 steps."""
    drafting = record(0, drafted=40, accepted=20)
    found = summarise("final", [drafting, record(1)])
    assert (found.draft_acceptance, found.accepted_per_step) == (0.5, pytest.approx(50 / 30))


def test_output_is_shared_out_over_the_replicas_that_made_it() -> None:
    """The shares sum to one."""
    parts = [record(0, output=30), record(1, output=10, replica="r1")]
    assert summarise("final", parts).output_share_by_replica == {"r0": 0.75, "r1": 0.25}


def test_distributions_need_both_sides_of_a_cut() -> None:
    """A cut with fewer than five values on a side is not drawn."""
    before = [record(number, label="edit") for number in range(6)]
    after = [record(number, label="edit" if number < 4 else "question") for number in range(8)]
    drawn = {(each.metric, each.cut) for each in distributions(before, after)}
    assert {("ttft_ms", "all"), ("tpot_ms", "all")} <= drawn
    assert not any(cut.startswith("label=") for _, cut in drawn)
    wide = distributions(before, after, least=4)
    (edits,) = [each for each in wide if (each.metric, each.cut) == ("ttft_ms", "label=edit")]
    assert (len(edits.baseline), len(edits.final)) == (6, 4)
