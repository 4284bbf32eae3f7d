"""The result of a tune is a query over its ledger."""

import msgspec
import pytest
from events_kit import (
    EDITS,
    LEVER,
    OTHER,
    TRIGGER,
    assessed,
    effect,
    envelopes,
    every_event,
    gates_evaluated,
    lever_record,
    moved,
    request,
    story,
)

from trimtab.core.events import (
    AnyEvent,
    CutsKept,
    Effect,
    Envelope,
    KVMoved,
    LeverProposed,
    LeversAssessed,
    RolloutMoved,
    RunStarted,
    StageEnded,
    StageStarted,
    TriggerMoved,
)
from trimtab.core.record import RequestRecord, Tokens
from trimtab.core.stats import Interval
from trimtab.core.types import ErrorClass, RolloutState
from trimtab.runtime.result import LedgerInfo, LeverResult
from trimtab.runtime.tune_result import (
    TuneFacts,
    build_result,
    held_share,
    lever_results,
    timeline,
    trigger_results,
)

STARTED = RunStarted(run_id="run-1", command="tune", version="0.1.0", settings={"seed": 1})
FACTS = TuneFacts(
    machine="two cores",
    workload="coding",
    ledger=LedgerInfo(path="l.sqlite", events=9, head_hash="ab", verified=True),
    duration_s=60.0,
    chains={LEVER: ("proposed", "adopted")},
    notes=("a note",),
)
CANARY = moved(RolloutState.CANARY, 0.10)
ADOPTED = moved(RolloutState.ADOPTED, 1.0, before=RolloutState.PROVING)
DISABLED = moved(RolloutState.DISABLED, 0.0, before=RolloutState.ADOPTED)
TAKEN_BACK = RolloutMoved(
    lever=LEVER,
    before=RolloutState.ADOPTED,
    after=RolloutState.ROLLED_BACK,
    share=0.0,
    reason="the paying budget binds after adoption: memory",
)
PROPOSED = LeverProposed(record=lever_record())


def told(*events: AnyEvent) -> tuple[Envelope, ...]:
    """These events one second apart from 100 s on, none with a cause."""
    return envelopes(tuple((event, None) for event in (STARTED, *events)))


def result_of(*events: AnyEvent) -> LeverResult:
    """What is said of the lever after it was assessed and these events followed."""
    results = lever_results(told(assessed(), *events), FACTS.chains)
    return next(result for result in results if result.name == LEVER)


def served(stage: str, number: int, **changes: object) -> AnyEvent:
    return request(number, **{"stage": stage, **changes})


def test_ledger_without_a_run_is_no_result() -> None:
    """Nothing can be told of a run that was not begun."""
    with pytest.raises(ValueError, match="run_started"):
        build_result(envelopes(((assessed(), None),)), FACTS)


def test_every_kind_of_event_can_stand_in_a_result() -> None:
    """Whatever a ledger holds, a result is made of it and survives being stored."""
    result = build_result(envelopes(tuple((event, None) for event in every_event())), FACTS)
    assert msgspec.json.decode(msgspec.json.encode(result), type=type(result)) == result
    assert (result.version, result.settings) == ("0.1.0", {"seed": 1})
    assert (result.machine, result.notes, result.duration_s) == ("two cores", ("a note",), 60.0)


def test_summaries_are_of_the_records_of_their_stage() -> None:
    """Requests of the rollout count in neither, and errors are counted apart from latencies."""
    result = build_result(
        told(
            served("baseline", 1),
            served("baseline", 2),
            served("baseline", 3, error=ErrorClass.OVERLOADED, status=503, ttft_ms=9e9),
            served("rollout", 4),
            served("final", 5),
        ),
        FACTS,
    )
    assert (result.baseline.n, result.baseline.errors) == (2, 1)
    assert result.baseline.ttft_ms.mean == pytest.approx(101.5)
    assert (result.final.n, result.final.errors) == (1, 0)
    assert result.final.ttft_ms.mean == 105.0


def test_lateness_of_the_arrivals_comes_from_the_end_of_their_stage() -> None:
    """None where the stage did not say."""
    ended = StageEnded(stage="baseline", summary={"lateness_ms_p95": 12.5})
    result = build_result(told(ended, StageEnded(stage="final", summary={})), FACTS)
    assert result.baseline.lateness_ms_p95 == 12.5
    assert result.final.lateness_ms_p95 is None


