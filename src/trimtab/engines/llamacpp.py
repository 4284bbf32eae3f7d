"""The wire format of llama.cpp's server, and its launch knobs in the words of `xllamacpp.CommonParams`.

Readings from /metrics (`read_metrics`); counters run since the server started, so a value lower than the one before it
means a restart:

| reading | the engine's name | unit |
|---|---|---|
| prompt_tokens_total | prompt_tokens_total: computed, cached ones apart | tokens |
| prompt_tokens_cached_total | prompt_tokens_cached_total | tokens |
| prompt_seconds_total | prompt_seconds_total | s |
| tokens_predicted_total | tokens_predicted_total | tokens |
| tokens_predicted_seconds_total | tokens_predicted_seconds_total: sum over streams | s |
| decode_steps_total | n_decode_total: decode calls, verification of drafts apart | steps |
| busy_slots_per_decode | n_busy_slots_per_decode: mean since start | slots |
| requests_processing | requests_processing | requests |
| requests_deferred | requests_deferred: waiting for a slot | requests |
| sequence_tokens_max | n_tokens_max | tokens |
| drafts_total | spec_decode_num_drafts_total | drafts |
| drafted_tokens_total | spec_decode_num_draft_tokens_total | tokens |
| accepted_tokens_total | spec_decode_num_accepted_tokens_total | tokens |

The engine has no gauge of its KV cache; `read_slots` makes one from /slots: `kv_tokens_held`, `kv_tokens_capacity`,
`kv_used_share`, `slots_busy`, `slots_busy_share`. A slot that was restored from a file counts as empty there until its
first request.

Per request the engine tells drafted and accepted tokens, not the number of drafts; it leaves both out when it drafted
nothing, so None means "none were drafted" only to a caller who knows that the revision speculates. `decode_ms` begins
at the first output token: it covers one token less than `output_tokens`.
"""

from collections.abc import Mapping
from typing import Final, assert_never

import msgspec

from trimtab.core.evidence import Reading
from trimtab.core.ports import (
    EngineFormatError,
    EngineReport,
    Placement,
    RequestFacts,
    StreamEvent,
)
from trimtab.core.prefix import SLOT_SIMILARITY
from trimtab.core.revision import Revision, Speculation, SpeculationMethod
from trimtab.core.types import ErrorClass
from trimtab.engines import openai
from trimtab.engines.base import class_of_status, read_error, reading
from trimtab.engines.prom import parse_page

NAME = "llamacpp"
# The engine's compute batch; a prefill chunk above it is computed in several of them.
MICRO_BATCH_TOKENS_MAX = 512
# Every open connection holds a thread of the engine's server, so waiting requests must not starve the probes.
_HTTP_THREADS_MIN = 64
_OVERFLOW_TYPE = "exceed_context_size_error"
KV_TYPES: Final = {"f16": "F16", "bf16": "BF16", "q8_0": "Q8_0", "q4_0": "Q4_0"}
"""Precisions of the KV cache, as the engine calls them."""

_METRICS = (
    ("prompt_tokens_total", "prompt_tokens_total", "tokens"),
    ("prompt_tokens_cached_total", "prompt_tokens_cached_total", "tokens"),
    ("prompt_seconds_total", "prompt_seconds_total", "s"),
    ("tokens_predicted_total", "tokens_predicted_total", "tokens"),
    ("tokens_predicted_seconds_total", "tokens_predicted_seconds_total", "s"),
    ("decode_steps_total", "n_decode_total", "steps"),
    ("busy_slots_per_decode", "n_busy_slots_per_decode", "slots"),
    ("requests_processing", "requests_processing", "requests"),
    ("requests_deferred", "requests_deferred", "requests"),
    ("sequence_tokens_max", "n_tokens_max", "tokens"),
    ("drafts_total", "spec_decode_num_drafts_total", "drafts"),
    ("drafted_tokens_total", "spec_decode_num_draft_tokens_total", "tokens"),
    ("accepted_tokens_total", "spec_decode_num_accepted_tokens_total", "tokens"),
)
METRIC_NAMES = tuple(ours for ours, _, _ in _METRICS)


