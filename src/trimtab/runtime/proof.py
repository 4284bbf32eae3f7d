"""What the controller keeps of the lever that is being proven, and what it asks of others about it."""

from collections.abc import Collection, Iterable
from typing import Protocol

import msgspec

from trimtab.core.cuts import KNOWN_BEFORE_SERVING, Cut
from trimtab.core.events import CutsKept, GatesEvaluated, RolloutMoved
from trimtab.core.gate import GateResult
from trimtab.core.lever import LeverRecord
from trimtab.core.record import RequestRecord
from trimtab.core.traffic import CandidatePlan
from trimtab.core.types import RolloutState, Verdict
from trimtab.rollout.answer import ALL_TRAFFIC, ArmExtras
from trimtab.rollout.exposure import Exposed, Met
from trimtab.rollout.gates import harmed_cut, kept_cuts, spared
from trimtab.rollout.look import Judge, first_block
from trimtab.rollout.machine import Look, Rollout

FROZEN = "promotions are frozen: unfreeze, or make the ledger writable again"

LOOKS_UNTOLD_MAX = 60
"""Looks after which one is written though no verdict changed: one a minute, for its counts and bounds."""

ENDED = frozenset(
    {RolloutState.ADOPTED, RolloutState.ROLLED_BACK, RolloutState.DISABLED, RolloutState.EXPIRED}
)


class Proof(msgspec.Struct, kw_only=True):
    """The lever that is being proven, as the shell follows it. `verifies`: it was adopted before.

    `out`: cuts that left its slice because harm was shown in them, with the reason. `told`: gate, cut and verdict of
    the last look that was written, which was look `told_at`. `busiest`: most requests in flight since the last look.
    `begun_wall_s`: when its slice was exposed, at the start or after a pause, in seconds since 1970.
    """

    judge: Judge
    record: LeverRecord
    policy: str | None
    rollout: Rollout
    replicas: tuple[str, ...]
    proposed_id: str
    last_event_id: str
    results: tuple[GateResult, ...] = ()
    looks: int = 0
    verifies: bool = False
    out: dict[Cut, str] = {}
    exposed: Exposed = msgspec.field(default_factory=Exposed)
    met: Met = msgspec.field(default_factory=Met)
    busiest: int = 0
    told: tuple[tuple[str, str, Verdict], ...] = ()
    told_at: int = 0
    begun_wall_s: float = 0.0

    def saw(self, record: RequestRecord, candidate: CandidatePlan | None) -> None:
        """Take in a finished request, and count whom the slice was shown to."""
        self._count(record)
        if candidate is not None:
            first = first_block(self.rollout.steps[-1], candidate)
            self.exposed.take(record, candidate, first)
            is_now = record.block is not None and record.block >= first
            if record.lever == self.record.name and is_now:
                self.busiest = max(self.busiest, record.concurrency_at_admission or 0)
            self.met.take(record, candidate)

    def begin_anew(self, rollout: Rollout) -> None:
        """Go on after a pause, without what was seen before it."""
        self.rollout, self.results, self.judge = rollout, (), Judge(self.record)
        # Whom the first share was shown to before it paused may be what was wrong: counted anew.
        self.exposed = Exposed()

    def judge_anew(self, records: tuple[RequestRecord, ...]) -> None:
        """Forget what was counted, and count these finished requests."""
        self.judge = Judge(self.record)
        for one in records:
            self._count(one)

    def _count(self, record: RequestRecord) -> None:
        # Blocks are numbered from 0 in every run of a lever: what an earlier run served is none of this one's.
        if record.arrived_at_s >= self.begun_wall_s:
            self.judge.take(record)

    def judged(
        self, candidate: CandidatePlan, results: tuple[GateResult, ...], verdict: Verdict
    ) -> tuple[tuple[GateResult, ...], Verdict]:
        """Return a look's answer; where the arms are not what they seem, nothing that was compared counts."""
        found = self._harmful(results)
        if found:
            is_all = self._is_all(found)
            verdict = Verdict.FAIL if is_all else spared(self.record, results)
        ratio = self.exposed.result(candidate)
        if ratio is None:
            return results, verdict
        return (*results, ratio), Verdict.FAIL if verdict is Verdict.FAIL else Verdict.ERROR

    def look(self, results: tuple[GateResult, ...], verdict: Verdict, *, frozen: bool) -> Look:
        """Return one more look, with what the machine needs of it."""
        busiest, self.busiest = self.busiest, 0
        self.looks += 1
        return Look(verdict=verdict, results=results, frozen=frozen, concurrency=busiest)

    def moves(self, after: Rollout) -> bool:
        """Whether a look changes where the rollout is."""
        return after.state is not self.rollout.state or after.share != self.rollout.share

    def is_news(self) -> bool:
        """Whether the latest look says what the last one written did not: a verdict, or counts after a minute."""
        return _verdicts(self.results) != self.told or self.looks >= self.told_at + LOOKS_UNTOLD_MAX

    def looked(self, verdict: Verdict) -> GatesEvaluated:
        """Return what is recorded of the latest look, which counts as told."""
        self.told, self.told_at = _verdicts(self.results), self.looks
        return GatesEvaluated(
            lever=self.record.name,
            state=self.rollout.state,
            share=self.rollout.share,
            look=self.looks,
            verdict=verdict,
            results=self.results,
        )

    def took_out(self, harmed: dict[Cut, str]) -> CutsKept:
        """Take cuts out of the slice, and return what is recorded of it."""
        self.out.update(harmed)
        refused = {str(cut): why for cut, why in self.out.items()}
        kept = self._names(self.record.cuts)
        return CutsKept(lever=self.record.name, kept=kept, refused=refused)

    def may_leave(self, cut: Cut) -> Cut:
        """Return a cut that a person takes out of the slice; raises `ControlError` where it cannot leave alone."""
        name = self.record.name
        if cut.dimension not in KNOWN_BEFORE_SERVING:
            raise ControlError(
                f"{cut} is known only when a request has been served: nothing can be kept off by it"
            )
        if cut in self.out or cut in self.record.without:
            raise ControlError(f"{name} is kept off {cut} already")
        if self._left(self.record.cuts) == (cut,):
            raise ControlError(f"{name} is for {cut} alone: trimtab rollout rollback {name}")
        return cut

    def may_be_adopted(self) -> None:
        """Raise `ControlError` where every cut of the lever is kept off it: adopted, nobody would meet it."""
        if self._is_all(()):
            name, cuts = self.record.name, ", ".join(map(str, self.record.cuts))
            raise ControlError(
                f"{name} is kept off every cut that it is for ({cuts}): trimtab rollout rollback {name}"
            )

    def kept(self) -> tuple[tuple[Cut, ...], CutsKept]:
        """Return the cuts for which the lever is adopted (none: all traffic), and what is recorded of them.

        Where those that gained have left, it is what is left of its slice: never more than that.
        """
        gained, refused = kept_cuts(self.record, self.results)
        kept = self._left(gained) or self._left(self.record.cuts) or self.record.cuts
        refused = {**refused, **{str(cut): why for cut, why in self.out.items()}}
        told = CutsKept(lever=self.record.name, kept=self._names(kept), refused=refused)
        return kept, told

    def harmed(self, results: tuple[GateResult, ...]) -> dict[Cut, str]:
        """Return the cuts that this look takes out of the slice, with the reason; those that are out already not.

        None where nothing would be left of the slice: that look fails the lever.
        """
        found = self._harmful(results)
        return {} if self._is_all(found) else found

    def _harmful(self, results: tuple[GateResult, ...]) -> dict[Cut, str]:
        found = {
            harmed_cut(self.record, one, results): f"{one.gate}: {one.reason}" for one in results
        }
        return {cut: why for cut, why in found.items() if cut is not None and cut not in self.out}

    def _left(self, cuts: Iterable[Cut]) -> tuple[Cut, ...]:
        """Return those of the cuts that nobody took off the lever, now or before it was verified again."""
        return tuple(cut for cut in cuts if cut not in self.out and cut not in self.record.without)

    def _names(self, cuts: tuple[Cut, ...]) -> tuple[str, ...]:
        """Return what is recorded as kept of cuts; no cuts are all traffic, but cuts that are all out are nothing."""
        return tuple(map(str, self._left(cuts))) if cuts else (ALL_TRAFFIC,)

    def _is_all(self, leaving: Collection[Cut]) -> bool:
        """Whether no cut of the slice is left without those that leave; a slice of all traffic has no last one."""
        return bool(self.record.cuts) and set(self._left(self.record.cuts)) <= set(leaving)


