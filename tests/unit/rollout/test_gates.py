"""Gates pass, fail, hold or err for the reasons they give."""

import msgspec
import pytest
from rollout_kit import EXTRAS, RAMP, lever, pairs, served

from trimtab.core.cuts import Cut, Dimension
from trimtab.core.gate import GateResult, GateSpec, Metric, Question, Statistic
from trimtab.core.lever import LeverRecord
from trimtab.core.record import RequestRecord
from trimtab.core.types import Arm, ErrorClass, RolloutState, Technique, Verdict
from trimtab.rollout.answer import ArmExtras
from trimtab.rollout.gates import evaluate, kept_cuts

PROVING = RolloutState.PROVING
CODING = Cut(Dimension.LABEL, "coding")
CHAT = Cut(Dimension.LABEL, "chat")


def gate(
    metric: Metric = Metric.TTFT_MS,
    question: Question = Question.GAIN,
    margin: float = 0.10,
    **more: object,
) -> GateSpec:
    spec = GateSpec(
        name="asked",
        metric=metric,
        question=question,
        margin=margin,
        min_requests=10,
        min_units=6,
        during=(PROVING,),
    )
    return msgspec.structs.replace(spec, **more)


def ask(
    spec: GateSpec,
    records: list[RequestRecord],
    extras: ArmExtras = EXTRAS,
    technique: Technique = Technique.PREFIX_CACHING,
) -> GateResult:
    results, _ = evaluate(lever(spec, technique=technique), PROVING, records, extras)
    return results[0]


def ttft(ratio: float, units: int = 8) -> list[RequestRecord]:
    """Pairs of blocks in which the candidate's TTFT is `ratio` times the baseline's."""
    return pairs(
        units,
        lambda block, arm, number: served(
            block, arm, number=number, ttft=100.0 * (ratio if arm is Arm.CANDIDATE else 1.0)
        ),
    )


def test_gain_passes_when_all_of_the_interval_is_beyond_the_margin() -> None:
    """Eight pairs at half the TTFT show a gain of 10%, with n and interval."""
    result = ask(gate(), ttft(0.5))
    assert result.verdict is Verdict.PASS
    assert (result.n_baseline, result.n_candidate, result.n_units) == (24, 24, 8)
    assert result.value == pytest.approx(0.5)
    assert result.interval is not None
    assert result.interval.high <= 0.9


def test_gain_smaller_than_its_margin_is_held() -> None:
    """Five percent better is not the declared ten."""
    assert ask(gate(), ttft(0.95)).verdict is Verdict.HOLD


def test_gain_fails_when_harm_is_shown() -> None:
    """A lever that makes it worse has failed, whatever was hoped."""
    assert ask(gate(), ttft(1.3)).verdict is Verdict.FAIL


def test_too_few_units_hold_and_say_how_many_of_how_many() -> None:
    """Never a pass, however good it looks."""
    result = ask(gate(), ttft(0.1, units=4))
    assert result.verdict is Verdict.HOLD
    assert result.reason == "4 of 6 units"


def test_too_few_requests_hold_and_say_in_which_arm() -> None:
    """Both arms need their requests."""
    result = ask(gate(min_requests=30), ttft(0.1))
    assert result.verdict is Verdict.HOLD
    assert result.reason == "24 of 30 baseline requests, 24 of 30 candidate requests"


def test_harm_is_not_waited_for() -> None:
    """A fail does not need the declared samples: the evidence holds at every look."""
    result = ask(gate(question=Question.VETO, min_requests=500), ttft(3.0))
    assert result.verdict is Verdict.FAIL


def test_no_harm_passes_on_excluded_harm_and_holds_before() -> None:
    """Equal arms exclude harm beyond 10% after six pairs, not after five units' worth."""
    spec = gate(question=Question.NO_HARM, min_units=1)
    assert ask(spec, ttft(1.0)).verdict is Verdict.PASS
    assert ask(spec, ttft(1.0, units=5)).verdict is Verdict.HOLD
    assert ask(spec, ttft(1.2)).verdict is Verdict.FAIL


def test_veto_passes_without_harm_and_holds_while_harm_is_likely() -> None:
    """An estimate beyond the margin is not shown harm, but no reason to go on either."""
    spec = gate(question=Question.VETO, min_units=2, min_requests=5)
    assert ask(spec, ttft(1.05, units=3)).verdict is Verdict.PASS
    likely = ask(spec, ttft(1.5, units=4))
    assert likely.verdict is Verdict.HOLD
    assert likely.reason == "harm beyond 10% is likely, but not shown"


