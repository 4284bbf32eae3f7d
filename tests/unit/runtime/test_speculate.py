"""The whole measurement of drafting over engines whose law is known: what is found is what is there."""

import asyncio

import msgspec
import pytest
from draft_kit import REVISION, FakeStage, Law, ask_of, edit, stumble, talk

from trimtab.core.ports import LaunchError
from trimtab.levers.speculation_found import Pays, Speculated
from trimtab.runtime.asked_arm import ArmError
from trimtab.runtime.clock import SystemClock
from trimtab.runtime.speculate import Speculator
from trimtab.runtime.speculate_answer import answer_of
from trimtab.runtime.speculate_arm import Noise, Prompt
from trimtab.runtime.speculate_ask import SpeculateAsk
from trimtab.runtime.speculate_compare import slots_used
from trimtab.runtime.speculate_record import check_schemas
from trimtab.runtime.speculate_steps import step_of
from trimtab.workloads.draft_samples import DraftSample


def find(stage: FakeStage, ask: SpeculateAsk) -> Speculated:
    speculator = Speculator(ask, SystemClock(), lambda *_: None)
    measured = asyncio.run(speculator.measure(stage))  # type: ignore[arg-type]
    return answer_of(measured, ask, REVISION, machine="here", took_s=1.0)


def test_edits_gain_where_a_step_is_mostly_the_reading_of_weights() -> None:
    """Cheap verification: the deepest draft is best alone, the edits gain, the chats do not."""
    found = find(FakeStage(Law(base=10.0, token=0.1)), ask_of())
    assert found.pays
    assert found.gaining == ("edit",)
    assert found.speculation.draft_tokens_max == 8
    verdicts = {(one.label, one.temperature): one.pays for one in found.cuts}
    assert verdicts["edit", 0.0] is Pays.GAINS
    assert verdicts["chat", 0.0] is Pays.LOSES


def test_prediction_is_what_the_law_gives() -> None:
    """Times linear in the tokens and drafts that come as recorded: every point is predicted within 3%."""
    found = find(FakeStage(), ask_of())
    assert found.within == (len(found.points), len(found.points))
    assert max(abs(one.error) for one in found.points) < 0.03
    assert all(one.holds for one in found.plan.choices)


def test_drafting_stays_off_where_every_token_costs_a_whole_step() -> None:
    """Verification as dear as decoding: no depth beats none, and nothing is claimed."""
    found = find(FakeStage(Law(base=0.1, token=10.0, looking=1.0)), ask_of())
    assert not found.pays
    assert found.plan.choices[0].depth == 0
    assert "no depth" in found.because


def test_break_even_lies_where_computing_takes_over() -> None:
    """It pays alone and no more with eight streams; the break-even is between, within its bounds."""
    found = find(FakeStage(Law(base=10.0, token=2.0), say=stumble), ask_of(depths=(8,)))
    even = found.plan.break_even
    assert even.batch is not None
    assert 1.0 < even.batch < 8.0
    assert even.low is not None
    assert even.high is not None
    assert even.low <= even.batch <= even.high


def test_above_the_break_even_it_is_off() -> None:
    """Asked about eight streams, the answer is that it stays off."""
    found = find(FakeStage(Law(base=10.0, token=2.0), say=stumble), ask_of(depths=(8,), batch=8))
    assert not found.pays
    assert {one.batch: one.depth for one in found.plan.choices}[8] == 0


def test_answers_that_drafts_break_keep_their_constraint_out() -> None:
    """Fewer valid answers with drafts: invalid, whatever its time."""
    found = find(FakeStage(broken=True), ask_of())
    assert found.schema_combinable is False
    (record,) = [one for one in found.cuts if one.label == "record" and one.temperature == 0.0]
    assert (record.valid_off, record.valid_on, record.pays) == (2, 0, Pays.INVALID)


def test_validity_is_unknown_where_nothing_is_bound_to_a_schema() -> None:
    """Not measured is not valid."""
    found = find(FakeStage(), ask_of(*(edit(n) for n in range(4))))
    assert found.schema_combinable is None
    assert any("validity is unknown" in note for note in found.notes)