def proof_of(
    record: LeverRecord,
    policy: str | None,
    rollout: Rollout,
    replicas: tuple[str, ...],
    cause_id: str,
    *,
    verifies: bool = False,
) -> Proof:
    """Return the proof of a lever that begins now, without any evidence."""
    return Proof(
        judge=Judge(record),
        record=record,
        policy=policy,
        rollout=rollout,
        replicas=replicas,
        proposed_id=cause_id,
        last_event_id=cause_id,
        verifies=verifies,
    )


def with_reason(what: str, reason: str) -> str:
    """Return what happens, with the reason of whoever asked for it."""
    return f"{what}; {reason}" if reason else what


def moved_to(
    record: LeverRecord,
    before: RolloutState | None,
    after: Rollout,
    verdict: Verdict | None,
    reason: str,
) -> RolloutMoved:
    """Return what is recorded of a rollout that moved."""
    return RolloutMoved(
        lever=record.name,
        before=before,
        after=after.state,
        share=after.share,
        verdict=verdict,
        reason=reason,
    )


def _verdicts(results: tuple[GateResult, ...]) -> tuple[tuple[str, str, Verdict], ...]:
    return tuple((one.gate, one.cut, one.verdict) for one in results)


class ControlError(RuntimeError):
    """A lever cannot be started now; the message says why and what to do."""


class AfterAdoption(Protocol):
    """Diagnoses the whole system again; returns why the lever failed, or None if its payers keep headroom."""

    def __call__(self, record: LeverRecord, *, cause_id: str) -> str | None:
        """Return the reason to take the lever back, or None."""
        ...


class Extras(Protocol):
    """Supplies what gates need beside request records: memory by arm, output equality."""

    def __call__(self, record: LeverRecord, replicas: tuple[str, ...]) -> ArmExtras:
        """Return the extras of the lever being proven."""
        ...
