"""Questions to the ledger: why is a lever on, what changed before a regression, what would be lost without a lever.

Every answer is a query over events and the fold over them, and names the events it rests on. What was not measured is
said to be unknown; nothing is estimated here.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from trimtab.core.events import (
    AnyEvent,
    ConfigReloaded,
    CutsKept,
    Effect,
    Envelope,
    FleetSized,
    GatesEvaluated,
    HealthChanged,
    LeverProposed,
    ReplicaChanged,
    ReplicaCrashed,
    RolloutMoved,
    RunStarted,
    TriggerMoved,
    lever_of,
)
from trimtab.core.lever import LeverRecord
from trimtab.core.narrate import tell_event
from trimtab.core.state import State
from trimtab.core.types import ReplicaState, RolloutState, Technique
from trimtab.rollout.interactions import meeting, touched

CHANGES: Final = (
    RolloutMoved
    | CutsKept
    | TriggerMoved
    | ConfigReloaded
    | FleetSized
    | ReplicaChanged
    | ReplicaCrashed
    | HealthChanged
    | RunStarted
)
"""Events after which a fleet serves in another way than before."""

ON: Final = frozenset(
    {RolloutState.CANARY, RolloutState.RAMPING, RolloutState.PROVING, RolloutState.ADOPTED}
)


class Because(msgspec.Struct, frozen=True, kw_only=True):
    """One reason, with the event that holds it."""

    text: str
    event_id: str
    at_s: float


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """Something that changed before a regression. `shares`: budgets and phases that both touch, if any."""

    event_id: str
    at_s: float
    before_s: float
    lever: str | None
    shares: tuple[str, ...]
    text: str


class Lost(msgspec.Struct, frozen=True, kw_only=True):
    """What going back would do to one metric, as last measured: without over with, so above 1 is more of it."""

    metric: str
    cut: str
    ratio: float
    low: float | None
    high: float | None
    n_baseline: int
    n_candidate: int
    n_units: int


class Without(msgspec.Struct, frozen=True, kw_only=True):
    """What would be lost by taking a lever back. `verify`: levers that were proven beside it."""

    lever: str
    is_on: bool
    metrics: tuple[Lost, ...]
    budgets: tuple[str, ...]
    verify: tuple[str, ...]


class Scored(msgspec.Struct, frozen=True, kw_only=True):
    """One prediction against its outcome. `error`: log of measured over predicted; None: never measured."""

    lever: str
    technique: Technique
    metric: str
    predicted: float
    predicted_low: float
    predicted_high: float
    measured: float | None = None
    measured_low: float | None = None
    measured_high: float | None = None
    n_units: int = 0

    @property
    def error(self) -> float | None:
        """Log of measured over predicted: 0 is right, above it the lever did less than was promised."""
        return None if self.measured is None else math.log(self.measured / self.predicted)

    @property
    def held(self) -> bool | None:
        """Whether the measured ratio lies in the predicted range."""
        if self.measured is None:
            return None
        return self.predicted_low <= self.measured <= self.predicted_high


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """How well a technique's predictions did. `error_mean` is signed, `error_size` is not; None: none measured."""

    technique: Technique
    made: int
    measured: int
    held: int
    error_mean: float | None
    error_size: float | None


def why(lever: str, envelopes: Iterable[Envelope]) -> tuple[Because, ...]:
    """Return what put a lever where it is, oldest first: what bound, the promise, the look that decided, the last move.

    `envelopes` are those of its chain, in order.
    """
    mine = [each for each in envelopes if lever_of(each.event) == lever]
    found: list[Envelope] = []
    for each in mine:
        event = each.event
        if isinstance(event, LeverProposed):
            found = [each]
        elif isinstance(event, RolloutMoved):
            found = [kept for kept in found if not isinstance(kept.event, RolloutMoved)]
            found.append(each)
        elif isinstance(event, GatesEvaluated | CutsKept | TriggerMoved):
            kind = type(event)
            found = [kept for kept in found if not isinstance(kept.event, kind)]
            found.append(each)
        elif isinstance(event, Effect):
            found.append(each)
    found.sort(key=lambda each: each.seq)
    return tuple(
        Because(text=tell_event(each.event), event_id=each.id, at_s=each.at_s) for each in found
    )


def before(
    regression: Envelope | None,
    envelopes: Sequence[Envelope],
    *,
    at_s: float,
    window_s: float,
) -> tuple[Change, ...]:
    """Return what changed in the `window_s` seconds before a regression at `at_s`: first what shares with it.

    `regression`: the event that told of it (a trigger, a failed look, a move), None where only the time is known: then
    everything is ordered by time. A change shares with it if both levers move one budget or act on one phase.
    """
    records = records_of(envelopes)
    about = None if regression is None else lever_of(regression.event)
    own = records.get(about or "")
    found = []
    for each in envelopes:
        is_itself = regression is not None and each.seq >= regression.seq
        if is_itself or not at_s - window_s <= each.at_s <= at_s or not _changes(each.event):
            continue
        lever = lever_of(each.event)
        found.append(
            Change(
                event_id=each.id,
                at_s=each.at_s,
                before_s=at_s - each.at_s,
                lever=lever,
                shares=_shares(own, records.get(lever or "")),
                text=tell_event(each.event).partition("\n")[0],
            )
        )
    return tuple(sorted(found, key=lambda change: (not change.shares, change.before_s)))


