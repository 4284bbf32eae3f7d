"""A slice meets a whole day before it grows: what pays at night and fails at the peak stays in the first slice."""

from collections.abc import Callable

import msgspec
import pytest
from control_kit import LIVES_S, Deciding, routing_lever, speculation_lever, traffic

from trimtab.core.events import RolloutMoved
from trimtab.core.lever import LeverRecord
from trimtab.core.record import RequestRecord
from trimtab.core.types import Arm, ErrorClass, RolloutState

DAY_S = 86_400.0
STEP_S = 150.0
NIGHT_PER_STEP, PEAK_PER_STEP = 10, 40
GAIN, HARM = 0.6, 1.8

Effect = Callable[[RequestRecord, bool], RequestRecord]
"""What the candidate does to a request; the flag says whether it is peak."""


def is_peak(clock_s: float) -> bool:
    """Eight hours of every day; a proof begins at midnight."""
    return 9 <= clock_s % DAY_S / 3600.0 < 17


def over_a_day(record: LeverRecord) -> LeverRecord:
    """The record with a peak cycle of a day, blocks of five minutes, and the bound for stopping of production."""
    ramp = msgspec.structs.replace(
        record.ramp,
        peak_cycle_s=DAY_S,
        peak_is="one day",
        block_s=300.0,
        edge_s=30.0,
        harm_alpha=0.01,
    )
    return msgspec.structs.replace(
        record, ramp=ramp, expires_at_s=record.created_at_s + 30 * LIVES_S
    )


def slower_first_token(one: RequestRecord, peak: bool) -> RequestRecord:
    """Gains by night; at the peak every first token takes longer."""
    ratio = HARM if peak else GAIN
    return msgspec.structs.replace(one, ttft_ms=(one.ttft_ms or 0.0) * ratio)


def broken(one: RequestRecord, peak: bool) -> RequestRecord:
    """Gains all day, but every fourth request of the peak fails."""
    gained = msgspec.structs.replace(one, ttft_ms=(one.ttft_ms or 0.0) * GAIN)
    if not peak or (one.ttft_ms or 0.0) % 4.0 >= 1.0:
        return gained
    return msgspec.structs.replace(gained, status=502, error=ErrorClass.UPSTREAM_STATUS)


def slower_tokens(one: RequestRecord, peak: bool) -> RequestRecord:
    """Verification wins tokens by night and loses them in the batches of the peak."""
    ratio = HARM if peak else GAIN
    return msgspec.structs.replace(one, tpot_ms=(one.tpot_ms or 0.0) * ratio)


async def lived(record: LeverRecord, effect: Effect, days: float) -> Deciding:
    """Prove a lever under an injected clock, two and a half minutes at a time, until it ends or the days are over."""
    rig = Deciding()
    rig.clock.pass_s(DAY_S - rig.clock.mono_s())
    proposed = rig.controller.propose(record, cause_id=None)
    policy = "prefix_affine" if record.revision is None else None
    await rig.controller.start(record, policy, cause_id=proposed)
    began_s = rig.clock.mono_s()
    while rig.clock.mono_s() < began_s + days * DAY_S and not rig.controller.has_ended:
        peak = is_peak(rig.clock.mono_s())
        per_step = PEAK_PER_STEP if peak else NIGHT_PER_STEP
        for one in traffic(rig.actuator.plan, rig.clock, ratio=1.0, per_s=per_step):
            candidates = one.arm is Arm.CANDIDATE
            rig.controller.on_record(effect(one, peak) if candidates else one)
        rig.clock.pass_s(STEP_S)
        await rig.controller.tick()
    return rig


def moves(rig: Deciding) -> list[RolloutMoved]:
    """Every move of the rollout."""
    return [one for one in rig.events("rollout_moved") if isinstance(one, RolloutMoved)]


@pytest.mark.parametrize(
    ("record", "effect", "seen_in"),
    [
        (routing_lever(), slower_first_token, "ttft_ms in load="),
        (routing_lever(), broken, "errors failed"),
        (speculation_lever(), slower_tokens, "tpot_ms in load="),
    ],
    ids=["first token", "errors", "tokens beside"],
)
async def test_lever_that_fails_at_the_peak_never_leaves_the_first_slice(
    record: LeverRecord, effect: Effect, seen_in: str
) -> None:
    """Nine good hours come first; the peak takes it back before the day is over."""
    rig = await lived(over_a_day(record), effect, days=1.5)
    shares = {move.share for move in moves(rig)}
    assert shares <= {record.ramp.shares[0], 0.0}
    last = moves(rig)[-1]
    assert last.after is RolloutState.ROLLED_BACK
    assert seen_in in last.reason
    assert rig.clock.mono_s() < 2.0 * DAY_S


async def test_lever_that_gains_all_day_grows_after_the_day_and_not_before() -> None:
    """The same clock and traffic: it is the peak that stops the others."""
    rig = await lived(
        over_a_day(routing_lever()), lambda one, peak: slower_first_token(one, False), 1.2
    )
    grown = [move for move in moves(rig) if move.after is RolloutState.RAMPING]
    assert grown
    told = [
        e
        for e in rig.envelopes
        if isinstance(e.event, RolloutMoved) and e.event.after is RolloutState.RAMPING
    ]
    started = next(e for e in rig.envelopes if isinstance(e.event, RolloutMoved))
    assert told[0].at_s - started.at_s >= DAY_S
