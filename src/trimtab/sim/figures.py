"""What a simulation says of hand-overs, roles and drafts, beside what its users get."""

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from trimtab.core.types import Role
from trimtab.policies.roles import RolesDecision
from trimtab.sim.drafts import DraftSpec, speculation_table
from trimtab.sim.fleet import Fleet
from trimtab.sim.records import Quantiles, quantiles_of
from trimtab.sim.replica import Replica
from trimtab.sim.role_control import RoleChange

BREAK_EVEN_CONTEXT: Final = 1000.0
"""Tokens of context of each stream at which break-evens are told."""


class TransferFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Hand-overs from prefill to decode replicas. `reasons`: decisions by why, local ones too.

    `ms`: from the first byte's set-up to the last byte, of requests that finished; `failures`: given up, by cause.
    `error_mean`: |predicted - observed| / observed of the wait for the first token, mean over gateways' decisions.
    """

    moved: int
    tokens: int
    bytes: float
    ms: Quantiles
    reasons: dict[str, int]
    failures: dict[str, int]
    error_mean: float | None
    scored: int
    pegged: int


class RoleFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Roles over time: ready replicas of each in slices of the run, changes, and what the control decided.

    `changes_per_replica_hour`: role changes over replica-hours; `holds`: ticks without a move, by why.
    """

    mixed: tuple[int, ...]
    prefill: tuple[int, ...]
    decode: tuple[int, ...]
    changes: tuple[RoleChange, ...]
    changes_per_replica_hour: float
    moves: tuple[RolesDecision, ...]
    holds: dict[str, int]


class BreakEven(msgspec.Struct, frozen=True, kw_only=True):
    """The batch from which on drafts of a depth lose throughput by the model. None: at none that was looked at."""

    label: str
    depth: int
    batch: float | None


class SpeculationFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Drafts of all replicas. `acceptance`: accepted over drafted; `coverage`: accepted over tokens decoded.

    `depth`: mean of the replicas that can draft, in slices of the run; `depth_changes`: of all replicas.
    """

    drafted: float
    accepted: float
    acceptance: float | None
    coverage: float | None
    depth: tuple[float, ...]
    depth_changes: int
    break_even: tuple[BreakEven, ...]


def transfer_figures(fleet: Fleet) -> TransferFigures | None:
    """Return the figures of hand-overs, None in a fleet that has no roles."""
    over = fleet.hand_overs
    if over is None:
        return None
    ms = fleet.records.column("transfer_ms")
    learned = [one.pool.corrections for one in fleet.gateways if one.pool is not None]
    scored = sum(one.scored for one in learned)
    return TransferFigures(
        moved=int(np.count_nonzero(~np.isnan(ms))),
        tokens=int(fleet.records.column("moved_tokens").sum()),
        bytes=over.links.bytes_moved,
        ms=quantiles_of(ms),
        reasons=dict(sorted(over.reasons.items())),
        failures=dict(sorted(over.failures.items())),
        error_mean=sum(one.error_sum for one in learned) / scored if scored else None,
        scored=scored,
        pegged=sum(one.pegged for one in learned),
    )


def role_figures(
    fleet: Fleet, counts: Sequence[dict[Role, int]], replica_hours: float
) -> RoleFigures | None:
    """Return the figures of roles, None in a fleet that has none. `counts`: ready ones by role in each slice."""
    if fleet.hand_overs is None:
        return None
    control = fleet.role_control
    changes = tuple(fleet.roster.role_changes)
    return RoleFigures(
        mixed=tuple(one.get(Role.MIXED, 0) for one in counts),
        prefill=tuple(one.get(Role.PREFILL, 0) for one in counts),
        decode=tuple(one.get(Role.DECODE, 0) for one in counts),
        changes=changes,
        changes_per_replica_hour=len(changes) / replica_hours if replica_hours > 0.0 else 0.0,
        moves=() if control is None else tuple(control.moves),
        holds={} if control is None else dict(sorted(control.holds.items())),
    )


def depth_now(fleet: Fleet) -> float | None:
    """Return the mean depth of the replicas that could draft, None if none can."""
    found = [
        one.drafter.depth
        for one in fleet.roster.replicas.values()
        if isinstance(one, Replica) and one.drafter is not None
    ]
    return sum(found) / len(found) if found else None


def speculation_figures(fleet: Fleet, depths: Sequence[float]) -> SpeculationFigures | None:
    """Return the figures of drafts, None where no replica drafted. `depths`: mean depth in each slice."""
    replicas = [one for one in fleet.roster.replicas.values() if isinstance(one, Replica)]
    drafted = sum(one.decodes.drafted_tokens for one in replicas)
    specs = [one.spec.drafts for one in replicas if one.spec.drafts is not None]
    if not specs and drafted == 0.0:
        return None
    accepted = sum(one.decodes.accepted_tokens for one in replicas)
    tokens = sum(one.decodes.tokens for one in replicas)
    return SpeculationFigures(
        drafted=drafted,
        accepted=accepted,
        acceptance=accepted / drafted if drafted else None,
        coverage=accepted / tokens if tokens else None,
        depth=tuple(depths),
        depth_changes=sum(one.drafter.changes for one in replicas if one.drafter is not None),
        break_even=tuple(_break_evens(fleet, specs[0])) if specs else (),
    )


def _break_evens(fleet: Fleet, spec: DraftSpec) -> list[BreakEven]:
    found = []
    for label in spec.acceptance:
        depth = len(spec.acceptance[label]) if spec.depth is None else spec.depth
        table = speculation_table(
            spec,
            fleet.spec.replica.cost,
            label=label,
            depth=depth,
            context_tokens=BREAK_EVEN_CONTEXT,
        )
        found.append(BreakEven(label=label, depth=depth, batch=table.break_even_batch()))
    return found
