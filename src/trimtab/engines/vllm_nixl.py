"""How one vLLM server prefills a prompt for another, by NIXL: what it is asked, and what it says it keeps.

Written against vLLM 0.32. The prefill server gets the request with one token to make and the wish to keep its KV; it
answers with parameters that say where the KV lies. The decode server gets the request itself with these in the field
`TRANSFER_FIELD`, fetches the KV in the background, computes the prompt's last token anew and so emits the first token
of the answer. The token that the prefill server sampled is thrown away: no state of sampling travels, and the decode
server's seed, penalties and grammar see the request from its start, as if it had been local.

A parcel can be fetched once. Its blocks are kept for a lease (`LEASE_S` unless the server was told another), which the
decode server renews while the request waits there; nothing else frees them, so that a parcel nobody fetched comes back
with its lease.
"""

from enum import StrEnum
from typing import Final

import msgspec

from trimtab.core.ports import EngineFormatError

TRANSFER_FIELD: Final = "kv_transfer_params"
LEASE_S: Final = 30.0
"""vLLM's own `kv_lease_duration`."""

_HIDES_DELIVERED: Final = "remote_prefill_cached_tokens"
"""Given this, a decode server reports the prefill server's cached tokens as its own, and no longer what it fetched."""

_ASKED: Final = msgspec.Raw(
    b'{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,'
    b'"remote_block_ids":null,"remote_host":null,"remote_port":null}'
)
_ONE: Final = msgspec.Raw(b"1")
_OFF: Final = msgspec.Raw(b"false")
_LEFT_OUT: Final = (
    "stream_options",
    "max_completion_tokens",
    "min_tokens",
    "logprobs",
    "top_logprobs",
    "n",
    "best_of",
)
"""Fields of a request that its prefill does not need, or that speak of more tokens than the one it makes."""

_NOT_TEXT: Final = (b'"image', b'"audio', b'"input_audio"', b'"video', b'"file"')
"""How parts of a message begin that are no text; a text that quotes one of these stays too."""

_FIELDS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Stay(StrEnum):
    """Why a request is not prefilled elsewhere, whatever that would save. Closed: a new rule needs a new reason."""

    SEVERAL_ANSWERS = "several_answers"
    SEVERAL_PROMPTS = "several_prompts"
    PROMPT_LOGPROBS = "prompt_logprobs"
    NOT_ONLY_TEXT = "not_only_text"
    UNREADABLE = "unreadable"


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """What a prefill server says it keeps for another. `params`: its own words, for the decode server.

    They lack the prefill server's count of cached tokens, so that the decode server tells what it fetched.
    `prompt_tokens`: of the request; `tokens`: those whose KV it keeps; `cached_tokens`: those it did not have to
    compute; None where it did not say.
    """

    params: str
    engine_id: str
    request_id: str
    prompt_tokens: int | None = None
    tokens: int | None = None
    cached_tokens: int | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Params(msgspec.Struct):
    remote_engine_id: str
    remote_request_id: str
    do_remote_prefill: bool = False
    remote_num_tokens: int | None = None


class _Answer(msgspec.Struct):
    kv_transfer_params: msgspec.Raw = msgspec.Raw(b"null")
    usage: _Usage | None = None


def stays(body: bytes) -> Stay | None:
    """Say why a request must not travel, None where it may.

    Several answers or prompts would fetch one parcel several times; log-probabilities of the prompt need all of it
    computed where it is answered; other than text is left where it is.
    """
    try:
        fields = _FIELDS.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return Stay.UNREADABLE
    if _says(fields, "n", b"1") or _says(fields, "best_of", b"1"):
        return Stay.SEVERAL_ANSWERS
    if _says(fields, "use_beam_search", b"false"):
        return Stay.SEVERAL_ANSWERS
    if _says(fields, "prompt_logprobs") or _says(fields, "echo", b"false"):
        return Stay.PROMPT_LOGPROBS
    if _says(fields, "prompt_embeds") or any(word in body for word in _NOT_TEXT):
        return Stay.NOT_ONLY_TEXT
    return _of_prompt(fields.get("prompt"))


def prefill_body(body: bytes) -> bytes:
    """Return the request for the prefill server: the same prompt, one token, whole answer, KV kept for another.

    Everything that shapes the prompt (template, tools, salt, adapter) stays. Raises `EngineFormatError` for a body
    that is no object.
    """
    fields = _decoded(body)
    for name in _LEFT_OUT:
        fields.pop(name, None)
    fields["stream"] = _OFF
    fields["max_tokens"] = _ONE
    fields[TRANSFER_FIELD] = _ASKED
    return msgspec.json.encode(fields)


def read_kept(answer: bytes) -> Kept:
    """Read a prefill server's answer; raises `EngineFormatError` where it keeps nothing for another.

    A server without a KV connector answers as to any request, and says nothing of KV.
    """
    try:
        told = msgspec.json.decode(answer, type=_Answer)
        raw = bytes(told.kv_transfer_params)
        if raw == b"null":
            raise EngineFormatError(
                "the prefill server kept no KV for another: start it with a KV connector"
            )
        params = msgspec.json.decode(raw, type=_Params)
        words = _FIELDS.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise EngineFormatError("the prefill server's answer names no KV that it keeps") from error
    if not params.do_remote_prefill:
        raise EngineFormatError("the prefill server's KV is not for a decode server to fetch")
    words.pop(_HIDES_DELIVERED, None)
    usage = told.usage or _Usage()
    details = usage.prompt_tokens_details
    return Kept(
        params=msgspec.json.encode(words).decode(),
        engine_id=params.remote_engine_id,
        request_id=params.remote_request_id,
        prompt_tokens=usage.prompt_tokens,
        tokens=params.remote_num_tokens,
        cached_tokens=None if details is None else details.cached_tokens,
    )


def _decoded(body: bytes) -> dict[str, msgspec.Raw]:
    try:
        return _FIELDS.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise EngineFormatError("the request body must be a JSON object") from error


def _says(fields: dict[str, msgspec.Raw], name: str, usual: bytes = b"null") -> bool:
    """Say whether a field asks for something other than the usual."""
    raw = fields.get(name)
    return raw is not None and bytes(raw) not in (b"null", usual)


def _of_prompt(raw: msgspec.Raw | None) -> Stay | None:
    """Judge the prompt of a completion: one text or one list of ids may travel. None: a chat."""
    if raw is None or bytes(raw)[:1] == b'"':
        return None
    try:
        msgspec.json.decode(raw, type=list[int])
    except msgspec.MsgspecError:
        return Stay.SEVERAL_PROMPTS
    return None
