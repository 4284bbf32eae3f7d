"""N-gram speculation: refused where drafting costs more, required in cuts that promise, off over the break-even."""

import pytest
from situations import GAINS_UNTIL_3, LABELS, NGRAM, readings, situation, table

from trimtab.core.break_even import BreakEven
from trimtab.core.cost import SpeculationTable
from trimtab.core.cuts import Cut, Dimension
from trimtab.core.gate import GateSpec, Metric, Question
from trimtab.core.lever import Comparison, LeverRecord, TriggerSignal, TriggerSpec, check_record
from trimtab.core.types import Budget
from trimtab.diagnosis.names import Name, PerLabel
from trimtab.levers.speculation import SPEEDUP_MIN, NgramSpeculation
from trimtab.levers.speculation_record import chunk_gap_margin, off_batch, triggers_of
from trimtab.rollout.triggers import TriggerWatch, watch

LEVER = NgramSpeculation()
EDIT, QUESTION = Cut(Dimension.LABEL, "edit"), Cut(Dimension.LABEL, "question")

# Measured as TPOT with over without speculation: a loss from batch 64 on.
LARGE_BATCHES = table({1: 1 / 0.55, 8: 1 / 0.70, 32: 1 / 0.95, 64: 1 / 1.10, 256: 1 / 1.9})


def proposed(values: dict[str, float | str | None] | None = None) -> LeverRecord:
    of = situation(readings(**{**LABELS, **(values or {})}))
    return LEVER.propose(of, LEVER.assess(of), "narrowest")


def batch_trigger(of: SpeculationTable) -> TriggerSpec:
    seen = situation(readings(**LABELS), speculation=of)
    record = LEVER.propose(seen, LEVER.assess(seen), "narrowest")
    return next(spec for spec in record.triggers if spec.signal is TriggerSignal.BATCH)


def test_gain_is_the_promising_part_of_decode() -> None:
    """0.9 of the time in decode, 0.6 of it in the promising label, 1.6x: 0.9 x 0.6 x (1 - 1/1.6)."""
    found = LEVER.assess(situation(readings(**LABELS)))
    assert found.premise_holds
    assert found.available
    assert found.gain_share == pytest.approx(0.9 * 0.6 * (1.0 - 1.0 / 1.6))


def test_drafting_that_costs_more_than_it_saves_is_refused() -> None:
    """A small model whose proposer is slower than its step loses at every batch, so nothing is tried."""
    slow = table({1: 2.0 / 5.0, 2: 0.4, 4: 0.4})
    found = LEVER.assess(situation(readings(**LABELS), speculation=slow))
    assert not found.premise_holds
    assert "drafting costs more than the steps it saves" in found.because


def test_gain_within_its_noise_is_not_switched_on() -> None:
    """1.2x in rounds from 0.8x to 1.8x: the ratio alone would have moved it, its interval does not lie above 1."""
    noisy = table({1: 1.2, 4: 0.7}, noise={1: 1.5})
    found = LEVER.assess(situation(readings(**LABELS), speculation=noisy))
    assert noisy.ratios()[0][1] > SPEEDUP_MIN
    assert not found.premise_holds
    assert "no gain beyond noise is shown at the smallest batch: 1.20x [" in found.because


def test_batch_whose_interval_shows_no_gain_any_more_is_off_though_its_ratio_gains() -> None:
    """Tight alone, noisy with four streams: at three it is off, below the point at which the ratios cross 1."""
    noisy = table({1: 1.6, 4: 1.2, 8: 0.8}, noise={4: 1.5})
    of = readings(**LABELS, **{Name.DECODE_BATCH_MEAN: 3.0})
    found = LEVER.assess(situation(of, speculation=noisy))
    assert not found.premise_holds
    assert "up to where a gain is shown" in found.because
    assert (noisy.break_even_batch() or 0.0) > 4.0
    spec = batch_trigger(noisy)
    assert 1.0 < spec.off_at < 3.0
    assert spec.because.startswith(f"above batch {spec.off_at:.1f} no gain is shown")


