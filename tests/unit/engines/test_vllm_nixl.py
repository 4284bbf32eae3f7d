"""What a vLLM server is asked for a hand-over, and what it says it keeps."""

import json
from typing import Any

import pytest

from trimtab.core.ports import EngineFormatError
from trimtab.engines.vllm_nixl import Stay, prefill_body, read_kept, stays

CHAT = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}
TEXT = {"model": "m", "prompt": "Hello"}
PARAMS = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_block_ids": [[1, 2, 3]],
    "remote_engine_id": "5f0c",
    "remote_request_id": "cmpl-1",
    "remote_host": "127.0.0.1",
    "remote_port": 5600,
    "tp_size": 1,
    "remote_num_tokens": 371,
}
USAGE = {"prompt_tokens": 371, "prompt_tokens_details": {"cached_tokens": 128}}


def body(**fields: object) -> bytes:
    return json.dumps(fields).encode()


def asked(request: dict[str, Any], **more: object) -> dict[str, Any]:
    return dict(json.loads(prefill_body(body(**request, **more))))


def test_prefill_is_the_same_prompt_for_one_token_and_no_stream() -> None:
    """What shapes the prompt stays; what speaks of more than one token goes."""
    shaped = {"tools": [{"type": "function"}], "cache_salt": "s", "seed": 7, "temperature": 0.5}
    told = asked(
        CHAT,
        **shaped,
        stream=True,
        stream_options={"include_usage": True},
        max_tokens=500,
        max_completion_tokens=400,
        min_tokens=20,
        logprobs=True,
        top_logprobs=5,
        n=1,
    )
    wish = told.pop("kv_transfer_params")
    assert told == {**CHAT, **shaped, "stream": False, "max_tokens": 1}
    assert (wish["do_remote_decode"], wish["do_remote_prefill"]) == (True, False)
    assert wish["remote_engine_id"] is None


def test_prefill_goes_over_parameters_of_a_client() -> None:
    """Nobody is made to connect to where a client says."""
    told = asked(TEXT, kv_transfer_params={"remote_host": "10.0.0.1", "do_remote_prefill": True})
    assert told["kv_transfer_params"]["remote_host"] is None


def test_kept_kv_is_read_and_its_words_stay_as_they_are() -> None:
    """What the decode server gets is what the prefill server said, but for the count it would pass as its own."""
    said = {**PARAMS, "remote_prefill_cached_tokens": 128}
    kept = read_kept(body(kv_transfer_params=said, usage=USAGE, choices=[]))
    assert json.loads(kept.params) == PARAMS
    assert (kept.engine_id, kept.request_id) == ("5f0c", "cmpl-1")
    assert (kept.prompt_tokens, kept.tokens, kept.cached_tokens) == (371, 371, 128)


def test_counts_that_are_not_told_are_unknown() -> None:
    """Older servers say fewer things; absent is not zero."""
    params = {name: value for name, value in PARAMS.items() if name != "remote_num_tokens"}
    kept = read_kept(body(kv_transfer_params=params))
    assert (kept.prompt_tokens, kept.tokens, kept.cached_tokens) == (None, None, None)


@pytest.mark.parametrize(
    "answer",
    [
        body(usage=USAGE),
        body(kv_transfer_params=None),
        body(kv_transfer_params={}),
        body(kv_transfer_params={**PARAMS, "do_remote_prefill": False}),
        body(kv_transfer_params={**PARAMS, "remote_engine_id": 5}),
        b"[]",
        b"\xff",
        b"",
    ],
)
def test_answer_that_keeps_nothing_for_another_is_no_parcel(answer: bytes) -> None:
    """Never decode on KV that nobody said to keep."""
    with pytest.raises(EngineFormatError):
        read_kept(answer)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        (CHAT, None),
        (TEXT, None),
        ({"prompt": [1, 2, 3]}, None),
        ({"prompt": [[1, 2], [3]]}, Stay.SEVERAL_PROMPTS),
        ({"prompt": ["a", "b"]}, Stay.SEVERAL_PROMPTS),
        ({**TEXT, "n": 1, "best_of": None, "echo": False}, None),
        ({**TEXT, "n": 2}, Stay.SEVERAL_ANSWERS),
        ({**TEXT, "best_of": 3}, Stay.SEVERAL_ANSWERS),
        ({**TEXT, "use_beam_search": True}, Stay.SEVERAL_ANSWERS),
        ({**TEXT, "prompt_logprobs": 0}, Stay.PROMPT_LOGPROBS),
        ({**TEXT, "echo": True}, Stay.PROMPT_LOGPROBS),
        ({**TEXT, "prompt_embeds": "AA=="}, Stay.NOT_ONLY_TEXT),
        *(
            ({"messages": [{"role": "user", "content": [{"type": kind}]}]}, Stay.NOT_ONLY_TEXT)
            for kind in ("image_url", "image_embeds", "input_audio", "audio_url", "video_url")
        ),
    ],
)
def test_what_a_parcel_cannot_stand_for_stays(fields: dict[str, object], why: Stay | None) -> None:
    """A parcel is fetched once, for one answer to one text."""
    assert stays(body(**fields)) is why


def test_body_that_is_no_object_stays_and_makes_no_prefill() -> None:
    """Its error is the decode server's to tell."""
    assert stays(b"[1]") is Stay.UNREADABLE
    with pytest.raises(EngineFormatError):
        prefill_body(b"[1]")
