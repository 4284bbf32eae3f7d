"""Cases C1 and C2: speculation entered through lever records, request records and views of the fleet.

C3, structured outputs under speculation, stands with the cases of quality.
"""

import msgspec
import pytest
from adopted_kit import Adopted
from case_kit import Case, chance, is_candidate, speculation, spread, verdict
from control_kit import Rig
from situations import LABELS, readings, situation, table

from trimtab.core.cuts import Cut, Dimension
from trimtab.core.events import RolloutMoved
from trimtab.core.lever import LeverRecord
from trimtab.core.record import Phases, RequestRecord
from trimtab.core.types import RolloutState, Verdict
from trimtab.diagnosis.names import Name
from trimtab.levers.speculation import NgramSpeculation
from trimtab.rollout.short_record import complete, parse_record

S = RolloutState
LEVER = NgramSpeculation()
GREEDY, SAMPLED = Cut(Dimension.TEMPERATURE, "0"), Cut(Dimension.TEMPERATURE, "sampled")
PAYS_UNTIL_44 = {1: 1 / 0.55, 8: 1 / 0.70, 32: 1 / 0.95, 64: 1 / 1.10, 256: 1 / 1.9}
PAYS_UNTIL_20 = {1: 1 / 0.6, 16: 1 / 0.9, 48: 1 / 1.8}


def own_record(ratios: dict[int, float]) -> LeverRecord:
    """The record that the lever writes itself of a measured table."""
    seen = situation(readings(**LABELS), speculation=table(ratios))
    return LEVER.propose(seen, LEVER.assess(seen), "narrowest")


# C1: gain at one stream, loss at many


@pytest.mark.parametrize(
    ("ratios", "batches", "states"),
    [
        (PAYS_UNTIL_44, (20, 90, 60, 40, 30), (True, False, False, False, True)),
        (PAYS_UNTIL_44, (30, 50, 43, 30), (True, False, False, True)),
        (PAYS_UNTIL_20, (10, 50, 18, 12), (True, False, False, True)),
    ],
)
async def test_lever_goes_off_over_its_break_even_and_comes_back_below_its_lower_mark(
    ratios: dict[int, float], batches: tuple[int, ...], states: tuple[bool, ...]
) -> None:
    """Off where the measured ratios say that throughput is lost, still off between the marks, on again below."""
    rig = await Adopted(own_record(ratios)).adopt()
    seen = []
    for batch in batches:
        await rig.seconds(25, batch=batch)
        seen.append(rig.is_on)
    assert tuple(seen) == states
    assert set(rig.fired()) == {"batch-over-break-even"}


@pytest.mark.parametrize(
    ("off_at", "on_at", "batches", "states"),
    [
        (63, 44, (20, 90, 60, 40), (True, False, False, True)),
        (63, 44, (20, 64, 50, 45), (True, False, False, False)),
        (31, 12, (30, 40, 20, 10), (True, False, False, True)),
    ],
)
async def test_written_marks_are_kept(
    off_at: int, on_at: int, batches: tuple[int, ...], states: tuple[bool, ...]
) -> None:
    """A person's record says at which batch it goes off and at which it may return."""
    marks = f"""
[[triggers]]
signal = "batch"
off_at = {off_at}
on_at = {on_at}
off_when_above = true
lockout_s = 5.0
because = "the measured batches"
"""
    short = parse_record(speculation(gates=marks), source="lever.toml")
    rig = Rig()
    record = complete(short, baseline=rig.fleet.revision_of("r1"), now_s=rig.clock.wall_s())
    kept = tuple(each for each in record.triggers if each.signal.value == "batch")
    drafting = await Adopted(msgspec.structs.replace(record, triggers=kept)).adopt()
    seen = []
    for batch in batches:
        await drafting.seconds(25, batch=batch)
        seen.append(drafting.is_on)
    assert tuple(seen) == states


@pytest.mark.parametrize(
    ("step_ms", "proposer_ms", "tokens_a_step", "holds"),
    [
        (2.0, 3.0, 1.7, False),
        (3.0, 9.0, 2.5, False),
        (5.0, 8.0, 2.0, False),
        (30.0, 1.0, 1.7, True),
    ],
)
def test_proposer_slower_than_the_step_it_saves_is_refused(
    step_ms: float, proposer_ms: float, tokens_a_step: float, holds: bool
) -> None:
    """A small model with a fast step: whatever is accepted, drafting costs more."""
    speed = tokens_a_step * step_ms / (step_ms + proposer_ms)
    found = LEVER.assess(
        situation(readings(**LABELS), speculation=table({1: speed, 2: speed, 4: 0.9 * speed}))
    )
    assert found.premise_holds is holds
    assert ("drafting costs more than the steps it saves" in found.because) is not holds


