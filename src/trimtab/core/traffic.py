"""Which traffic meets which arm: the plan that the controller swaps in and the gateway follows.

Switchback (levers whose arms share caches or replicas): time runs in blocks; within a pair of blocks one is the
baseline's and one the candidate's, and which comes first is drawn per pair from the lever's salt (a fixed or an
alternating order lets a drift or a rhythm of the load pass for an effect). In a candidate block only the slice
meets the candidate. Requests near a block's edge are served but not compared: the state that the other arm left
behind has to settle first.
A small slice of such a lever (below `SWITCHBACK_FROM_SHARE`) runs beside the rest all the time: it changes little of
the state that the rest meets, what it does change favours the baseline, and giving half of so little to a baseline
block would leave nothing to see breakage by.
A cut in which harm was shown leaves the slice at once (`CandidatePlan.without`), and an adopted lever may leave some
traffic to the baseline for good: those cuts, and a holdback share of the sessions that goes on showing what the
lever is worth.
Side by side (levers whose arms share nothing): the slice goes to the candidate's replicas, the rest to the
baseline's; blocks are then just windows of time in which both arms are seen.
"""

import hashlib

import msgspec

from trimtab.core.cuts import Cut
from trimtab.core.lever import Comparison
from trimtab.core.lever import StickyBy as StickyBy
from trimtab.core.types import Arm


class CandidatePlan(msgspec.Struct, frozen=True, kw_only=True):
    """The one lever that is being proven.

    `share`: part of the sessions in its slice. `policy`: the routing policy of the candidate arm, None if the
    lever is not about routing. `replicas`: where the candidate revision runs, empty if every replica serves both arms.
    `cuts`: the slice is drawn only from requests of these cuts; empty means all. `without`: never from these, where
    harm was shown. `sticky_by` None: by request for a lever whose arms share replicas, else by session. `roles`: the
    lever gives replicas roles; for every request that does not meet it, all of them serve whole requests.
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
    without: tuple[Cut, ...] = ()
    sticky_by: StickyBy | None = None


class Preference(msgspec.Struct, frozen=True, kw_only=True):
    """An adopted revision lever: requests in `cuts` belong on `replicas`, all others stay off them.

    So do requests in `without` and the `holdback_share` of the sessions.
    """

    lever: str
    cuts: tuple[Cut, ...]
    replicas: tuple[str, ...]
    without: tuple[Cut, ...] = ()
    holdback_share: float = 0.0


class Reserve(msgspec.Struct, frozen=True, kw_only=True):
    """What an adopted routing lever leaves to the policy before it: requests in `cuts`, and a share of the sessions."""

    lever: str
    policy: str
    cuts: tuple[Cut, ...] = ()
    holdback_share: float = 0.0


class TrafficPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How all traffic is treated right now. Immutable: the controller replaces it as a whole."""

    policy: str
    candidate: CandidatePlan | None = None
    preferences: tuple[Preference, ...] = ()
    stage: str | None = None
    reserves: tuple[Reserve, ...] = ()

    def all_cuts(self) -> tuple[Cut, ...]:
        """Return every cut that some traffic of this plan is chosen by."""
        candidate = self.candidate
        own = () if candidate is None else (*candidate.cuts, *candidate.without)
        kept = (cut for each in self.preferences for cut in (*each.cuts, *each.without))
        left = (cut for each in self.reserves for cut in each.cuts)
        return (*own, *kept, *left)


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

HOLDBACK = "holdback"
"""What a record says of a request that an adopted lever would have served, kept on the baseline to compare with."""

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
    session: str = "",
) -> Exposure:
    """Decide what a request meets. `place`: its session's, in [0, 1); `cuts`: those known before it is served.

    `session`: by which a holdback is drawn; without one nothing is held back.
    """
    candidate = plan.candidate
    settled = _settled(plan, cuts, replicas, session)
    if candidate is None:
        return settled
    if settled.slice == HOLDBACK or _has(candidate.without, cuts):
        exposure = _off_candidate(settled, candidate, replicas)
    else:
        exposure = _compared(settled, plan, candidate, place, cuts, now_s, replicas)
    if candidate.roles and exposure.arm is Arm.BASELINE:
        return msgspec.structs.replace(exposure, whole=True)
    return exposure


