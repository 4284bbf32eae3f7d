"""vLLM's endpoints for scoring: tokens of a text, log-probabilities of a prompt, a continuation of token ids.

`prompt_logprobs` 0 tells the log-probability of each token of the prompt and of nothing else; such a request reads
nothing from the prefix cache, so that every position is computed by the arm's own kernels and its own KV cache. The
sampler's settings are all given: a model's folder may hold others, which would count where a request is silent.
"""

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

import msgspec

from trimtab.core.ports import EngineFormatError
from trimtab.engines.openai import COMPLETIONS_PATH
from trimtab.engines.score_format import Ask, Generated

STREAMS: Final = 8
TOKENIZE_PATH: Final = "/tokenize"
CLAMPED: Final = -9999.0
"""What vLLM tells for minus infinity, which JSON does not have."""


class _Tokens(msgspec.Struct):
    tokens: list[int]


class _Probability(msgspec.Struct):
    logprob: float


class _Choice(msgspec.Struct):
    text: str = ""
    finish_reason: str | None = None
    token_ids: list[int] | None = None
    prompt_logprobs: list[dict[str, _Probability] | None] | None = None


class _Completion(msgspec.Struct):
    choices: list[_Choice]


class VllmScore:
    """Implements `ScoreFormat`; one request scores a whole window."""

    @property
    def streams(self) -> int:
        """See `ScoreFormat`."""
        return STREAMS

    def tokens(self, text: str) -> Ask[tuple[int, ...]]:
        """See `ScoreFormat`."""
        body = msgspec.json.encode({"prompt": text, "add_special_tokens": True})
        return Ask(TOKENIZE_PATH, body, read_tokens)

    def forced(self, tokens: Sequence[int], first: int) -> Iterator[Ask[tuple[float, ...]]]:
        """See `ScoreFormat`; the very first token has no probability, so `first` is 1 at least."""
        if not tokens[first:]:
            return
        body = {
            "prompt": list(tokens),
            "max_tokens": 1,
            "temperature": 0.0,
            "prompt_logprobs": 0,
        }
        yield Ask(
            COMPLETIONS_PATH,
            msgspec.json.encode(body),
            partial(read_forced, tokens=tuple(tokens), first=first),
        )

    def continued(
        self, before: Sequence[int], tokens: int, *, temperature: float, seed: int
    ) -> Ask[Generated]:
        """See `ScoreFormat`."""
        body = {
            "prompt": list(before),
            "max_tokens": tokens,
            "temperature": temperature,
            "seed": seed,
            "top_p": 1.0,
            "top_k": 0,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "return_token_ids": True,
        }
        return Ask(COMPLETIONS_PATH, msgspec.json.encode(body), read_continued)


def read_tokens(body: bytes) -> tuple[int, ...]:
    """Return the tokens; raises `EngineFormatError`."""
    try:
        return tuple(msgspec.json.decode(body, type=_Tokens).tokens)
    except msgspec.MsgspecError as error:
        raise EngineFormatError("the engine's answer holds no tokens") from error


def read_forced(body: bytes, tokens: tuple[int, ...], first: int) -> tuple[float, ...]:
    """Return the log-probabilities of `tokens` from `first` on; raises `EngineFormatError` if one is not told."""
    told = _choice(body).prompt_logprobs
    if told is None or len(told) != len(tokens):
        count = 0 if told is None else len(told)
        raise EngineFormatError(
            f"the engine told log-probabilities of {count} tokens of a prompt of {len(tokens)}"
        )
    return tuple(_logprob(told[at], tokens[at], at) for at in range(first, len(tokens)))


def _logprob(told: dict[str, _Probability] | None, token: int, at: int) -> float:
    found = None if told is None else told.get(str(token))
    if found is None:
        raise EngineFormatError(f"the engine told no log-probability of the prompt's token {at}")
    return -math.inf if found.logprob <= CLAMPED else found.logprob


def read_continued(body: bytes) -> Generated:
    """Return what was written; raises `EngineFormatError`."""
    choice = _choice(body)
    if choice.token_ids is None:
        raise EngineFormatError("the engine's answer holds no token ids")
    return Generated(tuple(choice.token_ids), choice.text, choice.finish_reason == "stop")


def _choice(body: bytes) -> _Choice:
    try:
        choices = msgspec.json.decode(body, type=_Completion).choices
    except msgspec.MsgspecError as error:
        raise EngineFormatError(f"the engine's answer is no completion ({error})") from error
    if len(choices) != 1:
        raise EngineFormatError(
            f"the engine's answer has {len(choices)} choices, one was asked for"
        )
    return choices[0]
