"""Which traffic meets which arm: the plan that the controller swaps in and the gateway follows.

Switchback (levers whose arms share caches or replicas): time runs in blocks; within a pair of blocks one is the
baseline's and one the candidate's, and which comes first is drawn per pair from the lever's salt (a fixed or an
alternating order lets a drift or a rhythm of the load pass for an effect). In a candidate block only the slice
meets the candidate. Requests near a block's edge are served but not compared: the state that the other arm left
behind has to settle first.
A small slice of such a lever (below `SWITCHBACK_FROM_SHARE`) runs beside the rest all the time: it changes little of
the state that the rest meets, what it does change favours the baseline, and giving half of so little to a baseline
block would leave nothing to see breakage by.
Side by side (levers whose arms share nothing): the slice goes to the candidate's replicas, the rest to the
baseline's; blocks are then just windows of time in which both arms are seen.
"""

import hashlib

import msgspec

from trimtab.core.cuts import Cut
from trimtab.core.lever import Comparison
from trimtab.core.types import Arm


class CandidatePlan(msgspec.Struct, frozen=True, kw_only=True):
    """The one lever that is being proven.

    `share`: part of the sessions in its slice. `policy`: the routing policy of the candidate arm, None if the
    lever is not about routing. `replicas`: where the candidate revision runs, empty if every replica serves both arms.
    `cuts`: the slice is drawn only from requests of these labels' cuts; empty means all. `roles`: the lever gives
    replicas roles; for every request that does not meet it, all of them serve whole requests.
    """

    lever: str
    share: float
    policy: str | None
    replicas: tuple[str, ...]
    comparison: Comparison
    started_at_s: float
    block_s: float
    edge_s: float
    cuts: tuple[Cut, ...] = ()
    roles: bool = False


class Preference(msgspec.Struct, frozen=True, kw_only=True):
    """An adopted revision lever: requests in `cuts` belong on `replicas`, all others stay off them."""

    lever: str
    cuts: tuple[Cut, ...]
    replicas: tuple[str, ...]


class TrafficPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How all traffic is treated right now. Immutable: the controller replaces it as a whole."""

    policy: str
    candidate: CandidatePlan | None = None
    preferences: tuple[Preference, ...] = ()
    stage: str | None = None


def holder_of(plan: TrafficPlan) -> str:
    """Say which lever needs the fleet as it is, being proven or holding replicas of its own; empty if none does."""
    if plan.candidate is not None:
        return f"{plan.candidate.lever} is being proven on this fleet"
    holding = [each for each in plan.preferences if each.replicas]
    if holding:
        return f"{holding[0].lever} holds {', '.join(holding[0].replicas)}: take it back first"
    return ""


class Exposure(msgspec.Struct, frozen=True, kw_only=True):
    """What one request meets. `block` None: served, but not part of the comparison.

    `allowed` None: every replica; `preferred`: replicas to choose first while they are within the load bound.
    `whole`: roles do not count for it: replicas that prefill for others may serve it, and its prompt is not sent ahead.
    """

    arm: Arm
    policy: str
    lever: str | None = None
    slice: str | None = None
    block: int | None = None
    allowed: tuple[str, ...] | None = None
    preferred: tuple[str, ...] = ()
    whole: bool = False


OUTSIDE_SLICE = "rest"
"""What a record says of a request outside the slice of the lever that is being proven."""


BESIDE_SLICE = "beside the slice"
"""The same where the rest is what a small slice is compared with."""

SWITCHBACK_FROM_SHARE = 0.5


def slice_name(share: float) -> str:
    """Return what a record says of a request inside the slice."""
    return f"slice of {share:.0%}"


def hashed_place(key: str, salt: str) -> float:
    """Return a stable place in [0, 1) for a key; equal on every gateway and after a restart."""
    digest = hashlib.blake2b(f"{salt}\x00{key}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) / 2.0**64


def arm_of_block(block: int, salt: str) -> Arm:
    """Return whose turn a block of a switchback is; the order within each pair is drawn from the salt."""
    pair, second = divmod(block, 2)
    candidate_first = hashed_place(f"pair {pair}", salt) < 0.5
    return Arm.CANDIDATE if candidate_first != bool(second) else Arm.BASELINE


def expose(
    plan: TrafficPlan,
    *,
    place: float,
    cuts: tuple[Cut, ...],
    now_s: float,
    replicas: tuple[str, ...],
) -> Exposure:
    """Decide what a request meets. `place`: its session's, in [0, 1); `cuts`: those known before it is served."""
    candidate = plan.candidate
    if candidate is None:
        return _settled(plan, cuts, replicas)
    exposure = _compared(plan, candidate, place, cuts, now_s, replicas)
    if candidate.roles and exposure.arm is Arm.BASELINE:
        return msgspec.structs.replace(exposure, whole=True)
    return exposure