class Timings(msgspec.Struct, frozen=True):
    """The engine's own measurements of one request; milliseconds."""

    cache_n: int | None = None
    prompt_n: int | None = None
    prompt_ms: float | None = None
    predicted_n: int | None = None
    predicted_ms: float | None = None
    draft_n: int | None = None
    draft_n_accepted: int | None = None


class Slot(msgspec.Struct, frozen=True):
    """One slot as /slots shows it, which leaves `n_prompt_tokens` out before a slot's first request."""

    id: int
    n_ctx: int
    is_processing: bool
    n_prompt_tokens: int = 0


_TIMINGS = msgspec.json.Decoder(Timings | None)
_SLOTS = msgspec.json.Decoder(tuple[Slot, ...])


class LlamaCppFormat:
    """Implements `EngineFormat` for llama.cpp's server."""

    @property
    def name(self) -> str:
        """`llamacpp`."""
        return NAME

    def read_request(self, path: str, body: bytes) -> RequestFacts:
        """See `EngineFormat`."""
        return openai.read_request(path, body)

    def edit_request(
        self,
        body: bytes,
        *,
        include_usage: bool,
        id_slot: int | None,
        cache_salt: str | None = None,
    ) -> bytes:
        """See `EngineFormat`."""
        return openai.edit_request(
            body, include_usage=include_usage, id_slot=id_slot, cache_salt=cache_salt
        )

    def read_stream_event(self, data: bytes) -> StreamEvent:
        """See `EngineFormat`."""
        return StreamEvent(done=True) if data == openai.DONE else self.read_response(data)

    def read_response(self, body: bytes) -> StreamEvent:
        """See `EngineFormat`."""
        chunk = openai.read_chunk(body)
        return openai.event_of_chunk(chunk, _report(chunk))

    def classify_error(self, status: int, body: bytes) -> ErrorClass:
        """See `EngineFormat`."""
        detail = read_error(body)
        if detail is not None and detail.type == _OVERFLOW_TYPE:
            return ErrorClass.CONTEXT_OVERFLOW
        return class_of_status(status)

    def read_metrics(self, text: str, *, source: str, at_s: float) -> tuple[Reading, ...]:
        """See `EngineFormat`; raises `EngineFormatError` for what is no page of metrics."""
        page = parse_page(text)
        return tuple(
            reading(
                ours,
                page.total(f"llamacpp:{theirs}"),
                unit=unit,
                source=source,
                at_s=at_s,
                note="since the server started" if ours.endswith("_total") else "",
            )
            for ours, theirs, unit in _METRICS
        )

    def launch_args(self, revision: Revision, placement: Placement) -> Mapping[str, object]:
        """See `EngineFormat`. Keys are attribute paths of `CommonParams`; enum members go by the end of their name."""
        kv_type = KV_TYPES.get(revision.kv_type)
        if kv_type is None:
            raise EngineFormatError(f"llama.cpp is not launched with a {revision.kv_type} KV cache")
        drafts = revision.speculation.draft_tokens_max or 0
        if revision.speculation.is_on and revision.slots * (1 + drafts) > revision.chunk_tokens:
            raise EngineFormatError(
                f"{revision.slots} slots that draft {drafts} tokens verify {revision.slots * (1 + drafts)} tokens in a "
                f"step, and the engine ends where they are more than its chunk of {revision.chunk_tokens}: raise "
                "engine.chunk_tokens, or lower engine.slots or draft_tokens_max"
            )
        if revision.layout != "single":
            raise EngineFormatError(f"llama.cpp runs as one process, not as {revision.layout!r}")
        return {
            "model.path": revision.model.path,
            "model_alias": [revision.model.name],
            "hostnames": [placement.host],
            "port": placement.port,
            "n_parallel": revision.slots,
            "n_ctx": revision.slots * revision.context_tokens,
            "n_batch": revision.chunk_tokens,
            "n_ubatch": min(MICRO_BATCH_TOKENS_MAX, revision.chunk_tokens),
            "cache_type_k": kv_type,
            "cache_type_v": kv_type,
            "cache_ram_mib": revision.host_cache_mib,
            # Without host memory to move to, the engine would only warn about it.
            "cache_idle_slots": revision.host_cache_mib > 0,
            "slot_prompt_similarity": SLOT_SIMILARITY,
            "cpuparams.n_threads": placement.threads,
            "cpuparams_batch.n_threads": placement.threads,
            "n_threads_http": max(_HTTP_THREADS_MIN, 8 * revision.slots),
            "endpoint_metrics": True,
            "endpoint_slots": True,
            "slot_save_path": placement.slot_dir.rstrip("/") + "/",
            "ui": False,
            # The default lets any web page that the operator has open read the replica's answers.
            "cors_origins": "null",
            "offline": True,
            # Fitting would shrink the context without a word.
            "fit_params": False,
            # Above this the log quotes requests.
            "verbosity": 1,
            **_speculation_args(revision.speculation),
        }

    def read_slots(self, body: bytes, *, source: str, at_s: float) -> tuple[Reading, ...]:
        """Return readings of the KV cache made from /slots; raises `EngineFormatError` on garbage."""
        slots = parse_slots(body)
        held = float(sum(slot.n_prompt_tokens for slot in slots))
        capacity = float(sum(slot.n_ctx for slot in slots))
        busy = float(sum(slot.is_processing for slot in slots))
        values = (
            ("kv_tokens_held", held, "tokens"),
            ("kv_tokens_capacity", capacity, "tokens"),
            ("kv_used_share", held / capacity if capacity else None, "share"),
            ("slots_busy", busy, "slots"),
            ("slots_busy_share", busy / len(slots) if slots else None, "share"),
        )
        return tuple(
            reading(name, value, unit=unit, source=source, at_s=at_s, reason="no slots")
            for name, value, unit in values
        )