def test_what_nobody_measured_is_an_error() -> None:
    """Requests are there, the number is not: that cannot be judged, and is no pass."""
    blind = pairs(8, lambda block, arm, number: served(block, arm, number=number, ttft=None))
    assert ask(gate(), blind).verdict is Verdict.ERROR


def test_no_traffic_yet_is_hold_not_error() -> None:
    """Nothing was there to be measured."""
    assert ask(gate(), []).verdict is Verdict.HOLD


def test_requests_of_other_levers_and_outside_blocks_do_not_count() -> None:
    """They were not part of the comparison."""
    others = [msgspec.structs.replace(one, lever="other") for one in ttft(9.0)]
    edges = [msgspec.structs.replace(one, block=None) for one in ttft(9.0)]
    assert ask(gate(), ttft(0.5) + others + edges).n_candidate == 24


def test_failed_requests_do_not_count_as_fast_ones() -> None:
    """An error that comes quickly is no gain in latency."""
    broken = pairs(
        8,
        lambda block, arm, number: served(
            block, arm, number=number, ttft=1.0, error=ErrorClass.UPSTREAM_STATUS
        ),
    )
    assert ask(gate(), ttft(1.0) + broken).n_candidate == 24


def test_harm_is_judged_on_fresh_blocks_and_gain_on_all() -> None:
    """A share at which harm begins must not hide behind the good smaller ones."""
    good, bad = (
        ttft(0.5),
        [msgspec.structs.replace(one, block=(one.block or 0) + 16) for one in ttft(2.0)],
    )
    extras = msgspec.structs.replace(EXTRAS, fresh_from_block=16)
    assert ask(gate(question=Question.VETO), good + bad, extras).verdict is Verdict.FAIL
    assert ask(gate(), good, extras).verdict is Verdict.PASS


def test_blocks_that_are_not_over_do_not_count() -> None:
    """A unit that would still change must not be looked at; errors are."""
    extras = msgspec.structs.replace(EXTRAS, complete_before_block=8)
    assert ask(gate(), ttft(0.5), extras).n_units == 4
    errors = gate(Metric.ERROR_RATE, Question.VETO, 0.02)
    assert ask(errors, ttft(0.5), extras).n_candidate == 24


def test_tpot_gains_though_the_chunk_gap_grows() -> None:
    """A5: 5.0 ms per token falls to 3.27; the gap between chunks is 74% longer, and is its own number."""
    records = pairs(
        8,
        lambda block, arm, number: served(
            block,
            arm,
            number=number,
            tpot=3.27 if arm is Arm.CANDIDATE else 5.0,
            gap=8.7 if arm is Arm.CANDIDATE else 5.0,
        ),
    )
    assert ask(gate(Metric.TPOT_MS), records).verdict is Verdict.PASS
    gap = ask(gate(Metric.CHUNK_GAP_MS, Question.VETO), records)
    assert gap.value == pytest.approx(1.74)


def test_looping_outputs_are_no_gain_of_speculation() -> None:
    """They are left out, and counted."""

    def loops(block: int, arm: Arm, number: int) -> RequestRecord:
        fast = arm is Arm.CANDIDATE and number == 0
        return served(block, arm, number=number, tpot=1.0 if fast else 20.0, looping=number == 0)

    result = ask(gate(Metric.TPOT_MS), pairs(8, loops), technique=Technique.SPECULATION)
    assert result.value == pytest.approx(1.0)
    assert result.reason.endswith("16 looping outputs left out")


def test_matched_batch_compares_equal_batches_only() -> None:
    """Arms whose batches differ would show the load, not the lever."""

    def shifted(block: int, arm: Arm, number: int) -> RequestRecord:
        batch = (1, 4, 4)[number] if arm is Arm.BASELINE else (1, 1, 4)[number]
        return served(block, arm, number=number, tpot=20.0 * batch, batch=batch)

    records = pairs(8, shifted)
    plain = gate(Metric.TPOT_MS, Question.VETO)
    assert ask(plain, records).value == pytest.approx(2 / 3)
    assert ask(gate(Metric.TPOT_MS, matched_batch=True), records).value == pytest.approx(1.0)


