"""The estimator that plans: where its times come from, and what links and caches do to them."""

from collections.abc import Sequence

import msgspec
import pytest
from times_kit import LawTimes

from trimtab.core.accelerators import find_accelerator
from trimtab.core.layout import Cluster, Demand, EstimateSource, Layout, Link, PlanInputError
from trimtab.core.links import find_link
from trimtab.core.served import EngineKind
from trimtab.engines.model_names import find_model_shape
from trimtab.planning.corrected import CorrectedEstimator
from trimtab.planning.kernel_port import NoTimes, Parted, Serving, StepTimes
from trimtab.runtime.plan_estimator import TableEstimator, build_estimator

DEMAND = Demand(input_tokens=1024, output_tokens=256, concurrency=8)


class Shelf:
    """Kernel tables that hold what they were given, by engine, and note what was asked."""

    def __init__(self, **held: float) -> None:
        self.held = {EngineKind(engine): LawTimes(base) for engine, base in held.items()}
        self.asked: list[tuple[Serving, Layout]] = []

    def times(self, serving: Serving, layout: Layout) -> StepTimes | NoTimes:
        self.asked.append((serving, layout))
        return self.held.get(serving.engine) or NoTimes(because="it is not held")

    def times_of_all(
        self, servings: Sequence[Serving], layout: Layout
    ) -> tuple[StepTimes | NoTimes, ...]:
        return tuple(self.times(each, layout) for each in servings)

    def parted(self, serving: Serving, layout: Layout) -> Parted | NoTimes:
        raise AssertionError(f"{layout.label} of a dense model has no experts to tell apart")


def estimator(
    tables: Shelf, *, kv_bits: float | None = None, cluster: Cluster | None = None
) -> TableEstimator:
    model = find_model_shape("qwen3-8b")
    assert model is not None
    return build_estimator(
        model, find_accelerator("H100"), model_name="qwen3-8b", kv_bits=kv_bits, cluster=cluster,
        tables=tables,
    )  # fmt: skip


def node(link: Link, node_link: Link | None = None, devices: int = 8) -> Cluster:
    return Cluster(devices=devices, nodes=2, link=link, node_link=node_link)


def test_kernels_of_the_engine_answer_where_there_are_any() -> None:
    """Measured beats computed."""
    found = estimator(Shelf(vllm=10.0)).expected(Layout(), DEMAND)
    assert found.source is EstimateSource.KERNEL_TABLES


def test_roofline_says_why_no_measured_kernels_are_used() -> None:
    """The reason is the tables' own, not a guess."""
    asked = estimator(Shelf())
    assert asked.expected(Layout(), DEMAND).source is EstimateSource.ROOFLINE
    assert len(asked.sources) == 1
    assert "it is not held" in asked.sources[0]


UNJOINED = Link(name="unknown", bytes_per_s=None, latency_us=None, peer_access=None, source="test")
KNOWN = Link(name="fast", bytes_per_s=50e9, latency_us=5.0, peer_access=None, source="test")


@pytest.mark.parametrize(
    ("layout", "drafts", "link", "node_link", "said"),
    [
        (Layout(), 3, KNOWN, None, "drafts:"),
        (Layout(tp=8, pp=2), 0, KNOWN, None, "stages on different nodes"),
        (Layout(tp=8, pp=2), 0, KNOWN, UNJOINED, "stages on different nodes"),
        (Layout(tp=2), 0, UNJOINED, KNOWN, "ranks:"),
        (Layout(), 0, UNJOINED, None, ""),
        (Layout(tp=4, pp=2), 0, KNOWN, None, ""),
        (Layout(tp=8, pp=2), 0, KNOWN, KNOWN, ""),
    ],
)
def test_what_tables_leave_out_is_said_and_widens_the_interval(
    layout: Layout, drafts: int, link: Link, node_link: Link | None, said: str
) -> None:
    """A drafter, and messages over a link of unknown rate, were in no measured kernel."""
    demand = msgspec.structs.replace(DEMAND, draft_tokens=drafts, draft_acceptance=0.7)
    inner = estimator(Shelf(vllm=10.0), cluster=node(link, node_link))
    found = CorrectedEstimator(inner, "h100_sxm", "vllm").expected(layout, demand)
    plain = CorrectedEstimator(
        estimator(Shelf(vllm=10.0), cluster=node(KNOWN, KNOWN)), "h100_sxm", "vllm"
    ).expected(layout, DEMAND)
    wide, narrow = ((each.tpot_ms.high or 0.0) / each.tpot_ms.value for each in (found, plain))
    doubts = [note for note in found.notes if note not in plain.notes]
    if not said:
        assert (found.source, doubts) == (EstimateSource.KERNEL_TABLES, [])
        return
    assert found.source is EstimateSource.EXTENDED_TABLES
    assert wide > 1.3 * narrow
    assert len(doubts) == 1
    assert doubts[0].startswith(said)


