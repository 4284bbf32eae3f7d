"""The OpenAI wire format: requests and their declared edits, stream chunks and whole responses.

Bodies are read leniently where the engine is the better judge (an unknown field, an odd content part) and strictly
where reading on would be guessing. A message for the client never quotes the body: bodies are prompts.

Segments of a chat follow the order of the usual templates: leading system messages, tools, then the other messages.
Only text counts; images and audio have none.
"""

from collections.abc import Collection, Iterator, Mapping

import msgspec

from trimtab.core.ports import (
    EngineFormatError,
    EngineReport,
    RequestFacts,
    StreamEvent,
)
from trimtab.core.types import Constraint
from trimtab.engines.base import ErrorDetail, decode

CHAT_PATH = "/v1/chat/completions"
COMPLETIONS_PATH = "/v1/completions"
DONE = b"[DONE]"

KV_FIELDS = (
    "kv_transfer_params",
    "ec_transfer_params",
    "id_slot",
    "bootstrap_host",
    "bootstrap_port",
    "bootstrap_room",
)
"""Body fields by which engines are told where KV lies: vLLM's transfers, llama.cpp's slots, SGLang's transfers."""

NO_FIELDS: Mapping[str, str] = {}

EXTRA_ARGUMENTS = "vllm_xargs"
"""vLLM merges this object with the arguments that its transfers travel in."""
_QUOTED_EXTRA = b'"%b"' % EXTRA_ARGUMENTS.encode()

_SYSTEM_ROLES = frozenset({"system", "developer"})
_GRAMMAR_FIELDS = ("grammar", "guided_grammar", "guided_regex", "guided_choice")
_SCHEMA_FIELDS = ("json_schema", "guided_json")


class PromptDetails(msgspec.Struct, frozen=True):
    """Part of a usage object."""

    cached_tokens: int | None = None


class Usage(msgspec.Struct, frozen=True):
    """Token counts of a request."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None


class Delta(msgspec.Struct, frozen=True):
    """What a choice adds; in a whole response, the message."""

    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: msgspec.Raw = msgspec.Raw(b"null")


class Choice(msgspec.Struct, frozen=True):
    """One choice of a chunk or of a response."""

    delta: Delta | None = None
    message: Delta | None = None
    text: str | None = None
    finish_reason: str | None = None


class Chunk(msgspec.Struct, frozen=True):
    """A stream chunk or a whole response. `timings` is llama.cpp's own addition."""

    choices: tuple[Choice, ...] = ()
    usage: Usage | None = None
    timings: msgspec.Raw = msgspec.Raw(b"null")
    error: ErrorDetail | str | None = None


_CHUNKS = msgspec.json.Decoder(Chunk)
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])


def read_request(path: str, body: bytes) -> RequestFacts:
    """Read a body of one of the two completion paths; raises `EngineFormatError`."""
    data = decode(body, "the request body")
    if not isinstance(data, dict):
        raise EngineFormatError("the request body must be a JSON object")
    match path:
        case "/v1/chat/completions":
            segments = tuple(_chat_segments(data))
        case "/v1/completions":
            segments = tuple(_prompt_segments(data.get("prompt")))
        case _:
            raise EngineFormatError(f"{path} is no completion path")
    options = data.get("stream_options")
    return RequestFacts(
        model=_text(data.get("model")),
        stream=data.get("stream") is True,
        wants_usage=isinstance(options, dict) and options.get("include_usage") is True,
        temperature=_number(data.get("temperature")),
        max_tokens=_whole(data.get("max_completion_tokens")) or _whole(data.get("max_tokens")),
        constraint=_constraint(data),
        segments=segments,
        n=_whole(data.get("n")) or 1,
        cache_salt=_text(data.get("cache_salt")),
        user=_text(data.get("user")),
    )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _constraint(data: Mapping[str, object]) -> Constraint:
    shape = data.get("response_format")
    kind = shape.get("type") if isinstance(shape, dict) else None
    if kind == "json_schema" or any(data.get(field) is not None for field in _SCHEMA_FIELDS):
        return Constraint.JSON_SCHEMA
    if any(data.get(field) for field in _GRAMMAR_FIELDS):
        return Constraint.GRAMMAR
    return Constraint.JSON_OBJECT if kind == "json_object" else Constraint.FREE


