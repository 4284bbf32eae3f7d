"""Carries out what a person asks of levers: propose, start, pause, take back, adopt, disable, freeze.

Every action is an event with the person's reason. Taking back is allowed in every mode and while frozen; starting
is not while frozen, and not in a fleet that only observes.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final, assert_never

import msgspec
from msgspec import Meta

from trimtab.core.cuts import Cut, hidden
from trimtab.core.events import QualityScored
from trimtab.core.lever import LeverRecord, LeverRecordError
from trimtab.core.narrate_words import duration
from trimtab.core.record import RequestRecord
from trimtab.core.state import EMPTY, State
from trimtab.core.types import Mode, RolloutAction, RolloutState
from trimtab.levers.catalog import routing_policy_of
from trimtab.policies.routing import POLICIES
from trimtab.rollout.forecast import floor_s, forecast
from trimtab.rollout.leaving import narrowed
from trimtab.rollout.machine import RUNNING
from trimtab.rollout.quality import revision_of
from trimtab.rollout.score_file import read_scores
from trimtab.rollout.short_record import complete, parse_cut, parse_record
from trimtab.runtime.actuation import DRAIN_TIMEOUT_S
from trimtab.runtime.adopted import ASKED
from trimtab.runtime.control import Control
from trimtab.runtime.fleet_known import known_of
from trimtab.runtime.ledger_reader import SqliteReader
from trimtab.runtime.proof import ControlError
from trimtab.runtime.supervisor import System

REASON_CHARS_MAX: Final = 500
LIVE: Final = RUNNING | {RolloutState.PAUSED, RolloutState.ADOPTED, RolloutState.DISABLED}
"""States of a lever that has to be taken back before it is proposed anew."""


class Asked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a person asks. `record`: the TOML of a proposal; `slice`: a cut such as "label=edit"; `start`: at once.

    `dry_run`: say what would change and change nothing. `scores`: the lines of an evaluation, whose name is
    `evaluation`; `floor`: how much the baseline differed from itself in `floor_runs` runs.
    """

    action: RolloutAction
    name: str = ""
    reason: str = ""
    record: str = ""
    source: str = "the record"
    slice: str = ""
    start: bool = False
    dry_run: bool = False
    scores: str = ""
    evaluation: str = ""
    floor: Annotated[float, Meta(ge=0.0, le=1.0)] | None = None
    floor_runs: Annotated[int, Meta(ge=0)] = 0


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it. `steps`: what was, or in a dry run would be, done; `record`: of a proposal, complete."""

    action: RolloutAction
    name: str
    state: RolloutState | None
    share: float
    frozen: bool
    steps: tuple[str, ...]
    record: LeverRecord | None = None


class Operator:
    """Acts on one serving system, one request after the other."""

    def __init__(self, control: Control, system: System) -> None:
        self._control = control
        self._system = system
        self._lock = asyncio.Lock()
        self._proposed: dict[str, tuple[LeverRecord, str]] = {}

    async def carry_out(self, asked: Asked) -> Done:
        """Do what is asked.

        Raises `LeverRecordError` for a record that is refused, `ControlError` for what cannot be done now, and
        `LaunchError` where a replica does not follow.
        """
        async with self._lock:
            self._control.controller.finish()
            return await self._carry_out(asked)

    async def _carry_out(self, asked: Asked) -> Done:
        match asked.action:
            case RolloutAction.PROPOSE:
                return await self._propose(asked)
            case RolloutAction.START:
                return await self._start(asked)
            case RolloutAction.PAUSE | RolloutAction.RESUME:
                return await self._hold(asked)
            case RolloutAction.ROLLBACK:
                return await self._roll_back(asked)
            case RolloutAction.ADOPT:
                return await self._adopt(asked)
            case RolloutAction.DISABLE:
                return await self._disable(asked)
            case RolloutAction.VERIFY:
                self._control.verifier.begin(asked.name, _reason(asked))
                return self._done(asked, ("its gates are asked again, with and without it",))
            case RolloutAction.SCORE:
                return await self._score(asked)
            case RolloutAction.FREEZE | RolloutAction.UNFREEZE:
                freeze = asked.action is RolloutAction.FREEZE
                self._control.controller.freeze(freeze, _reason(asked))
                said = (
                    "promotions stop; taking back still happens" if freeze else "promotions go on"
                )
                return self._done(asked, (said,))
            case _:
                assert_never(asked.action)

    async def _propose(self, asked: Asked) -> Done:
        short = parse_record(asked.record, source=asked.source)
        # A model is read whole for its checksum, which must not hold up the traffic.
        record = await asyncio.to_thread(
            complete,
            short,
            baseline=self._system.baseline,
            now_s=self._system.clock.wall_s(),
            known=known_of(self._system),
        )
        if record.policy is not None and record.policy not in POLICIES:
            known = ", ".join(POLICIES)
            raise LeverRecordError(f"$.policy {record.policy!r} is unknown; there are {known}")
        self._must_not_live(record.name)
        if said := _said(asked):
            because = f"{record.chosen_because}: {said}"
            record = msgspec.structs.replace(record, chosen_because=because)
        steps = self._steps(record)
        if asked.dry_run:
            return self._done(asked, steps, name=record.name, record=record)
        event_id = self._control.controller.propose(record, cause_id=self._system.started_event)
        self._proposed[record.name] = record, event_id
        if asked.start:
            await self._begin(record, event_id, _reason(asked))
        return self._done(asked, steps, name=record.name, record=record)

    async def _start(self, asked: Asked) -> Done:
        self._must_not_live(asked.name)
        record, event_id = await self._proposal(asked.name)
        if asked.slice:
            record = narrowed(record, self._cut(asked.slice))
        steps = self._steps(record)
        if not asked.dry_run:
            await self._begin(record, event_id, _reason(asked), anew=bool(asked.slice))
        return self._done(asked, steps)

    async def _begin(
        self, record: LeverRecord, event_id: str, reason: str, *, anew: bool = False
    ) -> None:
        if self._system.config.levers.mode is Mode.OBSERVE:
            raise ControlError("the fleet only observes: set levers.mode to advise or act")
        if record.revision is not None and self._system.attached is not None:
            raise ControlError(
                f"{record.name} restarts a replica; attached servers are not ours to restart"
            )
        policy = routing_policy_of(record)
        proof = await self._control.controller.start(
            record, policy, cause_id=event_id, reason=reason, anew=anew
        )
        self._proposed[record.name] = record, proof.proposed_id
        # Not before: a start that is refused must not take from the lever being proven what was counted for it.
        self._control.begin_proof()

    async def _hold(self, asked: Asked) -> Done:
        self._must_be_proven(asked.name)
        controller = self._control.controller
        if asked.action is RolloutAction.PAUSE:
            await controller.pause(_reason(asked))
            return self._done(asked, ("no traffic meets it until it is resumed",))
        await controller.resume(_reason(asked))
        return self._done(asked, ("it goes on from its first share",))

    async def _roll_back(self, asked: Asked) -> Done:
        if self._is_proven(asked.name):
            await self._control.controller.give_up(_reason(asked))
        else:
            self._must_be_adopted(asked.name)
            await self._control.triggers.end(asked.name, RolloutState.ROLLED_BACK, _reason(asked))
        return self._done(asked, ("all traffic is on the baseline",), now=RolloutState.ROLLED_BACK)

    async def _adopt(self, asked: Asked) -> Done:
        if self._is_proven(asked.name):
            await self._control.controller.adopt_now(_reason(asked))
            return self._done(asked, ("it gets the traffic that its record names",))
        self._must_be_adopted(asked.name)
        await self._control.triggers.switch(asked.name, on=True, reason=_reason(asked))
        return self._done(asked, ("it is on again, and watched",))

    async def _disable(self, asked: Asked) -> Done:
        if self._is_proven(asked.name):
            if not asked.slice:
                raise ControlError(
                    f"{asked.name} is being proven: pause it, roll it back, or name a --slice"
                )
            cut = self._cut(asked.slice)
            self._control.controller.leave_out(cut, _reason(asked))
            return self._done(asked, (f"requests of {cut} are on the baseline",))
        self._must_be_adopted(asked.name)
        triggers = self._control.triggers
        if asked.slice:
            cut = self._cut(asked.slice)
            triggers.take_off_cut(asked.name, cut, _reason(asked))
            return self._done(asked, (f"requests of {cut} are on the baseline",))
        await triggers.switch(asked.name, on=False, reason=_reason(asked))
        return self._done(asked, ("all traffic is on the baseline until it is adopted again",))

    def _cut(self, text: str) -> Cut:
        try:
            return hidden(parse_cut(text), self._system.secret.digest)
        except ValueError as error:
            raise ControlError(str(error)) from error

    async def _score(self, asked: Asked) -> Done:
        record, cause_id = await self._anywhere(asked.name)
        scores = read_scores(
            asked.scores,
            source=asked.source,
            evaluation=asked.evaluation,
            revision=revision_of(record),
            floor=asked.floor,
            floor_runs=asked.floor_runs,
            hide=lambda cut: hidden(cut, self._system.secret.digest),
        )
        event = QualityScored(lever=record.name, scores=scores)
        self._control.scored(event, cause_id=cause_id)
        told = tuple(
            f"{each.cut}: {each.candidate_passed} of {each.n} passed, {each.baseline_passed} with the baseline"
            for each in scores.cuts
        )
        return self._done(asked, told)

    async def _anywhere(self, name: str) -> tuple[LeverRecord, str]:
        """Return the record of a lever that is proposed, being proven or adopted, and what its scores follow from."""
        proof = self._control.controller.proof
        if proof is not None and self._is_proven(name):
            return proof.record, proof.last_event_id
        adopted = self._control.triggers.adopted.get(name)
        if adopted is not None:
            return adopted.record, adopted.cause_id
        return await self._proposal(name)

    def _steps(self, record: LeverRecord) -> tuple[str, ...]:
        """What starting a lever changes, in order."""
        replicas = self._control.actuator.candidate_replicas(record)
        first = record.ramp.shares[0]
        whom = " or ".join(str(cut) for cut in record.cuts) or "all traffic"
        if record.without:
            whom += f" but {', '.join(str(cut) for cut in record.without)}"
        steps = [
            f"restart {replica} with {_changes(self._system, record)}; it drains first (at most "
            f"{DRAIN_TIMEOUT_S:g} s), the KV of its slots is saved and restored"
            for replica in replicas
        ]
        if record.policy is not None:
            steps.append(
                f"decide by {record.policy} instead of {self._control.actuator.plan.policy}"
            )
        steps.append(f"for {first:.0%} of the sessions of {whom}; the rest stays on the baseline")
        steps += [f"{rule} was seen to be held as wide as the baseline's" for rule in record.keep]
        steps += [f"{metric.value} is not asked: {why}" for metric, why in record.absent.items()]
        steps += _forecast(record, self._system.records)
        return (*steps, f"to go back: {record.reverse}", *_commands(record))

    async def _proposal(self, name: str) -> tuple[LeverRecord, str]:
        if name in self._proposed:
            return self._proposed[name]
        state = await self._folded()
        status = state.levers.get(name)
        if status is None or status.record is None or status.proposal_id is None:
            known = ", ".join(state.levers) or "none"
            raise ControlError(f"no lever {name!r} was proposed here; known: {known}")
        if status.state is not RolloutState.PROPOSED:
            raise ControlError(f"{name} is {status.state.value}: propose it anew with a new record")
        return status.record, status.proposal_id

    async def _folded(self) -> State:
        def read() -> State:
            with SqliteReader(Path(self._system.config.ledger.path)) as reader:
                return reader.catch_up(EMPTY)

        return await asyncio.to_thread(read)

    def _is_proven(self, name: str) -> bool:
        proof = self._control.controller.proof
        ended = self._control.controller.has_ended
        return proof is not None and not ended and proof.record.name == name

    def _must_not_live(self, name: str) -> None:
        where = self._now(name)
        if where in LIVE:
            raise ControlError(f"{name} is {where.value}: roll it back before it is started anew")

    def _must_be_proven(self, name: str) -> None:
        if not self._is_proven(name):
            proof = self._control.controller.proof
            now = "none is" if proof is None else f"{proof.record.name} is"
            raise ControlError(f"{name!r} is not being proven; {now}")

    def _must_be_adopted(self, name: str) -> None:
        adopted = self._control.triggers.adopted
        if name not in adopted:
            known = ", ".join(adopted) or "none"
            raise ControlError(f"{name!r} is neither being proven nor adopted; adopted: {known}")

    def _now(self, name: str) -> RolloutState | None:
        proof = self._control.controller.proof
        if proof is not None and proof.record.name == name:
            return proof.rollout.state
        lever = self._control.triggers.adopted.get(name)
        if lever is not None:
            return RolloutState.DISABLED if lever.is_off else RolloutState.ADOPTED
        return RolloutState.PROPOSED if name in self._proposed else None

    def _done(
        self,
        asked: Asked,
        steps: tuple[str, ...],
        *,
        name: str = "",
        record: LeverRecord | None = None,
        now: RolloutState | None = None,
    ) -> Done:
        called = name or asked.name
        candidate = self._control.actuator.plan.candidate
        share = candidate.share if candidate is not None and candidate.lever == called else 0.0
        return Done(
            action=asked.action,
            name=called,
            state=now or self._now(called),
            share=share,
            frozen=self._control.controller.frozen,
            steps=steps,
            record=record,
        )


def _said(asked: Asked) -> str:
    return " ".join(asked.reason.split())[:REASON_CHARS_MAX]


def _reason(asked: Asked) -> str:
    said = _said(asked)
    return f"{ASKED}: {said}" if said else f"{ASKED}, without a reason"


def _commands(record: LeverRecord) -> tuple[str, ...]:
    words = "trimtab rollout"
    return (
        f"commands: {words} start {record.name}, then {words} show {record.name}",
        f"to stop it at once: {words} rollback {record.name}; to stop every promotion: trimtab freeze",
    )


def _forecast(record: LeverRecord, recent: Sequence[RequestRecord]) -> tuple[str, ...]:
    plain = [each for each in recent if each.lever is None]
    told = [f"if every look passes it takes {duration(floor_s(record))}"]
    for each in forecast(record, plain):
        if each.units is None or each.takes_s is None:
            told.append(f"{each.gate}: how much evidence it takes is unknown ({each.because})")
        else:
            takes = f"about {each.units} units, {duration(each.takes_s)}"
            told.append(f"{each.gate}: {takes} of evidence ({each.because})")
    return tuple(told)


def _changes(system: System, record: LeverRecord) -> str:
    if record.revision is None:
        return "nothing changed"
    before = msgspec.to_builtins(system.baseline)
    after = msgspec.to_builtins(record.revision)
    return ", ".join(
        f"{key} {before[key]} -> {after[key]}" for key in after if after[key] != before.get(key)
    )
