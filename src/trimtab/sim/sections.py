"""The sections of a scenario: every key with its unit, range and meaning; `sim.scenario` reads and checks them."""

from typing import Annotated

from msgspec import Meta

from trimtab.core.config import Strict
from trimtab.core.prefix import SLOT_SIMILARITY

Positive = Annotated[float, Meta(gt=0)]


class CostSection(Strict, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a step costs, in milliseconds; `trimtab calibrate` writes this section."""

    overhead_ms: Annotated[float, Meta(ge=0, description="Fixed time of every step.")]
    weights_ms: Annotated[float, Meta(ge=0, description="Time to read the weights once.")]
    token_ms: Annotated[float, Meta(ge=0, description="Time per computed token, once it shows.")]
    stream_ms: Annotated[float, Meta(ge=0, description="Time per decoding stream.")] = 0.0
    context_ms: Annotated[float, Meta(ge=0, description="Time per token of KV read.")] = 0.0
    pair_ms: Annotated[
        float, Meta(ge=0, description="Time per pair of tokens in prefill attention.")
    ] = 0.0
    start_ms: Annotated[
        float, Meta(ge=0, description="Time before a request can be scheduled.")
    ] = 0.0
    source: Annotated[str, Meta(min_length=1, description="How these figures came to be.")] = (
        "the scenario file"
    )
    regimes: tuple[Annotated[str, Meta(pattern="^(light|batched|queued)$")], ...] | None = None
    """Regimes in which the figures were measured (light, batched, queued); null: not said."""


class HostSection(Strict, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A host whose cores several replicas share; replicas with slots only."""

    cores: Annotated[int, Meta(ge=1, le=4096, description="Cores of a host.")]
    threads: Annotated[int, Meta(ge=1, le=4096, description="Threads of a replica.")] = 1
    replicas: Annotated[int, Meta(ge=1, le=1024, description="Replicas on a host.")] = 1
    contention: Annotated[
        float,
        Meta(ge=0, le=10, description="Share by which each other replica at work slows a step."),
    ] = 0.0
    unrest_prefill: Annotated[
        float,
        Meta(ge=0, le=2, description="How far the pace of steps with prompts wanders, as a log."),
    ] = 0.0
    unrest_decode: Annotated[
        float,
        Meta(ge=0, le=2, description="How far that of steps that only decode wanders, as a log."),
    ] = 0.0
    unrest_s: Annotated[
        float, Meta(gt=0, le=86_400, description="How long such a pace keeps, in seconds.")
    ] = 10.0


class ReplicaSection(Strict, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One replica, all of them alike."""

    cost: CostSection
    kv_tokens: Annotated[int, Meta(ge=1, description="Tokens of KV that a replica holds.")]
    block_tokens: Annotated[int, Meta(ge=1, le=65_536, description="Tokens of a KV block.")] = 16
    budget_tokens: Annotated[
        int, Meta(ge=1, description="Most tokens computed in one step (chunked prefill).")
    ] = 2048
    streams_max: Annotated[int, Meta(ge=1, description="Most requests running at once.")] = 256
    engine: Annotated[
        str,
        Meta(
            pattern="^(paged|slots)$",
            description="paged: blocks that all requests share (vLLM); slots: one chain each (llama.cpp).",
        ),
    ] = "paged"
    similarity: Annotated[
        float,
        Meta(ge=0, le=1, description="Share of a prompt from which on a slot is taken for it."),
    ] = SLOT_SIMILARITY
    host: HostSection | None = None
    """Cores that replicas with slots share; none: each has its own."""


class FleetSection(Strict, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Replicas, gateways and what lies between them."""

    replicas: Annotated[int, Meta(ge=1, le=100_000, description="Replicas at the start.")]
    gateways: Annotated[
        int, Meta(ge=1, le=1_000, description="Gateways; each sees only its own requests.")
    ] = 1
    probe_s: Annotated[float, Meta(gt=0, description="Seconds between reads of the engines.")] = 1.0
    hop_ms: Annotated[float, Meta(ge=0, description="Milliseconds from gateway to replica.")] = 0.0
    start_s: Annotated[float, Meta(ge=0, description="Seconds until a new replica serves.")] = 60.0
    drain_s: Annotated[float, Meta(ge=0)] | None = None
    """Seconds after which a draining replica stops, whatever it has; none: it finishes all."""
    probe_late_s: Annotated[
        float,
        Meta(ge=0, description="Seconds until a gateway knows what a probe read (stale metrics)."),
    ] = 0.0
    failures_per_hour: Annotated[
        float, Meta(ge=0, description="Crashes of a replica per hour, drawn; it restarts.")
    ] = 0.0
    timeout_s: Annotated[float, Meta(gt=0)] | None = None
    """Seconds after which a client without a first token leaves; none: never."""
    in_flight_max: Annotated[int, Meta(ge=1)] | None = None
    """Requests on a replica above which it takes no more and the request is shed; none: no limit."""
    price_per_hour: Annotated[float, Meta(ge=0, description="Price of a replica for an hour.")] = (
        0.0
    )


class RoutingSection(Strict, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where requests go."""

    policy: Annotated[
        str, Meta(description="A policy's name; see `trimtab simulate --policies`.")
    ] = "prefix_affine"
    load_bound: Annotated[
        float, Meta(ge=1.0, le=10.0, description="A candidate's load over the mean at most.")
    ] = 1.25
    min_match_tokens: Annotated[
        int, Meta(ge=0, description="Shorter matches are ignored, in tokens.")
    ] = 32
    index_blocks: Annotated[
        int, Meta(ge=1024, description="Blocks that each gateway's prefix index holds.")
    ] = 1_000_000


class SyntheticSection(Strict, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Made-up sessions that share prefixes; used where no trace is given."""

    rate_per_s: Annotated[float, Meta(gt=0, description="Requests per second, all sessions.")]
    turns: Annotated[int, Meta(ge=1, le=1_000, description="Requests of a session.")] = 8
    groups: Annotated[int, Meta(ge=1, description="Groups of sessions with a shared part.")] = 16
    system_tokens: Annotated[int, Meta(ge=0, description="Tokens that all prompts share.")] = 512
    group_tokens: Annotated[int, Meta(ge=0, description="Tokens that a group shares.")] = 1024
    turn_tokens: Annotated[int, Meta(ge=1, description="New tokens of a turn, mean.")] = 256
    output_tokens: Annotated[int, Meta(ge=1, description="Tokens of an answer, mean.")] = 128
    spread: Annotated[float, Meta(ge=0, le=3, description="Spread of lengths (sigma).")] = 0.5
    think_s: Annotated[float, Meta(ge=0, description="Seconds between turns, mean.")] = 10.0


class WorkloadSection(Strict, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What arrives. Exactly one of a trace and `synthetic`; a trace may also be named on the command line."""

    duration_s: Annotated[float, Meta(gt=0, description="Seconds that are simulated.")] = 3600.0
    trace: str | tuple[str, ...] | None = None
    """Path of a trace, relative to the scenario's folder; several are played one after the other."""
    format: Annotated[
        str,
        Meta(
            pattern="^(mooncake|azure|sessions|jsonl|recorded)$",
            description="Format of the trace.",
        ),
    ] = "mooncake"
    gap_s: Annotated[float, Meta(ge=0, description="Seconds between two traces.")] = 0.0
    turns_wait: bool = False
    """A session's next request waits for the end of the one before it, however late that is."""
    begin_drawn: bool = False
    """Each seed begins the trace at a drawn place, what was before that at its end; False: all begin at its start."""
    copies: Annotated[
        float,
        Meta(
            gt=0,
            le=100_000,
            description=(
                "Times the trace's rate: whole copies are laid over each other, each shifted and sharing nothing; "
                "what is left stretches the gaps."
            ),
        ),
    ] = 1.0
    per_replica: bool = False
    """True: `copies`, or rate and groups of `synthetic`, are for each replica: its load stays when the fleet grows."""
    diurnal_low: Annotated[
        float, Meta(gt=0, le=1, description="Least rate over the mean in a day's shape.")
    ] = 1.0
    diurnal_period_s: Annotated[float, Meta(gt=0, description="Length of that day, seconds.")] = (
        86_400.0
    )
    synthetic: SyntheticSection | None = None


class FaultSection(Strict, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Something that happens to a replica at a time."""

    at_s: Annotated[float, Meta(ge=0, description="When, seconds from the start.")]
    kind: Annotated[
        str,
        Meta(
            pattern="^(kill|lose|drain|add|slow|slow_link)$",
            description="What: kill restarts, lose does not.",
        ),
    ]
    replica: Annotated[int, Meta(ge=0, description="Which, by number; not for add.")] = 0
    factor: Annotated[
        float, Meta(gt=0, description="Times as long for each step (slow) or transfer (slow_link).")
    ] = 1.0
    for_s: Annotated[float, Meta(gt=0)] | None = None
    """Seconds after which slow and slow_link end; none: never."""
    start_s: Annotated[float, Meta(ge=0)] | None = None
    """Seconds until an added replica serves (late scaling); none: the fleet's."""


class ObjectiveSection(Strict, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a request must get to count as good."""

    ttft_ms: Positive | None = None
    tpot_ms: Positive | None = None


class LocalPrefillSection(Strict, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a prompt is prefilled, request by request."""

    mode: Annotated[
        str,
        Meta(
            pattern="^(conditional|local|remote)$",
            description="conditional: by predicted milliseconds; else always so.",
        ),
    ] = "conditional"
    chunk_tokens: Annotated[
        int, Meta(ge=0, description="Uncached tokens up to which a prompt never travels.")
    ] = 2048
    stall_weight: Annotated[
        float, Meta(ge=0, description="Weight of a millisecond that a running answer waits.")
    ] = 0.1
    margin: Annotated[
        float, Meta(ge=0, lt=1, description="Part of the local prediction that remote must save.")
    ] = 0.05


class RoleControlSection(Strict, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Roles that follow the traffic; targets are those of [objective]. Ratios are P90 over target, window means."""

    tick_s: Annotated[float, Meta(gt=0, description="Seconds between decisions.")] = 10.0
    act_above: Annotated[
        float, Meta(gt=0, le=2, description="Ratio above which a phase needs.")
    ] = 0.55
    act_below: Annotated[float, Meta(gt=0, le=2, description="Ratio below which it can give.")] = (
        0.40
    )
    rest_below: Annotated[
        float, Meta(gt=0, le=2, description="Predicted ratio, N/(N-1), that the rest must keep.")
    ] = 0.85
    kv_high: Annotated[
        float, Meta(gt=0, le=1, description="Share of KV from which decode is full.")
    ] = 0.90
    gain_min: Annotated[
        float, Meta(ge=0, le=1, description="Part of a replica that a move must gain decode.")
    ] = 0.10
    window_s: Annotated[float, Meta(gt=0, description="Seconds that ratios look back.")] = 60.0
    cooldown_s: Annotated[float, Meta(ge=0, description="Seconds without a move after one.")] = (
        180.0
    )
    ticks: Annotated[int, Meta(ge=1, description="Ticks in a row that must ask for a move.")] = 3
    samples_min: Annotated[int, Meta(ge=1, description="Requests that a P90 needs.")] = 10
    work_high: Annotated[
        float, Meta(gt=0, le=1, description="Busy share from which one more may come.")
    ] = 0.70
    changes_per_hour: Annotated[
        float, Meta(gt=0, description="Most role changes a replica and hour, mean over all.")
    ] = 2.0
    transfer_high: Annotated[
        float,
        Meta(gt=0, le=2, description="Part of the TTFT target above which transfers are dear."),
    ] = 0.25


class RolesSection(Strict, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Replicas that prefill for others, and how KV gets from them."""

    prefill: Annotated[int, Meta(ge=0, description="Replicas that prefill at the start.")] = 0
    kv_bytes_per_token: Annotated[float, Meta(gt=0, description="Bytes of KV of a token.")]
    link_bytes_per_s: Annotated[
        float, Meta(gt=0, description="Bytes a second of a replica's link, each way.")
    ]
    setup_ms: Annotated[
        float, Meta(ge=0, description="Milliseconds before a transfer's bytes.")
    ] = 0.0
    transfer_timeout_s: Annotated[float, Meta(gt=0)] | None = None
    """Seconds after which a transfer is given up and the prompt computed where it decodes; none: never."""
    prefill_budget_tokens: Annotated[int, Meta(ge=1)] | None = None
    """Tokens of a step of a prefill replica; none: as the others."""
    prefill_streams_max: Annotated[int, Meta(ge=1)] | None = None
    """Requests that a prefill replica runs at once; none: as the others."""
    change_s: Annotated[float, Meta(ge=0, description="Seconds to change role once drained.")] = 0.0
    keeps_cache: bool = True
    control: RoleControlSection | None = None


class AcceptanceSection(Strict, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which part of drafts is accepted, of requests with a label."""

    by_position: Annotated[
        tuple[Annotated[float, Meta(ge=0, le=1)], ...],
        Meta(min_length=1, max_length=64, description="At positions 1, 2, ...; never rising."),
    ]
    label: Annotated[str, Meta(description="Requests' label; empty: all others.")] = ""


class SpeculationSection(Strict, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Drafts that every replica makes and verifies."""

    acceptance: Annotated[
        tuple[AcceptanceSection, ...],
        Meta(min_length=1, description="Acceptance by label; `[[speculation.acceptance]]`."),
    ]
    depth: Annotated[int, Meta(ge=0, le=64)] | None = None
    """Draft tokens of a step; none: the depth policy chooses by batch and acceptance."""
    depth_max: Annotated[int, Meta(ge=0, le=64, description="Most that the policy chooses.")] = 8
    draft_ms: Annotated[float, Meta(ge=0, description="Milliseconds to make a draft token.")] = 0.0


class CandidateSection(Strict, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the candidate's replicas do otherwise."""

    replicas: Annotated[int, Meta(ge=1, description="Replicas that change: the last ones.")] = 1
    budget_tokens: Annotated[int, Meta(ge=1)] | None = None
    """Tokens of a step; none: as the others."""
    speculation: SpeculationSection | None = None
    slower: Annotated[
        float, Meta(gt=0, description="Times as long for each step, as a bad build has it.")
    ] = 1.0
    change_s: Annotated[float, Meta(ge=0, description="Seconds to restart once drained.")] = 30.0


class RolloutSection(Strict, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A lever that is proven and adopted, or taken back, while the traffic runs: a routing policy or a candidate."""

    lever: Annotated[str, Meta(min_length=1, description="The lever's name.")] = "simulated_lever"
    policy: Annotated[str, Meta(min_length=1)] | None = None
    """Routing policy of the candidate arm, compared by switchback."""
    candidate: CandidateSection | None = None
    record: str | None = None
    """Path of a lever record as JSON, relative to the scenario; its gates, ramp and triggers are taken."""
    start_s: Annotated[float, Meta(ge=0, description="When the first slice is exposed.")] = 60.0
    gain: Annotated[
        str,
        Meta(
            pattern="^(ttft_ms|tpot_ms|e2e_ms|prompt_tokens_computed|output_tokens_per_s)$",
            description="Metric that must gain before adoption.",
        ),
    ] = "ttft_ms"
    margin: Annotated[float, Meta(ge=0, le=1, description="Least gain, relative.")] = 0.10
    shares: Annotated[
        tuple[Annotated[float, Meta(gt=0, le=0.95)], ...],
        Meta(min_length=1, description="Shares of the ramp, rising."),
    ] = (0.10, 0.25, 0.50, 0.95)
    peak_cycle_s: Annotated[float, Meta(gt=0, description="Seconds of a full peak cycle.")] = 600.0
    block_s: Annotated[float, Meta(gt=0, description="Seconds of a block of the comparison.")] = (
        30.0
    )
    edge_s: Annotated[float, Meta(ge=0, description="Seconds dropped at a block's edges.")] = 3.0
    look_s: Annotated[float, Meta(gt=0, description="Seconds between looks at the gates.")] = 5.0


class Scenario(Strict, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that a simulation is told."""

    name: Annotated[str, Meta(min_length=1, description="What the reports call it.")]
    replica: ReplicaSection
    fleet: FleetSection
    workload: WorkloadSection
    routing: RoutingSection = RoutingSection()
    objective: ObjectiveSection = ObjectiveSection()
    roles: RolesSection | None = None
    local_prefill: LocalPrefillSection = LocalPrefillSection()
    speculation: SpeculationSection | None = None
    rollout: RolloutSection | None = None
    faults: tuple[FaultSection, ...] = ()
    seed: Annotated[int, Meta(ge=0, description="Seed of everything that is drawn.")] = 1
    warm_s: Annotated[
        float, Meta(ge=0, description="Seconds at the start that no figure counts.")
    ] = 0.0
    cool_s: Annotated[
        float,
        Meta(
            ge=0,
            description="Seconds at the end whose arrivals no figure counts, so that those before can finish.",
        ),
    ] = 0.0
