"""A cut in which harm is shown leaves its lever, unless nothing would be left: then the lever is stopped."""

import msgspec
from rollout_kit import lever

from trimtab.core.cuts import Cut, Dimension
from trimtab.core.gate import GateResult, GateSpec, Metric, Question, Statistic
from trimtab.core.lever import CutHarm, LeverRecord
from trimtab.core.types import Verdict
from trimtab.rollout.gates import harmed_cut, overall, spared
from trimtab.rollout.leaving import leaving

EDIT, CHAT = Cut(Dimension.LABEL, "edit"), Cut(Dimension.LABEL, "chat")
TAIL = GateSpec(
    name="ttft tail",
    metric=Metric.TTFT_MS,
    question=Question.VETO,
    margin=0.1,
    statistic=Statistic.TAIL_P95,
)
RECORD = msgspec.structs.replace(lever(TAIL), harm_in_cut=CutHarm.STOP_CUT)


def answered(cut: str, n: int, metric: Metric = Metric.TTFT_MS, gate: str = "") -> GateResult:
    """A passed gate of all traffic, or a failed veto of a cut; `n` requests in both arms together."""
    is_all = cut == "all"
    return GateResult(
        gate=gate or f"veto {metric.value} in {cut}",
        metric=metric,
        question=Question.VETO,
        cut=cut,
        verdict=Verdict.PASS if is_all else Verdict.FAIL,
        n_baseline=n // 2,
        n_candidate=n - n // 2,
        margin=0.1,
        reason="worse is shown",
        required=is_all,
    )


def leaves(record: LeverRecord, *results: GateResult) -> list[str]:
    """The cuts that a look takes out."""
    found = (harmed_cut(record, one, results) for one in results)
    return sorted(str(cut) for cut in found if cut is not None)


def test_harm_in_cuts_that_are_together_all_traffic_stops_the_lever() -> None:
    """Both labels are harmed alike: nothing leaves, though one of the tenants is not harmed, and the look fails."""
    results = (
        answered("all", 1000),
        answered("label=edit", 600),
        answered("label=chat", 400),
        answered("tenant=search", 600),
        answered("constraint=free", 1000),
    )
    assert leaves(RECORD, *results) == []
    assert overall(results, RECORD) is Verdict.FAIL


def test_harm_in_some_cuts_of_a_dimension_takes_those_out() -> None:
    """A tenth of the requests is of another label, so a lever is left without the two that are harmed."""
    results = (answered("all", 1000), answered("label=edit", 600), answered("label=chat", 300))
    assert leaves(RECORD, *results) == ["label=chat", "label=edit"]
    assert overall(results, RECORD) is Verdict.PASS


def test_harm_everywhere_that_may_come_from_one_cut_takes_that_cut_out_first() -> None:
    """Each label has long prompts: they leave, and the next look says whether the labels are harmed without them."""
    results = (
        answered("all", 1000),
        answered("label=edit", 600),
        answered("label=chat", 400),
        answered("input_tokens=1024-4096", 400),
    )
    assert leaves(RECORD, *results) == ["input_tokens=1024-4096"]
    assert spared(RECORD, results) is Verdict.HOLD
    assert leaves(RECORD, *results[:3]) == []


def test_cuts_that_may_share_requests_are_not_added_up() -> None:
    """Requests of a label may be those of a tenant, and those with one header have the other too."""
    results = (
        answered("all", 1000),
        answered("label=edit", 600),
        answered("tenant=search", 600),
        answered("header=x-team:ab12", 600),
        answered("header=x-tier:cd34", 600),
    )
    assert len(leaves(RECORD, *results)) == 4


def test_cut_of_all_requests_that_have_the_metric_does_not_leave() -> None:
    """One label is all traffic and 6% of its answers have no TPOT: of those that have one it is all."""
    tpot = Metric.TPOT_MS
    results = (
        answered("all", 1000),
        answered("all", 940, tpot),
        answered("label=edit", 940, tpot),
    )
    assert leaves(RECORD, *results) == []
    assert overall(results, RECORD) is Verdict.FAIL


def test_values_of_a_tail_are_no_count_of_the_requests() -> None:
    """The tail counts other blocks or fewer values: what was compared is what the typical value says."""
    results = (
        answered("all", 1000),
        answered("all", 2000, gate=TAIL.name),
        answered("label=edit", 990),
    )
    assert leaves(RECORD, *results) == []


def test_last_cut_that_was_not_taken_off_does_not_leave() -> None:
    """The record is for two cuts and a person took one off: harm in the other is harm in the lever."""
    both = msgspec.structs.replace(RECORD, cuts=(EDIT, CHAT))
    assert leaving(both, str(CHAT)) == CHAT
    assert leaving(msgspec.structs.replace(both, without=(EDIT,)), str(CHAT)) is None