def without(lever: str, state: State) -> Without:
    """Return what taking a lever back would lose, from its measured effects; raises `KeyError` for an unknown lever."""
    status = state.levers[lever]
    record = status.record
    metrics = tuple(
        Lost(
            metric=effect.metric,
            cut=effect.cut,
            ratio=1.0 / effect.ratio,
            low=None if not effect.high or math.isinf(effect.high) else 1.0 / effect.high,
            high=None if not effect.low else 1.0 / effect.low,
            n_baseline=effect.n_baseline,
            n_candidate=effect.n_candidate,
            n_units=effect.n_units,
        )
        for effect in status.effects.values()
        if effect.ratio
    )
    moves = () if record is None else record.moves
    budgets = tuple(
        f"{move.budget.value} {'is paid no more' if move.spends else 'is loaded again'}: {move.because}"
        for move in moves
    )
    beside = tuple(
        name
        for name, other in state.levers.items()
        if name != lever
        and other.state in ON
        and other.record is not None
        and record is not None
        and meeting(record, other.record) is not None
    )
    return Without(
        lever=lever,
        is_on=status.state in ON,
        metrics=metrics,
        budgets=budgets,
        verify=beside,
    )


def predictions(envelopes: Iterable[Envelope]) -> tuple[Scored, ...]:
    """Return every prediction of every proposal with what was measured, in the order of proposals."""
    rows: dict[tuple[str, str], Scored] = {}
    order: list[Scored] = []
    for each in envelopes:
        event = each.event
        if isinstance(event, LeverProposed):
            order += [row for key, row in rows.items() if key[0] == event.record.name]
            rows = {key: row for key, row in rows.items() if key[0] != event.record.name}
            rows |= _promised(event.record)
        elif isinstance(event, Effect) and event.ratio:
            rows = _with_outcome(rows, event)
    return (*order, *rows.values())


def track_record(scored: Sequence[Scored]) -> tuple[Record, ...]:
    """Return how well each technique's predictions did, in alphabetical order."""
    found = []
    for technique in sorted({row.technique for row in scored}):
        mine = [row for row in scored if row.technique is technique]
        errors = [row.error for row in mine if row.error is not None]
        found.append(
            Record(
                technique=technique,
                made=len(mine),
                measured=len(errors),
                held=sum(row.held is True for row in mine),
                error_mean=math.fsum(errors) / len(errors) if errors else None,
                error_size=math.fsum(map(abs, errors)) / len(errors) if errors else None,
            )
        )
    return tuple(found)


def records_of(envelopes: Iterable[Envelope]) -> dict[str, LeverRecord]:
    """Return the last record of every lever that was proposed."""
    events = (each.event for each in envelopes)
    return {event.record.name: event.record for event in events if isinstance(event, LeverProposed)}


def _changes(event: AnyEvent) -> bool:
    if isinstance(event, ReplicaChanged):
        # A replica that is ready again ends a change; what began it says more.
        return event.state is not ReplicaState.READY
    return isinstance(event, CHANGES)


def _shares(own: LeverRecord | None, other: LeverRecord | None) -> tuple[str, ...]:
    if own is None or other is None:
        return ()
    if own.name == other.name:
        return touched(own)
    both = meeting(own, other)
    if both is None:
        return ()
    return (*(each.value for each in both.budgets), *(each.value for each in both.phases))


def _promised(record: LeverRecord) -> dict[tuple[str, str], Scored]:
    return {
        (record.name, effect.metric.value): Scored(
            lever=record.name,
            technique=record.technique,
            metric=effect.metric.value,
            predicted=effect.ratio,
            predicted_low=effect.low,
            predicted_high=effect.high,
        )
        for effect in record.expected
    }


def _with_outcome(
    rows: dict[tuple[str, str], Scored], event: Effect
) -> dict[tuple[str, str], Scored]:
    """Take in an effect; where one of all traffic was measured, a cut's says nothing more."""
    key = (event.lever, event.metric)
    row = rows.get(key)
    if row is None or (event.n_units < row.n_units and row.measured is not None):
        return rows
    told = msgspec.structs.replace(
        row,
        measured=event.ratio,
        measured_low=event.low,
        measured_high=event.high,
        n_units=event.n_units,
    )
    return {**rows, key: told}
