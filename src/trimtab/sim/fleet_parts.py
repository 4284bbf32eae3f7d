"""What a simulated fleet is made of: its description, a request in flight, a gateway."""

from collections.abc import Mapping
from typing import Final

import msgspec

from trimtab.core.cost import CostModel
from trimtab.core.decision import RoutingPolicy
from trimtab.core.ports import RequestFacts
from trimtab.core.prefix import PrefixIndex
from trimtab.core.traffic import TrafficPlan
from trimtab.core.types import Constraint, Role
from trimtab.policies.loadstate import LoadState
from trimtab.policies.local_prefill import PrefillDecision, PrefillRules
from trimtab.policies.prefill_pool import LinkRate, PrefillPool
from trimtab.policies.roles import RoleRules
from trimtab.policies.router import Routed, Router
from trimtab.sim.arrivals import Arrival
from trimtab.sim.jobs import Job, ReplicaSpec
from trimtab.sim.links import LinkSpec, Transfer
from trimtab.sim.streams import Streams

FACTS: Final = RequestFacts(
    model=None,
    stream=True,
    wants_usage=True,
    temperature=0.0,
    max_tokens=None,
    constraint=Constraint.FREE,
    segments=(),
)


class RoleControlSpec(msgspec.Struct, frozen=True, kw_only=True):
    """How roles follow the traffic: the rules, seconds between ticks, and the targets in milliseconds."""

    rules: RoleRules
    tick_s: float
    ttft_ms: float
    tpot_ms: float


class RolesSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Replicas that prefill for others. `prefill`: how many at the start; the others are mixed if there are none.

    `told`: what gateways know of links before a hand-over; None: nothing, so that none happens. `timeout_s`: after
    which a transfer is given up. `change_s`: to change role once drained; `keeps_cache`: the cache outlives it.
    """

    prefill: int
    rules: PrefillRules
    link: LinkSpec
    kv_bytes_per_token: float
    cost: CostModel | None
    told: LinkRate | None
    timeout_s: float | None = None
    prefill_budget_tokens: int | None = None
    prefill_streams_max: int | None = None
    change_s: float = 0.0
    keeps_cache: bool = True
    control: RoleControlSpec | None = None


class FleetSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The fleet at the start. Times in seconds, `hop_ms` in milliseconds.

    `start_s`: from the order to the first request that a new replica may take. `drain_s`: after which a draining
    replica stops whatever it has; None: it finishes all. `probe_s`: between two probes; `probe_late_s`: until a
    gateway knows what one read. `in_flight_max`: requests of all gateways on one replica from which on it takes no
    more; None: no limit. `index_blocks`: blocks that each gateway's prefix index may hold. `turns_wait`: a session's
    next request waits for the end of the one before.
    """

    replica: ReplicaSpec
    replicas: int
    policy: str
    gateways: int = 1
    probe_s: float = 1.0
    probe_late_s: float = 0.0
    hop_ms: float = 0.0
    start_s: float = 60.0
    drain_s: float | None = None
    timeout_s: float | None = None
    in_flight_max: int | None = None
    index_blocks: int = 1_000_000
    turns_wait: bool = False
    tries_max: int = 2
    roles: RolesSpec | None = None


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """What a replica becomes once it is drained: after `take_s` of this role, specification and pace of steps."""

    role: Role
    spec: ReplicaSpec
    take_s: float
    keeps_cache: bool
    slow: float = 1.0


class Gateway:
    """One gateway: the real router and prefill pool over a view of its own."""

    def __init__(
        self, name: str, spec: FleetSpec, policies: Mapping[str, RoutingPolicy], streams: Streams
    ) -> None:
        index = PrefixIndex(spec.index_blocks, spec.replica.block_tokens)
        self.load = LoadState()
        self.router = Router(
            self.load,
            index,
            policies,
            streams.stream(f"router {name}"),
            plan=TrafficPlan(policy=spec.policy),
            explained=False,
        )
        # Prompts are counted in tokens here, not in bytes.
        self.router.ratio.bytes_per_token = 1.0
        roles = spec.roles
        self.pool = (
            None
            if roles is None
            else PrefillPool(self.load, roles.rules, cost=roles.cost, told=roles.told)
        )


class Flight(msgspec.Struct, kw_only=True, gc=False):
    """A request in flight, as its gateway keeps it.

    `job`: where it is decoded; `ahead`: its prompt on a prefill replica, until its KV was fetched or given up.
    """

    row: int
    arrival: Arrival
    gateway: Gateway
    routed: Routed | None = None
    captured: int = 0
    job: Job | None = None
    tries: int = 0
    prefill: PrefillDecision | None = None
    ahead: Job | None = None
    transfer: Transfer | None = None
    sharing: int = 0
    moved: int = 0
    failed_over: bool = False
    counted: bool = False
    dispatched_s: float = 0.0
