"""Why did requests fail: because connections lay idle for too long, or because of a new revision?

A server that closes idle connections earlier than whoever keeps them makes the next request on one fail: a 502. Agents
think between requests, so what fails is a share of their requests, the same under any model version, and the requests
that fail are those that came after a pause. A failing revision fails after no pause too.

Law. Of every request of a session but its first, the pause is from the end of the one before to its own beginning.
Failures are requests that ended with 502 before anything was said. The shortest pause of a failure cuts the requests in
two: those after at least that pause, and the rest with the first of each session. Keep-alive is the cause if the second
part fails less often, at a level that counts every place where the cut might have been. A revision is the cause if it
fails more often than the others among requests that are alike in this respect. Else it is not known.

Source of the bound: the difference of two proportions in `core.stats_proportions`.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Final

import msgspec

from trimtab.core.record import RequestRecord
from trimtab.core.stats_proportions import difference_bounds
from trimtab.core.types import ErrorClass

FAILURES_MIN: Final = 5
"""Fewer failures are explained by nothing."""

ALPHA: Final = 0.01
UNSENT: Final = frozenset({ErrorClass.UPSTREAM_CONNECT, ErrorClass.UPSTREAM_STATUS})
"""What a 502 is where nobody could be connected for it: said by the gateway, or by a proxy behind it."""


class FailureCause(StrEnum):
    """What requests failed for, as far as their records tell."""

    KEEP_ALIVE_MISMATCH = "keep_alive_mismatch"
    REVISION = "revision"
    UNKNOWN = "unknown"


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """How many of how many failed."""

    failed: int
    n: int


class FailureReport(msgspec.Struct, frozen=True, kw_only=True):
    """The cause with what it was told from. Pauses in seconds; None where nothing failed after a known one.

    `after_pause`: requests after at least `pause_s_min`; `others`: all the rest. `revisions`: of those after such a
    pause where keep-alive is the cause, else of all.
    """

    cause: FailureCause
    because: str
    all: Share
    after_pause: Share | None = None
    others: Share | None = None
    pause_s_min: float | None = None
    pause_s_max: float | None = None
    revisions: dict[str, Share] = {}


class _Seen(msgspec.Struct, frozen=True):
    """One request: its pause in seconds, None for the first of a session; whether it failed; its revision."""

    pause_s: float | None
    failed: bool
    revision: str


def explain_failures(records: Iterable[RequestRecord]) -> FailureReport:
    """Say why requests could not be sent; records in any order. Requests that ended otherwise are no failures here."""
    seen = _with_pauses(records)
    failed = [one for one in seen if one.failed]
    whole = _share(seen)
    if len(failed) < FAILURES_MIN:
        return FailureReport(
            cause=FailureCause.UNKNOWN,
            because=f"{len(failed)} of {len(seen)} requests failed to be sent, too few to tell why",
            all=whole,
        )
    pauses = [one.pause_s for one in failed if one.pause_s is not None]
    if len(pauses) == len(failed):
        found = _by_pause(seen, min(pauses), max(pauses), whole)
        if found is not None:
            return found
    return _by_revision(seen, whole)


def _with_pauses(records: Iterable[RequestRecord]) -> list[_Seen]:
    ended_s: dict[str, float] = {}
    seen: list[_Seen] = []
    for record in sorted(records, key=lambda one: one.arrived_at_s):
        session = record.session
        before_s = None if session is None else ended_s.get(session)
        pause_s = None if before_s is None else max(0.0, record.arrived_at_s - before_s)
        failed = record.status == 502 and record.error in UNSENT
        seen.append(_Seen(pause_s, failed, record.revision or ""))
        if session is not None:
            ended_s[session] = record.finished_at_s
    return seen


def _by_pause(
    seen: Sequence[_Seen], low_s: float, high_s: float, whole: Share
) -> FailureReport | None:
    """Return keep-alive as the cause if requests after a pause fail more often than the rest, else None."""
    after = [one for one in seen if one.pause_s is not None and one.pause_s >= low_s]
    rest = [one for one in seen if one.pause_s is None or one.pause_s < low_s]
    a, b = _share(after), _share(rest)
    # The cut was found in the same requests: it might have been at any of them.
    bounds = difference_bounds(b.failed, b.n, a.failed, a.n, alpha=ALPHA / len(seen))
    if not rest or bounds.low <= 0.0:
        return None
    revisions = _revisions(after)
    blamed = _worst(revisions)
    where = "under every revision alike" if blamed is None else f"most often at revision {blamed}"
    return FailureReport(
        cause=FailureCause.KEEP_ALIVE_MISMATCH,
        because=(
            f"keep-alive mismatch: all {a.failed} failures came {low_s:.1f} to {high_s:.1f} s after the request before "
            f"in their session ({a.failed} of {a.n} such requests, {where}; none of the other {b.n}): servers close "
            f"idle connections after about {low_s:.1f} s; keep them shorter, or let the servers keep them longer"
        ),
        all=whole,
        after_pause=a,
        others=b,
        pause_s_min=low_s,
        pause_s_max=high_s,
        revisions=revisions,
    )


def _by_revision(seen: Sequence[_Seen], whole: Share) -> FailureReport:
    revisions = _revisions(seen)
    blamed = _worst(revisions)
    if blamed is None:
        return FailureReport(
            cause=FailureCause.UNKNOWN,
            because=(
                f"{whole.failed} of {whole.n} requests failed to be sent, neither after pauses alone nor more often "
                "at one revision than at the others"
            ),
            all=whole,
            revisions=revisions,
        )
    share = revisions[blamed]
    return FailureReport(
        cause=FailureCause.REVISION,
        because=(
            f"revision {blamed} fails more often than the others: {share.failed} of {share.n} of its requests, "
            f"{whole.failed - share.failed} of {whole.n - share.n} of theirs, and not after pauses alone"
        ),
        all=whole,
        revisions=revisions,
    )


def _worst(revisions: dict[str, Share]) -> str | None:
    """Return the revision that fails more often than all others together, None if none does for certain."""
    n = sum(one.n for one in revisions.values())
    failed = sum(one.failed for one in revisions.values())
    for name, one in sorted(revisions.items(), key=lambda item: -item[1].failed / item[1].n):
        others = n - one.n
        if (
            others
            and difference_bounds(
                failed - one.failed, others, one.failed, one.n, alpha=ALPHA / len(revisions)
            ).low
            > 0.0
        ):
            return name
    return None


def _revisions(seen: Iterable[_Seen]) -> dict[str, Share]:
    counts: Counter[str] = Counter()
    failures: Counter[str] = Counter()
    for one in seen:
        counts[one.revision] += 1
        failures[one.revision] += one.failed
    return {name: Share(failed=failures[name], n=counts[name]) for name in sorted(counts)}


def _share(seen: Sequence[_Seen]) -> Share:
    return Share(failed=sum(one.failed for one in seen), n=len(seen))
