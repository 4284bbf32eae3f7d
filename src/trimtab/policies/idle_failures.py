"""Why did requests fail: because connections lay idle for too long, or because of a new revision?

A server that closes idle connections earlier than whoever keeps them makes the next request on one fail: a 502. Agents
think between requests, so what fails is a share of their requests, the same under any model version, and the requests
that fail are those that came after a pause. A failing revision fails after no pause too.

Law. Of every request of a session but its first, the pause is from when all before it had ended to its own beginning.
Failures are requests that ended with 502 before anything was said. The pause of one of them cuts the requests in two:
those after at least that pause, and the rest with the first of each session; of all such pauses that one is taken under
which the failures are most likely. Keep-alive is the cause if most failures lie in the first part and the second fails
less often, at a level that counts every place where the cut might have been; where one revision fails more often than
the others in the second part too, this must hold among its own requests. A revision is the cause if it fails more often
than the others among requests that are alike, that is within one of the parts. Else it is not known.

Source of the bound: the difference of two proportions in `core.stats_proportions`.
"""

import itertools
import math
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
    """The cause with what it was told from. Pauses in seconds; None where keep-alive is not the cause.

    `after_pause`: requests after at least `pause_s_min`; `others`: all the rest. `revisions`: of those after such a
    pause where keep-alive is the cause, else of the part of the requests in which they were compared.
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


class _Cut(msgspec.Struct, frozen=True):
    """Requests in two parts: those after at least `low_s` seconds of pause, and all the rest."""

    low_s: float
    after: Sequence[_Seen]
    rest: Sequence[_Seen]


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
    cut = _cut(seen)
    if cut is not None and _is_by_pause(cut):
        return _by_pause(cut, whole)
    return _by_revision(seen, cut, whole)


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
            # A session may ask for several things at once: it is silent when the last of them has ended.
            ended_s[session] = max(ended_s.get(session, 0.0), record.finished_at_s)
    return seen


def _cut(seen: Sequence[_Seen]) -> _Cut | None:
    """Return the likeliest cut at the pause of a failure; None where no such part fails more often than its rest."""
    paused = [(one.pause_s, one.failed) for one in seen if one.pause_s is not None]
    all_n, all_failed = len(seen), sum(one.failed for one in seen)
    n = failed = 0
    best: tuple[float, float] | None = None
    paused.sort(reverse=True)
    for pause_s, group in itertools.groupby(paused, key=lambda one: one[0]):
        outcomes = [has_failed for _, has_failed in group]
        n, failed = n + len(outcomes), failed + sum(outcomes)
        rest_n, rest_failed = all_n - n, all_failed - failed
        if not any(outcomes) or failed * rest_n <= rest_failed * n:
            continue
        found = (_log_likelihood(failed, n) + _log_likelihood(rest_failed, rest_n), pause_s)
        best = found if best is None else max(best, found)
    if best is None:
        return None
    low_s = best[1]
    return _Cut(
        low_s=low_s,
        after=[one for one in seen if one.pause_s is not None and one.pause_s >= low_s],
        rest=[one for one in seen if one.pause_s is None or one.pause_s < low_s],
    )


def _log_likelihood(failed: int, n: int) -> float:
    """Return how likely so many failures are at the share that makes them likeliest, as a logarithm."""
    return sum(count * math.log(count / n) for count in (failed, n - failed) if count)


def _is_by_pause(cut: _Cut) -> bool:
    """Say whether most failures came after the pause, where requests fail more often for certain."""
    after, rest = _share(cut.after), _share(cut.rest)
    # The cut was found in the same requests: it might have been at any of them.
    alpha = ALPHA / (after.n + rest.n)
    if after.failed <= rest.failed or not _fails_more(after, rest, alpha):
        return False
    # A revision that fails everywhere and is mostly asked after pauses looks alike, but not among its own requests.
    blamed = _worst(_revisions(cut.rest))
    return blamed is None or _fails_more(
        _revisions(cut.after).get(blamed, Share(failed=0, n=0)),
        _revisions(cut.rest)[blamed],
        alpha,
    )


def _by_pause(cut: _Cut, whole: Share) -> FailureReport:
    a, b, low_s = _share(cut.after), _share(cut.rest), cut.low_s
    high_s = max(one.pause_s for one in cut.after if one.failed and one.pause_s is not None)
    revisions = _revisions(cut.after)
    blamed = _worst(revisions)
    where = "under every revision alike" if blamed is None else f"most often at revision {blamed}"
    which = f"all {a.failed}" if not b.failed else f"{a.failed} of {whole.failed}"
    shorter = [one.pause_s for one in cut.rest if one.pause_s is not None and not one.failed]
    harmless = f" (one of {max(shorter):.1f} s did no harm)" if shorter else ""
    return FailureReport(
        cause=FailureCause.KEEP_ALIVE_MISMATCH,
        because=(
            f"keep-alive mismatch: {which} failures came {low_s:.1f} to {high_s:.1f} s after the request before in "
            f"their session ({a.failed} of {a.n} such requests, {where}; {b.failed or 'none'} of the other {b.n}): "
            f"servers close idle connections after at most {low_s:.1f} s{harmless}; keep them shorter, or let the "
            "servers keep them longer"
        ),
        all=whole,
        after_pause=a,
        others=b,
        pause_s_min=low_s,
        pause_s_max=high_s,
        revisions=revisions,
    )


def _by_revision(seen: Sequence[_Seen], cut: _Cut | None, whole: Share) -> FailureReport:
    """Compare revisions among requests that are alike, first where most failures are."""
    parts = [("", seen)]
    if cut is not None:
        parts = [
            (f" after pauses of at least {cut.low_s:.1f} s", cut.after),
            (f" not after pauses of at least {cut.low_s:.1f} s", cut.rest),
        ]
        parts.sort(key=lambda part: -_share(part[1]).failed)
    for which, alike in parts:
        revisions = _revisions(alike)
        blamed = _worst(revisions, looks=len(parts))
        if blamed is None:
            continue
        share, among = revisions[blamed], _share(alike)
        return FailureReport(
            cause=FailureCause.REVISION,
            because=(
                f"revision {blamed} fails more often than the others: {share.failed} of {share.n} of its requests"
                f"{which}, {among.failed - share.failed} of {among.n - share.n} of theirs"
            ),
            all=whole,
            revisions=revisions,
        )
    return FailureReport(
        cause=FailureCause.UNKNOWN,
        because=f"{whole.failed} of {whole.n} requests failed to be sent, {_where_unknown(seen)}",
        all=whole,
        revisions=_revisions(seen),
    )


def _where_unknown(seen: Sequence[_Seen]) -> str:
    nowhere = "more often at one revision than at the others"
    failed = [one for one in seen if one.failed]
    pauses = [one.pause_s for one in failed if one.pause_s is not None]
    if len(pauses) < len(failed):
        return f"neither mostly after pauses nor {nowhere} as far as can be told"
    return (
        f"all of them {min(pauses):.1f} to {max(pauses):.1f} s after the request before in their session, too few to "
        f"be certain that the pause is why, and not {nowhere}"
    )


def _fails_more(a: Share, b: Share, alpha: float) -> bool:
    """Say whether the first fails more often than the second for certain; of none nothing is."""
    return difference_bounds(b.failed, b.n, a.failed, a.n, alpha=alpha).low > 0.0


def _worst(revisions: dict[str, Share], *, looks: int = 1) -> str | None:
    """Return the revision that fails more often than all others together, None if none does for certain.

    `looks`: in how many parts this is asked.
    """
    n = sum(one.n for one in revisions.values())
    failed = sum(one.failed for one in revisions.values())
    for name, one in sorted(revisions.items(), key=lambda item: -item[1].failed / item[1].n):
        others = Share(failed=failed - one.failed, n=n - one.n)
        if _fails_more(one, others, ALPHA / (looks * len(revisions))):
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
