"""The controller: once a tick it judges the lever being proven, moves its rollout, and watches adopted levers.

Decisions are pure (rollout, levers, diagnosis); this shell collects what they need, carries out their effects and
records both. One lever is proven at a time. Promotions stop while frozen or while the ledger cannot be written;
taking back never does.
"""

from collections import deque
from collections.abc import Callable

import msgspec

from trimtab.core.cuts import Cut
from trimtab.core.events import Frozen, LeverProposed, RolloutMoved
from trimtab.core.lever import LeverRecord, check_record
from trimtab.core.ports import Clock, LaunchError, LedgerSink
from trimtab.core.record import RequestRecord
from trimtab.core.types import RolloutState, Verdict
from trimtab.rollout.effects import effects_of
from trimtab.rollout.exposure import Met
from trimtab.rollout.machine import Look, Rollout, advance, begin, expire, move, resume, verify
from trimtab.runtime.actuation import Actuator
from trimtab.runtime.ledger_health import LedgerHealth
from trimtab.runtime.proof import (
    ENDED,
    FROZEN,
    AfterAdoption,
    ControlError,
    Extras,
    Proof,
    moved_to,
    proof_of,
    with_reason,
)

RECORDS_MAX = 20_000
TICK_S = 1.0


class Controller:
    """Drives rollouts: `tick` once a second. `on_moved` hears every move of a rollout."""

    def __init__(
        self,
        *,
        actuator: Actuator,
        sink: LedgerSink,
        clock: Clock,
        extras: Extras,
        after_adoption: AfterAdoption,
        on_adopted: Callable[[LeverRecord, str | None, tuple[Cut, ...], str], None],
        on_moved: Callable[[RolloutMoved], None] = lambda _: None,
    ) -> None:
        self._actuator = actuator
        self._sink = sink
        self._clock = clock
        self._extras = extras
        self._after_adoption = after_adoption
        self._on_adopted = on_adopted
        self._on_moved = on_moved
        self._records: deque[RequestRecord] = deque(maxlen=RECORDS_MAX)
        self.proof: Proof | None = None
        self._prepares: str | None = None
        self.frozen = False
        self._health = LedgerHealth(sink)

    def on_record(self, record: RequestRecord) -> None:
        """Take a finished request; old records fall out of a bounded window."""
        self._records.append(record)
        if self.proof is not None:
            self.proof.saw(record, self._actuator.plan.candidate)

    @property
    def records(self) -> tuple[RequestRecord, ...]:
        """The recent records, oldest first."""
        return tuple(self._records)

    @property
    def is_frozen(self) -> bool:
        """Whether nothing may start: promotions are frozen, or the ledger cannot be written."""
        return self.frozen or not self._sink.healthy

    @property
    def has_ended(self) -> bool:
        """Whether no lever is being proven any more, nor prepared for it."""
        return (self.proof is None or self.proof.rollout.state in ENDED) and self._prepares is None

    def propose(self, record: LeverRecord, *, cause_id: str | None) -> str:
        """Accept a complete lever record as a proposal; raises `LeverRecordError` for an incomplete one."""
        return self._sink.append(
            LeverProposed(record=check_record(record)), cause_id=cause_id, durable=True
        )

    async def start(
        self,
        record: LeverRecord,
        policy: str | None,
        *,
        cause_id: str,
        reason: str = "",
        anew: bool = False,
    ) -> Proof:
        """Begin to prove a proposed lever: prepare its replicas, then expose the first slice.

        `anew`: it is not what was proposed, and is proposed once it can start. Raises `ControlError` while another
        lever is being prepared or proven, or promotions are (or become) frozen.
        """
        self._check_free()
        replicas = await self._prepared(record, cause_id)
        if anew:
            cause_id = self.propose(record, cause_id=cause_id)
        rollout = begin(record, self._clock.mono_s())
        proof = self.proof = proof_of(record, policy, rollout, replicas, cause_id)
        self._moved(proof, None, rollout, None, with_reason(rollout.reason, reason))
        self._expose(proof)
        return proof

    def go_on(
        self,
        record: LeverRecord,
        policy: str | None,
        *,
        state: RolloutState,
        share: float,
        cause_id: str,
        out: dict[Cut, str] | None = None,
        met: Met | None = None,
    ) -> Proof:
        """Follow a proof that an earlier process left behind, at its share; its replicas run its revision already.

        What it had measured is not continued: the clock of its share and its evidence begin anew. `out`: the cuts that
        had left its slice; `met`: whom it was shown to, so that nobody is told twice.
        """
        rollout = resume(record, state, share, self._clock.mono_s())
        replicas = self._actuator.candidate_replicas(record)
        proof = self.proof = proof_of(record, policy, rollout, replicas, cause_id)
        proof.out.update(out or {})
        proof.met = met or proof.met
        self._moved(proof, state, rollout, None, rollout.reason)
        if rollout.state is not RolloutState.PAUSED:
            self._expose(proof)
        return proof

    def verify(
        self,
        record: LeverRecord,
        policy: str | None,
        *,
        baseline_policy: str,
        cause_id: str,
        reason: str = "",
    ) -> Proof:
        """Prove an adopted lever again, beside what has changed since; its replicas run its revision already.

        Raises `ControlError` like `start`. The lever is out of the plan but for its slice until it passes.
        """
        self._check_free()
        reason = with_reason("verified again at the last balanced share", reason)
        rollout = verify(record, self._clock.mono_s(), reason)
        replicas = self._actuator.candidate_replicas(record)
        proof = self.proof = proof_of(record, policy, rollout, replicas, cause_id, verifies=True)
        self._moved(proof, RolloutState.ADOPTED, rollout, None, reason)
        cause = proof.last_event_id
        self._actuator.release(record, baseline_policy=baseline_policy, cause_id=cause)
        self._expose(proof)
        return proof

    async def _prepared(self, record: LeverRecord, cause_id: str) -> tuple[str, ...]:
        self._prepares = record.name
        try:
            replicas = await self._actuator.prepare(record, cause_id=cause_id)
            if self.is_frozen:
                # Promotions were stopped while the replicas restarted, which takes minutes.
                await self._actuator.take_back(record, cause_id=cause_id)
                raise ControlError(FROZEN)
            return replicas
        finally:
            self._prepares = None

    def _expose(self, proof: Proof) -> None:
        proof.begun_wall_s = self._clock.wall_s()
        self._actuator.start_slice(
            proof.record,
            proof.rollout.share,
            proof.policy,
            proof.replicas,
            without=tuple(proof.out),
            cause_id=proof.last_event_id,
        )

    async def pause(self, reason: str) -> None:
        """Take the traffic off the lever being proven until somebody resumes it."""
        proof = self._running_proof()
        if proof.rollout.state is RolloutState.PAUSED:
            raise ControlError(f"{proof.record.name} is paused already")
        paused = move(proof.rollout, RolloutState.PAUSED, self._clock.mono_s(), reason)
        await self._carry_out(proof, paused, None)

    async def resume(self, reason: str) -> None:
        """Let a paused lever go on, from its first share."""
        proof = self._running_proof()
        if proof.rollout.state is not RolloutState.PAUSED:
            raise ControlError(f"{proof.record.name} is {proof.rollout.state.value}, not paused")
        self._check_thawed()
        if self._clock.wall_s() >= proof.record.expires_at_s:
            raise ControlError(f"{proof.record.name} has expired: propose it anew")
        await self._prepared(proof.record, proof.last_event_id)
        if proof.rollout.state in ENDED:
            await self._take_back(proof)
            state = proof.rollout.state.value
            raise ControlError(f"{proof.record.name} became {state} while its replicas restarted")
        again = msgspec.structs.replace(
            begin(proof.record, self._clock.mono_s()), looks=proof.rollout.looks, reason=reason
        )
        proof.begin_anew(again)
        self._moved(proof, RolloutState.PAUSED, again, None, reason)
        self._expose(proof)

    async def adopt_now(self, reason: str) -> None:
        """Adopt the lever being proven because a person says so; only at its last share."""
        proof = self._running_proof()
        if proof.rollout.state is not RolloutState.PROVING:
            raise ControlError(
                f"{proof.record.name} is {proof.rollout.state.value}: only a lever at its last share can be adopted"
            )
        proof.may_be_adopted()
        self._check_thawed()
        adopted = move(proof.rollout, RolloutState.ADOPTED, self._clock.mono_s(), reason)
        await self._carry_out(proof, msgspec.structs.replace(adopted, share=1.0), None)

    def _running_proof(self) -> Proof:
        if self.proof is None or self.has_ended:
            raise ControlError("no lever is being proven")
        return self.proof

    def _check_free(self) -> None:
        if self.proof is not None:
            raise ControlError(f"{self.proof.record.name} is being proven: one lever at a time")
        if self._prepares is not None:
            raise ControlError(f"{self._prepares} is being prepared: one lever at a time")
        self._check_thawed()

    def _check_thawed(self) -> None:
        if self.is_frozen:
            raise ControlError(FROZEN)

    def freeze(self, frozen: bool, reason: str) -> None:
        """Stop promotions, or let them go on; taking back is always allowed."""
        self.frozen = frozen
        self._sink.append(Frozen(frozen=frozen, reason=reason), cause_id=None, durable=True)

    async def tick(self) -> None:
        """Judge the lever being proven and carry out what follows."""
        self._health.tick(self.frozen)
        proof = self.proof
        if proof is not None:
            self._tell_exposed(proof)
        if proof is None or proof.rollout.state in ENDED:
            return
        now_s = self._clock.mono_s()
        expired = expire(proof.record, proof.rollout, self._clock.wall_s(), now_s)
        if expired.state is RolloutState.EXPIRED:
            await self._carry_out(proof, expired, None)
            return
        if proof.rollout.state is RolloutState.PAUSED:
            # Nothing can be seen of it, but one that nobody resumes ends in time.
            after = advance(proof.record, proof.rollout, Look(verdict=Verdict.HOLD), now_s)
            await self._follow(proof, after, Verdict.HOLD)
            return
        candidate = self._actuator.plan.candidate
        if candidate is None:
            return
        extras = self._extras(proof.record, proof.replicas)
        results, verdict = proof.judge.look(proof.rollout, candidate, extras, now_s)
        results, verdict = proof.judged(candidate, results, verdict)
        look = proof.look(results, verdict, frozen=self.is_frozen)
        harmed = proof.harmed(results)
        after = advance(proof.record, proof.rollout, look, now_s)
        self._record_look(proof, look, decides=bool(harmed) or proof.moves(after))
        self._take_out(proof, harmed)
        await self._follow(proof, after, verdict)

    def _tell_exposed(self, proof: Proof) -> None:
        told = proof.met.told(proof.record.name, proof.rollout.share)
        if told is not None:
            self._sink.append(told, cause_id=proof.last_event_id)

    def _take_out(self, proof: Proof, harmed: dict[Cut, str]) -> None:
        """Keep cuts in which harm was shown off the lever from the next request on; the rest of the slice goes on."""
        if not harmed:
            return
        event = proof.took_out(harmed)
        proof.last_event_id = self._sink.append(event, cause_id=proof.last_event_id, durable=True)
        if self._actuator.plan.candidate is not None:
            self._actuator.shrink_slice(tuple(proof.out), cause_id=proof.last_event_id)
            # What those cuts showed counts no more: judge the rest anew, from what is remembered.
            proof.judge_anew(self.records)

    def leave_out(self, cut: Cut, reason: str) -> None:
        """Keep a cut off the lever being proven, as a person says; raises `ControlError` where that cannot be."""
        proof = self._running_proof()
        self._take_out(proof, {proof.may_leave(cut): reason})

    async def _follow(self, proof: Proof, after: Rollout, verdict: Verdict) -> None:
        if proof.moves(after):
            await self._carry_out(proof, after, verdict)
        else:
            proof.rollout = after

    def _record_look(self, proof: Proof, look: Look, *, decides: bool) -> None:
        """Write what a look found where it is news: the counts alone change at every look."""
        proof.results = look.results
        if decides or proof.is_news():
            event = proof.looked(look.verdict)
            proof.last_event_id = self._sink.append(event, cause_id=proof.last_event_id)

    async def _carry_out(self, proof: Proof, after: Rollout, verdict: Verdict | None) -> None:
        before = proof.rollout
        proof.rollout = after
        self._moved(proof, before.state, after, verdict, after.reason)
        match after.state:
            case RolloutState.CANARY | RolloutState.RAMPING | RolloutState.PROVING:
                self._actuator.grow_slice(after.share, cause_id=proof.last_event_id)
            case RolloutState.ADOPTED:
                await self._adopt(proof)
            case RolloutState.PROPOSED:
                raise AssertionError("a running rollout cannot become a proposal again")
            case (
                RolloutState.PAUSED
                | RolloutState.ROLLED_BACK
                | RolloutState.DISABLED
                | RolloutState.EXPIRED
            ):
                self._record_effects(proof, proof.last_event_id)
                await self._take_back(proof)

    async def _take_back(self, proof: Proof) -> None:
        """By routing the lever is off at once; a replica that does not follow is told of, and tried no more."""
        try:
            await self._actuator.take_back(proof.record, cause_id=proof.last_event_id)
        except LaunchError as error:
            reason = f"no traffic meets it any more, but a replica did not go back: {error}"
            self._moved(proof, proof.rollout.state, proof.rollout, None, reason)

    def _record_effects(self, proof: Proof, cause_id: str) -> None:
        for effect in effects_of(proof.record, proof.results):
            self._sink.append(effect, cause_id=cause_id)
        # What was measured is told once, also of a rollout that pauses first.
        proof.results = ()

    async def _adopt(self, proof: Proof) -> None:
        kept, told = proof.kept()
        cause = self._sink.append(told, cause_id=proof.last_event_id, durable=True)
        self._record_effects(proof, cause)
        failed = self._after_adoption(proof.record, cause_id=cause)
        if failed is not None:
            proof.rollout = self._rolled_back(proof.rollout, failed)
            self._moved(proof, RolloutState.ADOPTED, proof.rollout, Verdict.FAIL, failed)
            await self._take_back(proof)
            return
        self._actuator.adopt(
            proof.record, policy=proof.policy, cuts=kept, without=tuple(proof.out), cause_id=cause
        )
        self._on_adopted(proof.record, proof.policy, kept, cause)

    def finish(self) -> Proof | None:
        """Let go of a rollout that has ended, so that the next lever can be proven; returns it."""
        proof = self.proof
        if proof is None or proof.rollout.state not in ENDED:
            return None
        self.proof = None
        return proof

    async def give_up(self, reason: str) -> None:
        """Roll back the lever being proven, for a reason outside its gates (time is up, shutdown)."""
        proof = self.proof
        if proof is None or proof.rollout.state in ENDED:
            return
        before = proof.rollout
        proof.rollout = self._rolled_back(before, reason)
        self._moved(proof, before.state, proof.rollout, None, reason)
        self._record_effects(proof, proof.last_event_id)
        await self._take_back(proof)

    def _rolled_back(self, rollout: Rollout, reason: str) -> Rollout:
        return move(rollout, RolloutState.ROLLED_BACK, self._clock.mono_s(), reason)

    def _moved(
        self,
        proof: Proof,
        before: RolloutState | None,
        after: Rollout,
        verdict: Verdict | None,
        reason: str,
    ) -> None:
        self._tell_exposed(proof)
        # Not of `self.proof`: while a replica went back, that may have been let go of or followed by another.
        event = moved_to(proof.record, before, after, verdict, reason)
        proof.last_event_id = self._sink.append(event, cause_id=proof.last_event_id, durable=True)
        self._on_moved(event)
