"""When prefill and decode should be split, and why mostly not."""

import msgspec
from plan_kit import DEVICE, LawEstimator, cluster, dense, span

from trimtab.core.layout import Cluster, Demand, Expected, Layout, Targets
from trimtab.planning.candidates import Candidate, judge
from trimtab.planning.plan_ask import Ask
from trimtab.planning.rules import Fits
from trimtab.planning.split import Split, split_of


class Interfered(LawEstimator):
    """A step of 10 ms that prefills stretch to 30 ms per token."""

    def expected(self, layout: Layout, demand: Demand) -> Expected:
        """Stretch what the law says."""
        found = super().expected(layout, demand)
        return msgspec.structs.replace(found, tpot_ms=span(30.0), step_ms=10.0, prefill_ms=900.0)


def judged(where: Cluster, *, tpot: float = 20.0, kind: type[LawEstimator] = Interfered) -> Split:
    model = dense(weight_gb=30)
    ask = Ask(
        model=model,
        accelerator=DEVICE,
        cluster=where,
        demand=Demand(input_tokens=8000, output_tokens=300, concurrency=32),
        targets=Targets(tpot_ms=tpot),
    )
    best: Candidate = judge(Layout(replicas=2), ask, Fits(devices=1, in_node=True), kind(model))
    return split_of(best, ask)


def test_split_is_advised_where_prefills_make_tokens_miss_their_target() -> None:
    """Two thirds of the time per token are interference, and the KV moves in a small part of a prefill."""
    found = judged(cluster(8))
    assert (found.possible, found.advised) == (True, True)
    assert found.interference_share is not None
    assert abs(found.interference_share - 2 / 3) < 1e-9


def test_split_needs_room_for_two_replicas() -> None:
    """One device cannot do both phases apart."""
    assert not judged(cluster(1)).possible


def test_met_target_needs_no_split() -> None:
    """Mixed replicas that meet the target stay mixed."""
    assert judged(cluster(8), tpot=40.0).advised is False


def test_little_interference_needs_no_split() -> None:
    """Where tokens take as long as their step alone there is nothing to relieve."""
    assert judged(cluster(8), tpot=1.0, kind=LawEstimator).advised is False
