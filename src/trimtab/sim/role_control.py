"""Roles in a simulated fleet: what the role control sees each tick, and replicas that drain and change.

Seen are requests of all gateways: TTFT at the first token, TPOT at the end, over the rules' window; the share of KV
and preemptions of the decode side; and how many replicas long prompts keep at work there. `policies.roles` decides.
"""

from collections import Counter, deque
from typing import Final

import msgspec
import numpy as np

from trimtab.core.types import ReplicaState, Role
from trimtab.policies.roles import (
    RoleAction,
    RolesDecision,
    RolesSeen,
    RolesState,
    control,
)
from trimtab.sim.fleet_parts import RoleControlSpec, RolesSpec
from trimtab.sim.replicas import AnyReplica

PERCENTILE: Final = 90.0


class RoleChange(msgspec.Struct, frozen=True, kw_only=True):
    """A replica took a role at a time."""

    at_s: float
    replica: int
    role: Role


class RoleControl:
    """Watches a fleet and says which replica is to take which role. `moves`: decisions that were not to hold."""

    def __init__(self, spec: RolesSpec, control_spec: RoleControlSpec) -> None:
        self.moves: list[RolesDecision] = []
        self.holds: Counter[str] = Counter()
        self._roles = spec
        self._spec = control_spec
        self._state = RolesState()
        self._next_s = control_spec.tick_s
        self._ttft: deque[tuple[float, float]] = deque()
        self._tpot: deque[tuple[float, float]] = deque()
        self._long: deque[tuple[float, float]] = deque()
        self._preempted = 0

    def first_token(self, now_s: float, ttft_ms: float) -> None:
        """Take in a first token."""
        self._ttft.append((now_s, ttft_ms))

    def ended(self, now_s: float, tpot_ms: float) -> None:
        """Take in the end of an answer of more than one token."""
        self._tpot.append((now_s, tpot_ms))

    def prefills_here(self, now_s: float, uncached_tokens: int) -> None:
        """Take in a prompt that is computed on the decode side; short ones keep nobody from answering."""
        if uncached_tokens > self._roles.rules.chunk_tokens:
            self._long.append((now_s, float(uncached_tokens)))

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
        prefill = [id_ for id_ in ready if roles[id_] is Role.PREFILL]
        decode = [id_ for id_ in ready if roles[id_] is not Role.PREFILL]
        seen = self._seen(now_s, prefill, decode, replicas, moving)
        self._state, made = control(self._state, seen, self._spec.rules)
        if made.action is RoleAction.HOLD:
            self.holds[made.reason.value] += 1
            return None
        self.moves.append(made)
        return _chosen(made, prefill, decode, replicas)

    def _seen(
        self,
        now_s: float,
        prefill: list[str],
        decode: list[str],
        replicas: dict[str, AnyReplica],
        moving: int,
    ) -> RolesSeen:
        window_s = self._spec.rules.window_s
        for kept in (self._ttft, self._tpot, self._long):
            while kept and kept[0][0] <= now_s - window_s:
                kept.popleft()
        preempted = sum(replica.preemptions for replica in replicas.values())
        grown, self._preempted = preempted - self._preempted, preempted
        shares = [replicas[id_].used_share for id_ in decode]
        return RolesSeen(
            at_s=now_s,
            prefill=len(prefill),
            decode=len(decode),
            moving=moving,
            ttft_ms_p90=_p90(self._ttft),
            ttft_target_ms=self._spec.ttft_ms,
            tpot_ms_p90=_p90(self._tpot),
            tpot_target_ms=self._spec.tpot_ms,
            samples=min(len(self._ttft), len(self._tpot)),
            kv_used_share=sum(shares) / len(shares) if shares else None,
            preemptions=grown,
            local_work=self._work(min(window_s, now_s)),
        )

    def _work(self, length_s: float) -> float | None:
        cost = self._roles.cost
        if cost is None or length_s <= 0.0:
            return None
        return sum(cost.prefill_ms(tokens) for _, tokens in self._long) / 1000.0 / length_s


def _p90(values: deque[tuple[float, float]]) -> float | None:
    return float(np.percentile([value for _, value in values], PERCENTILE)) if values else None


def _chosen(
    made: RolesDecision, prefill: list[str], decode: list[str], replicas: dict[str, AnyReplica]
) -> tuple[str, Role]:
    """Return the replica with least to finish; of equal ones the latest, so that the first keep their roles."""
    to_prefill = made.action in {RoleAction.MORE_PREFILL, RoleAction.SPLIT}
    among = decode if to_prefill else prefill
    chosen = min(reversed(among), key=lambda id_: replicas[id_].in_flight)
    return chosen, Role.PREFILL if to_prefill else Role.DECODE
