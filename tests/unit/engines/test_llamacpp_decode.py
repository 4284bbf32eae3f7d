"""llama.cpp's completion endpoint as decode is measured with: bodies, timed answers, pieces of a stream."""

import json

import pytest

from trimtab.core.ports import EngineFormatError
from trimtab.engines.llamacpp_decode import (
    decode_body,
    noise_body,
    read_decoded,
    read_piece,
    read_template,
)

ANSWER = {
    "content": "a b",
    "tokens": [5, 6, 7, 8],
    "stop_type": "eos",
    "truncated": False,
    "timings": {
        "cache_n": 10,
        "prompt_n": 1,
        "prompt_ms": 3.0,
        "predicted_n": 5,
        "predicted_ms": 40.0,
        "draft_n": 3,
        "draft_n_accepted": 2,
    },
}


def test_answer_tells_steps_and_time_per_token() -> None:
    """Five tokens of which two were drafted: two steps after the first; four tokens in 40 ms."""
    found = read_decoded(json.dumps(ANSWER).encode())
    assert (found.steps, found.tpot_ms, found.ended) == (2, 10.0, True)
    assert (found.drafted, found.accepted, found.computed) == (3, 2, 1)


def test_answer_without_drafts_took_a_step_for_each_token() -> None:
    """The engine leaves the fields out when it drafted nothing."""
    timings = {key: value for key, value in ANSWER["timings"].items() if "draft" not in key}  # type: ignore[attr-defined]
    found = read_decoded(json.dumps({**ANSWER, "timings": timings, "stop_type": "limit"}).encode())
    assert (found.steps, found.drafted, found.ended) == (4, 0, False)


def test_body_leaves_the_end_to_the_model_and_the_samplers_to_the_engine() -> None:
    """As users are served: nothing is forced, nothing ignored."""
    body = json.loads(
        decode_body(
            [1, 2], tokens_max=8, temperature=0.7, seed=3, slot=2, schema={"type": "object"}
        )
    )
    assert body["json_schema"] == {"type": "object"}
    assert (body["id_slot"], body["n_predict"], body["cache_prompt"]) == (2, 8, True)
    assert not {"ignore_eos", "samplers", "logit_bias"} & set(body)


def test_noise_can_only_be_of_its_alphabet() -> None:
    """Every token of it has the same bias, and as many candidates are kept as it has tokens."""
    body = json.loads(noise_body([1], [7, 8, 9], tokens=4, seed=1, slot=0))
    assert body["top_k"] == 3
    assert [token for token, _ in body["logit_bias"]] == [7, 8, 9]


def test_pieces_of_a_stream_tell_their_tokens() -> None:
    """The last event repeats what came and counts for nothing."""
    assert read_piece(b'{"stop": false, "tokens": [1], "content": "a"}') == (1,)
    assert read_piece(b'{"stop": true, "tokens": [1, 2], "content": ""}') == ()


@pytest.mark.parametrize("read", [read_decoded, read_piece, read_template])
def test_garbage_is_a_typed_error(read: object) -> None:
    """Nothing of it is quoted."""
    with pytest.raises(EngineFormatError):
        read(b'{"secret')  # type: ignore[operator]