def test_one_unit_per_pair_of_blocks_however_many_batches() -> None:
    """Buckets of one block share its load; counting each would count that load many times."""
    records = pairs(
        4, lambda block, arm, number: served(block, arm, number=number, batch=1 + 4 * number)
    )
    assert ask(gate(Metric.TPOT_MS, matched_batch=True), records).n_units == 4


def test_throughput_gains_upwards() -> None:
    """Tokens per busy second: the same output in half the time is twice as much."""

    def paced(block: int, arm: Arm, number: int) -> RequestRecord:
        return served(
            block, arm, number=number, ttft=0.001, tpot=10.0 if arm is Arm.CANDIDATE else 20.0
        )

    spec = gate(Metric.OUTPUT_TOKENS_PER_S, margin=0.3)
    assert ask(spec, pairs(8, paced)).value == pytest.approx(2.0, rel=0.01)
    assert ask(spec, pairs(8, paced)).verdict is Verdict.PASS


def test_busy_time_is_a_union() -> None:
    """Two streams at once are one busy second, so batching shows as throughput."""

    def together(block: int, arm: Arm, number: int) -> RequestRecord:
        at = float(block * 10) + (0.0 if arm is Arm.CANDIDATE else number * 2.0)
        return served(block, arm, number=number, ttft=0.001, tpot=20.0, at=at)

    result = ask(gate(Metric.OUTPUT_TOKENS_PER_S, margin=0.3), pairs(8, together))
    assert result.value == pytest.approx(3.0, rel=0.01)


def test_computed_tokens_are_compared_as_a_share_of_the_prompt() -> None:
    """Half as many computed per prompt token, whatever the prompts."""

    def cached(block: int, arm: Arm, number: int) -> RequestRecord:
        prompt = 400 + 100 * number
        return served(
            block,
            arm,
            number=number,
            prompt=prompt,
            delivered=prompt * (6 if arm is Arm.CANDIDATE else 2) // 10,
        )

    result = ask(gate(Metric.PROMPT_TOKENS_COMPUTED, margin=0.3), pairs(8, cached))
    assert result.value == pytest.approx(0.5)
    assert result.verdict is Verdict.PASS


def test_errors_of_a_fifth_stop_the_lever_within_fifty_requests() -> None:
    """H1: harm may stop early, at its own bound."""
    healthy = [served(2 * n, Arm.BASELINE, number=n) for n in range(200)]
    broken = [
        served(
            2 * n + 1,
            Arm.CANDIDATE,
            number=n,
            error=ErrorClass.UPSTREAM_STATUS if n % 5 == 0 else ErrorClass.NONE,
        )
        for n in range(50)
    ]
    records = healthy + broken
    assert ask(gate(Metric.ERROR_RATE, Question.VETO, 0.02), records).verdict is Verdict.FAIL


def test_clients_that_leave_are_shown_apart_from_errors() -> None:
    """An abort may mean too slow; it is neither a success nor an error."""
    records = pairs(
        10,
        lambda block, arm, number: served(
            block, arm, number=number, aborted=arm is Arm.CANDIDATE and number == 0
        ),
    )
    result = ask(gate(Metric.ERROR_RATE, Question.VETO, 0.02), records)
    assert (result.value, result.n_candidate) == (0.0, 20)
    assert result.reason.endswith("clients left: baseline 0 of 30, candidate 10 of 30")


def test_clients_own_errors_do_not_speak_against_an_arm() -> None:
    """A prompt too long for the model is too long for both."""
    records = pairs(
        10,
        lambda block, arm, number: served(
            block, arm, number=number, error=ErrorClass.CONTEXT_OVERFLOW
        ),
    )
    assert ask(gate(Metric.ERROR_RATE, Question.VETO, 0.02), records).value == 0.0


def test_tail_that_grows_is_shown_though_the_typical_request_is_equal() -> None:
    """A quarter of the candidate's requests take ten times as long."""
    records = pairs(
        40,
        lambda block, arm, number: served(
            block,
            arm,
            number=number,
            ttft=1000.0 if arm is Arm.CANDIDATE and number == 0 else 100.0 + number,
        ),
        per_block=4,
    )
    tail = gate(question=Question.VETO, margin=0.5, statistic=Statistic.TAIL_P95)
    assert ask(tail, records).verdict is Verdict.FAIL