def test_adopted_lever_says_what_passed() -> None:
    """With its gates, cuts, chain and the effect beside its prediction."""
    found = result_of(
        PROPOSED,
        CANARY,
        gates_evaluated(),
        ADOPTED,
        CutsKept(lever=LEVER, kept=("label=edit",), refused={}),
        effect(),
    )
    assert (found.verdict, found.because) == ("adopted", ADOPTED.reason)
    assert found.gates == gates_evaluated().results
    assert (found.cuts_kept, found.cuts_refused) == (("label=edit",), {})
    assert found.chain == ("proposed", "adopted")
    (measured,) = found.measured
    assert (measured.ratio, measured.interval) == (0.58, Interval(0.5, 0.7, 0.90))
    assert (measured.predicted_ratio, measured.predicted_low, measured.predicted_high) == (
        0.6,
        0.4,
        0.8,
    )


def test_lever_refused_for_some_cuts_is_adopted_for_the_others() -> None:
    """The reason of each refusal is kept."""
    refused = {str(EDITS): "no gain shown"}
    cuts = CutsKept(lever=LEVER, kept=("label=question",), refused=refused)
    found = result_of(PROPOSED, CANARY, ADOPTED, cuts)
    assert (found.verdict, found.cuts_refused) == ("adopted for cuts", refused)


def test_lever_that_a_trigger_holds_off_at_the_end_was_adopted() -> None:
    """Its trigger is told of elsewhere."""
    assert result_of(PROPOSED, CANARY, ADOPTED, DISABLED).verdict == "adopted"


def test_lever_taken_back_after_its_adoption_was_not_adopted() -> None:
    """The last word counts: a payer that binds makes it a failure."""
    found = result_of(PROPOSED, CANARY, ADOPTED, TAKEN_BACK)
    assert (found.verdict, found.because) == ("rolled back", TAKEN_BACK.reason)


def test_lever_that_never_got_through_says_where_it_ended() -> None:
    """In the words of its state."""
    failed = moved(RolloutState.ROLLED_BACK, 0.0, before=RolloutState.CANARY)
    assert result_of(PROPOSED, CANARY, failed).verdict == "rolled back"
    paused = moved(RolloutState.PAUSED, 0.0, before=RolloutState.CANARY)
    assert result_of(PROPOSED, CANARY, paused).verdict == "paused"


def test_lever_that_was_not_moved_says_why() -> None:
    """Not available, not chosen, or chosen and never started are three things."""
    first = assessed().assessments[0]
    blocked = msgspec.structs.replace(first, available=False, because="needs a second replica")
    cases = (
        (blocked, None, "not available"),
        (first, None, "not chosen"),
        (first, LEVER, "chosen, not started"),
    )
    for assessment, chosen, expected in cases:
        event = LeversAssessed(assessments=(assessment,), chosen=chosen, because="test")
        (found,) = lever_results(told(event), {})
        assert (found.verdict, found.because) == (expected, assessment.because)
        assert (found.measured, found.gates, found.chain) == ((), (), ())


def test_what_was_said_when_a_lever_was_chosen_stands() -> None:
    """A later assessment, made with the lever in place, does not rewrite its prediction."""
    later = msgspec.structs.replace(
        assessed().assessments[0], gain_share=0.0, available=False, because="already adopted"
    )
    after = LeversAssessed(assessments=(later,), chosen=None, because="none")
    found = result_of(PROPOSED, CANARY, ADOPTED, after)
    assert (found.predicted_gain_share, found.verdict) == (0.35, "adopted")


def test_tried_levers_come_before_the_others() -> None:
    """Those with gates first, then by name."""
    other = msgspec.structs.replace(assessed().assessments[0], lever="a_lever")
    both = LeversAssessed(
        assessments=(other, *assessed().assessments), chosen=LEVER, because="narrowest"
    )
    results = lever_results(told(both, PROPOSED, CANARY, gates_evaluated()), {})
    assert [result.name for result in results] == [LEVER, "a_lever"]


def test_effect_without_bounds_has_no_interval_and_no_made_up_prediction() -> None:
    """What is unknown stays unknown."""
    unknown = effect(None)
    tpot = Effect(
        lever=LEVER,
        metric="tpot_ms",
        cut="all",
        ratio=1.0,
        low=0.9,
        high=1.1,
        n_baseline=1,
        n_candidate=1,
    )
    first, second = result_of(PROPOSED, CANARY, unknown, tpot).measured
    assert (first.ratio, first.interval) == (None, None)
    assert (second.predicted_ratio, second.predicted_low) == (None, None)