@pytest.mark.parametrize(
    ("queue_ms", "waiting_share", "adopted"),
    [(400.0, 1.0, False), (90.0, 0.99, False), (2000.0, 1.0, False), (400.0, 0.6, True)],
)
async def test_gain_under_a_queue_is_no_verdict_for_low_load(
    queue_ms: float, waiting_share: float, adopted: bool
) -> None:
    """Requests of both arms waited all the time: streams were faster, and nothing is adopted."""

    def answer(one: RequestRecord) -> RequestRecord:
        waited = queue_ms if chance(one, "queue") < waiting_share else 0.5
        tpot = 20.0 * spread(one) * (0.7 if is_candidate(one) else 1.0)
        return msgspec.structs.replace(
            one,
            tpot_ms=tpot,
            ttft_ms=(100.0 + waited) * spread(one, "ttft"),
            phases=Phases(queue_ms=waited, prefill_ms=100.0, decode_ms=50 * tpot),
        )

    case = await Case(speculation()).start()
    await case.serve(200, answer, until=S.ADOPTED)
    assert (case.state is S.ADOPTED) is adopted
    if not adopted:
        found, reason = verdict(case, "tpot_ms gain")
        assert found is Verdict.HOLD
        assert "saturated" in reason
        assert "no verdict for low load" in reason


# C2: temperature changes acceptance by design


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (((0.0, 0.72, 8), (1.0, 0.41, 2)), ((0.0, 0.72, 3), (1.0, 0.41, 7))),
        (((0.0, 0.90, 8), (0.7, 0.35, 2)), ((0.0, 0.90, 5), (0.7, 0.35, 30))),
        (((0.0, 0.60, 6), (1.0, 0.33, 6)), ((0.0, 0.60, 5), (1.0, 0.33, 40))),
    ],
)
async def test_change_of_mix_takes_nothing_off(
    before: tuple[tuple[float, float, int], ...], after: tuple[tuple[float, float, int], ...]
) -> None:
    """Acceptance falls over all requests, and in no temperature: no trigger fires."""
    rig = await Adopted(own_record(PAYS_UNTIL_44)).adopt()
    await rig.seconds(15, mix=before)
    await rig.seconds(20, mix=after)
    assert rig.fired() == []
    assert rig.is_on


@pytest.mark.parametrize(
    "mix",
    [
        ((0.0, 0.72, 2), (1.0, 0.20, 18)),
        ((0.0, 0.50, 1), (0.8, 0.10, 20)),
        ((0.0, 0.72, 10), (1.0, 0.25, 10)),
    ],
)
async def test_temperature_under_the_floor_leaves_and_the_other_stays(
    mix: tuple[tuple[float, float, int], ...],
) -> None:
    """Sampled requests waste their drafts: they go to the baseline, greedy ones keep the lever."""
    rig = await Adopted(own_record(PAYS_UNTIL_44)).adopt()
    await rig.seconds(15, mix=mix)
    assert rig.fired() == ["acceptance-under-floor-temperature-sampled"]
    assert rig.is_on
    assert rig.without == (SAMPLED,)
    moved = [e for e in rig.events("rollout_moved") if isinstance(e, RolloutMoved)]
    assert moved == []


@pytest.mark.parametrize("acceptance", [(0.2, 0.1), (0.05, 0.29), (0.28, 0.28)])
async def test_acceptance_under_the_floor_at_every_temperature_ends_it(
    acceptance: tuple[float, float],
) -> None:
    """No slice is left that drafts serve: the lever goes off for all."""
    rig = await Adopted(own_record(PAYS_UNTIL_44)).adopt()
    await rig.seconds(15, mix=((0.0, acceptance[0], 5), (1.0, acceptance[1], 5)))
    assert not rig.is_on
    assert "acceptance-under-floor" in rig.fired()


@pytest.mark.parametrize(
    ("differ", "n", "floor_differs", "floor_n", "expected"),
    [
        (1, 50, 1, 50, Verdict.PASS),
        (2, 100, 0, 0, Verdict.HOLD),
        (1, 50, 0, 3, Verdict.HOLD),
        (30, 50, 1, 50, Verdict.FAIL),
    ],
)
async def test_outputs_that_differ_are_held_against_the_baseline_twice(
    differ: int, n: int, floor_differs: int, floor_n: int, expected: Verdict
) -> None:
    """2% of greedy outputs differ between the arms: nothing is said before two runs of the baseline are compared."""
    case = await Case(speculation()).start()
    case.extras = msgspec.structs.replace(
        case.extras,
        outputs_differ=differ,
        outputs_n=n,
        floor_differs=floor_differs,
        floor_n=floor_n,
    )

    def answer(one: RequestRecord) -> RequestRecord:
        tpot = 20.0 * spread(one) * (0.7 if is_candidate(one) else 1.0)
        return msgspec.structs.replace(one, tpot_ms=tpot, ttft_ms=100.0 * spread(one, "ttft"))

    await case.serve(60, answer, until=S.ADOPTED)
    found, reason = verdict(case, "outputs")
    assert found is expected, reason
    assert (case.state is S.ROLLED_BACK) is (expected is Verdict.FAIL)


def test_unknown_batch_makes_no_premise() -> None:
    """On which side of the break-even the traffic is has to be known before anything is tried."""
    unknown = readings(**LABELS, **{Name.DECODE_BATCH_MEAN: "no timeline"})
    assert not LEVER.assess(situation(unknown, speculation=table(PAYS_UNTIL_44))).premise_holds
