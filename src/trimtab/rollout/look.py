"""One look at a rollout: which records speak of it, and what its gates say of them.

Law: like is compared with like. In a switchback only what was in the slice counts, in both arms; pairs of blocks in
which the share changed are left out. Where the slice is drawn from some cuts only, the baseline's requests of other
cuts do not count either. Harm is asked of the present share alone, since it may begin only there and old evidence
would hide it; a gain may add up over all shares. A block counts when it and the one after it are over, so that its
requests have ended; errors count at once.
Side by side, a slice of 95% leaves the baseline too little to compare with: there everything is asked, the gain too,
before the slice leaves the last balanced share, and harm is judged from that share on.

Failure modes: requests longer than a block are seen late or not at all; side by side, the slice and the rest
are different sessions on different replicas, and what they ask for must be alike, or be cut.
"""

import math
from collections.abc import Iterable

import msgspec

from trimtab.core.cuts import belongs
from trimtab.core.gate import GateResult
from trimtab.core.lever import Comparison, LeverRecord
from trimtab.core.record import RequestRecord
from trimtab.core.traffic import OUTSIDE_SLICE, CandidatePlan
from trimtab.core.types import Arm, RolloutState, Verdict
from trimtab.rollout.answer import ArmExtras
from trimtab.rollout.gates import evaluate
from trimtab.rollout.machine import BALANCED_SHARE, Rollout, Step

BLOCKS_OF_LAG = 1
"""Blocks that must pass after a block before it counts, so that its requests can end."""


def look_at(
    record: LeverRecord,
    rollout: Rollout,
    candidate: CandidatePlan,
    records: Iterable[RequestRecord],
    extras: ArmExtras,
    now_s: float,
) -> tuple[tuple[GateResult, ...], Verdict]:
    """Evaluate the gates of a running rollout over all records of the lever so far.

    `rollout`, `candidate` and `now_s` must be of one clock; the times in records are not compared with it.
    """
    running = int(max(0.0, now_s - candidate.started_at_s) // candidate.block_s)
    framed = msgspec.structs.replace(
        extras,
        fresh_from_block=first_block(_judged_from(rollout, candidate), candidate),
        complete_before_block=running - BLOCKS_OF_LAG,
    )
    state = RolloutState.PROVING if _asks_everything(record, rollout, candidate) else rollout.state
    return evaluate(record, state, comparable(rollout, candidate, records), framed)


def _asks_everything(record: LeverRecord, rollout: Rollout, candidate: CandidatePlan) -> bool:
    """Whether this is the last share at which the arms of a side-by-side comparison are balanced."""
    shares = record.ramp.shares
    at = rollout.share_index
    if candidate.comparison is not Comparison.SIDE_BY_SIDE or at + 1 >= len(shares):
        return False
    return shares[at] <= BALANCED_SHARE < shares[at + 1]


def _judged_from(rollout: Rollout, candidate: CandidatePlan) -> Step:
    """Return the step from which harm is judged: the present one, or the first at which the arms were balanced.

    Side by side, a slice of 95% leaves the baseline 5%: too little to compare with. What was seen since the arms had
    comparable loads counts on; in a switchback both arms get equal time at every share.
    """
    if candidate.comparison is Comparison.SIDE_BY_SIDE:
        balanced = [step for step in rollout.steps if step.share >= BALANCED_SHARE]
        return balanced[0] if balanced else rollout.steps[-1]
    return rollout.steps[-1]


def comparable(
    rollout: Rollout, candidate: CandidatePlan, records: Iterable[RequestRecord]
) -> tuple[RequestRecord, ...]:
    """Keep the lever's records that compare like with like, from the rollout's first whole pair on."""
    starts = [first_block(step, candidate) for step in rollout.steps]
    mixed = {block for start in starts[1:] for block in (start - 1, start - 2)}
    matched = candidate.comparison is Comparison.SWITCHBACK

    def speaks(one: RequestRecord) -> bool:
        if one.lever != rollout.lever or one.block is None:
            return False
        if one.block < starts[0] or one.block in mixed:
            return False
        if candidate.cuts and not any(belongs(one, cut) for cut in candidate.cuts):
            return False
        return not (matched and one.arm is Arm.BASELINE and one.slice == OUTSIDE_SLICE)

    return tuple(one for one in records if speaks(one))


def first_block(step: Step, candidate: CandidatePlan) -> int:
    """Return the first block that lies wholly in a step: an even one, so that pairs stay whole."""
    elapsed = max(0.0, step.entered_at_s - candidate.started_at_s)
    # A step that begins within a billionth of a block's start has that block.
    block = math.ceil(elapsed / candidate.block_s - 1e-9)
    return block + block % 2
