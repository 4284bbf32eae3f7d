"""Routing decisions as values: what was seen, every candidate with its terms, what was chosen and why."""

from collections.abc import Collection, Sequence
from enum import StrEnum
from operator import attrgetter
from typing import Protocol

import msgspec
import numpy as np
import xxhash
from msgspec import structs

from trimtab.core.columns import FleetColumns
from trimtab.core.handover import NO_LABELS, ReplicaLabels
from trimtab.core.holdings import HeldColumns
from trimtab.core.types import Arm, Constraint, ReplicaState, Role


class ReplicaView(msgspec.Struct, frozen=True, kw_only=True):
    """One replica as a decision sees it.

    `prefill_tokens_outstanding`: uncached prompt tokens admitted and not yet prefilled; `decode_tokens_outstanding`:
    output tokens still expected of its running streams; `kv_used_share`: 0 to 1, None where it cannot be told.
    `kv_key`: equal where KV may be handed over, empty where that is unknown.
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
    kv_key: str = ""
    labels: ReplicaLabels = NO_LABELS

    @property
    def in_flight(self) -> int:
        """Requests admitted and not finished."""
        return self.running + self.waiting

    @property
    def takes_requests(self) -> bool:
        """Whether whole requests may be sent there: it is ready, and not one that prefills for others only."""
        return self.state is ReplicaState.READY and self.role is not Role.PREFILL


class FleetView(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The fleet at one moment. `sequence` counts decisions, so that round robin is a pure function."""

    at_s: float
    replicas: tuple[ReplicaView, ...]
    sequence: int = 0

    @property
    def columns(self) -> FleetColumns:
        """The same replicas as columns, in order of id."""
        found = self.__dict__.get("_columns")
        if found is None:
            ordered = sorted(self.replicas, key=attrgetter("id"))
            found = columns_for(tuple(one.id for one in ordered))
            for at, one in enumerate(ordered):
                set_column(found, at, one)
            self.__dict__["_columns"] = found
        assert isinstance(found, FleetColumns)
        return found

    def replica(self, replica_id: str) -> ReplicaView | None:
        """Return one replica by id, None if it is not there."""
        return next((replica for replica in self.replicas if replica.id == replica_id), None)


def columns_for(ids: tuple[str, ...]) -> FleetColumns:
    """Return empty columns for replicas, whose ids are in order."""
    hashes = [xxhash.xxh3_64_intdigest(id_.encode()) for id_ in ids]
    places = {id_: at for at, id_ in enumerate(ids)}
    return FleetColumns(ids, places, np.array(hashes, dtype=np.uint64))


def set_column(columns: FleetColumns, at: int, replica: ReplicaView) -> None:
    """Write one replica into columns."""
    share = replica.kv_used_share
    columns.set_ready(at, replica.takes_requests)
    columns.set_slots(at, replica.slots)
    columns.running[at] = replica.running
    columns.waiting[at] = replica.waiting
    columns.prefill[at] = replica.prefill_tokens_outstanding
    columns.decode[at] = replica.decode_tokens_outstanding
    columns.set_kv(at, np.nan if share is None else share)
    columns.seen_at_s[at] = replica.seen_at_s


def glance(
    at_s: float, sequence: int, columns: FleetColumns, told: Sequence[ReplicaView]
) -> FleetView:
    """Return a view without replicas: columns alone, which must not change any more, and what the fleet `told` of them.

    For decisions; `listed` gives it its replicas when somebody wants to keep it.
    """
    view = FleetView(at_s=at_s, replicas=(), sequence=sequence)
    view.__dict__["_columns"] = columns
    view.__dict__["_told"] = told
    return view


def listed(view: FleetView, only: Collection[str] | None = None) -> FleetView:
    """Return a view with its replicas, or with those named alone; a view that has them already stays whole."""
    told, columns = view.__dict__.get("_told"), view.columns
    if told is None:
        kept = view.replicas if only is None else [one for one in view.replicas if one.id in only]
        return view if only is None else structs.replace(view, replicas=tuple(kept))
    wanted = list(range(len(told)))
    if only is not None:
        found = (columns.place(id_) for id_ in only)
        wanted = sorted(at for at in found if at is not None)
    rows = columns.block[:, wanted].T.tolist()
    replicas = tuple(_with_row(told[at], row) for at, row in zip(wanted, rows, strict=True))
    made = FleetView(at_s=view.at_s, replicas=replicas, sequence=view.sequence)
    if only is None:
        made.__dict__["_columns"] = columns
    return made


