"""Levers as the page says them: those that live in full, the others as rows that a reader asks for.

A fleet may have had ten thousand rollouts; what the page gets every second is bounded all the same.
"""

import heapq
from collections import Counter
from collections.abc import Iterable
from typing import Final

import msgspec

from trimtab.core.budgets import Budgets
from trimtab.core.events import Effect
from trimtab.core.gate import GateResult
from trimtab.core.narrate_words import tell_verification
from trimtab.core.state import LeverStatus, State, budgets_key
from trimtab.core.types import Budget, RolloutState, Verdict

ENDED: Final = frozenset({RolloutState.ROLLED_BACK, RolloutState.EXPIRED})
_PLACE: Final = {
    RolloutState.PROPOSED: 1,
    RolloutState.DISABLED: 2,
    RolloutState.ROLLED_BACK: 3,
    RolloutState.EXPIRED: 3,
}
"""Where a state stands in the list; those that a person may have to act on come first."""

LIVE_SHOWN_MAX: Final = 24
"""Levers that are not over and are shown in full: those that traffic meets before those that are held off."""

ENDED_SHOWN_MAX: Final = 6
"""Levers that are over and are shown in full, those that moved last."""

ROWS_MAX: Final = 100
"""Rows of one answer of the list of all rollouts."""


class BudgetCourse(msgspec.Struct, frozen=True, kw_only=True):
    """The used share of one budget before a lever, as predicted with it, after it, and now; None is unknown."""

    budget: Budget
    before: float | None
    predicted: float | None
    after: float | None
    now: float | None


class LeverPart(msgspec.Struct, frozen=True, kw_only=True):
    """A lever. `state` None: it was assessed and not proposed. `results` are the gates of look `look`.

    `due`: why it is to be verified again, empty if it is not; `budgets`: empty where they were not read for it.
    """

    name: str
    technique: str | None
    state: RolloutState | None
    share: float
    premise: str
    premise_holds: bool | None
    gain_share: float | None
    reason: str
    look: int
    look_verdict: Verdict | None
    results: tuple[GateResult, ...]
    kept: tuple[str, ...]
    refused: dict[str, str]
    held_off_by: tuple[str, ...]
    effects: tuple[Effect, ...]
    reverse: str = ""
    due: str = ""
    budgets: tuple[BudgetCourse, ...] = ()
    switches_off: tuple[str, ...] = ()
    owner: str = ""


class LeverRow(msgspec.Struct, frozen=True, kw_only=True):
    """A lever in one line; `moved_at_s`: seconds since 1970."""

    name: str
    technique: str | None
    state: RolloutState
    share: float
    reason: str
    moved_at_s: float
    due: bool


class LeverRows(msgspec.Struct, frozen=True, kw_only=True):
    """Some of the levers that are wanted, the latest move first; `total` of them there are."""

    total: int
    offset: int
    rows: tuple[LeverRow, ...]


def lever_parts(state: State) -> tuple[LeverPart, ...]:
    """Return the levers to show in full, those in force first, then those that were only assessed."""
    live = (item for item in state.levers.items() if item[1].state not in ENDED)
    over = (item for item in state.levers.items() if item[1].state in ENDED)
    shown = [
        *heapq.nsmallest(LIVE_SHOWN_MAX, live, key=_in_force_first),
        *heapq.nsmallest(ENDED_SHOWN_MAX, over, key=_latest_first),
    ]
    proposed = tuple(
        _lever(name, status, state) for name, status in sorted(shown, key=_in_force_first)
    )
    return proposed + tuple(_only_assessed(state))


def lever_counts(state: State) -> dict[str, int]:
    """Return how many levers there are in each state, of states that any is in."""
    return dict(sorted(Counter(status.state.value for status in state.levers.values()).items()))


def lever_rows(
    state: State, *, wanted: RolloutState | None, name: str, offset: int, limit: int
) -> LeverRows:
    """Return `limit` rows from `offset` on, of levers in a state (any: None) whose name has `name` in it."""
    found = [
        item
        for item in state.levers.items()
        if (wanted is None or item[1].state is wanted) and name in item[0]
    ]
    some = heapq.nsmallest(offset + limit, found, key=_latest_first)[offset:]
    return LeverRows(total=len(found), offset=offset, rows=tuple(_row(*item) for item in some))


def held_off_by(status: LeverStatus) -> tuple[str, ...]:
    """Return the triggers that hold a lever off now."""
    return tuple(name for name, trigger in sorted(status.triggers.items()) if trigger.fired)


def _in_force_first(item: tuple[str, LeverStatus]) -> tuple[int, float, str]:
    return (_PLACE.get(item[1].state, 0), *_latest_first(item))


def _latest_first(item: tuple[str, LeverStatus]) -> tuple[float, str]:
    return -item[1].moved_at_s, item[0]


def _row(name: str, status: LeverStatus) -> LeverRow:
    return LeverRow(
        name=name,
        technique=status.record.technique.value if status.record else None,
        state=status.state,
        share=status.share,
        reason=status.reason,
        moved_at_s=status.moved_at_s,
        due=status.verification is not None,
    )


def _lever(name: str, status: LeverStatus, state: State) -> LeverPart:
    record = status.record
    return LeverPart(
        name=name,
        technique=record.technique.value if record else None,
        state=status.state,
        share=status.share,
        premise=record.premise if record else "",
        premise_holds=None,
        gain_share=None,
        reason=status.reason,
        look=status.look,
        look_verdict=status.look_verdict,
        results=status.results,
        kept=status.kept,
        refused=status.refused,
        held_off_by=held_off_by(status),
        effects=tuple(status.effects.values()),
        reverse=record.reverse if record else "",
        due=tell_verification(status.verification) if status.verification else "",
        budgets=_course(name, state),
        switches_off=tuple(_switch(status)),
        owner=record.owner if record else "",
    )


def _switch(status: LeverStatus) -> Iterable[str]:
    for trigger in status.triggers.values():
        spec = trigger.spec
        side = "above" if spec.off_when_above else "below"
        cut = "" if spec.cut is None else f" in {spec.cut}"
        yield f"{spec.name}: {spec.signal.value} {side} {spec.off_at:g}{cut}"


def _course(name: str, state: State) -> tuple[BudgetCourse, ...]:
    """The budgets around a lever; nothing where neither a prediction nor a reading was made for it."""
    before = state.budgets.get(budgets_key("before", None))
    predicted = state.budgets.get(budgets_key("predicted", name))
    after = state.budgets.get(budgets_key("after", name))
    if predicted is None and after is None:
        return ()
    diagnosis = state.diagnoses.get(state.diagnosed_scope or "")
    now = None if diagnosis is None else diagnosis.budgets
    return tuple(
        BudgetCourse(
            budget=budget,
            before=_used(before, budget),
            predicted=_used(predicted, budget),
            after=_used(after, budget),
            now=_used(now, budget),
        )
        for budget in Budget
    )


def _used(read: Budgets | None, budget: Budget) -> float | None:
    return None if read is None else read.use(budget).used_share


def _only_assessed(state: State) -> Iterable[LeverPart]:
    for each in state.assessed.assessments if state.assessed else ():
        if each.lever in state.levers:
            continue
        yield LeverPart(
            name=each.lever,
            technique=each.technique.value,
            state=None,
            share=0.0,
            premise=each.premise,
            premise_holds=each.premise_holds,
            gain_share=each.gain_share,
            reason=each.because,
            look=0,
            look_verdict=None,
            results=(),
            kept=(),
            refused={},
            held_off_by=(),
            effects=(),
        )
