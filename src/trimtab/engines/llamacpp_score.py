"""llama.cpp's own endpoints for scoring: tokens of a text, and the log-probability of a forced next token.

The server has no log-probabilities of a prompt. But a request for one token whose choice is forced by a bias tells the
raw log-probability of that token, and with the cache on it computes one position: what a text costs under the arm's
own kernels and KV cache. The sampler chain is temperature alone, so that nothing is cut away before.
"""

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

import msgspec

from trimtab.core.ports import EngineFormatError
from trimtab.engines.score_format import Ask, Generated

TOKENIZE_PATH: Final = "/tokenize"
COMPLETION_PATH: Final = "/completion"
FORCING_BIAS: Final = 1000.0


class _Tokens(msgspec.Struct):
    tokens: list[int]


class _Probability(msgspec.Struct):
    id: int
    logprob: float | None


class _Scored(msgspec.Struct):
    completion_probabilities: list[_Probability]


class _Generated(msgspec.Struct):
    content: str
    tokens: list[int] = []
    stop_type: str = ""
    truncated: bool = False


class LlamaCppScore:
    """Implements `ScoreFormat`. `slot`: the one whose cache holds what came before, so that a step is one position."""

    def __init__(self, slot: int = 0) -> None:
        self._slot = slot

    @property
    def streams(self) -> int:
        """See `ScoreFormat`."""
        return 1

    def tokens(self, text: str) -> Ask[tuple[int, ...]]:
        """See `ScoreFormat`."""
        return Ask(TOKENIZE_PATH, tokenize_body(text), read_tokens)

    def forced(self, tokens: Sequence[int], first: int) -> Iterator[Ask[tuple[float, ...]]]:
        """See `ScoreFormat`: one request for each position."""
        for at in range(first, len(tokens)):
            body = forced_body(tokens[:at], tokens[at], slot=self._slot)
            yield Ask(COMPLETION_PATH, body, partial(_one_forced, token=tokens[at]))

    def continued(
        self, before: Sequence[int], tokens: int, *, temperature: float, seed: int
    ) -> Ask[Generated]:
        """See `ScoreFormat`."""
        body = generate_body(before, tokens, temperature=temperature, seed=seed, slot=self._slot)
        return Ask(COMPLETION_PATH, body, read_generated)


def _one_forced(body: bytes, token: int) -> tuple[float, ...]:
    return (read_forced(body, token),)


def tokenize_body(text: str) -> bytes:
    """Ask for the tokens of a text, with what the model begins a text with."""
    return msgspec.json.encode({"content": text, "add_special": True})


def read_tokens(body: bytes) -> tuple[int, ...]:
    """Return the tokens; raises `EngineFormatError`."""
    try:
        return tuple(msgspec.json.decode(body, type=_Tokens).tokens)
    except msgspec.MsgspecError as error:
        raise EngineFormatError("the engine's answer holds no tokens") from error


def forced_body(before: Sequence[int], token: int, *, slot: int) -> bytes:
    """Ask for one token after `before`, which must be `token`."""
    return msgspec.json.encode(
        {
            "prompt": list(before),
            "n_predict": 1,
            "n_probs": 1,
            "logit_bias": [[token, FORCING_BIAS]],
            "cache_prompt": True,
            "id_slot": slot,
            "samplers": ["temperature"],
        }
    )


def read_forced(body: bytes, token: int) -> float:
    """Return the raw log-probability of the forced token; raises `EngineFormatError` if it was not the one.

    One that the engine tells as null is no number to it: minus infinity.
    """
    try:
        found = msgspec.json.decode(body, type=_Scored).completion_probabilities
    except msgspec.MsgspecError as error:
        raise EngineFormatError("the engine's answer holds no log-probability") from error
    if len(found) != 1 or found[0].id != token:
        raise EngineFormatError(f"the engine did not take the token {token} that it was forced to")
    return -math.inf if found[0].logprob is None else found[0].logprob


def generate_body(
    before: Sequence[int], tokens: int, *, temperature: float, seed: int, slot: int
) -> bytes:
    """Ask for a continuation of `before`; it may end before `tokens`."""
    return msgspec.json.encode(
        {
            "prompt": list(before),
            "n_predict": tokens,
            "temperature": temperature,
            "seed": seed,
            "samplers": ["temperature"],
            "cache_prompt": True,
            "id_slot": slot,
            "return_tokens": True,
        }
    )


def read_generated(body: bytes) -> Generated:
    """Return what was written; raises `EngineFormatError`."""
    try:
        found = msgspec.json.decode(body, type=_Generated)
    except msgspec.MsgspecError as error:
        raise EngineFormatError("the engine's answer is no completion") from error
    return Generated(tuple(found.tokens), found.content, found.stop_type in ("eos", "word"))
