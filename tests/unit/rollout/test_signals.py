"""What triggers watch: recent, of the lever's replicas, and None when there is nothing to see."""

import pytest
from msgspec.structs import replace
from rollout_kit import served
from routing_kit import fleet, replica

from trimtab.core.cuts import Cut, Dimension
from trimtab.core.decision import FleetView
from trimtab.core.evidence import Window
from trimtab.core.lever import TriggerSignal
from trimtab.core.record import Phases, RequestRecord
from trimtab.core.types import Arm, ReplicaState
from trimtab.rollout.signals import Signal, Watched, signals, tpot_by_batch

WINDOW = Window(0.0, 100.0)
EVERYWHERE = Watched()


def value(
    signal: TriggerSignal,
    records: list[RequestRecord] | None = None,
    views: list[FleetView] | None = None,
    watched: Watched = EVERYWHERE,
) -> Signal:
    return signals(records or [], views or [], WINDOW, watched)[signal]


def one(number: int, **more: object) -> RequestRecord:
    return served(0, Arm.CANDIDATE, number=number, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "signal", [signal for signal in TriggerSignal if signal is not TriggerSignal.EFFECTIVE_MISMATCH]
)
def test_signal_without_samples_is_unknown(signal: TriggerSignal) -> None:
    """Never zero: nothing seen is not nothing there."""
    assert value(signal) == Signal(None, 0)


def test_batch_is_that_of_the_busiest_replica_of_the_lever() -> None:
    """A mean over the views; replicas on which the lever does not act do not count."""
    views = [
        fleet(replica("r0", running=4), replica("r1", running=2), replica("r2", running=8)),
        fleet(replica("r0", running=6), replica("r1", running=2), replica("r2", running=8)),
    ]
    watched = Watched(replicas=("r0", "r1"))
    assert value(TriggerSignal.BATCH, views=views, watched=watched) == Signal(5.0, 2)


def test_net_tpot_is_compared_at_equal_batch() -> None:
    """A request at batch 8 is measured against the baseline at batch 8; unknown batches say nothing."""
    baseline = tpot_by_batch(
        [one(n, tpot=20.0 if n < 5 else 60.0, batch=2 if n < 5 else 8) for n in range(10)]
    )
    watched = Watched(baseline_tpot_ms=baseline)
    records = [one(0, tpot=66.0, batch=8), one(1, tpot=22.0, batch=2), one(2, tpot=99.0, batch=30)]
    signal = value(TriggerSignal.NET_TPOT_RATIO, records, watched=watched)
    assert signal.value == pytest.approx(1.1)
    assert signal.samples == 2


def test_baseline_of_too_few_requests_is_left_out() -> None:
    """A median of four is no measure to hold anything against."""
    assert tpot_by_batch([one(n, batch=2) for n in range(4)]) == {}


def test_acceptance_and_coverage_are_quotients_of_sums() -> None:
    """A request that drafted nothing counts for coverage, not for acceptance."""
    records = [
        one(0, drafted=80, accepted=40, output=100),
        one(1, drafted=20, accepted=20, output=100),
        one(2, drafted=0, accepted=0, output=100),
    ]
    assert value(TriggerSignal.DRAFT_ACCEPTANCE, records) == Signal(0.6, 2)
    assert value(TriggerSignal.DRAFT_COVERAGE, records) == Signal(0.2, 3)


def test_delivered_over_predicted_counts_no_surplus() -> None:
    """A lucky hit elsewhere does not make up for a broken promise."""
    base = one(0, delivered=100)
    promised = [
        base,
        RequestRecord(
            **{
                field: getattr(base, field)
                for field in base.__struct_fields__
                if field not in ("tokens", "request_id")
            },
            request_id="other",
            tokens=type(base.tokens)(prompt=500, predicted=100, delivered=0, output=50),
        ),
    ]
    assert value(TriggerSignal.DELIVERED_OVER_PREDICTED, promised) == Signal(0.5, 2)


def test_load_over_bound_is_a_share_of_the_time() -> None:
    """Only while a replica has several requests and more than its bound of tokens."""
    over = fleet(replica("r0", prefill=900, running=3), replica("r1", prefill=100, running=1))
    even = fleet(replica("r0", prefill=500, running=3), replica("r1", prefill=450, running=1))
    lone = fleet(replica("r0", prefill=900, running=1), replica("r1"))
    assert value(TriggerSignal.LOAD_OVER_BOUND, views=[over, even, lone, even]) == Signal(0.25, 4)


def test_only_the_window_and_the_cut_count() -> None:
    """Old requests, other labels and failed requests say nothing about now."""
    records = [
        one(0, drafted=10, accepted=10),
        one(1, drafted=10, accepted=0, at=200.0),
        one(2, drafted=10, accepted=0, label="chat"),
        one(3, drafted=10, accepted=0, aborted=True),
    ]
    watched = Watched(cut=Cut(Dimension.LABEL, "coding"))
    assert value(TriggerSignal.DRAFT_ACCEPTANCE, records, watched=watched) == Signal(1.0, 1)


def test_transfer_share_is_of_requests_that_were_sent_ahead() -> None:
    """The median of transfer over the time to the first token; a prompt computed where it decodes has none."""
    sent = [
        replace(one(at), prefill_replica="r9", phases=Phases(transfer_ms=ms))
        for at, ms in enumerate((10.0, 60.0, 80.0))
    ]
    local = replace(one(7), phases=Phases(transfer_ms=0.0))
    assert value(TriggerSignal.TRANSFER_SHARE, [*sent, local]) == Signal(0.6, 3)


def test_load_per_replica_is_the_mean_over_views_and_ready_replicas() -> None:
    """Replicas that are away carry nothing and do not count."""
    views = [
        fleet(replica("r0", running=2), replica("r1", running=4)),
        fleet(replica("r0", running=1), replica("r1", running=9, state=ReplicaState.DRAINING)),
    ]
    assert value(TriggerSignal.LOAD_PER_REPLICA, views=views) == Signal(2.0, 2)
