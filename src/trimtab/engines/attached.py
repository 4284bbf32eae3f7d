"""What a server of others says of itself: which engine, which models, how much it takes at once.

The engine is found by the names on its page of metrics; where it has none, by who owns its models. What no page tells
is None; what is assumed of an engine stands in a table with its source.
"""

import hashlib
from collections.abc import Mapping
from typing import Final

import msgspec

from trimtab.core.ports import EngineFormatError
from trimtab.core.revision import Model, Revision
from trimtab.core.served import Counter, EngineKind, Gauge, ServerSample

MODELS_PAGE: Final = "/v1/models"
METRICS_PAGE: Final = "/metrics"
MODELS_MAX: Final = 1024

OWN_PAGES: Final[Mapping[EngineKind, str]] = {
    EngineKind.VLLM: "/version",
    EngineKind.SGLANG: "/get_server_info",
    EngineKind.LLAMACPP: "/props",
    EngineKind.TGI: "/info",
}
"""The page on which each engine tells more of itself."""

SLOTS_ASSUMED: Final[Mapping[EngineKind, int]] = {
    EngineKind.VLLM: 256,
    EngineKind.SGLANG: 256,
    EngineKind.LLAMACPP: 4,
    EngineKind.TGI: 128,
}
"""Requests at once where nobody tells: the engines' own defaults (vLLM's `max_num_seqs`, TGI's
`max_concurrent_requests`; SGLang's follows from its memory)."""

SLOTS_UNKNOWN: Final = 64

KEEP_AFTER_STREAM: Final = frozenset({EngineKind.VLLM, EngineKind.SGLANG, EngineKind.TGI})
"""Engines whose server keeps a connection open after a stream; llama.cpp's closes it."""

_OWNERS: Final = {
    "vllm": EngineKind.VLLM,
    "sglang": EngineKind.SGLANG,
    "llamacpp": EngineKind.LLAMACPP,
    "llama.cpp": EngineKind.LLAMACPP,
}


class _Model(msgspec.Struct):
    id: str
    owned_by: str = ""
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


class _Defaults(msgspec.Struct):
    n_ctx: int | None = None


class _Own(msgspec.Struct):
    """The fields that any engine's own page may have."""

    version: str | None = None
    build_info: str | None = None
    total_slots: int | None = None
    max_running_requests: int | None = None
    max_concurrent_requests: int | None = None
    context_length: int | None = None
    max_total_tokens: int | None = None
    model_id: str | None = None
    default_generation_settings: _Defaults | None = None


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """A server as it describes itself. `slots_told`: False where `slots` is the engine's default.

    `context_tokens`: of one request, None if untold; `models`: the names it serves, its base model first. `kv_key`:
    equal for servers that may hand KV to each other as far as they tell, empty for one that cannot.
    """

    engine: EngineKind
    version: str | None
    models: tuple[str, ...]
    context_tokens: int | None
    slots: int
    slots_told: bool
    kv_key: str = ""

    def revision(self, model: str) -> Revision:
        """Return the revision that routes and records name: equal for servers that describe themselves alike.

        The weights are not seen, so their checksum is empty.
        """
        return Revision(
            engine=self.engine.value,
            engine_version=self.version or "unknown",
            model=Model(path="", sha256="", name=model),
            kv_type="unknown",
            slots=self.slots,
            context_tokens=self.context_tokens or 0,
            layout="unknown",
        )


def kind_of_server(sample: ServerSample | None, models: bytes | None) -> EngineKind:
    """Say which engine a server is, by its metrics, else by who owns its models; raises `EngineFormatError`."""
    if sample is not None and sample.engine in OWN_PAGES:
        return sample.engine
    owners = {model.owned_by for model in _models(models)} if models is not None else set()
    found = {_OWNERS[owner] for owner in owners if owner in _OWNERS}
    if len(found) == 1:
        return found.pop()
    return EngineKind.UNKNOWN if sample is None else sample.engine


def identity_of(
    engine: EngineKind,
    *,
    models: bytes | None,
    sample: ServerSample | None,
    own: bytes | None,
) -> Identity:
    """Put together what a server's pages say; None is a page that it does not have.

    Raises `EngineFormatError` where no model is named: then it is no OpenAI-compatible server.
    """
    listed = _models(models) if models is not None else []
    told = _own(own)
    names = tuple(dict.fromkeys(model.id for model in listed))
    if not names and told.model_id:
        names = (told.model_id,)
    if not names and sample is not None and sample.model:
        names = (sample.model,)
    if not names:
        raise EngineFormatError(f"it names no model on {MODELS_PAGE}")
    gauge = None if sample is None else sample.gauge_sum(Gauge.REQUESTS_MAX)
    slots = told.total_slots or told.max_running_requests or told.max_concurrent_requests
    slots = slots or (int(gauge) if gauge else None)
    version = told.version or told.build_info or (sample.version if sample else None)
    return Identity(
        engine=engine,
        version=version,
        models=names,
        context_tokens=_context(listed, told, sample),
        slots=max(1, slots or SLOTS_ASSUMED.get(engine, SLOTS_UNKNOWN)),
        slots_told=slots is not None,
        kv_key=_kv_key(engine, version, names[0], sample),
    )


def _kv_key(
    engine: EngineKind, version: str | None, model: str, sample: ServerSample | None
) -> str:
    """Return what must be equal to hand KV over, hashed; empty for a server that shows no means to.

    A vLLM with a NIXL connector counts hand-overs from its start. Its weights are not seen: two servers of one model
    name, version, block size and KV precision pair here, and NIXL's own handshake refuses those that differ after all.
    """
    if engine is not EngineKind.VLLM or sample is None or version is None:
        return ""
    if sample.counter_sum(Counter.TRANSFERS_EXPIRED) is None:
        return ""
    cache = sample.configured
    told = (version, model, cache.get("block_size", ""), cache.get("cache_dtype", ""))
    digest = hashlib.sha256(msgspec.json.encode((engine.value, *told)))
    return digest.hexdigest()[:16]


def _context(listed: list[_Model], told: _Own, sample: ServerSample | None) -> int | None:
    lengths = [model.max_model_len for model in listed if model.max_model_len]
    gauge = None if sample is None else sample.gauge_sum(Gauge.CONTEXT_TOKENS_MAX)
    per_slot = told.default_generation_settings
    found = (
        min(lengths, default=None),
        told.context_length,
        told.max_total_tokens,
        per_slot.n_ctx if per_slot else None,
    )
    known = next((length for length in found if length), None)
    return known or (int(gauge) if gauge else None)


def _models(body: bytes | None) -> list[_Model]:
    try:
        return msgspec.json.decode(body or b"", type=_Models).data[:MODELS_MAX]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise EngineFormatError(f"its {MODELS_PAGE} is no list of models") from error


def _own(body: bytes | None) -> _Own:
    """Read what can be read: such pages change between versions and decide nothing alone."""
    try:
        return msgspec.json.decode(body or b"{}", type=_Own)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _Own()
