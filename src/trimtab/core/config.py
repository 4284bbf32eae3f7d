"""Configuration: one frozen, strict, described tree, read from TOML. Unknown keys fail with their path."""

import tomllib
from typing import Annotated

import msgspec
from msgspec import Meta

from trimtab.core.revision import Speculation
from trimtab.core.types import Mode


class ConfigError(ValueError):
    """Configuration that cannot be used; the message carries the file and the path of the key."""


class Strict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every configuration section."""


class EngineConfig(Strict, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The embedded engine and its model."""

    model: Annotated[
        str, Meta(description="Path of a GGUF file; empty: the packaged SmolLM2-135M-Instruct.")
    ] = ""
    blocked_weights: Annotated[
        bool,
        Meta(
            description=(
                "Run the packaged model from a copy whose Q4_1 weights are Q8_0, for which the engine has blocked "
                "kernels; false: from its file as it is. A model named by path always runs as it is."
            )
        ),
    ] = True
    slots: Annotated[int, Meta(ge=1, le=256, description="Requests a replica decodes at once.")] = 4
    context_tokens: Annotated[
        int, Meta(ge=256, le=1_048_576, description="Context of one slot, in tokens.")
    ] = 2048
    chunk_tokens: Annotated[
        int, Meta(ge=32, le=65_536, description="Largest prefill batch, in tokens.")
    ] = 256
    kv_type: Annotated[
        str, Meta(pattern="^(f16|bf16|q8_0|q4_0)$", description="Precision of the KV cache.")
    ] = "f16"
    host_cache_mib: Annotated[
        int,
        Meta(
            ge=0,
            description="Host memory per replica for prompts pushed out of slots, in MiB; 0: none.",
        ),
    ] = 0
    threads: Annotated[
        int, Meta(ge=0, description="Threads per replica; 0: the cores shared out evenly.")
    ] = 0
    speculation: Annotated[
        Speculation, Meta(description="Speculation of the baseline revision.")
    ] = Speculation()


class FleetConfig(Strict, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many replicas, and how they are kept alive."""

    replicas: Annotated[int, Meta(ge=1, le=64, description="Replicas to start.")] = 2
    start_timeout_s: Annotated[
        float, Meta(gt=0, description="Longest wait for a replica to be healthy.")
    ] = 60.0
    stop_grace_s: Annotated[
        float, Meta(ge=0, description="Longest wait for running requests at a stop.")
    ] = 10.0
    restart_backoff_s: Annotated[
        float, Meta(gt=0, description="First wait after a crash; doubles each time.")
    ] = 0.5
    restart_backoff_s_max: Annotated[
        float, Meta(gt=0, description="Longest wait after a crash.")
    ] = 30.0
    probe_every_s: Annotated[
        float, Meta(gt=0, description="Time between reads of each replica's metrics.")
    ] = 1.0


class GatewayConfig(Strict, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The OpenAI-compatible front."""

    host: Annotated[str, Meta(description="Address to listen on.")] = "127.0.0.1"
    port: Annotated[
        int, Meta(ge=0, le=65_535, description="Port to listen on; 0: any free one.")
    ] = 8400
    body_bytes_max: Annotated[int, Meta(ge=1024, description="Largest request body, in bytes.")] = (
        32 * 1024 * 1024
    )
    streams_max: Annotated[int, Meta(ge=1, description="Most requests in flight at once.")] = 1024
    connect_timeout_s: Annotated[
        float, Meta(gt=0, description="Longest wait for a replica to accept.")
    ] = 5.0
    first_byte_timeout_s: Annotated[
        float, Meta(gt=0, description="Longest wait for a replica's first byte.")
    ] = 300.0
    idle_timeout_s: Annotated[float, Meta(gt=0, description="Longest silence inside a stream.")] = (
        120.0
    )


class RoutingConfig(Strict, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The baseline routing policy and the bounds of prefix-affine routing."""

    policy: Annotated[
        str, Meta(pattern="^(round_robin|least_loaded|prefix_affine)$", description="Baseline.")
    ] = "round_robin"
    load_bound: Annotated[
        float, Meta(ge=1.0, le=10.0, description="A candidate's load over the mean at most.")
    ] = 1.25
    min_match_tokens: Annotated[
        int, Meta(ge=0, description="Shorter matches are ignored, in tokens.")
    ] = 32
    block_bytes: Annotated[
        int, Meta(ge=16, le=65_536, description="Prompt bytes per hashed block.")
    ] = 64
    index_blocks_max: Annotated[
        int, Meta(ge=1024, description="Most blocks in the prefix index.")
    ] = 1_000_000


class LedgerConfig(Strict, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where events are kept, and for how long."""

    path: Annotated[str, Meta(description="SQLite file of the ledger.")] = "trimtab-ledger.sqlite"
    keep_events: Annotated[
        int, Meta(ge=1000, description="Events kept before a checkpoint folds the oldest.")
    ] = 2_000_000
    queue_max: Annotated[
        int, Meta(ge=100, description="Events waiting to be written before levers freeze.")
    ] = 100_000


class LeverConfig(Strict, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What trimtab may start by itself."""

    mode: Annotated[Mode, Meta(description="observe, advise or act.")] = Mode.ADVISE
    owner: Annotated[
        str, Meta(min_length=1, description="Who answers for levers started here.")
    ] = "operator"
    target_gain: Annotated[
        float, Meta(ge=0, le=1, description="Least worthwhile gain, share of request time.")
    ] = 0.05


class Config(Strict, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole configuration."""

    engine: EngineConfig = EngineConfig()
    fleet: FleetConfig = FleetConfig()
    gateway: GatewayConfig = GatewayConfig()
    routing: RoutingConfig = RoutingConfig()
    ledger: LedgerConfig = LedgerConfig()
    levers: LeverConfig = LeverConfig()


def parse_config(text: str, *, source: str) -> Config:
    """Read a TOML text into a `Config`; raises `ConfigError` naming the file and the key's path."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source} is not valid TOML: {error}") from error
    try:
        return msgspec.convert(data, Config)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{source}: {error}") from error
