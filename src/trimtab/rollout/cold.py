"""What a cold start costs: told beside the gates, never judged as if it were to last.

A replica that was just started has empty caches, and the first requests of a connection or a kernel pay for set-up.
Both end by themselves, and a comparison with arms that have served for days would call them a regression.
"""

from collections.abc import Sequence

from trimtab.core.record import RequestRecord
from trimtab.core.stats import percentile
from trimtab.core.types import Arm


def cold_note(records: Sequence[RequestRecord]) -> str:
    """Say what the requests of the warm-up met, "" without any: typical, slowest and counts, as nothing is decided.

    A first wave that was slow is few of them, and shows in the p95 alone.
    """
    ttft = {
        arm: [r.ttft_ms for r in records if r.ok and r.arm is arm and r.ttft_ms is not None]
        for arm in Arm
    }
    if not ttft[Arm.CANDIDATE]:
        return ""
    told = [
        f"{arm.value} {percentile(values, 0.5):.0f} ms (p95 {percentile(values, 0.95):.0f} ms), "
        f"{_reused(records, arm)} of the prompt cached, n={len(values)}"
        for arm, values in ttft.items()
        if values
    ]
    return f"while cold, not judged: median TTFT {', '.join(told)}"


def _reused(records: Sequence[RequestRecord], arm: Arm) -> str:
    known = [
        (r.tokens.delivered, r.tokens.prompt)
        for r in records
        if r.arm is arm and r.tokens.delivered is not None and r.tokens.prompt
    ]
    prompt = sum(tokens or 0 for _, tokens in known)
    return f"{sum(got or 0 for got, _ in known) / prompt:.0%}" if prompt else "an unknown part"
