"""How much evidence stops a lever: the chance of stopping one that changes nothing, spent over all that may stop it.

Law: a gate fails when harm beyond its margin is shown at its own alpha *and* any harm at all is shown at the alpha of
this module. A lever that changes nothing passes the second with at most that probability, whatever the margins, the
tails and the number of looks; summed over every gate, cut and share it is at most `ramp.harm_alpha`:
    half for the share at which the lever is proven, half for all shares before it, as evidence begins anew at each
    of each, half for the declared gates, and the two on outputs that have to be JSON, and half for the cuts that nobody
    declared
Harm that exists is hardly seen later for it: what is beyond a margin is farther beyond none.

Not of this: a gate on quality stops at its own alpha, spent over its evaluations and cuts (`rollout.quality`).

Failure mode: a rollout that a person resumes, or that is verified again, begins to spend anew.
"""

import msgspec

from trimtab.core.lever import Comparison, LeverRecord
from trimtab.rollout.machine import BALANCED_SHARE
from trimtab.rollout.validity import CONSTRAINTS

CUT_TESTS_MAX = 100
"""Cuts times metrics that are looked at without having been declared; those that come later are not."""

CUT_ALPHA = 0.05
"""Where a record has no bound of its own: the chance that a harmless lever is stopped for such a cut."""


class StopBounds(msgspec.Struct, frozen=True, kw_only=True):
    """Alphas at which any harm must be shown before a lever is stopped. `gate` None: the gate's own alpha is enough."""

    gate: float | None
    cut: float


def stop_bounds(record: LeverRecord, judged_share: float) -> StopBounds:
    """Return the bounds where harm is judged from the share `judged_share` on."""
    harm_alpha = record.ramp.harm_alpha
    if harm_alpha is None:
        return StopBounds(gate=None, cut=CUT_ALPHA / CUT_TESTS_MAX)
    proven = proven_share(record)
    before = sum(share < proven for share in record.ramp.shares)
    part = 0.5 if judged_share >= proven else 0.5 / max(1, before)
    half = 0.5 * part * harm_alpha
    return StopBounds(gate=half / (len(record.gates) + len(CONSTRAINTS)), cut=half / CUT_TESTS_MAX)


def all_stop_bounds(record: LeverRecord) -> tuple[StopBounds, StopBounds]:
    """Return the bounds before the lever is proven and while it is."""
    return stop_bounds(record, 0.0), stop_bounds(record, proven_share(record))


def proven_share(record: LeverRecord) -> float:
    """Return the share from which on the lever's harm is judged to the end.

    Side by side, a slice of 95% leaves the baseline too little to compare with: it is the first balanced share.
    """
    shares = record.ramp.shares
    if record.ramp.comparison is Comparison.SIDE_BY_SIDE:
        return next((share for share in shares if share >= BALANCED_SHARE), shares[-1])
    return shares[-1]