@pytest.mark.parametrize(
    ("after", "verdict"),
    [(1.05e9, Verdict.PASS), (1.2e9, Verdict.FAIL), (None, Verdict.ERROR)],
)
def test_memory_is_read_not_sampled(after: float | None, verdict: Verdict) -> None:
    """Within 10% it passes at once, beyond it fails, unknown it cannot be judged."""
    extras = ArmExtras(memory_bytes_baseline=1e9, memory_bytes_candidate=after)
    spec = gate(Metric.MEMORY_BYTES, Question.VETO)
    assert ask(spec, ttft(1.0), extras).verdict is verdict


@pytest.mark.parametrize(
    ("differ", "floor", "verdict"),
    [(2, 2, Verdict.PASS), (30, 2, Verdict.FAIL), (30, 30, Verdict.PASS)],
)
def test_outputs_are_judged_against_the_noise_floor(
    differ: int, floor: int, verdict: Verdict
) -> None:
    """Greedy outputs differ between two runs of the baseline too; only more than that counts."""
    extras = ArmExtras(outputs_differ=differ, outputs_n=50, floor_differs=floor, floor_n=50)
    spec = gate(Metric.OUTPUT_DIFFERENCE, Question.VETO, 0.05)
    assert ask(spec, ttft(1.0), extras).verdict is verdict


def mixed(chat: float, coding: float) -> list[RequestRecord]:
    """Pairs with a chat and two coding requests, each TPOT at its ratio in the candidate."""
    ratios = {"chat": chat, "coding": coding}

    def make(block: int, arm: Arm, number: int) -> RequestRecord:
        label = "chat" if number == 0 else "coding"
        gained = ratios[label] if arm is Arm.CANDIDATE else 1.0
        return served(block, arm, number=number, label=label, tpot=20.0 * gained)

    return pairs(36, make)


def test_lever_is_kept_only_for_the_cuts_in_which_it_gained() -> None:
    """Code gains, chat does not: chat is refused with the reason, the lever passes."""
    record = lever(
        gate(Metric.TPOT_MS, name="coding", cut=CODING),
        gate(Metric.TPOT_MS, name="chat", cut=CHAT, required=False),
        technique=Technique.SPECULATION,
    )
    results, verdict = evaluate(record, PROVING, mixed(1.0, 0.6), EXTRAS)
    assert verdict is Verdict.PASS
    kept, refused = kept_cuts(record, results)
    assert kept == (CODING,)
    assert refused == {"label=chat": "chat: a gain of at least 10% is not shown yet"}


def test_lever_that_gained_in_no_cut_is_not_adopted_for_all_traffic() -> None:
    """Each cut was optional, but with none of them shown nothing is left to keep the lever for."""
    record = lever(
        gate(Metric.TPOT_MS, name="coding", cut=CODING, required=False),
        gate(Metric.TPOT_MS, name="chat", cut=CHAT, required=False),
        gate(Metric.TPOT_MS, Question.VETO, name="harm"),
        technique=Technique.SPECULATION,
    )
    record = msgspec.structs.replace(record, cuts=(CODING, CHAT))
    results, verdict = evaluate(record, PROVING, mixed(1.0, 1.0), EXTRAS)
    assert verdict is Verdict.HOLD
    kept, refused = kept_cuts(record, results)
    assert kept == record.cuts
    assert list(refused) == ["label=coding", "label=chat"]
    assert evaluate(record, PROVING, mixed(1.0, 0.6), EXTRAS)[1] is Verdict.PASS


def test_harm_in_an_undeclared_cut_vetoes_what_the_average_hides() -> None:
    """C3: all traffic gains, one slice is ruined; nobody declared it, and still it stops the lever."""
    record = lever(gate(Metric.TPOT_MS, margin=0.05))
    results, verdict = evaluate(record, PROVING, mixed(2.0, 0.4) * 2, EXTRAS)
    assert results[0].verdict is Verdict.PASS
    assert verdict is Verdict.FAIL
    assert [one.cut for one in results[1:]] == ["label=chat"]
    assert not results[1].required


def test_cuts_that_the_lever_moves_requests_between_do_not_veto() -> None:
    """With better caching the requests that still miss are other requests; their TTFT says nothing."""

    def hits(block: int, arm: Arm, number: int) -> RequestRecord:
        misses = number < (1 if arm is Arm.CANDIDATE else 2)
        of_a_miss = 150.0 if arm is Arm.CANDIDATE else 100.0
        return served(
            block,
            arm,
            number=number,
            delivered=0 if misses else 400,
            ttft=of_a_miss if misses else 50.0,
        )

    _, verdict = evaluate(
        lever(gate(Metric.TPOT_MS, Question.VETO)), PROVING, pairs(30, hits), EXTRAS
    )
    assert verdict is Verdict.PASS


