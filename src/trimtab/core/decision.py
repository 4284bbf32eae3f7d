"""Routing decisions as values: what was seen, every candidate with its terms, what was chosen and why."""

from enum import StrEnum
from typing import Protocol

import msgspec

from trimtab.core.types import Arm, Constraint, ReplicaState, Role


class ReplicaView(msgspec.Struct, frozen=True, kw_only=True):
    """One replica as a decision sees it.

    `prefill_tokens_outstanding`: uncached prompt tokens admitted and not yet prefilled; `decode_tokens_outstanding`:
    output tokens still expected of its running streams; `kv_used_share`: 0 to 1, None where it cannot be told.
    """

    id: str
    url: str
    role: Role
    revision: str
    state: ReplicaState
    slots: int
    running: int = 0
    waiting: int = 0
    prefill_tokens_outstanding: int = 0
    decode_tokens_outstanding: int = 0
    kv_used_share: float | None = None
    speculating: bool = False
    started_at_s: float = 0.0
    seen_at_s: float = 0.0

    @property
    def in_flight(self) -> int:
        """Requests admitted and not finished."""
        return self.running + self.waiting


class FleetView(msgspec.Struct, frozen=True, kw_only=True):
    """The fleet at one moment. `sequence` counts decisions, so that round robin is a pure function."""

    at_s: float
    replicas: tuple[ReplicaView, ...]
    sequence: int = 0

    def replica(self, replica_id: str) -> ReplicaView | None:
        """Return one replica by id, None if it is not there."""
        return next((replica for replica in self.replicas if replica.id == replica_id), None)


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """How many tokens of a prompt a replica is believed to hold, as the prefix index answered.

    `displaced`: tokens of other prompts that the replica would overwrite if it got this one.
    """

    replica: str
    tokens: int
    displaced: int = 0


class RouteRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What routing knows of a request. `allowed`: replica ids its arm may use; None is all of them."""

    request_id: str
    prompt_tokens: int
    output_tokens_expected: int
    session: str | None = None
    label: str | None = None
    temperature: float | None = None
    constraint: Constraint = Constraint.FREE
    repetition: float | None = None
    held: tuple[Held, ...] = ()
    allowed: tuple[str, ...] | None = None
    preferred: tuple[str, ...] = ()
    arm: Arm = Arm.BASELINE
    lever: str | None = None

    def held_by(self, replica_id: str) -> int:
        """Return the tokens one replica is believed to hold, 0 if none."""
        return next((held.tokens for held in self.held if held.replica == replica_id), 0)

    def displaced_on(self, replica_id: str) -> int:
        """Return the tokens of other prompts that one replica would overwrite, 0 if none."""
        return next((held.displaced for held in self.held if held.replica == replica_id), 0)


class RouteReason(StrEnum):
    """Why a replica was chosen. Closed: a new rule needs a new reason."""

    ROUND_ROBIN_TURN = "round_robin_turn"
    ONLY_ONE_READY = "only_one_ready"
    LONGEST_PREFIX_WITHIN_BOUND = "longest_prefix_within_bound"
    PREFIX_OVER_BOUND_NEXT_BEST = "prefix_over_bound_next_best"
    SHORTER_TIME_BEATS_PREFIX = "shorter_time_beats_prefix"
    LEAST_LOADED_NO_PREFIX = "least_loaded_no_prefix"
    LEAST_LOADED = "least_loaded"
    NONE_READY = "none_ready"
    OTHER_POLICY = "other_policy"


class Exclusion(StrEnum):
    """Why a candidate could not be chosen."""

    NOT_READY = "not_ready"
    OTHER_ARM = "other_arm"
    OVER_LOAD_BOUND = "over_load_bound"


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """One replica as it was judged. `terms` (milliseconds) sum to `score_ms`; lower is better."""

    replica: str
    load_tokens: float
    held_tokens: int
    excluded: Exclusion | None = None
    terms: dict[str, float] = {}
    score_ms: float | None = None


class RoutingDecision(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of routing one request; deciding changed nothing."""

    request_id: str
    at_s: float
    policy: str
    replica: str | None
    reason: RouteReason
    candidates: tuple[Candidate, ...]
    predicted_cached_tokens: int
    held_best_tokens: int
    sequence: int


class RoutingPolicy(Protocol):
    """A routing policy: a pure decision over a view. `rng_draw` in [0, 1) is the only randomness it gets."""

    @property
    def name(self) -> str:
        """The policy's name in decisions."""
        ...

    def decide(self, view: FleetView, request: RouteRequest, rng_draw: float) -> RoutingDecision:
        """Choose a replica for the request, or none with the reason."""
        ...
