"""Triggers fire on what is seen, return lower, and do nothing on what is unknown."""

import pytest

from trimtab.core.lever import TriggerAction, TriggerSignal, TriggerSpec
from trimtab.rollout.triggers import TriggerWatch, watch

BATCH = TriggerSpec(
    name="batch",
    signal=TriggerSignal.BATCH,
    off_at=63.0,
    on_at=48.0,
    off_when_above=True,
    ticks=2,
    min_samples=5,
    lockout_s=10.0,
    because="speculation loses from 64 streams on",
)
ACCEPTANCE = TriggerSpec(
    name="acceptance",
    signal=TriggerSignal.DRAFT_ACCEPTANCE,
    off_at=0.3,
    on_at=None,
    off_when_above=False,
    ticks=1,
    min_samples=5,
    because="drafts are rejected",
)


def run(
    spec: TriggerSpec, readings: list[float | None], *, samples: int = 9, tick_s: float = 6.0
) -> tuple[list[bool], TriggerWatch]:
    """Whether the lever is off after each reading, and the last state."""
    state = TriggerWatch(spec=spec)
    off = []
    for tick, reading in enumerate(readings):
        state, _ = watch(state, reading, samples, tick * tick_s)
        off.append(state.is_off)
    return off, state


def test_batch_of_20_90_60_40_switches_off_stays_off_and_returns() -> None:
    """C1: on at 20, off at 90, still off at 60 (between the marks), on again at 40."""
    readings: list[float | None] = [20, 20, 90, 90, 60, 60, 60, 40, 40]
    off, _ = run(BATCH, readings)
    assert off == [False, False, False, True, True, True, True, True, False]


def test_action_says_what_was_seen() -> None:
    """The reading, its samples, and the words for the ledger."""
    state = TriggerWatch(spec=BATCH, streak=1)
    _, action = watch(state, 90.0, 12, 0.0)
    assert action is not None
    assert (action.fired, action.value, action.samples) == (True, 90.0, 12)
    assert action.action is TriggerAction.DISABLE
    assert action.reason == "batch 90 above 63 for 2 ticks"


def test_one_tick_over_the_mark_does_not_fire() -> None:
    """The ticks must follow each other."""
    off, _ = run(BATCH, [90, 20, 90, 20, 90])
    assert off == [False] * 5


def test_unknown_neither_fires_nor_recovers() -> None:
    """None and too few samples leave everything as it is, whichever side the lever is on."""
    off, state = run(BATCH, [90, None, None, None])
    assert (off[-1], state.streak) == (False, 1)
    fired, _ = watch(state, 90.0, 9, 30.0)
    assert fired.is_off
    assert watch(fired, None, 99, 999.0) == (fired, None)
    assert watch(fired, 1.0, 4, 999.0) == (fired, None)
    assert watch(TriggerWatch(spec=BATCH), 500.0, 4, 0.0) == (TriggerWatch(spec=BATCH), None)


def test_lever_does_not_return_within_the_lockout() -> None:
    """Even if the number is low at once; it returns at the first tick after."""
    off, _ = run(BATCH, [90, 90, 10, 10, 10, 10, 10, 10], tick_s=2.0)
    assert off == [False, True, True, True, True, True, False, False]


def test_reading_at_the_mark_moves_nothing() -> None:
    """Beyond the mark means beyond."""
    off, _ = run(BATCH, [63, 63, 63])
    assert off == [False] * 3
    off, _ = run(BATCH, [90, 90, 48, 48, 48, 48])
    assert off[-1]


def test_trigger_without_a_mark_to_return_stays_off() -> None:
    """Somebody has to bring the lever back."""
    off, _ = run(ACCEPTANCE, [0.5, 0.1, 0.9, 0.9, 0.9])
    assert off == [False, True, True, True, True]


@pytest.mark.parametrize(("reading", "fires"), [(0.29, True), (0.31, False)])
def test_floor_fires_below_it(reading: float, fires: bool) -> None:
    """A trigger of the other direction watches for too little."""
    off, _ = run(ACCEPTANCE, [reading])
    assert off == [fires]
