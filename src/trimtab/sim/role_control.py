"""Roles in a simulated fleet: what the role control is told, and which replica it changes at a tick.

`policies.role_watch` keeps what is seen and `policies.roles` decides, as in a live fleet.
"""

from collections import Counter
from collections.abc import Sequence

import msgspec

from trimtab.core.types import ReplicaState, Role
from trimtab.policies.local_prefill import with_mark_raised
from trimtab.policies.role_watch import RoleSides, RoleTargets, RoleWatch, chosen
from trimtab.policies.roles import RoleAction, RolesDecision, RolesState, control
from trimtab.sim.fleet_parts import Gateway, RoleControlSpec, RolesSpec
from trimtab.sim.replicas import AnyReplica


class RoleChange(msgspec.Struct, frozen=True, kw_only=True):
    """A replica took a role at a time."""

    at_s: float
    replica: int
    role: Role


class RoleControl:
    """Watches a fleet and says which replica is to take which role. `moves`: decisions that were not to hold."""

    def __init__(
        self, spec: RolesSpec, control_spec: RoleControlSpec, gateways: Sequence[Gateway]
    ) -> None:
        self.moves: list[RolesDecision] = []
        self.holds: Counter[str] = Counter()
        rules = control_spec.rules
        targets = RoleTargets(
            ttft_ms=control_spec.ttft_ms,
            tpot_ms=control_spec.tpot_ms,
            transfer_ms=rules.transfer_high * control_spec.ttft_ms,
        )
        self.watch = RoleWatch(targets, rules.window_s, rules.cooldown_s)
        self._roles = spec
        self._spec = control_spec
        self._gateways = gateways
        self._state = RolesState()
        self._next_s = control_spec.tick_s
        self._preempted: dict[str, int] = {}

    def prefills(self, now_s: float, uncached_tokens: int, *, ahead: bool) -> None:
        """Take in a prompt that is computed; short ones keep nobody from answering."""
        cost, pool = self._roles.cost, self._gateways[0].pool
        if cost is not None and pool is not None and ahead:
            cost = pool.cost_ahead(cost)
        if cost is not None and uncached_tokens > self._roles.rules.chunk_tokens:
            self.watch.long_prompt(now_s, cost.prefill_ms(uncached_tokens), ahead=ahead)

    def moved(self, now_s: float, ms: float, tokens: int) -> None:
        """Take in a hand-over of a prompt's `tokens` that arrived."""
        cost = self._roles.cost
        self.watch.moved(now_s, ms, None if cost is None else cost.prefill_ms(tokens))

    def tick(
        self,
        now_s: float,
        roles: dict[str, Role],
        states: dict[str, ReplicaState],
        replicas: dict[str, AnyReplica],
        moving: int,
    ) -> tuple[str, Role] | None:
        """Decide if a tick is due; returns the replica that is to change, and into what."""
        if now_s < self._next_s:
            return None
        self._next_s = now_s + self._spec.tick_s
        ready = [id_ for id_, state in states.items() if state is ReplicaState.READY]
        decode = tuple(id_ for id_ in ready if roles[id_] is not Role.PREFILL)
        shares = [replicas[id_].used_share for id_ in decode]
        sides = RoleSides(
            prefill=tuple(id_ for id_ in ready if roles[id_] is Role.PREFILL),
            decode=decode,
            moving=moving,
            kv_used_share=sum(shares) / len(shares) if shares else None,
            preemptions=self._preemptions(decode, replicas),
            in_flight=sum(gateway.load.in_flight for gateway in self._gateways),
        )
        cost = self._roles.cost
        idle_ms = None if cost is None else cost.idle_step_ms
        seen = self.watch.seen(now_s, sides, step_idle_ms=idle_ms)
        self._state, made = control(self._state, seen, self._spec.rules)
        self._set_threshold(made.local_factor)
        if made.action is RoleAction.HOLD:
            self.holds[made.reason.value] += 1
            return None
        self.moves.append(made)
        return chosen(made, sides, lambda id_: replicas[id_].in_flight)

    def _preemptions(self, decode: Sequence[str], replicas: dict[str, AnyReplica]) -> int:
        """Return what replicas that decode preempted since the last tick; one that is new to them begins anew."""
        before, self._preempted = (
            self._preempted,
            {id_: replicas[id_].preemptions for id_ in decode},
        )
        grown = (now - before.get(id_, now) for id_, now in self._preempted.items())
        return sum(max(0, each) for each in grown)

    def _set_threshold(self, factor: float) -> None:
        raised = with_mark_raised(self._roles.rules, factor)
        for gateway in self._gateways:
            if gateway.pool is not None:
                gateway.pool.rules = raised
