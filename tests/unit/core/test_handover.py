"""What a hand-over is judged by, and what is kept of it."""

import msgspec
import pytest

from trimtab.core.events import HandedOver, decode_event, encode_event
from trimtab.core.handover import (
    HandOver,
    HandOverCause,
    HandOverOutcome,
    PrefillPrediction,
    shortfall,
)
from trimtab.core.narrate import tell_event
from trimtab.core.revision import Model, Revision, Speculation, SpeculationMethod


@pytest.mark.parametrize(
    ("sent", "prompt", "delivered", "missing"),
    [
        (100, 100, 100, 0),
        (100, 100, 99, 0),
        (100, 100, 98, 1),
        (100, 100, 0, 99),
        (96, 100, 96, 0),
        (96, 100, 80, 16),
        (100, 100, None, None),
    ],
)
def test_shortfall_is_what_was_sent_and_not_reused(
    sent: int, prompt: int, delivered: int | None, missing: int | None
) -> None:
    """The prompt's last token is computed anew by every engine; any other that was sent must be reused."""
    found = shortfall(sent=sent, prompt_tokens=prompt, delivered=delivered)
    assert found == missing


def test_stall_of_others_is_no_wait_of_its_own() -> None:
    """A prediction is compared with an outcome without what others wait."""
    one = PrefillPrediction(replica="r0", terms={"queue": 5.0, "prefill": 20.0, "stall": 100.0})
    assert (one.ms, one.own_ms) == (125.0, 25.0)


def told(**changes: object) -> HandOver:
    one = HandOver(
        request_id="q1",
        source="r1",
        target="r0",
        outcome=HandOverOutcome.DELIVERED,
        bytes=1_500_000,
    )
    return msgspec.structs.replace(one, **changes)


def test_hand_over_goes_through_the_ledger_unchanged() -> None:
    """What is written is what is read."""
    event = HandedOver(hand_over=told(outcome=HandOverOutcome.FAILED, cause=HandOverCause.EXPIRED))
    assert decode_event(encode_event(event)) == event


def test_hand_over_is_told_with_its_cause() -> None:
    """The sentence names both replicas, the bytes, and why it failed."""
    one = told(outcome=HandOverOutcome.FAILED, cause=HandOverCause.TIMED_OUT)
    said = tell_event(HandedOver(hand_over=one))
    assert said == "Prompt of q1 from r1 to r0 (1.5 MB); failed: timed out."


def test_kv_keys_differ_by_what_kv_depends_on_and_by_nothing_else() -> None:
    """Precision, slots and their context make another key; chunk and speculation do not."""
    one = Revision(
        engine="llamacpp",
        engine_version="1",
        model=Model(path="m.gguf", sha256="0" * 64, name="m"),
    )
    drafts = Speculation(method=SpeculationMethod.NGRAM_MOD, draft_tokens_max=8)
    same = one.replace(speculation=drafts, chunk_tokens=64)
    others = (
        one.replace(kv_type="q8_0"),
        one.replace(engine_version="2"),
        one.replace(slots=9),
        one.replace(context_tokens=512),
    )
    assert same.kv_key.id == one.kv_key.id
    assert len({one.kv_key.id, *(other.kv_key.id for other in others)}) == 5
