"""The sample-ratio check: did as many sessions meet the slice as the plan says?

Law: each session is counted once at a share, however often it comes, as inside the slice or outside it. With hashed
places the number inside is a binomial with the planned share; the plan is refuted when the share lies outside bounds
that hold at every look at once, at SAMPLE_RATIO_ALPHA. Then the arms are not what they seem (a client that retries only
in one arm, a gateway with another plan or another secret, a cache of sessions in front), and nothing that was compared
counts: the verdict is error, which takes the traffic off and waits for a person.

Dealt places fill a slice more evenly than chance does, so they never fail for that reason alone.
"""

from collections import OrderedDict
from typing import Final

from trimtab.core.gate import GateResult, Metric, Question
from trimtab.core.record import RequestRecord
from trimtab.core.stats import proportion_bounds
from trimtab.core.traffic import BESIDE_SLICE, OUTSIDE_SLICE, CandidatePlan, StickyBy, slice_name
from trimtab.core.types import Arm, Verdict
from trimtab.rollout.answer import ALL_TRAFFIC

SAMPLE_RATIO_ALPHA: Final = 0.001
KEYS_MAX: Final = 100_000
"""Sessions counted at one share; from then on the count stands still, as enough was seen."""

KEYS_MIN: Final = 20
NAME: Final = "sample ratio"


class Exposed:
    """Counts whom the present share was shown to."""

    def __init__(self) -> None:
        self._share = 0.0
        self._inside: OrderedDict[str, bool] = OrderedDict()

    def take(self, record: RequestRecord, candidate: CandidatePlan, from_block: int) -> None:
        """Take in a finished request of the lever; a new share begins a new count, from its first block on."""
        if record.lever != candidate.lever or record.slice is None:
            return
        if record.block is None or record.block < from_block:
            return
        if candidate.share != self._share:
            self._share = candidate.share
            self._inside.clear()
        inside = record.slice == slice_name(candidate.share)
        outside = record.slice in (OUTSIDE_SLICE, BESIDE_SLICE)
        # In a candidate's block of a switchback those outside the slice have no lever: only the other block tells both.
        beside = record.slice == BESIDE_SLICE or candidate.share < 0.5 or bool(candidate.replicas)
        speaks = beside or record.arm is Arm.BASELINE
        key = _key(record, candidate)
        if speaks and (inside or outside) and key and len(self._inside) < KEYS_MAX:
            self._inside.setdefault(key, inside)

    @property
    def counts(self) -> tuple[int, int]:
        """How many sessions are inside the slice, and how many were counted in all."""
        return sum(self._inside.values()), len(self._inside)

    def result(self, candidate: CandidatePlan) -> GateResult | None:
        """Return an error if the plan's share is refuted, None if it is not."""
        inside, n = self.counts
        if n < KEYS_MIN or candidate.share != self._share or candidate.cuts or candidate.without:
            # Who is in a cut differs between requests of one session; then only the plan itself could tell.
            return None
        bounds = proportion_bounds(inside, n, alpha=SAMPLE_RATIO_ALPHA)
        if bounds.low <= candidate.share <= bounds.high:
            return None
        return GateResult(
            gate=NAME,
            metric=Metric.SLICE_SHARE,
            question=Question.VETO,
            cut=ALL_TRAFFIC,
            verdict=Verdict.ERROR,
            n_baseline=n - inside,
            n_candidate=inside,
            value=inside / n,
            interval=bounds,
            margin=0.0,
            reason=(
                f"{inside} of {n} are in the slice, the plan says {candidate.share:.0%}: the arms are not what they "
                "seem; do all gateways have the same plan and secret, and is nothing retried in one arm only?"
            ),
        )


def _key(record: RequestRecord, candidate: CandidatePlan) -> str | None:
    by = candidate.sticky_by or (StickyBy.SESSION if candidate.replicas else StickyBy.REQUEST)
    keys = {
        StickyBy.SESSION: record.session,
        StickyBy.TENANT: record.tenant or record.session,
        StickyBy.REQUEST: record.request_id,
    }
    return keys[by]
