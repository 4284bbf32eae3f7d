"""Requests that waited all the time: what speculation gains under a queue says nothing of low load.

Law: a request waited if it queued longer than WAITED_STEPS steps of its own stream; one that comes between two steps
waits for a part of one. Where nearly every request of both arms did, the server was saturated all the time: verifying
drafts takes compute that others wait for, and a shorter queue looks like faster streams. A gain is then held, never
passed; harm shown is harm at that load and stands.

Failure mode: requests whose queue time is unknown are not counted; where all are, nothing is said.
"""

from typing import Final

import msgspec

from trimtab.core.gate import GateResult, Question
from trimtab.core.lever import LeverRecord
from trimtab.core.types import Technique, Verdict
from trimtab.rollout.blocks import Row
from trimtab.rollout.rates import BlockCounts

WAITED_STEPS: Final = 2.0
SATURATED_SHARE: Final = 0.95
REQUESTS_MIN: Final = 20
"""Requests per arm that must be known before a server is called saturated."""


class Waiting:
    """Counts the requests of each arm that waited, by block, as they end."""

    def __init__(self) -> None:
        self._counts = BlockCounts()

    def take(self, block: int, row: Row) -> None:
        """Count one request, if its queue time and its time per token are known."""
        one = row.record
        if one.ok and one.phases.queue_ms is not None and one.tpot_ms:
            step_ms = one.tpot_ms * max(1.0, one.drafting.accepted_per_step or 1.0)
            waited = one.phases.queue_ms > WAITED_STEPS * step_ms
            self._counts.add(block, candidate=row.candidate, bad=waited)

    def forget(self, before: int, blocks: frozenset[int]) -> None:
        """Forget the blocks before one, and some others."""
        self._counts.forget(before, blocks)

    @property
    def note(self) -> str:
        """Say that both arms were saturated, "" where they were not or it is not known."""
        waited_b, n_b, waited_c, n_c = self._counts.counts
        if min(n_b, n_c) < REQUESTS_MIN:
            return ""
        if waited_b < SATURATED_SHARE * n_b or waited_c < SATURATED_SHARE * n_c:
            return ""
        return f"saturated: {waited_b + waited_c} of {n_b + n_c} requests waited; no verdict for low load"


def without_saturated(
    record: LeverRecord, results: list[GateResult], waiting: Waiting
) -> list[GateResult]:
    """Return the answers with every gain of a lever that speculates held where all requests waited."""
    note = waiting.note if record.technique is Technique.SPECULATION else ""
    if not note:
        return results
    return [_held(one, note) for one in results]


def _held(result: GateResult, note: str) -> GateResult:
    if result.question is not Question.GAIN or result.verdict not in (Verdict.PASS, Verdict.HOLD):
        return result
    return msgspec.structs.replace(
        result, verdict=Verdict.HOLD, reason=f"{note}; at this load: {result.reason}"
    )
