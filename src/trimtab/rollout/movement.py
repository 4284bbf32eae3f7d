"""What follows from how a lever is moved: live by another policy, or by replicas that restart into another revision.

A routing policy swaps for all traffic of a replica at once and its arms share caches, so it is compared in blocks of
time; a revision has replicas of its own and is compared side by side.
"""

from typing import Final

from trimtab.core.lever import (
    Actuation,
    Comparison,
    Dependency,
    Narrowness,
    QualityExposure,
    Scope,
)

LIVE_REVERSE_S: Final = 0.1
RESTART_REVERSE_S: Final = 60.0


def comparison_of(*, live: bool) -> Comparison:
    """Return how its arms are compared."""
    return Comparison.SWITCHBACK if live else Comparison.SIDE_BY_SIDE


def narrowness_of(quality: QualityExposure, *, live: bool) -> Narrowness:
    """Return how little it touches, on a slice and without anything new."""
    return Narrowness(
        quality=quality,
        dependency=Dependency.NONE,
        actuation=Actuation.LIVE if live else Actuation.RESTART,
        scope=Scope.SLICE,
        reverse_s=LIVE_REVERSE_S if live else RESTART_REVERSE_S,
    )


def reverse_of(*, live: bool) -> str:
    """Return how it is taken back."""
    if live:
        return "swap the routing policy back in one plan change; nothing restarts, caches keep what they hold"
    return (
        "take its traffic off by one plan change, then restart its replicas into the baseline revision with the KV "
        "of their slots saved and restored"
    )