def test_looping_answers_count_for_nothing() -> None:
    """An answer that ends in a loop is told and left out; with no other there is nothing to judge by."""

    def say(prompt: str) -> str:
        return (
            "again and " * 30
            if "subject 0" in prompt
            else "EDIT" and " ".join(prompt.split()[::-1])
        )

    found = find(FakeStage(say=say), ask_of(*(edit(n) for n in range(4)), talk(0)))
    (chat,) = [one for one in found.cuts if one.label == "chat" and one.temperature == 0.0]
    assert (chat.requests, chat.looping, chat.tpot_ms.n) == (1, 1, 0)
    with pytest.raises(ArmError, match="loop"):
        find(FakeStage(say=lambda _: "again and " * 30), ask_of(*(edit(n) for n in range(4))))


def test_rule_and_engine_are_compared_on_the_same_answers() -> None:
    """The engine of this test is the rule itself: both drafted the same."""
    found = find(FakeStage(), ask_of())
    assert found.rule_drafted == found.engine_drafted > 0


def test_every_arm_but_the_recorder_gets_its_prompts_from_the_recorder_or_the_plain_arm() -> None:
    """Nothing is prefilled twice: KV goes through files; the arms of the steps end before the loops begin."""
    stage = FakeStage()
    find(stage, ask_of())
    assert stage.stopped == ["plain", "idle", "noise4", "noise8"]
    assert {source for source, _, _ in stage.spreads} == {"plain", "recorder"}


def test_answer_survives_json() -> None:
    """What scripts read is what was found."""
    found = find(FakeStage(), ask_of())
    assert msgspec.json.decode(msgspec.json.encode(found), type=Speculated) == found


def test_steps_follow_from_the_tokens_that_were_drawn() -> None:
    """Every token stands in the prompt: each step after the first drafts, and what agrees is no step of its own."""
    prompt = Prompt(tokens=(9, 9, 1, 2, 3, 4, 5, 6, 7, 8), tokens_max=1)
    wrong = step_of(prompt, [Noise(tokens=(1, 5, 3), ms=40.0)] * 2, 2)
    assert (wrong.batch, wrong.drafted, wrong.ms, wrong.steps) == (2, 2.0, 20.0, 2)
    right = step_of(prompt, [Noise(tokens=(1, 2, 3, 9), ms=40.0)], 2)
    assert (right.steps, right.ms) == (1, 40.0)
    plain = step_of(prompt, [Noise(tokens=(1, 2, 3), ms=40.0)], 0)
    assert (plain.drafted, plain.steps) == (0.0, 2)


@pytest.mark.parametrize(
    ("batch", "prompts", "slots", "used"),
    [(1, 8, 32, 8), (2, 8, 32, 8), (8, 8, 32, 8), (16, 8, 32, 16), (32, 8, 32, 32), (3, 8, 8, 6)],
)
def test_streams_go_round_in_whole_shares_of_the_slots(
    batch: int, prompts: int, slots: int, used: int
) -> None:
    """Every stream has as many slots as the others, and all prompts come up where there is room."""
    assert slots_used(batch, prompts, slots) == used


def test_schema_that_is_none_is_refused_before_anything_starts() -> None:
    """The label is named."""
    broken = DraftSample(label="made", prompt="x", tokens_max=8, schema={"type": 7})
    with pytest.raises(LaunchError, match="made"):
        check_schemas((broken,))


@pytest.mark.parametrize(
    ("batches", "batch", "measured"),
    [
        ((1, 2, 8), 6, (1, 2, 6, 8)),
        ((1, 2, 8), 8, (1, 2, 8, 10)),
        ((1,), 1, (1, 2)),
        ((1, 8), 32, (1, 8, 32, 40)),
        ((1,), 256, (1, 256)),
    ],
)
def test_larger_batch_than_the_one_asked_about_is_measured(
    batches: tuple[int, ...], batch: int, measured: tuple[int, ...]
) -> None:
    """Else nothing says where drafting must go off; no more streams than the engine takes."""
    assert ask_of(batches=batches, batch=batch).measured_batches == measured


def test_batch_that_is_asked_about_is_measured() -> None:
    """It pays at two streams and not at eight: six are answered for as six, and not as a neighbour."""
    found = find(FakeStage(Law(base=10.0, token=2.0)), ask_of(batches=(1, 2, 8), batch=6))
    assert {one.batch for one in found.points} == {1, 2, 6, 8}
    assert found.because.startswith("at 6 streams")
