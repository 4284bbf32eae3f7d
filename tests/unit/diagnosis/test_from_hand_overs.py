"""What hand-overs tell of a transfer that is slow: set-up, or bytes; and what nobody told stays unknown."""

import msgspec
import pytest
from situations import FLEET, WINDOW, request

from trimtab.core.cost import START_COST
from trimtab.core.evidence import Readings, Unknown
from trimtab.core.findings import Diagnosis, PhaseFinding
from trimtab.core.handover import HandOver, HandOverOutcome
from trimtab.core.record import Phases
from trimtab.core.types import Budget, Phase, Resource
from trimtab.diagnosis.diagnose import diagnose
from trimtab.diagnosis.from_hand_overs import readings_from_hand_overs
from trimtab.diagnosis.from_records import readings_from_records
from trimtab.diagnosis.names import Name, merged

ARRIVED = HandOver(
    request_id="q",
    source="p",
    target="d",
    outcome=HandOverOutcome.DELIVERED,
    bytes=40_000_000,
    export_ms=40.0,
    setup_ms=10.0,
    transfer_ms=60.0,
)
FAILED = msgspec.structs.replace(ARRIVED, outcome=HandOverOutcome.FAILED, transfer_ms=None)


def read(*hand_overs: HandOver) -> Readings:
    return readings_from_hand_overs(hand_overs, window=WINDOW, id_prefix="t")


def found(hand_overs: list[HandOver], transfer_ms: float | None) -> Diagnosis:
    """Diagnose requests that were all sent ahead and waited for `transfer_ms`, None: nobody told."""
    phases = Phases(queue_ms=400.0, prefill_ms=100.0, transfer_ms=transfer_ms, decode_ms=100.0)
    records = [
        request(10.0 * at, phases=phases, prefill_replica="replica-2", e2e_ms=None)
        for at in range(12)
    ]
    told = readings_from_records(records, window=WINDOW, id_prefix="t", fleet=FLEET)
    readings = merged(told, read(*hand_overs))
    return diagnose(readings, START_COST, FLEET, now_s=0.0, scope="t")


def phase(diagnosis: Diagnosis, name: Phase) -> PhaseFinding:
    return next(one for one in diagnosis.phases if one.phase is name)


def test_set_up_and_bytes_are_apart() -> None:
    """The rate is of the time in which bytes move: 40 MB in 100 ms; what failed has no part in the means."""
    got = read(ARRIVED, ARRIVED, ARRIVED, FAILED)
    names = (
        Name.HAND_OVERS,
        Name.HAND_OVER_FAILED_SHARE,
        Name.HAND_OVER_MS_MEAN,
        Name.HAND_OVER_SETUP_MS_MEAN,
        Name.HAND_OVER_BYTES_PER_S,
    )
    assert [got.value(name) for name in names] == pytest.approx([4.0, 0.25, 110.0, 10.0, 4e8])


def test_hand_overs_of_which_nobody_told_the_time_have_no_mean() -> None:
    """An engine that fetches by itself may not tell: that is not 0 ms."""
    silent = msgspec.structs.replace(ARRIVED, bytes=None, setup_ms=None, transfer_ms=None)
    got = read(silent)
    assert got.value(Name.HAND_OVERS) == 1.0
    for name in (Name.HAND_OVER_MS_MEAN, Name.HAND_OVER_SETUP_MS_MEAN, Name.HAND_OVER_BYTES_PER_S):
        assert isinstance(got.get(name), Unknown)
    assert [item.name for item in read().items] == [Name.HAND_OVERS]


@pytest.mark.parametrize(
    ("setup_ms", "told"), [(10.0, "the bytes bind and not the set-up"), (500.0, "of it set-up")]
)
def test_slow_transfer_of_slot_files_is_diagnosed(setup_ms: float, told: str) -> None:
    """It dominates, and the reason says which part of it."""
    slow = msgspec.structs.replace(ARRIVED, setup_ms=setup_ms)
    diagnosis = found([slow] * 12, transfer_ms=2000.0)
    assert diagnosis.dominant_phase is Phase.TRANSFER
    assert diagnosis.dominant_resource is Resource.COMMUNICATION
    assert told in phase(diagnosis, Phase.TRANSFER).because


def test_transfer_that_no_record_tells_is_unknown_and_blames_no_queue() -> None:
    """What engines fetch by themselves lies in the queue's time: neither 0 of the link nor a want of replicas."""
    diagnosis = found([ARRIVED] * 12, transfer_ms=None)
    transfer, queue = phase(diagnosis, Phase.TRANSFER), phase(diagnosis, Phase.QUEUE)
    budget = diagnosis.budgets.use(Budget.COMMUNICATION)
    assert (transfer.share, transfer.resource) == (None, Resource.COMMUNICATION)
    assert "110.0 ms a hand-over" in transfer.because
    assert queue.resource is None
    assert "part of it may be transfer" in queue.because
    assert budget.used_share is None
