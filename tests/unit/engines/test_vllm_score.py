"""What vLLM is asked for a score, and what its answers are taken for."""

import math

import msgspec
import pytest

from trimtab.core.ports import EngineFormatError
from trimtab.engines.vllm_score import VllmScore, read_continued, read_forced, read_tokens

TOKENS = (5, 6, 7, 8)


def answer(*logprobs: float | None) -> bytes:
    told = [
        None
        if logprob is None
        else {str(token): {"logprob": logprob, "rank": 1, "decoded_token": "x"}}
        for token, logprob in zip(TOKENS, logprobs, strict=False)
    ]
    return msgspec.json.encode({"choices": [{"text": "", "prompt_logprobs": told}]})


def test_window_is_one_request_that_asks_for_the_prompts_own_probabilities() -> None:
    """The tokens themselves, nothing sampled, no alternatives."""
    (ask,) = VllmScore().forced(TOKENS, 2)
    body = msgspec.json.decode(ask.body)
    assert (body["prompt"], body["prompt_logprobs"], body["max_tokens"]) == (list(TOKENS), 0, 1)
    assert ask.read(answer(None, -1.0, -2.0, -3.0)) == (-2.0, -3.0)


def test_nothing_to_score_is_no_request() -> None:
    """An arm that wrote nothing is not asked about it."""
    assert list(VllmScore().forced(TOKENS, 4)) == []


def test_clamped_probability_is_minus_infinity() -> None:
    """JSON has no such number, and the engine tells another in its place."""
    assert read_forced(answer(None, -1.0, -2.0, -9999.0), TOKENS, 3) == (-math.inf,)


def test_probabilities_that_are_missing_are_an_error() -> None:
    """Too few, none at all, or of another token."""
    with pytest.raises(EngineFormatError, match="of 3 tokens of a prompt of 4"):
        read_forced(answer(None, -1.0, -2.0), TOKENS, 1)
    with pytest.raises(EngineFormatError, match="of 0 tokens"):
        read_forced(b'{"choices":[{"text":"a"}]}', TOKENS, 1)
    with pytest.raises(EngineFormatError, match="token 1"):
        read_forced(answer(None, -1.0, -2.0, -3.0), (5, 9, 7, 8), 1)


def test_continuation_gives_every_setting_of_the_sampler() -> None:
    """Where a request is silent, the model's folder would decide."""
    body = msgspec.json.decode(VllmScore().continued(TOKENS, 3, temperature=0.7, seed=1).body)
    wanted = {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "seed": 1}
    assert {name: body[name] for name in wanted} == wanted


def test_continuation_is_read_with_its_tokens() -> None:
    """Whether it ended by itself stands in the reason."""
    body = b'{"choices":[{"text":"a b","token_ids":[3,4],"finish_reason":"stop"}]}'
    found = read_continued(body)
    assert (found.tokens, found.text, found.ended) == ((3, 4), "a b", True)
    with pytest.raises(EngineFormatError, match="no token ids"):
        read_continued(b'{"choices":[{"text":"a"}]}')
    with pytest.raises(EngineFormatError, match="0 choices"):
        read_continued(b'{"choices":[]}')


def test_tokens_of_a_text_are_read() -> None:
    """With the count beside them, which says nothing new."""
    assert read_tokens(b'{"count":2,"tokens":[1,9]}') == (1, 9)
    with pytest.raises(EngineFormatError):
        read_tokens(b"[]")
