"""A lever's chain: what belongs to it, and how it is told."""

import msgspec
import pytest
from events_kit import (
    LEVER,
    OTHER,
    effect,
    envelopes,
    every_event,
    gates_evaluated,
    lever_record,
    moved,
    plan,
    story,
    trigger_moved,
)

from trimtab.core.events import AnyEvent, LeverProposed, TrafficPlanned
from trimtab.core.narrate import chain, cited_evidence, tell, tell_event
from trimtab.core.types import RolloutState

STORY = envelopes(story())


def indices(lever: str) -> list[int]:
    return [int(step.envelope.id[1:]) for step in chain(lever, STORY)]


def test_chain_has_the_cited_the_causes_and_the_consequences() -> None:
    """Cited readings and diagnosis, choice, record, looks, moves, effects and what came of them; no traffic.

    Left out: the reading and the diagnosis that nobody cites (1, 3), requests (11, 12, 24), the next lever's
    choice and record (20, 21).
    """
    expected = [0, 2, 4, 5, 6, 7, 8, 9, 10, 13, 14, 15, 16, 17, 18, 19, 22, 23]
    assert indices(LEVER) == expected


def test_chain_names_the_other_lever_that_led_to_it_and_no_more_of_it() -> None:
    """The next lever's chain shows the adoption after which the system was diagnosed again."""
    assert indices(OTHER) == [15, 19, 20, 21]


def test_unknown_lever_has_no_chain() -> None:
    """A name that no event is about gives nothing."""
    assert chain("nobody", STORY) == ()


def test_chain_does_not_depend_on_the_order_of_what_is_given() -> None:
    """Events may come from several queries."""
    assert chain(LEVER, reversed(STORY)) == chain(LEVER, STORY)


def test_evidence_of_the_cited_diagnosis_is_cited_too() -> None:
    """What the diagnosis rests on belongs to the record."""
    events: list[tuple[AnyEvent, int | None]] = [
        (event, cause) for event, cause in story() if not isinstance(event, LeverProposed)
    ]
    bare = LeverProposed(record=lever_record(evidence=()))
    assert cited_evidence(LEVER, envelopes((*events, (bare, None)))) == {"ev-1"}


def test_only_the_cited_reading_of_a_measurement_is_told() -> None:
    """A measurement has many readings; the chain tells those the record rests on."""
    step = next(step for step in chain(LEVER, STORY) if step.cited)
    assert tell(step) == (
        "Measured: the baseline's requests.\n"
        "  skipped_lost_share = 61% (over 60 s, n=120, from requests)"
    )


@pytest.mark.parametrize("event", every_event(), ids=lambda event: type(event).__name__)
def test_every_event_is_told_in_a_sentence(event: AnyEvent) -> None:
    """The first line of every event is a sentence, or the title of what follows; no Python leaks into it."""
    told = tell_event(event)
    assert told.partition("\n")[0][-1] in ".:"
    assert [word for word in ("None", "<", "inf", "nan") if word in told] == []


def test_record_is_told_completely() -> None:
    """Each part of the head of the record has its line."""
    told = tell_event(LeverProposed(record=lever_record()))
    starts = [line.strip().partition(":")[0] for line in told.splitlines()[1:]]
    assert starts == [
        "bottleneck",
        "premise",
        "on while",
        "budget compute",
        "budget memory",
        "predicted ttft_ms",
        "new failure mode",
        "gate ttft gain",
        "gate tpot harm",
        "quality",
        "trigger batch over break-even",
        "way back",
        "ramp",
        "for",
        "owner operator, mode advise, expires 24.0 h after the proposal",
    ]


def test_look_is_told_with_interval_and_n() -> None:
    """Every gate says verdict, value, interval, margin and both sample counts; an open end is called open."""
    assert tell_event(gates_evaluated()) == (
        "Look 3 (canary, 10% in the slice): pass.\n"
        "  pass ttft gain: ttft_ms of all traffic = 0.58 (90% interval 0.5 to 0.7, margin 10%, "
        "n=150 against 140, 9 units); better by at least 10%\n"
        "  hold tpot harm (veto only): tpot_ms of label=edit = unknown (90% interval 0 to open, margin 10%, "
        "n=2 against 3, 0 units); too few samples"
    )


def test_effect_is_told_against_its_prediction() -> None:
    """A measured effect has its interval, n and prediction; an unmeasured one is called unknown."""
    assert tell_event(effect()) == (
        "Effect on ttft_ms, all traffic: 0.58 of the baseline (interval 0.5 to 0.7), "
        "n=150 against 140; predicted 0.6."
    )
    assert tell_event(effect(None)).startswith("Effect on ttft_ms, all traffic: unknown, n=150")


def test_trigger_is_told_with_its_value_and_threshold() -> None:
    """Firing names the threshold passed, letting go the lower one."""
    assert tell_event(trigger_moved(True, 4.6)).startswith(
        "Trigger batch over break-even fired: batch was 4.6 (n=40), above 4 for 2 ticks."
    )
    assert tell_event(trigger_moved(False, 2.1)).startswith(
        "Trigger batch over break-even let go: batch is 2.1 (n=40), back beyond 2.5."
    )


def test_moves_and_plans_are_told() -> None:
    """A move says from where to where with which share; a plan says who meets what."""
    step = moved(RolloutState.RAMPING, 0.25, before=RolloutState.CANARY)
    assert tell_event(step) == (
        "The rollout moved from canary to ramping, 25% of traffic in the slice on verdict pass: "
        "all required gates passed."
    )
    assert tell_event(TrafficPlanned(plan=plan())) == (
        "Traffic: round robin; 10% of sessions try prefix_affine_routing on every replica (switchback)."
    )
    assert tell_event(TrafficPlanned(plan=plan(None))) == (
        "Traffic: prefix affine; label=edit belong on r1 (prefix_affine_routing)."
    )


def test_reason_written_as_a_sentence_gives_one_full_stop() -> None:
    """Reasons come from many places; the sentence around them ends once."""
    event = msgspec.structs.replace(moved(RolloutState.PAUSED, 0.1), reason="The disk is full.")
    assert tell_event(event).endswith(": The disk is full.")
