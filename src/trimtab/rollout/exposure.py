"""Whom a lever was shown to, told once; and the sample-ratio check: did as many meet the slice as the plan says?

Law of the check: each session is counted once at a share, however often it comes, as inside the slice or outside it.
With hashed places the number inside is a binomial with the planned share; the plan is refuted when the share lies
outside bounds that hold at every look at once, at SAMPLE_RATIO_ALPHA. Then the arms are not what they seem (a client
that retries only in one arm, a gateway with another plan or another secret, a cache of sessions in front), and nothing
that was compared counts: the verdict is error, which takes the traffic off and waits for a person.

Dealt places fill a slice more evenly than chance does, so they never fail for that reason alone.

Law of what is told (`sessions_exposed`): each session once an arm in one proof, over restarts and pauses too.
"""

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from trimtab.core.events import AnyEvent, LeverProposed, RolloutMoved, SessionsExposed
from trimtab.core.gate import GateResult, Metric, Question
from trimtab.core.record import RequestRecord
from trimtab.core.state import begins_proof
from trimtab.core.stats import proportion_bounds
from trimtab.core.traffic import BESIDE_SLICE, OUTSIDE_SLICE, CandidatePlan, StickyBy, slice_name
from trimtab.core.types import Arm, Verdict
from trimtab.rollout.answer import ALL_TRAFFIC

SAMPLE_RATIO_ALPHA: Final = 0.001
KEYS_MAX: Final = 100_000
"""Sessions counted at one share, and told of each arm; from then on both stand still, as enough was seen."""

KEYS_MIN: Final = 20
NAME: Final = "sample ratio"


class Met:
    """Sessions, or tenants, that met each arm in one proof; `told` takes those that were not told yet.

    `before`: what an earlier process told of the same proof.
    """

    def __init__(self, before: Iterable[AnyEvent] = ()) -> None:
        self._known: dict[Arm, set[str]] = {arm: set() for arm in Arm}
        self._new: dict[Arm, list[str]] = {arm: [] for arm in Arm}
        for event in before:
            if isinstance(event, LeverProposed) or (
                isinstance(event, RolloutMoved) and begins_proof(event)
            ):
                self._known = {arm: set() for arm in Arm}
            elif isinstance(event, SessionsExposed):
                self._known[Arm.BASELINE].update(event.baseline)
                self._known[Arm.CANDIDATE].update(event.candidate)

    def take(self, record: RequestRecord, candidate: CandidatePlan) -> None:
        """Take in a finished request of the lever; one that is drawn by request tells of itself in its record."""
        if record.lever != candidate.lever or record.slice is None:
            return
        key, known = _key(record, candidate), self._known[record.arm]
        if key is None or key == record.request_id or key in known or len(known) >= KEYS_MAX:
            return
        known.add(key)
        self._new[record.arm].append(key)

    def told(self, lever: str, share: float) -> SessionsExposed | None:
        """Return those that are told now for the first time, None if there are none."""
        baseline, candidate = self._new[Arm.BASELINE], self._new[Arm.CANDIDATE]
        if not baseline and not candidate:
            return None
        self._new = {arm: [] for arm in Arm}
        return SessionsExposed(
            lever=lever, share=share, candidate=tuple(candidate), baseline=tuple(baseline)
        )


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