def _compared(
    settled: Exposure,
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
            return _beside(settled, plan, candidate, in_slice, now_s)
        return _switchback(settled, plan, candidate, in_slice, now_s)
    return _side_by_side(settled, plan, candidate, in_slice, now_s, replicas)


def _settled(
    plan: TrafficPlan, cuts: tuple[Cut, ...], replicas: tuple[str, ...], session: str
) -> Exposure:
    kept_off: set[str] = set()
    preferred: tuple[str, ...] = ()
    policy = plan.policy
    lever = held_back = None
    for preference in plan.preferences:
        wanted = _in_cuts(preference.cuts, cuts) and not _has(preference.without, cuts)
        if wanted and is_held_back(session, preference.lever, preference.holdback_share):
            wanted, held_back = False, preference.lever
        if wanted:
            preferred, lever = preference.replicas, preference.lever
        else:
            kept_off.update(preference.replicas)
    for reserve in plan.reserves:
        if is_held_back(session, reserve.lever, reserve.holdback_share):
            policy, held_back = reserve.policy, reserve.lever
        elif _has(reserve.cuts, cuts):
            policy = reserve.policy
    allowed: tuple[str, ...] = ()
    if kept_off:
        allowed = tuple(replica for replica in replicas if replica not in kept_off)
    return Exposure(
        arm=Arm.BASELINE,
        policy=policy,
        lever=held_back or lever,
        slice=HOLDBACK if held_back else None,
        allowed=allowed or None,
        preferred=preferred,
    )


def _off_candidate(
    settled: Exposure, candidate: CandidatePlan, replicas: tuple[str, ...]
) -> Exposure:
    """Keep a request that has no part in the comparison off the candidate's replicas, where it has its own."""
    if not candidate.replicas:
        return settled
    there = settled.allowed or replicas
    others = tuple(replica for replica in there if replica not in candidate.replicas)
    return msgspec.structs.replace(settled, allowed=others)


def is_held_back(session: str, lever: str, share: float) -> bool:
    """Say whether a session stays on the baseline after a lever's adoption; the same in every gateway."""
    return bool(session) and share > 0.0 and hashed_place(session, f"{HOLDBACK} {lever}") < share


def _switchback(
    settled: Exposure,
    plan: TrafficPlan,
    candidate: CandidatePlan,
    in_slice: bool,
    now_s: float,
) -> Exposure:
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
    settled: Exposure,
    plan: TrafficPlan,
    candidate: CandidatePlan,
    in_slice: bool,
    now_s: float,
) -> Exposure:
    return msgspec.structs.replace(
        settled,
        arm=Arm.CANDIDATE if in_slice else Arm.BASELINE,
        policy=(candidate.policy or plan.policy) if in_slice else settled.policy,
        lever=candidate.lever,
        slice=slice_name(candidate.share) if in_slice else BESIDE_SLICE,
        block=int(max(0.0, now_s - candidate.started_at_s) // candidate.block_s),
    )


def _side_by_side(
    settled: Exposure,
    plan: TrafficPlan,
    candidate: CandidatePlan,
    in_slice: bool,
    now_s: float,
    replicas: tuple[str, ...],
) -> Exposure:
    block = int(max(0.0, now_s - candidate.started_at_s) // candidate.block_s)
    theirs = candidate.replicas
    others = tuple(replica for replica in (settled.allowed or replicas) if replica not in theirs)
    return msgspec.structs.replace(
        settled,
        arm=Arm.CANDIDATE if in_slice else Arm.BASELINE,
        lever=candidate.lever,
        slice=slice_name(candidate.share) if in_slice else OUTSIDE_SLICE,
        block=block,
        policy=(candidate.policy or plan.policy) if in_slice else settled.policy,
        allowed=theirs if in_slice else others,
    )


def _in_cuts(wanted: tuple[Cut, ...], cuts: tuple[Cut, ...]) -> bool:
    return not wanted or _has(wanted, cuts)


def _has(some: tuple[Cut, ...], cuts: tuple[Cut, ...]) -> bool:
    return any(cut in some for cut in cuts)