def with_work(told: ReplicaView, columns: FleetColumns, at: int) -> ReplicaView:
    """Return what the fleet told of a replica together with its load, which stands at place `at` of columns."""
    return _with_row(told, columns.block[:, at].tolist())


def _with_row(told: ReplicaView, row: Sequence[float]) -> ReplicaView:
    running, waiting, prefill, decode, share, _, seen_at_s = row
    return ReplicaView(
        id=told.id,
        url=told.url,
        role=told.role,
        revision=told.revision,
        state=told.state,
        slots=told.slots,
        running=int(running),
        waiting=int(waiting),
        prefill_tokens_outstanding=int(prefill),
        decode_tokens_outstanding=int(decode),
        kv_used_share=None if share != share else share,
        speculating=told.speculating,
        started_at_s=told.started_at_s,
        seen_at_s=seen_at_s,
        kv_key=told.kv_key,
        labels=told.labels,
    )


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """How many tokens of a prompt a replica is believed to hold, as the prefix index answered.

    `displaced`: tokens of other prompts that the replica would overwrite if it got this one.
    """

    replica: str
    tokens: int
    displaced: int = 0


def held_columns(held: Sequence[Held]) -> HeldColumns:
    """Return what replicas hold as columns."""
    places = {one.replica: at for at, one in enumerate(held)}
    tokens = np.array([one.tokens for one in held], dtype=np.float64)
    return HeldColumns(places, tokens, np.array([one.displaced for one in held], dtype=np.float64))


class RouteRequest(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """What routing knows of a request. `allowed`: replica ids its arm may use; None is all of them.

    `held`: what replicas hold of it, those that hold nothing may be left out. Of a large fleet it is empty and the
    prefix index's columns stand for it (`with_holdings`): such a request cannot be decided again from the ledger.
    `hot_tokens`: how much of its beginning so many requests in flight share that a second replica should hold it; 0 for
    none. `home_key`: what several gateways send it by (`policies.home_keys`), None for its session. `key_mismatch`:
    router and engine disagree about its class of prefix keys, so nothing counts as held.
    """

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
    hot_tokens: int = 0
    home_key: int | None = None
    key_mismatch: bool = False

    @property
    def holdings(self) -> HeldColumns:
        """What replicas hold of it, as columns."""
        found = self.__dict__.get("_holdings")
        if found is None:
            found = self.__dict__["_holdings"] = held_columns(self.held)
        assert isinstance(found, HeldColumns)
        return found

    @property
    def explained(self) -> bool:
        """Whether anybody keeps the decision; if not, candidates may be left out and counted as omitted."""
        return bool(self.__dict__.get("_explained", True))

    def held_by(self, replica_id: str) -> int:
        """Return the tokens one replica is believed to hold, 0 if none."""
        return self.holdings.by(replica_id)

    @property
    def chosen(self) -> object:
        """What a policy chose for this very request and view before, if its explanation is all that is asked."""
        return self.__dict__.get("_chosen")


def with_chosen(request: RouteRequest, chosen: object) -> RouteRequest:
    """Hand a request what was chosen for it, so that explaining it need not choose again."""
    request.__dict__["_chosen"] = chosen
    return request


def with_holdings(
    request: RouteRequest, holdings: HeldColumns, *, explained: bool = True
) -> RouteRequest:
    """Hand a request the columns that say what replicas hold of it, and say whether its decision is to be explained."""
    request.__dict__["_holdings"] = holdings
    request.__dict__["_explained"] = explained
    return request


class RouteReason(StrEnum):
    """Why a replica was chosen. Closed: a new rule needs a new reason."""

    ROUND_ROBIN_TURN = "round_robin_turn"
    ONLY_ONE_READY = "only_one_ready"
    LONGEST_PREFIX_WITHIN_BOUND = "longest_prefix_within_bound"
    PREFIX_OVER_BOUND_NEXT_BEST = "prefix_over_bound_next_best"
    SHORTER_TIME_BEATS_PREFIX = "shorter_time_beats_prefix"
    LEAST_LOADED_NO_PREFIX = "least_loaded_no_prefix"
    HOT_PREFIX_REPLICATED = "hot_prefix_replicated"
    ROUTER_KEY_MISMATCH = "router_key_mismatch"
    HOME_WITHIN_BOUND = "home_within_bound"
    HOME_OVER_BOUND_NEXT = "home_over_bound_next"
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
    """The outcome of routing one request; deciding changed nothing.

    `candidates`: every replica, or of a large fleet those that matter most; `omitted`: how many are left out.
    """

    request_id: str
    at_s: float
    policy: str
    replica: str | None
    reason: RouteReason
    candidates: tuple[Candidate, ...]
    omitted: int = 0
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
