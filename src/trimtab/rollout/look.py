"""One look at a rollout: which records speak of it, and what its gates say of them.

Law: like is compared with like. In a switchback only what was in the slice counts, in both arms; pairs of blocks in
which the share changed are left out. Where the slice is drawn from some cuts only, the baseline's requests of other
cuts do not count either. Harm is asked of the present share alone, since it may begin only there and old evidence
would hide it; a gain may add up over all shares. A block counts when it and the one after it are over, so that its
requests have ended; errors count at once.
Side by side, a slice of 95% leaves the baseline too little to compare with: there everything is asked, the gain too,
before the slice leaves the last balanced share, and harm is judged from that share on.
A candidate that starts has cold caches: what its warm-up (`RampPlan.warm_up_s`) saw counts for nothing but errors,
which do not wait, and is told apart (`rollout.cold`). A cut in which harm was shown left the slice, and its requests
count no more.

Failure modes: requests longer than a block are seen late or not at all; side by side, the slice and the rest
are different sessions on different replicas, and what they ask for must be alike, or be cut.
"""

import math
from collections.abc import Iterable

from trimtab.core.cuts import belongs
from trimtab.core.gate import GateResult
from trimtab.core.lever import Comparison, LeverRecord
from trimtab.core.record import RequestRecord
from trimtab.core.traffic import OUTSIDE_SLICE, CandidatePlan
from trimtab.core.types import Arm, RolloutState, Verdict
from trimtab.rollout.answer import ArmExtras
from trimtab.rollout.blocks import Row
from trimtab.rollout.bounds import stop_bounds
from trimtab.rollout.closing import Closing, Frame
from trimtab.rollout.gates import answers
from trimtab.rollout.machine import BALANCED_SHARE, Rollout, Step

BLOCKS_OF_LAG = 1
"""Blocks that must pass after a block before it counts, so that its requests can end."""

_NEAR = 1e-9
"""A step that begins within a billionth of a block's start has that block."""


class Judge:
    """The gates of one rollout, kept up to date: take in requests as they end, look at any time.

    A look gives the answer of all requests taken in so far and costs what is new. `candidate` may grow its share
    between looks; when it loses a cut, begin with a new judge over the requests that are still known.
    """

    def __init__(self, record: LeverRecord) -> None:
        self._record = record
        self._closing = Closing(record)
        self._new: list[RequestRecord] = []

    @property
    def late(self) -> int:
        """Requests that ended too long after their block to be judged."""
        return self._closing.late

    def take(self, request: RequestRecord) -> None:
        """Take a finished request; those of other levers and outside blocks do not count."""
        if request.lever == self._record.name and request.block is not None:
            self._new.append(request)

    def look(
        self, rollout: Rollout, candidate: CandidatePlan, extras: ArmExtras, now_s: float
    ) -> tuple[tuple[GateResult, ...], Verdict]:
        """Evaluate the gates. `rollout`, `candidate` and `now_s` are of one clock; times in requests are not compared
        with it.
        """
        new, self._new = self._new, []
        for one in new:
            if one.block is not None and is_like(candidate, one):
                self._closing.take(one.block, Row(one))
        self._closing.advance(_frame(self._record, rollout, candidate, now_s))
        proving = _asks_everything(self._record, rollout, candidate)
        state = RolloutState.PROVING if proving else rollout.state
        stops = stop_bounds(self._record, _judged_from(rollout, candidate).share)
        return answers(self._record, state, self._closing, extras, stops)


def look_at(
    record: LeverRecord,
    rollout: Rollout,
    candidate: CandidatePlan,
    records: Iterable[RequestRecord],
    extras: ArmExtras,
    now_s: float,
) -> tuple[tuple[GateResult, ...], Verdict]:
    """Evaluate the gates of a running rollout from all records at once; see `Judge`."""
    judge = Judge(record)
    for one in records:
        judge.take(one)
    return judge.look(rollout, candidate, extras, now_s)


def _frame(record: LeverRecord, rollout: Rollout, candidate: CandidatePlan, now_s: float) -> Frame:
    running = int(max(0.0, now_s - candidate.started_at_s) // candidate.block_s)
    changed = [_elapsed(step, candidate) for step in rollout.steps[1:]]
    pairs = [int(at // 2.0) for at in changed if not _is_near_pair(at)]
    return Frame(
        first=first_block(rollout.steps[0], candidate),
        fresh_from=first_block(_judged_from(rollout, candidate), candidate),
        warm_from=first_warm_block(record, rollout, candidate),
        end=running - BLOCKS_OF_LAG,
        skipped=frozenset(block for pair in pairs for block in (2 * pair, 2 * pair + 1)),
    )


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


def is_like(candidate: CandidatePlan, one: RequestRecord) -> bool:
    """Say whether a request compares like with like: of the slice's traffic, and not outside it in a switchback."""
    if candidate.cuts and not any(belongs(one, cut) for cut in candidate.cuts):
        return False
    if any(belongs(one, cut) for cut in candidate.without):
        return False
    matched = candidate.comparison is Comparison.SWITCHBACK
    return not (matched and one.arm is Arm.BASELINE and one.slice == OUTSIDE_SLICE)


def first_warm_block(record: LeverRecord, rollout: Rollout, candidate: CandidatePlan) -> int:
    """Return the first block that began when the candidate's caches had had their time to fill."""
    if not record.ramp.warm_up_s:
        return 0
    first = rollout.steps[0]
    warm = Step(share=first.share, entered_at_s=first.entered_at_s + record.ramp.warm_up_s)
    return first_block(warm, candidate)


def first_block(step: Step, candidate: CandidatePlan) -> int:
    """Return the first block that lies wholly in a step: an even one, so that pairs stay whole."""
    block = math.ceil(_elapsed(step, candidate) - _NEAR)
    return block + block % 2


def _elapsed(step: Step, candidate: CandidatePlan) -> float:
    return max(0.0, step.entered_at_s - candidate.started_at_s) / candidate.block_s


def _is_near_pair(blocks: float) -> bool:
    """Whether a share changed between two pairs, and so in none."""
    return abs(blocks - 2.0 * round(blocks / 2.0)) <= _NEAR