def _chat_segments(data: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    messages = data.get("messages")
    if not isinstance(messages, list):
        raise EngineFormatError("messages must be an array")
    tools_due = bool(data.get("tools"))
    for message in messages:
        if not isinstance(message, dict):
            raise EngineFormatError("each of messages must be an object")
        role = message.get("role")
        kind = "system" if isinstance(role, str) and role in _SYSTEM_ROLES else str(role)
        if tools_due and kind != "system":
            yield "tools", _as_json(data["tools"])
            tools_due = False
        yield kind, _message_text(message)
    if tools_due:
        yield "tools", _as_json(data["tools"])


def _message_text(message: Mapping[str, object]) -> str:
    calls = message.get("tool_calls")
    return "".join(_content_texts(message.get("content"))) + (_as_json(calls) if calls else "")


def _content_texts(content: object) -> Iterator[str]:
    match content:
        case str():
            yield content
        case list():
            yield from (
                part["text"]
                for part in content
                if isinstance(part, dict) and isinstance(part.get("text"), str)
            )
        case _:
            return


def _prompt_segments(prompt: object) -> Iterator[tuple[str, str]]:
    """Yield the prompt, or each of several. Token ids are kept as digits: equal ids, equal text."""
    match prompt:
        case str():
            yield "prompt", prompt
        case [int(), *_]:
            yield "prompt_ids", " ".join(map(str, prompt))
        case list():
            for one in prompt:
                yield from _prompt_segments(one)
        case _:
            raise EngineFormatError("prompt must be a string, token ids, or an array of these")


def _as_json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def edit_request(
    body: bytes,
    *,
    include_usage: bool,
    id_slot: int | None,
    cache_salt: str | None = None,
    fields: Mapping[str, str] = NO_FIELDS,
) -> bytes:
    """Apply the declared edits; the same bytes if there is nothing to do. Other values keep their very bytes.

    `include_usage` is set only in streams: elsewhere usage comes anyway, and servers refuse the option. A
    `cache_salt` goes over the body's own, so that nobody gets at a cache by naming another's salt. What names KV that
    already lies somewhere (`KV_FIELDS`) is the gateway's alone and is taken out: a client could read another's prompt
    through it, and make a server connect to an address or keep blocks. `fields`: JSON texts by name, set last.
    """
    try:
        found = _FIELDS.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise EngineFormatError("the request body must be a JSON object") from error
    wanted = {name: text.encode() for name, text in fields.items()}
    if cache_salt is not None:
        wanted.setdefault("cache_salt", msgspec.json.encode(cache_salt))
    if id_slot is not None:
        wanted.setdefault("id_slot", b"%d" % id_slot)
    changed = _drop_kv_fields(found, kept=wanted) or _may_say_twice(body)
    if include_usage and _equal(found.get("stream"), b"true"):
        options = _with_usage(found.get("stream_options"))
        changed = _set(found, "stream_options", options) or changed
    for name, value in wanted.items():
        changed = _set(found, name, value) or changed
    return msgspec.json.encode(found) if changed else body


def names_kv(body: bytes) -> bool:
    """Say whether a body may name KV that lies somewhere: a cheap look, for bodies that are otherwise not read.

    A field's name can be written with escapes, so that any escaped letter counts.
    """
    return b"\\u00" in body or any(name.encode() in body for name in KV_FIELDS)


def _may_say_twice(body: bytes) -> bool:
    """Say whether extra arguments that name KV may stand beside others of the same name: then one of them is sent."""
    # The rarest is asked first: each of the names is a search through the whole body.
    return b"\\u00" in body or (body.count(_QUOTED_EXTRA) > 1 and names_kv(body))


def _drop_kv_fields(fields: dict[str, msgspec.Raw], *, kept: Collection[str]) -> bool:
    """Take out what names KV and say whether there was any. `kept`: fields that are set anyway."""
    dropped = _drop(fields, kept)
    more = fields.get(EXTRA_ARGUMENTS)
    if more is None or not names_kv(bytes(more)):
        return dropped
    try:
        extra = _FIELDS.decode(more)
    except msgspec.MsgspecError:
        # No object: the server refuses it, so that nothing in it is followed.
        return dropped
    if not _drop(extra, ()):
        return dropped
    fields[EXTRA_ARGUMENTS] = msgspec.Raw(msgspec.json.encode(extra))
    return True


def _drop(fields: dict[str, msgspec.Raw], kept: Collection[str]) -> bool:
    unwanted = [name for name in KV_FIELDS if name in fields and name not in kept]
    for name in unwanted:
        del fields[name]
    return bool(unwanted)


def _set(fields: dict[str, msgspec.Raw], name: str, value: bytes) -> bool:
    """Set a field and say whether that changed anything."""
    if _equal(fields.get(name), value):
        return False
    fields[name] = msgspec.Raw(value)
    return True


def _equal(raw: msgspec.Raw | None, value: bytes) -> bool:
    return raw is not None and bytes(raw) == value


def _with_usage(options: msgspec.Raw | None) -> bytes:
    if options is None or _equal(options, b"null"):
        return b'{"include_usage":true}'
    try:
        fields = _FIELDS.decode(options)
    except msgspec.MsgspecError as error:
        raise EngineFormatError("stream_options must be an object") from error
    changed = _set(fields, "include_usage", b"true")
    return msgspec.json.encode(fields) if changed else bytes(options)


def read_chunk(data: bytes) -> Chunk:
    """Read a stream chunk or a whole response; raises `EngineFormatError` on garbage."""
    try:
        return _CHUNKS.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise EngineFormatError("the engine sent something that is no completion") from error


def report_of_usage(usage: Usage | None, *, finish_reason: str | None) -> EngineReport | None:
    """Return what a usage object says, None if there is none."""
    if usage is None:
        return None
    details = usage.prompt_tokens_details
    return EngineReport(
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=None if details is None else details.cached_tokens,
        output_tokens=usage.completion_tokens,
        finish_reason=finish_reason,
    )


def event_of_chunk(chunk: Chunk, report: EngineReport | None) -> StreamEvent:
    """Return a chunk as an event. Text of several choices is joined in order."""
    return StreamEvent(
        text="".join(_choice_text(choice) for choice in chunk.choices),
        finish_reason=finish_reason_of(chunk),
        report=report,
        usage_only=chunk.usage is not None and not any(map(_carries, chunk.choices)),
        error=_error_text(chunk.error),
    )


def finish_reason_of(chunk: Chunk) -> str | None:
    """Return the first finish reason in a chunk."""
    for choice in chunk.choices:
        if choice.finish_reason:
            return choice.finish_reason
    return None


def _carries(choice: Choice) -> bool:
    """Return whether a choice says anything: some servers send an empty one beside the usage."""
    said = choice.delta or choice.message
    has_role = said is not None and said.role is not None
    return bool(choice.finish_reason or has_role or _choice_text(choice))


def _error_text(error: ErrorDetail | str | None) -> str | None:
    if error is None or isinstance(error, str):
        return error
    return error.message or error.type or "error without a message"


def _choice_text(choice: Choice) -> str:
    said = choice.delta or choice.message
    if said is None:
        return choice.text or ""
    calls = bytes(said.tool_calls).decode("utf-8", "replace")
    parts = (
        said.reasoning_content or said.reasoning,
        said.content,
        None if calls == "null" else calls,
        choice.text,
    )
    return "".join(part for part in parts if part)