def parse_slots(body: bytes) -> tuple[Slot, ...]:
    """Read /slots; raises `EngineFormatError`."""
    try:
        return _SLOTS.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise EngineFormatError("the engine's /slots is not a list of slots") from error


def _report(chunk: openai.Chunk) -> EngineReport | None:
    """Join usage and timings; each stands in for the other where only one is there."""
    try:
        timings = _TIMINGS.decode(chunk.timings)
    except msgspec.MsgspecError as error:
        raise EngineFormatError("the engine's timings are not numbers") from error
    finish_reason = openai.finish_reason_of(chunk)
    report = openai.report_of_usage(chunk.usage, finish_reason=finish_reason)
    if timings is None:
        return report
    if report is None:
        known = timings.cache_n is not None and timings.prompt_n is not None
        prompt = (timings.cache_n or 0) + (timings.prompt_n or 0)
        report = EngineReport(
            prompt_tokens=prompt if known else None,
            cached_tokens=timings.cache_n,
            output_tokens=timings.predicted_n,
            finish_reason=finish_reason,
        )
    return msgspec.structs.replace(
        report,
        cached_tokens=timings.cache_n if report.cached_tokens is None else report.cached_tokens,
        prefill_ms=timings.prompt_ms,
        decode_ms=timings.predicted_ms,
        drafted_tokens=timings.draft_n,
        accepted_tokens=timings.draft_n_accepted,
    )


def _speculation_args(speculation: Speculation) -> dict[str, object]:
    """Return the knobs of one method; what the revision leaves open stays at the engine's default."""
    match speculation.method:
        case SpeculationMethod.OFF:
            return {"speculative.types": ["NONE"]}
        case SpeculationMethod.NGRAM_SIMPLE:
            names = ("ngram_simple.size_n", "ngram_simple.size_m")
        case SpeculationMethod.NGRAM_MAP_K:
            names = ("ngram_map_k.size_n", "ngram_map_k.size_m")
        case SpeculationMethod.NGRAM_MOD:
            names = ("ngram_mod.n_match", "ngram_mod.n_max")
        case _:
            assert_never(speculation.method)
    values = (speculation.match_tokens, speculation.draft_tokens_max)
    knobs: dict[str, object] = {
        f"speculative.{name}": value
        for name, value in zip(names, values, strict=True)
        if value is not None
    }
    if (
        speculation.method is SpeculationMethod.NGRAM_MOD
        and speculation.draft_tokens_max is not None
    ):
        # The engine drops drafts shorter than n_min, 48 by default: a lower maximum would switch drafting off.
        knobs["speculative.ngram_mod.n_min"] = max(1, speculation.draft_tokens_max // 4)
    return {"speculative.types": [speculation.method.value.upper()], **knobs}
