"""Configuration: one frozen, strict, described tree, read from TOML. Unknown keys fail with their path."""

import tomllib
from typing import Annotated

import msgspec
from msgspec import Meta

from trimtab.core.config_base import Strict as Strict
from trimtab.core.config_guard import GuardConfig, TenantsConfig
from trimtab.core.config_handover import HandOverConfig
from trimtab.core.config_roles import PrefillEngineConfig, RolesConfig, kv_key_trouble
from trimtab.core.handover import NO_LABELS, ReplicaLabels
from trimtab.core.revision import Speculation
from trimtab.core.types import Mode, Role

SECRET_REFERENCE = "^((env|file):.+)?$"
"""A secret is never in the file itself: `env:NAME` or `file:PATH` says where it is."""


class ConfigError(ValueError):
    """Configuration that cannot be used; the message carries the file and the path of the key."""


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


class AttachedServer(Strict, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model server that somebody else started."""

    url: Annotated[
        str,
        Meta(
            pattern="^https?://[^\\s/?#@]+(/[^\\s?#]*)?$",
            description="Where it serves; a /v1 at the end is left out.",
        ),
    ]
    name: Annotated[
        str,
        Meta(
            pattern="^[A-Za-z0-9_.-]{0,64}$",
            description="Its name in pages, metrics and answers; empty: one made from the address.",
        ),
    ] = ""
    role: Annotated[Role, Meta(description="mixed, prefill or decode.")] = Role.MIXED
    labels: Annotated[
        ReplicaLabels,
        Meta(
            description="Where it runs: {host, accelerator, link}, each optional; KV goes to the nearest."
        ),
    ] = NO_LABELS
    slots: Annotated[
        int,
        Meta(ge=0, le=65_536, description="Requests it decodes at once; 0: as the engine says."),
    ] = 0
    api_key: Annotated[
        str,
        Meta(
            pattern=SECRET_REFERENCE,
            description="Its key, `env:NAME` or `file:PATH`; empty: fleet.api_key.",
        ),
    ] = ""


class FleetConfig(Strict, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many replicas, and how they are kept alive; or which servers are attached."""

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
    attached: Annotated[
        tuple[AttachedServer, ...],
        Meta(max_length=1024, description="Servers that run already; with any, none is started."),
    ] = ()
    discover: Annotated[
        str,
        Meta(
            pattern="^(dns://[^\\s/:]+:[0-9]{1,5}|file:.+)?$",
            description="More such servers: `dns://HOST:PORT`, one for each address; or `file:PATH`, a watched list.",
        ),
    ] = ""
    discover_every_s: Annotated[
        float, Meta(ge=0.1, description="Time between looks at `fleet.discover`.")
    ] = 10.0
    model: Annotated[
        str,
        Meta(description="Model that attached servers must serve; empty: the first one's model."),
    ] = ""
    unhealthy_after: Annotated[
        int,
        Meta(
            ge=1,
            le=100,
            description="Failed checks in a row after which an attached server gets no requests.",
        ),
    ] = 2
    check_timeout_s: Annotated[
        float, Meta(gt=0, description="Longest wait for an attached server's answer to a check.")
    ] = 5.0
    api_key: Annotated[
        str,
        Meta(
            pattern=SECRET_REFERENCE,
            description="Key of attached servers, `env:NAME` or `file:PATH`; empty: none is sent.",
        ),
    ] = ""
    ca_file: Annotated[
        str,
        Meta(
            description="Certificates that attached https servers are checked with; empty: the system's."
        ),
    ] = ""
    verify: Annotated[
        bool, Meta(description="Whether certificates of attached https servers are checked.")
    ] = True

    @property
    def is_attached(self) -> bool:
        """Whether the fleet consists of servers that somebody else started."""
        return bool(self.attached or self.discover)


class GatewayConfig(Strict, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The OpenAI-compatible front."""

    host: Annotated[str, Meta(description="Address to listen on.")] = "127.0.0.1"
    port: Annotated[
        int, Meta(ge=0, le=65_535, description="Port to listen on; 0: any free one.")
    ] = 8400
    body_bytes_max: Annotated[int, Meta(ge=1024, description="Largest request body, in bytes.")] = (
        32 * 1024 * 1024
    )
    head_bytes_max: Annotated[
        int, Meta(ge=1024, le=262_144, description="Largest head of a request, in bytes.")
    ] = 64 * 1024
    event_bytes_max: Annotated[
        int, Meta(ge=1024, description="Largest server-sent event of a replica, in bytes.")
    ] = 1024 * 1024
    streams_max: Annotated[int, Meta(ge=1, description="Most requests in flight at once.")] = 1024
    head_timeout_s: Annotated[
        float, Meta(gt=0, description="Longest time a client takes for a request's head.")
    ] = 30.0
    client_keepalive_s: Annotated[
        float, Meta(gt=0, description="How long an idle connection of a client is kept.")
    ] = 75.0
    connect_timeout_s: Annotated[
        float, Meta(gt=0, description="Longest wait for a replica to accept.")
    ] = 5.0
    first_byte_timeout_s: Annotated[
        float, Meta(gt=0, description="Longest wait for a replica's first byte.")
    ] = 300.0
    idle_timeout_s: Annotated[float, Meta(gt=0, description="Longest silence inside a stream.")] = (
        120.0
    )
    total_timeout_s: Annotated[
        float,
        Meta(gt=0, description="Longest time from a request's head to the end of its answer."),
    ] = 3600.0
    heartbeat_s: Annotated[
        float,
        Meta(
            ge=0,
            description="Silence in a stream after which a comment is sent between two events; 0: none is sent.",
        ),
    ] = 0.0
    tls_cert: Annotated[
        str,
        Meta(description="File of the certificate chain (PEM) to serve TLS with; empty: no TLS."),
    ] = ""
    tls_key: Annotated[
        str, Meta(description="File of its private key; empty: it lies in the same file.")
    ] = ""
    upstream_keepalive_s: Annotated[
        float,
        Meta(
            ge=0,
            description="How long an idle connection to a replica is kept; shorter than the replica keeps it itself.",
        ),
    ] = 3.0


class RoutingConfig(Strict, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The baseline routing policy and the bounds of prefix-affine routing."""

    policy: Annotated[
        str,
        Meta(
            pattern="^(round_robin|least_loaded|prefix_affine|prefix_home)$",
            description="Baseline; prefix_home is for several gateways before one fleet.",
        ),
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
    kv_events: Annotated[
        dict[str, str],
        Meta(
            description=(
                "By replica, where its engine publishes KV events (vLLM): tcp://HOST:PORT to connect to, or "
                "bind:tcp://127.0.0.1:PORT where the engine connects. Needs the extra kv-events."
            )
        ),
    ] = msgspec.field(default_factory=dict)


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
    """What trimtab may start by itself, whom a slice is made of, and what a replica costs."""

    mode: Annotated[Mode, Meta(description="observe, advise or act.")] = Mode.ADVISE
    owner: Annotated[
        str, Meta(min_length=1, description="Who answers for levers started here.")
    ] = "operator"
    target_gain: Annotated[
        float, Meta(ge=0, le=1, description="Least worthwhile gain, share of request time.")
    ] = 0.05
    slices: Annotated[
        str,
        Meta(
            pattern="^(hashed|dealt)$",
            description=(
                "Who is in a slice: hashed, the same in every gateway and after a restart; dealt, even among few "
                "sessions, for one gateway alone."
            ),
        ),
    ] = "hashed"
    not_combinable: Annotated[
        dict[str, str],
        Meta(
            description=(
                "What the engine cannot serve together, by `TECHNIQUE+CUT`, with why: such as "
                "`speculation+constraint=json_schema`. A lever record must leave that cut out."
            )
        ),
    ] = msgspec.field(default_factory=dict)
    price_per_replica_hour: Annotated[
        float,
        Meta(ge=0, description="What a replica costs an hour, in any currency; 0: not known."),
    ] = 0.0


class TelemetryConfig(Strict, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is told to the outside. Nothing of it holds a word of a prompt or of an answer."""

    access_log: Annotated[
        str,
        Meta(
            description="File that gets one JSON line per request; `-`: standard output; empty: none."
        ),
    ] = ""
    otlp_endpoint: Annotated[
        str,
        Meta(
            pattern="^(https?://.+)?$",
            description="Where traces go by OTLP/HTTP, such as http://collector:4318; empty: nowhere.",
        ),
    ] = ""
    service_name: Annotated[
        str, Meta(min_length=1, description="Name of this gateway in traces.")
    ] = "trimtab"
    sampled_share: Annotated[
        float,
        Meta(ge=0, le=1, description="Part of traces kept that no caller decided about."),
    ] = 1.0
    verdict_log: Annotated[
        str,
        Meta(
            description="File that gets one JSON line per verdict or move of a lever; `-`: standard output; "
            "empty: none."
        ),
    ] = ""
    verdict_webhook: Annotated[
        str,
        Meta(
            pattern="^((https?://|env:|file:).+)?$",
            description="Address to which the same is posted, or `env:NAME` or `file:PATH` where it holds a "
            "secret; empty: none.",
        ),
    ] = ""
    verdict_webhook_secret: Annotated[
        str,
        Meta(
            pattern=SECRET_REFERENCE,
            description="Key that signs what is posted, `env:NAME` or `file:PATH`; empty: unsigned.",
        ),
    ] = ""


class Config(Strict, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole configuration."""

    engine: EngineConfig = EngineConfig()
    fleet: FleetConfig = FleetConfig()
    gateway: GatewayConfig = GatewayConfig()
    routing: RoutingConfig = RoutingConfig()
    ledger: LedgerConfig = LedgerConfig()
    levers: LeverConfig = LeverConfig()
    telemetry: TelemetryConfig = TelemetryConfig()
    tenants: TenantsConfig = TenantsConfig()
    guard: GuardConfig = GuardConfig()
    handover: HandOverConfig = HandOverConfig()
    roles: RolesConfig = RolesConfig()

    def __post_init__(self) -> None:
        """Refuse roles that leave nobody to decode, or that nothing can be done about; raises ValueError."""
        if not self.fleet.is_attached and self.roles.prefill >= self.fleet.replicas:
            raise ValueError(
                f"roles.prefill = {self.roles.prefill} leaves none of fleet.replicas = {self.fleet.replicas} to decode"
            )
        if self.fleet.is_attached and self.roles.prefill_engine != PrefillEngineConfig():
            raise ValueError(
                "roles.prefill_engine: attached servers run what they were started with"
            )


def parse_config(text: str, *, source: str) -> Config:
    """Read a TOML text into a `Config`; raises `ConfigError` naming the file and the key's path."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source} is not valid TOML: {error}") from error
    if trouble := kv_key_trouble(data):
        raise ConfigError(f"{source}: {trouble}")
    try:
        return msgspec.convert(data, Config)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{source}: {error}") from error