def test_tables_of_other_engines_bound_a_slow_one() -> None:
    """A fallback kernel of 30 ms is not believed beside two of 9 and 10."""
    alone = estimator(Shelf(vllm=30.0)).expected(Layout(), DEMAND)
    among = estimator(Shelf(vllm=30.0, sglang=9.0, trtllm=10.0)).expected(Layout(), DEMAND)
    assert alone.step_ms - among.step_ms == pytest.approx(20.0)


def test_roofline_answers_where_no_table_does() -> None:
    """And says so."""
    found = estimator(Shelf())
    assert found.expected(Layout(), DEMAND).source is EstimateSource.ROOFLINE
    assert any("roofline" in source for source in found.sources)


def test_cache_precision_is_always_told_to_the_tables() -> None:
    """What a checkpoint implies there is not what engines do: 16 bit unless told otherwise."""
    shelf = Shelf(vllm=10.0)
    estimator(shelf).expected(Layout(), DEMAND)
    estimator(shelf, kv_bits=8).expected(Layout(), DEMAND)
    assert [shelf.asked[0][0].kv_bits, shelf.asked[-1][0].kv_bits] == [16, 8]


def test_narrower_cache_holds_twice_the_streams() -> None:
    """Memory and tables go by the same precision."""
    wide, narrow = estimator(Shelf()), estimator(Shelf(), kv_bits=8)
    assert narrow.fit(Layout(), DEMAND).kv_tokens == pytest.approx(
        2 * wide.fit(Layout(), DEMAND).kv_tokens, rel=0.01
    )


def test_layout_is_asked_of_the_tables_once() -> None:
    """A search over loads asks the same layout many times."""
    shelf = Shelf(vllm=10.0)
    found = estimator(shelf)
    for clients in (1, 2, 4, 8):
        found.expected(Layout(tp=2), Demand(input_tokens=64, output_tokens=8, concurrency=clients))
    assert len(shelf.asked) == 3  # once for each engine


def test_replicas_do_not_change_what_one_of_them_does() -> None:
    """The planner divides the demand."""
    found = estimator(Shelf(vllm=10.0))
    assert found.expected(Layout(replicas=4), DEMAND) == found.expected(Layout(), DEMAND)


def test_slower_link_lengthens_a_step_that_talks() -> None:
    """PCIe instead of NVLink: two ranks pay, one does not."""
    usual = estimator(Shelf(vllm=10.0), cluster=node(find_link("nvlink4")))
    slow = estimator(Shelf(vllm=10.0), cluster=node(find_link("pcie4")))
    assert (
        slow.expected(Layout(tp=2), DEMAND).step_ms > usual.expected(Layout(tp=2), DEMAND).step_ms
    )
    assert slow.expected(Layout(), DEMAND).step_ms == usual.expected(Layout(), DEMAND).step_ms


def test_ranks_that_span_nodes_talk_over_the_link_between_them() -> None:
    """Two nodes of two devices: four ranks cross, two do not."""
    where = node(find_link("nvlink4"), find_link("ib400"), devices=2)
    crossing = estimator(Shelf(vllm=10.0), cluster=where)
    inside = estimator(Shelf(vllm=10.0), cluster=node(find_link("nvlink4")))
    assert crossing.expected(Layout(tp=4), DEMAND).step_ms > (
        inside.expected(Layout(tp=4), DEMAND).step_ms
    )
    assert crossing.expected(Layout(tp=2), DEMAND) == inside.expected(Layout(tp=2), DEMAND)


def test_context_beyond_the_model_is_refused_with_the_field() -> None:
    """Memory knows how far the model goes."""
    with pytest.raises(PlanInputError, match="context"):
        estimator(Shelf()).expected(
            Layout(), Demand(input_tokens=1_000_000, output_tokens=1, concurrency=1)
        )
