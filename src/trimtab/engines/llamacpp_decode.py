"""llama.cpp's own completion endpoint for measuring decode: an answer with its tokens and times, and a stream of them.

A body of `decode_body` is answered as users are (the engine's default samplers); one of `noise_body` draws every
token at random from a small alphabet, so that almost no draft agrees: what a step costs where acceptance is low. The
bias keeps the alphabet apart from all other tokens, end of text included, and the temperature makes it even.

`decode_ms` begins at the first output token and ends at the last, so it covers one token less than there are.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from trimtab.core.ports import EngineFormatError

TEMPLATE_PATH: Final = "/apply-template"
ALPHABET_BIAS: Final = 10_000.0
EVEN_TEMPERATURE: Final = 100.0


class _Timings(msgspec.Struct):
    prompt_n: int
    predicted_n: int
    predicted_ms: float
    draft_n: int = 0
    draft_n_accepted: int = 0


class _Answer(msgspec.Struct):
    content: str
    timings: _Timings
    tokens: list[int] = []
    stop_type: str = ""
    truncated: bool = False


class _Piece(msgspec.Struct):
    stop: bool
    tokens: list[int] = []


class _Prompt(msgspec.Struct):
    prompt: str


class Decoded(msgspec.Struct, frozen=True, kw_only=True):
    """One answer. `computed`: prompt tokens that were not cached; `ended`: by itself and not at its limit."""

    tokens: tuple[int, ...]
    text: str
    output_tokens: int
    decode_ms: float
    drafted: int
    accepted: int
    computed: int
    ended: bool

    @property
    def steps(self) -> int:
        """Decode steps after the one that gave the first token."""
        return max(0, self.output_tokens - 1 - self.accepted)

    @property
    def tpot_ms(self) -> float | None:
        """Milliseconds of an output token after the first; None with one token."""
        return self.decode_ms / (self.output_tokens - 1) if self.output_tokens > 1 else None


_ANSWERS: Final = msgspec.json.Decoder(_Answer)
_PIECES: Final = msgspec.json.Decoder(_Piece)
_PROMPTS: Final = msgspec.json.Decoder(_Prompt)


def decode_body(
    prompt: Sequence[int],
    *,
    tokens_max: int,
    temperature: float,
    seed: int,
    slot: int,
    schema: Any = None,
    stream: bool = False,
) -> bytes:
    """Ask for an answer as a user would get it; `schema`: of JSON, which then constrains it."""
    body: dict[str, Any] = {
        "prompt": list(prompt),
        "n_predict": tokens_max,
        "temperature": temperature,
        "seed": seed,
        "cache_prompt": True,
        "id_slot": slot,
        "return_tokens": True,
        "stream": stream,
    }
    if schema is not None:
        body["json_schema"] = schema
    return msgspec.json.encode(body)


def noise_body(
    prompt: Sequence[int], alphabet: Sequence[int], *, tokens: int, seed: int, slot: int
) -> bytes:
    """Ask for a stream of tokens drawn evenly from an alphabet."""
    return msgspec.json.encode(
        {
            "prompt": list(prompt),
            "n_predict": tokens,
            "temperature": EVEN_TEMPERATURE,
            "samplers": ["top_k", "temperature"],
            "top_k": len(alphabet),
            "seed": seed,
            "cache_prompt": True,
            "id_slot": slot,
            "return_tokens": True,
            "stream": True,
            "logit_bias": [[token, ALPHABET_BIAS] for token in alphabet],
        }
    )


def read_decoded(body: bytes) -> Decoded:
    """Return a whole answer; raises `EngineFormatError`."""
    try:
        found = _ANSWERS.decode(body)
    except msgspec.MsgspecError as error:
        raise EngineFormatError("the engine's answer is no timed completion") from error
    timings = found.timings
    return Decoded(
        tokens=tuple(found.tokens),
        text=found.content,
        output_tokens=timings.predicted_n,
        decode_ms=timings.predicted_ms,
        drafted=timings.draft_n,
        accepted=timings.draft_n_accepted,
        computed=timings.prompt_n,
        ended=found.stop_type in ("eos", "word") and not found.truncated,
    )


def read_piece(data: bytes) -> tuple[int, ...]:
    """Return the tokens that one event of a stream carries; none for its end; raises `EngineFormatError`."""
    try:
        found = _PIECES.decode(data)
    except msgspec.MsgspecError as error:
        raise EngineFormatError("the engine's event is no piece of a completion") from error
    return () if found.stop else tuple(found.tokens)


def template_body(messages: Any) -> bytes:
    """Ask for a chat as the model's template writes it."""
    return msgspec.json.encode({"messages": messages})


def read_template(body: bytes) -> str:
    """Return the prompt; raises `EngineFormatError`."""
    try:
        return _PROMPTS.decode(body).prompt
    except msgspec.MsgspecError as error:
        raise EngineFormatError("the engine's answer holds no prompt") from error