def fired(at: bool, *, name: str = TRIGGER.name, lever: str = OTHER) -> TriggerMoved:
    spec = msgspec.structs.replace(TRIGGER, name=name)
    return TriggerMoved(
        lever=lever, trigger=spec, fired=at, value=4.6, samples=9, action="disable: test"
    )


def around(at_s: float, delivered: int) -> AnyEvent:
    tokens = Tokens(prompt=100, delivered=delivered, output=5)
    return request(0, arrived_at_s=at_s, finished_at_s=at_s + 1.0, tokens=tokens)


def test_trigger_is_told_with_the_cache_on_both_sides_of_it() -> None:
    """Prompts that arrived within 30 s before and after; older and newer ones do not count."""
    events = told(
        around(60.0, 0),
        around(80.0, 90),
        around(90.0, 70),
        fired(True),  # at 104 s
        around(104.0, 60),
        around(150.0, 0),
        fired(False),  # at 107 s
    )
    (found,) = trigger_results(events, 100.0)
    assert (found.held_share_before, found.n_before) == (pytest.approx(0.8), 2)
    assert (found.held_share_after, found.n_after) == (pytest.approx(0.6), 1)
    assert (found.fired_at_s, found.recovered_at_s) == (4.0, 7.0)
    assert (found.value, found.threshold, found.action) == (4.6, 4.0, "disable: test")


def test_trigger_that_never_let_go_has_no_recovery() -> None:
    """Nor has it a held share where nothing was served."""
    (found,) = trigger_results(told(fired(True)), 100.0)
    assert (found.recovered_at_s, found.held_share_before, found.n_after) == (None, None, 0)
    assert (found.kv_tokens_saved, found.kv_tokens_restored) == (None, None)


def test_trigger_tells_what_the_slots_kept_through_its_restart() -> None:
    """Tokens saved and restored between the firing and the return; other restarts do not count."""

    def kept(action: str, tokens: int) -> AnyEvent:
        return KVMoved(replica="r1", action=action, slots=4, tokens=tokens, bytes=8, took_ms=1.0)

    events = told(
        kept("saved", 7),
        fired(True),
        kept("saved", 900),
        kept("restored", 880),
        fired(False),
        kept("restored", 5),
    )
    (found,) = trigger_results(events, 100.0)
    assert (found.kv_tokens_saved, found.kv_tokens_restored) == (900, 880)


def test_recovery_is_that_of_the_same_trigger() -> None:
    """Neither another lever's trigger nor another one of this lever ends it."""
    events = told(
        fired(True),  # at 101 s
        fired(False, lever=LEVER),
        fired(False, name="coverage"),
        fired(False),  # at 104 s
    )
    (found,) = trigger_results(events, 100.0)
    assert found.recovered_at_s == 4.0


def test_held_share_leaves_out_what_is_unknown_or_failed() -> None:
    """A request without counts is not a request without a cache."""

    def record(**changes: object) -> RequestRecord:
        return request(0, **changes).record

    known = record(tokens=Tokens(prompt=100, delivered=50))
    unknown = record(tokens=Tokens(prompt=100))
    failed = record(tokens=Tokens(prompt=100, delivered=0), error=ErrorClass.OVERLOADED)
    assert held_share([known, unknown, failed]) == 0.5
    assert held_share([unknown]) is None


def test_timeline_has_stages_moves_and_triggers_in_order() -> None:
    """Each on its lane with seconds since the run began; other events are not points."""
    events = told(StageStarted(stage="baseline", load="even"), CANARY, assessed(), fired(True))
    points = timeline(events, 100.0)
    assert [(point.at_s, point.lane, point.what) for point in points] == [
        (1.0, "stage", "baseline"),
        (2.0, LEVER, "canary"),
        (4.0, OTHER, "trigger fired"),
    ]
    assert (points[1].share, points[1].verdict, points[2].verdict) == (0.10, None, "fail")
    assert timeline(told(fired(False)), 100.0)[0].what == "trigger recovered"


def test_story_of_a_lever_gives_its_result() -> None:
    """The whole life among traffic and another lever."""
    result = build_result(envelopes(story()), FACTS)
    verdicts = {lever.name: lever.verdict for lever in result.levers}
    assert verdicts == {LEVER: "adopted"}
    assert [each.scope for each in result.diagnoses] == ["warm-up", "baseline", f"after {LEVER}"]
    assert [each.when for each in result.budgets] == ["before", "predicted"]
    assert len(result.triggers) == 1