def test_batches_of_too_few_rounds_are_off_and_say_so() -> None:
    """One round has no interval: nowhere on where that is the smallest batch, else off from that batch on."""
    once = table({1: 1.8, 2: 1.6}, rounds={1: 1, 2: 1})
    found = LEVER.assess(situation(readings(**LABELS), speculation=once))
    assert not found.premise_holds
    assert "1.80x at 1 (too few paired rounds for an interval)" in found.because
    spec = batch_trigger(table({1: 1.8, 2: 1.6, 4: 1.5}, rounds={4: 1}))
    assert spec.off_at == 2.0
    assert spec.because == "batch 4 has too few paired rounds to tell whether it gains there"


def test_batch_over_the_break_even_withdraws_the_premise() -> None:
    """At an observed batch above the measured break-even the premise does not hold."""
    found = LEVER.assess(situation(readings(**LABELS, **{Name.DECODE_BATCH_MEAN: 4.0})))
    assert not found.premise_holds
    assert "over 3.0, up to where a gain is shown; break-even: 3.0 streams" in found.because


def test_unmeasured_speculation_is_not_tried() -> None:
    """Without a table there is no premise and no prediction."""
    found = LEVER.assess(situation(readings(**LABELS), speculation=None))
    assert not found.premise_holds
    assert found.gain_share is None


def test_unknown_batch_makes_no_premise() -> None:
    """On which side of the break-even the traffic is has to be known."""
    found = LEVER.assess(situation(readings(**LABELS, **{Name.DECODE_BATCH_MEAN: "no timeline"})))
    assert not found.premise_holds
    assert "unknown" in found.because


def required_gains(record: LeverRecord) -> list[GateSpec]:
    """The gates that must show a gain before adoption."""
    return [gate for gate in record.gates if gate.question is Question.GAIN and gate.required]


def test_required_cuts_are_those_that_promise() -> None:
    """Only the label that drafting was measured on must gain; the other is tried, may veto, and need not gain."""
    record = proposed()
    required = required_gains(record)
    assert [gate.cut for gate in required] == [EDIT]
    assert all(gate.metric is Metric.TPOT_MS and gate.matched_batch for gate in required)
    others = [gate for gate in record.gates if gate.cut == QUESTION]
    assert [(gate.question, gate.required) for gate in others] == [
        (Question.GAIN, False),
        (Question.VETO, False),
    ]
    assert set(record.cuts) == {EDIT, QUESTION}


def test_measured_coverage_decides_before_the_tables_content() -> None:
    """Once drafts were made for a label, what they covered counts."""
    covered = proposed({PerLabel.COVERAGE.of("question"): 0.4, PerLabel.COVERAGE.of("edit"): 0.02})
    assert [gate.cut for gate in required_gains(covered)] == [QUESTION]


def test_no_promising_label_withdraws_the_premise() -> None:
    """If drafts cover too little of every label, nothing is tried."""
    values = {PerLabel.COVERAGE.of("question"): 0.01, PerLabel.COVERAGE.of("edit"): 0.02}
    found = LEVER.assess(situation(readings(**{**LABELS, **values})))
    assert not found.premise_holds
    assert "no label promises a gain" in found.because


def test_repetition_counts_only_where_the_table_names_no_label() -> None:
    """A repetitive prompt does not say that its answer repeats it; it is the last resort."""
    values = {
        **LABELS,
        PerLabel.REPETITION.of("edit"): 0.8,
        PerLabel.REPETITION.of("question"): 0.2,
    }
    anonymous = table({1: 1.6, 2: 1.3, 4: 0.7}, content="prompts of the day")
    of = situation(readings(**values), speculation=anonymous)
    required = required_gains(LEVER.propose(of, LEVER.assess(of), "x"))
    assert [gate.cut for gate in required] == [EDIT]


def test_record_is_complete_and_side_by_side() -> None:
    """Its own revision with speculation, arms that share nothing, latencies at matched batch."""
    record = proposed()
    assert record == check_record(record)
    assert record.ramp.comparison is Comparison.SIDE_BY_SIDE
    assert record.revision is not None
    assert record.revision.speculation == NGRAM
    assert record.bottleneck.evidence != ()


def test_prediction_is_the_inverse_of_the_measured_speed() -> None:
    """TPOT ratio = 1 / speed-up at the observed batch, within what was measured below the break-even."""
    tpot = next(effect for effect in proposed().expected if effect.metric is Metric.TPOT_MS)
    assert tpot.ratio == pytest.approx(1.0 / 1.6)
    assert tpot.low <= tpot.ratio <= tpot.high


