"""Revisions and KV keys: what a replica runs, and what must be equal for two of them to exchange KV."""

import hashlib
from enum import StrEnum

import msgspec


class SpeculationMethod(StrEnum):
    """How draft tokens are made."""

    OFF = "off"
    NGRAM_SIMPLE = "ngram_simple"
    NGRAM_MAP_K = "ngram_map_k"
    NGRAM_MOD = "ngram_mod"


class Speculation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a revision speculates. `match_tokens`: n-gram length looked up; `draft_tokens_max`: longest draft."""

    method: SpeculationMethod = SpeculationMethod.OFF
    match_tokens: int | None = None
    draft_tokens_max: int | None = None

    @property
    def is_on(self) -> bool:
        """Whether any drafting happens."""
        return self.method is not SpeculationMethod.OFF


class Model(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model artifact: where it lies, its checksum, and the name clients use."""

    path: str
    sha256: str
    name: str


class Revision(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An immutable engine configuration. Equal revisions have equal ids.

    `context_tokens` is per slot. `chunk_tokens` is the largest prefill batch. Threads and ports belong to
    the placement of a replica, not to its revision.
    """

    engine: str
    engine_version: str
    model: Model
    kv_type: str = "f16"
    speculation: Speculation = Speculation()
    slots: int = 4
    context_tokens: int = 2048
    chunk_tokens: int = 2048
    host_cache_mib: int = 0
    layout: str = "single"

    @property
    def id(self) -> str:
        """Short stable name: engine plus the first 10 hex digits of the configuration's SHA-256."""
        digest = hashlib.sha256(msgspec.json.encode(self, order="deterministic")).hexdigest()
        return f"{self.engine}-{digest[:10]}"

    @property
    def kv_key(self) -> "KVKey":
        """What must be equal for two replicas to exchange KV. Speculation and chunk may differ.

        Slots may not: llama.cpp keeps KV in as many streams, and refuses a slot's file of another number of them.
        """
        return KVKey(
            engine=f"{self.engine}/{self.engine_version}",
            model_sha256=self.model.sha256,
            tokenizer_and_template=self.model.sha256,
            kv_type=self.kv_type,
            block_layout=f"{self.layout}/{self.slots}x{self.context_tokens}",
        )

    def replace(self, **changes: object) -> "Revision":
        """Return a revision with some fields changed."""
        return msgspec.structs.replace(self, **changes)


class KVKey(msgspec.Struct, frozen=True, kw_only=True):
    """Equal keys may exchange KV. A GGUF carries its tokenizer and template, so its checksum stands for both."""

    engine: str
    model_sha256: str
    tokenizer_and_template: str
    kv_type: str
    block_layout: str

    @property
    def id(self) -> str:
        """The first 16 hex digits of the key's SHA-256; equal where KV may be exchanged."""
        return hashlib.sha256(msgspec.json.encode(self, order="deterministic")).hexdigest()[:16]
