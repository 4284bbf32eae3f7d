"""What a harm of a technique comes from, where the answers of the gates themselves tell it.

Weights of fewer bits are read faster and unpacked before they are multiplied. Decode is bound by the reading, prefill
by the multiplying: so a lever that made tokens faster and the first token slower has paid for the unpacking in the
phase that compute binds. Public reports have it so for four-bit weights: 7B at batch 1, 1,024 tokens in, 71.6 ms to
the first token in 16 bits and 104.3 ms in four.
"""

from collections.abc import Sequence

import msgspec

from trimtab.core.gate import GateResult, Metric
from trimtab.core.lever import LeverRecord
from trimtab.core.types import Technique, Verdict

UNPACKING = "cause: dequantization in the compute-bound phase (prefill)"


def with_causes(record: LeverRecord, results: Sequence[GateResult]) -> list[GateResult]:
    """Return the answers, those that failed with what they come from where that is told."""
    if record.technique is not Technique.QUANTIZATION:
        return list(results)
    return [_with_unpacking(one, results) for one in results]


def _with_unpacking(result: GateResult, results: Sequence[GateResult]) -> GateResult:
    if result.metric is not Metric.TTFT_MS or result.verdict is not Verdict.FAIL:
        return result
    faster = [
        one.value
        for one in results
        if one.metric is Metric.TPOT_MS
        and one.cut == result.cut
        and one.value is not None
        # What may be noise is no gain, and tells no cause.
        and one.interval is not None
        and one.interval.high < 1.0
    ]
    if not faster:
        return result
    gained = f"tokens after the first take {1.0 - min(faster):.0%} less"
    return msgspec.structs.replace(result, reason=f"{result.reason}; {UNPACKING}, while {gained}")