def _compared(
    plan: TrafficPlan,
    candidate: CandidatePlan,
    place: float,
    cuts: tuple[Cut, ...],
    now_s: float,
    replicas: tuple[str, ...],
) -> Exposure:
    in_slice = place < candidate.share and _in_cuts(candidate.cuts, cuts)
    if candidate.comparison is Comparison.SWITCHBACK:
        if candidate.share < SWITCHBACK_FROM_SHARE:
            return _beside(plan, candidate, in_slice, cuts, now_s, replicas)
        return _switchback(plan, candidate, in_slice, cuts, now_s, replicas)
    return _side_by_side(plan, candidate, in_slice, cuts, now_s, replicas)


def _settled(plan: TrafficPlan, cuts: tuple[Cut, ...], replicas: tuple[str, ...]) -> Exposure:
    kept_off: set[str] = set()
    preferred: tuple[str, ...] = ()
    lever = None
    for preference in plan.preferences:
        if _in_cuts(preference.cuts, cuts):
            preferred, lever = preference.replicas, preference.lever
        else:
            kept_off.update(preference.replicas)
    allowed: tuple[str, ...] = ()
    if kept_off:
        allowed = tuple(replica for replica in replicas if replica not in kept_off)
    return Exposure(
        arm=Arm.BASELINE,
        policy=plan.policy,
        lever=lever,
        allowed=allowed or None,
        preferred=preferred,
    )


def _switchback(
    plan: TrafficPlan,
    candidate: CandidatePlan,
    in_slice: bool,
    cuts: tuple[Cut, ...],
    now_s: float,
    replicas: tuple[str, ...],
) -> Exposure:
    settled = _settled(plan, cuts, replicas)
    elapsed = max(0.0, now_s - candidate.started_at_s)
    block = int(elapsed // candidate.block_s)
    within = elapsed - block * candidate.block_s
    near_edge = within < candidate.edge_s or candidate.block_s - within < candidate.edge_s
    compared = None if near_edge else block
    if arm_of_block(block, f"{candidate.lever} {candidate.started_at_s}") is Arm.BASELINE:
        name = slice_name(candidate.share) if in_slice else OUTSIDE_SLICE
        return msgspec.structs.replace(settled, lever=candidate.lever, slice=name, block=compared)
    if not in_slice:
        return settled
    return msgspec.structs.replace(
        settled,
        arm=Arm.CANDIDATE,
        policy=candidate.policy or plan.policy,
        lever=candidate.lever,
        slice=slice_name(candidate.share),
        block=compared,
    )


def _beside(
    plan: TrafficPlan,
    candidate: CandidatePlan,
    in_slice: bool,
    cuts: tuple[Cut, ...],
    now_s: float,
    replicas: tuple[str, ...],
) -> Exposure:
    return msgspec.structs.replace(
        _settled(plan, cuts, replicas),
        arm=Arm.CANDIDATE if in_slice else Arm.BASELINE,
        policy=(candidate.policy or plan.policy) if in_slice else plan.policy,
        lever=candidate.lever,
        slice=slice_name(candidate.share) if in_slice else BESIDE_SLICE,
        block=int(max(0.0, now_s - candidate.started_at_s) // candidate.block_s),
    )


def _side_by_side(
    plan: TrafficPlan,
    candidate: CandidatePlan,
    in_slice: bool,
    cuts: tuple[Cut, ...],
    now_s: float,
    replicas: tuple[str, ...],
) -> Exposure:
    settled = _settled(plan, cuts, replicas)
    block = int(max(0.0, now_s - candidate.started_at_s) // candidate.block_s)
    theirs = candidate.replicas
    others = tuple(replica for replica in (settled.allowed or replicas) if replica not in theirs)
    return msgspec.structs.replace(
        settled,
        arm=Arm.CANDIDATE if in_slice else Arm.BASELINE,
        lever=candidate.lever,
        slice=slice_name(candidate.share) if in_slice else OUTSIDE_SLICE,
        block=block,
        policy=(candidate.policy or plan.policy) if in_slice else plan.policy,
        allowed=theirs if in_slice else others,
    )


def _in_cuts(wanted: tuple[Cut, ...], cuts: tuple[Cut, ...]) -> bool:
    return not wanted or any(cut in wanted for cut in cuts)
