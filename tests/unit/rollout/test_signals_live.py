"""Signals beyond drafts: validity, quality, another revision."""

import msgspec
import pytest
from rollout_kit import served
from routing_kit import replica

from trimtab.core.cuts import Cut, Dimension
from trimtab.core.decision import FleetView
from trimtab.core.evidence import Window
from trimtab.core.lever import TriggerSignal
from trimtab.core.quality_scores import CutScores, Scores
from trimtab.core.record import RequestRecord
from trimtab.core.types import Arm, ReplicaState
from trimtab.rollout.signals import Signal, Watched, signals

WINDOW = Window(0.0, 100.0)
UNKNOWN = Signal(None, 0)


def seen(
    signal: TriggerSignal,
    *,
    records: tuple[RequestRecord, ...] = (),
    views: tuple[FleetView, ...] = (),
    watched: Watched | None = None,
) -> Signal:
    return signals(records, views, WINDOW, watched or Watched())[signal]


def request(number: int, **changes: object) -> RequestRecord:
    one = served(None, Arm.BASELINE, number=number, at=float(number))
    return msgspec.structs.replace(one, finished_at_s=float(number), **changes)


def view(at_s: float, *busy: int, revision: str = "v1", ready: bool = True) -> FleetView:
    state = ReplicaState.READY if ready else ReplicaState.RESTARTING
    made = (
        msgspec.structs.replace(replica(f"r{n}", running=each), revision=revision, state=state)
        for n, each in enumerate(busy)
    )
    return FleetView(at_s=at_s, replicas=tuple(made))


@pytest.mark.parametrize("signal", list(TriggerSignal))
def test_every_signal_is_unknown_where_nothing_was_seen(signal: TriggerSignal) -> None:
    """Never zero, and never an error: a trigger on any of them can be watched at once."""
    assert seen(signal) == UNKNOWN


def test_invalid_outputs_count_among_those_that_had_to_be_valid() -> None:
    """One of three; requests that asked for nothing do not count."""
    records = tuple(
        request(n, output_valid=valid) for n, valid in enumerate((True, False, None, True))
    )
    found = seen(TriggerSignal.INVALID_OUTPUT_RATE, records=records)
    assert found == Signal(pytest.approx(1 / 3), 3)


@pytest.mark.parametrize(
    ("cut", "value", "n"), [(None, 0.1, 100), ("code", 0.4, 20), ("chat", None, 0)]
)
def test_quality_loss_is_that_of_the_triggers_cut(
    cut: str | None, value: float | None, n: int
) -> None:
    """Of everything scored without a cut; of a cut that nobody scored nothing is known."""
    parts = (
        CutScores(n=100, baseline_passed=90, candidate_passed=80),
        CutScores(cut="label=code", n=20, baseline_passed=18, candidate_passed=10),
    )
    scores = (Scores(evaluation="e", revision="v", cuts=parts),)
    where = None if cut is None else Cut(Dimension.LABEL, cut)
    found = seen(TriggerSignal.QUALITY_LOSS, watched=Watched(scores=scores, cut=where))
    assert found == Signal(None if value is None else pytest.approx(value), n)


def test_mismatch_counts_ready_replicas_alone() -> None:
    """One that restarts runs nothing yet; a lever that is not about a revision has no mismatch."""
    mine = Watched(replicas=("r0",), revision="v2")
    views = (view(1.0, 1), view(2.0, 1, ready=False), view(3.0, 1, revision="v2"))
    assert seen(TriggerSignal.EFFECTIVE_MISMATCH, views=views, watched=mine) == Signal(0.5, 2)
    assert seen(TriggerSignal.EFFECTIVE_MISMATCH, views=views) == UNKNOWN
