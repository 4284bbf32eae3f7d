"""What a harm comes from, where the gates tell it: unpacked weights are paid for by the first token."""

import msgspec
import pytest
from rollout_kit import lever

from trimtab.core.gate import GateResult, Metric, Question
from trimtab.core.stats_types import Interval
from trimtab.core.types import Technique, Verdict
from trimtab.rollout.trades import UNPACKING, with_causes


def result(
    metric: Metric,
    value: float | None,
    verdict: Verdict,
    cut: str = "all",
    *,
    spread: float = 0.05,
) -> GateResult:
    known = None if value is None else Interval(value - spread, value + spread, 0.95)
    return GateResult(
        gate=f"{metric.value} ramping",
        metric=metric,
        question=Question.VETO,
        cut=cut,
        verdict=verdict,
        n_baseline=40,
        n_candidate=40,
        value=value,
        interval=known,
        margin=0.25,
        reason="as measured",
    )


SLOW_FIRST = result(Metric.TTFT_MS, 1.45, Verdict.FAIL)


@pytest.mark.parametrize(
    ("technique", "tpot", "cut", "caused"),
    [
        (Technique.QUANTIZATION, 0.65, "all", True),
        (Technique.QUANTIZATION, 1.10, "all", False),
        (Technique.QUANTIZATION, None, "all", False),
        (Technique.QUANTIZATION, 0.65, "label=code", False),
        (Technique.SPECULATION, 0.65, "all", False),
    ],
    ids=["paid for", "slower both", "unknown", "another cut", "another technique"],
)
def test_cause_is_named_only_where_tokens_got_faster(
    technique: Technique, tpot: float | None, cut: str, caused: bool
) -> None:
    """TTFT fails, and TPOT of the same cut is better: the weights were unpacked in prefill."""
    record = lever(technique=technique)
    other = result(Metric.TPOT_MS, tpot, Verdict.PASS, cut)
    told = with_causes(record, [SLOW_FIRST, other])
    assert (UNPACKING in told[0].reason) is caused
    assert told[1] == other


def test_first_token_that_did_not_fail_needs_no_cause() -> None:
    """Nothing went wrong."""
    calm = result(Metric.TTFT_MS, 1.02, Verdict.PASS)
    other = result(Metric.TPOT_MS, 0.65, Verdict.PASS)
    assert with_causes(lever(technique=Technique.QUANTIZATION), [calm, other]) == [calm, other]


def test_cause_is_not_told_from_noise() -> None:
    """Tokens that may be as slow as before, or whose spread is unknown, were not shown to be faster."""
    record = lever(technique=Technique.QUANTIZATION)
    noisy = result(Metric.TPOT_MS, 0.97, Verdict.PASS, spread=0.10)
    bare = msgspec.structs.replace(noisy, interval=None)
    for other in (noisy, bare):
        assert with_causes(record, [SLOW_FIRST, other]) == [SLOW_FIRST, other]