def test_gain_asked_of_all_traffic_keeps_the_whole_slice() -> None:
    """Without cuts of its own there is nothing to refuse."""
    record = lever(gate())
    results, _ = evaluate(record, PROVING, ttft(0.5), EXTRAS)
    assert kept_cuts(record, results) == (record.cuts, {})


def test_state_in_which_nothing_is_asked_is_an_error() -> None:
    """No question, no pass."""
    results, verdict = evaluate(lever(gate()), RolloutState.CANARY, ttft(0.5), EXTRAS)
    assert (results, verdict) == ((), Verdict.ERROR)


def test_required_hold_holds_and_optional_hold_does_not() -> None:
    """Only what was declared as needed can keep a lever waiting."""
    wait = gate(name="slow", min_units=99)
    good = gate(Metric.TPOT_MS, Question.VETO, name="quick")
    records = ttft(0.5)
    assert evaluate(lever(wait, good), PROVING, records, EXTRAS)[1] is Verdict.HOLD
    optional = msgspec.structs.replace(wait, required=False)
    assert evaluate(lever(optional, good), PROVING, records, EXTRAS)[1] is Verdict.PASS


def test_order_of_records_does_not_matter() -> None:
    """Requests end in any order."""
    records = ttft(0.7)
    assert ask(gate(), records[::-1]) == ask(gate(), records)


def small_cut(ratio: float, pairs_of_blocks: int) -> list[RequestRecord]:
    """Fifty requests a block, two of them rare; all others take 20% less, the rare ones `ratio` as long."""

    def one(block: int, arm: Arm, number: int) -> RequestRecord:
        rare = number % 25 == 0
        # A little noise: no two values are alike, and no unit says the very same.
        value = 100.0 + (37 * number + 11 * block) % 41
        if arm is Arm.CANDIDATE:
            value *= ratio if rare else 0.8
        return served(block, arm, number=number, ttft=value, label="rare" if rare else "coding")

    return pairs(pairs_of_blocks, one, per_block=50)


def bounded_lever() -> LeverRecord:
    """A lever with the bound for stopping that a record has unless it says otherwise."""
    ramp = msgspec.structs.replace(RAMP, harm_alpha=0.01)
    return msgspec.structs.replace(lever(gate()), ramp=ramp)


def test_harm_in_a_cut_of_four_percent_stops_a_lever_whose_average_gains() -> None:
    """30% more for 4% of the traffic, which no gate was declared for."""
    results, verdict = evaluate(bounded_lever(), PROVING, small_cut(1.3, 60), EXTRAS)
    by_gate = {one.gate: one for one in results}
    assert by_gate["asked"].verdict is Verdict.PASS
    assert by_gate["veto ttft_ms in label=rare"].verdict is Verdict.FAIL
    assert verdict is Verdict.FAIL


def test_cut_in_which_harm_is_likely_holds_the_lever() -> None:
    """Before harm is shown at the bound for stopping, the average must not have the lever adopted."""
    results, verdict = evaluate(bounded_lever(), PROVING, small_cut(1.3, 24), EXTRAS)
    suspected = {one.gate: one for one in results}["veto ttft_ms in label=rare"]
    assert (suspected.verdict, suspected.required) == (Verdict.HOLD, True)
    assert verdict is Verdict.HOLD


def test_same_cut_without_harm_neither_holds_nor_stops() -> None:
    """It is the harm that is seen."""
    _, verdict = evaluate(bounded_lever(), PROVING, small_cut(1.0, 60), EXTRAS)
    assert verdict is Verdict.PASS


def test_harm_beyond_its_margin_is_held_until_the_bound_for_stopping_is_met() -> None:
    """Eight pairs show it at 0.05, but a lever that changes nothing would be stopped too often for so little."""
    spec = gate(question=Question.VETO)
    bounded = msgspec.structs.replace(lever(spec), ramp=bounded_lever().ramp)
    for units, expected in ((8, Verdict.HOLD), (30, Verdict.FAIL)):
        results, _ = evaluate(bounded, PROVING, ttft(1.5, units=units), EXTRAS)
        assert results[0].verdict is expected
