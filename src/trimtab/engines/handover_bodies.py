"""The bodies by which llama.cpp prefills a prompt for another replica, and what it answers about slots.

The prefill request is the client's own with one token to make, whole, in a named slot. That token is thrown away: it
was sampled, but never computed, so that the slot holds the prompt's KV and nothing else. Everything that shapes the
prompt (template, tools, format) stays; what shapes the answer only is left out.
"""

from typing import Final, TypeVar

import msgspec

from trimtab.core.ports import EngineFormatError

T = TypeVar("T")

LEFT_OUT: Final = (
    "stream_options",
    "max_completion_tokens",
    "n_predict",
    "n",
    "best_of",
    "logprobs",
    "top_logprobs",
    "n_probs",
    "response_fields",
)
_FIELDS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Timings(msgspec.Struct, frozen=True):
    """What the engine itself took, in milliseconds; not how long it was asked for before the step that ran ended."""

    save_ms: float | None = None
    restore_ms: float | None = None


UNTIMED: Final = Timings()


class Saved(msgspec.Struct, frozen=True):
    """The engine's answer to saving a slot: tokens and bytes."""

    n_saved: int
    n_written: int
    timings: Timings = UNTIMED


class Restored(msgspec.Struct, frozen=True):
    """The engine's answer to restoring a slot: tokens and bytes."""

    n_restored: int
    n_read: int
    timings: Timings = UNTIMED


def prefill_body(body: bytes, *, slot: int) -> bytes:
    """Return the request that computes a prompt in a slot; raises `EngineFormatError` for a body that is no object."""
    fields = _decoded(body)
    for name in LEFT_OUT:
        fields.pop(name, None)
    fields["stream"] = msgspec.Raw(b"false")
    fields["max_tokens"] = msgspec.Raw(b"1")
    fields["cache_prompt"] = msgspec.Raw(b"true")
    fields["id_slot"] = msgspec.Raw(b"%d" % slot)
    return msgspec.json.encode(fields)


def read_saved(answer: bytes) -> Saved:
    """Read the answer to saving a slot; raises `EngineFormatError`."""
    return _read(answer, Saved)


def read_restored(answer: bytes) -> Restored:
    """Read the answer to restoring a slot; raises `EngineFormatError`."""
    return _read(answer, Restored)


def _read(answer: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(answer, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise EngineFormatError("the engine's answer about a slot is not what it says") from error


def _decoded(body: bytes) -> dict[str, msgspec.Raw]:
    try:
        return _FIELDS.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise EngineFormatError("the request body must be a JSON object") from error
