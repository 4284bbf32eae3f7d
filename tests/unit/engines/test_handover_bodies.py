"""The request that computes a prompt for another replica, and what the engine says of slots."""

import json

import pytest

from trimtab.core.ports import EngineFormatError
from trimtab.engines.handover_bodies import prefill_body, read_restored, read_saved

ASKED = {
    "model": "default",
    "messages": [{"role": "user", "content": "Grüße"}],
    "tools": [{"type": "function", "function": {"name": "f"}}],
    "stream": True,
    "stream_options": {"include_usage": True},
    "max_tokens": 500,
    "max_completion_tokens": 500,
    "n_predict": 500,
    "logprobs": True,
    "temperature": 0.7,
    "response_format": {"type": "json_object"},
}


def test_prefill_keeps_what_shapes_the_prompt_and_asks_for_one_token() -> None:
    """Messages and tools stay; it is whole, of one token, in the slot that was named."""
    made = json.loads(prefill_body(json.dumps(ASKED).encode(), slot=3))
    kept = {name: ASKED[name] for name in ("model", "messages", "tools", "temperature")}
    added = {"stream": False, "max_tokens": 1, "cache_prompt": True, "id_slot": 3}
    assert made == kept | added | {"response_format": ASKED["response_format"]}


def test_slot_of_a_client_gives_way() -> None:
    """A slot in the body is the gateway's to name."""
    made = json.loads(prefill_body(b'{"prompt": "x", "id_slot": 9}', slot=0))
    assert made["id_slot"] == 0


@pytest.mark.parametrize("body", [b"[]", b"{", b"\xff", b'"x"'])
def test_body_that_is_no_object_is_refused(body: bytes) -> None:
    """What is no JSON object cannot be prefilled."""
    with pytest.raises(EngineFormatError):
        prefill_body(body, slot=0)


def test_answers_about_slots_are_read() -> None:
    """Other fields of the answers do not matter."""
    saved = read_saved(b'{"id_slot":0,"filename":"f","n_saved":7,"n_written":99,"timings":{}}')
    restored = read_restored(b'{"id_slot":1,"n_restored":7,"n_read":99}')
    assert (saved.n_saved, saved.n_written) == (7, 99)
    assert (restored.n_restored, restored.n_read) == (7, 99)


@pytest.mark.parametrize("answer", [b"", b"{}", b'{"n_saved":"x"}', b"\xff"])
def test_answer_without_counts_is_refused(answer: bytes) -> None:
    """An answer that does not say how many tokens is no success."""
    with pytest.raises(EngineFormatError):
        read_saved(answer)