def test_chunk_gap_may_grow_by_the_predicted_step() -> None:
    """Drafts arrive in lumps: the margin of the chunk gap follows the measured length of a step, within bounds."""
    assert chunk_gap_margin(GAINS_UNTIL_3) == pytest.approx(1.5 * 2.5 / 1.6 - 1.0)
    assert chunk_gap_margin(table({1: 2.5, 2: 2.0})) == 1.0
    assert chunk_gap_margin(table({1: 0.1, 2: 0.1})) == 10.0


def test_compute_pays() -> None:
    """Verification is paid by compute; below the break-even busy time falls, and the move says by how much."""
    moves = {move.budget: move for move in proposed().moves}
    assert moves[Budget.COMPUTE].spends
    assert moves[Budget.COMPUTE].delta_share == pytest.approx(0.5 * 0.6 * (1.0 / 1.6 - 1.0))


def test_goes_off_at_the_break_even_and_comes_back_lower() -> None:
    """The batch trigger stands at the measured break-even, with hysteresis below it."""
    spec = batch_trigger(GAINS_UNTIL_3)
    assert spec.off_at == pytest.approx(3.0)
    assert spec.on_at is not None
    assert spec.on_at < spec.off_at


def test_gain_at_every_measured_batch_stops_where_measuring_stopped() -> None:
    """Nothing is known above the largest batch measured, so it goes off there."""
    assert off_batch(table({1: 1.8, 4: 1.2})) == 4.0


@pytest.mark.parametrize(
    ("even", "because"),
    [
        (None, "above batch 3.0 no gain is shown; break-even: 3.0 streams [3.0, 3.0]"),
        (
            BreakEven(batch=5.0, low=4.0, high=7.0, measured_to=8),
            "above batch 4.0 no gain is shown; break-even: 5.0 streams [4.0, 7.0]",
        ),
        (
            BreakEven(batch=None, low=None, high=None, measured_to=8),
            "nothing was measured above batch 8",
        ),
    ],
)
def test_trigger_claims_as_measured_only_what_was(even: BreakEven | None, because: str) -> None:
    """A break-even is drawn between batches or has a range; above the largest batch nothing was seen to be lost."""
    (spec,) = [
        each
        for each in triggers_of(GAINS_UNTIL_3, fitted=even)
        if each.signal is TriggerSignal.BATCH
    ]
    assert spec.because.startswith(because)
    assert spec.off_at == (3.0 if even is None else even.off_at)


def test_trigger_of_a_table_that_gains_throughout_says_where_measuring_stopped() -> None:
    """Nothing was lost there."""
    spec = batch_trigger(table({1: 1.8, 4: 1.2}))
    assert (spec.off_at, spec.because) == (4.0, "nothing was measured above batch 4")


def test_premise_says_which_figures_are_measured() -> None:
    """The ratios are, each with its interval; the break-even has a range of its own."""
    premise = LEVER.assess(situation(readings(**LABELS))).premise
    assert "measured: 1.60x [1.60, 1.60] at 1" in premise
    assert "break-even batch, on straight lines between those: 3.0 streams [3.0, 3.0]" in premise


def test_batch_of_20_90_60_40_30_switches_off_once_and_on_again_lower() -> None:
    """On at 20, off at 90, still off at 60, on again only below the lower mark."""
    state = TriggerWatch(spec=batch_trigger(LARGE_BATCHES))
    seen: list[bool] = []
    for step, batch in enumerate((20, 90, 60, 30)):
        for tick in range(3):
            state, _ = watch(state, float(batch), 50, now_s=100.0 * step + tick)
        seen.append(state.is_off)
    assert seen == [False, True, True, False]


def test_only_the_batch_brings_it_back_by_itself() -> None:
    """Net TPOT, acceptance and coverage cannot be seen while it is off, so a person or a new proof decides."""
    back = {spec.signal: spec.on_at for spec in proposed().triggers}
    assert back[TriggerSignal.BATCH] is not None
    assert {spec for spec in back if back[spec] is None} == {
        TriggerSignal.NET_TPOT_RATIO,
        TriggerSignal.DRAFT_ACCEPTANCE,
        TriggerSignal.DRAFT_COVERAGE,
    }
