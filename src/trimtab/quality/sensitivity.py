"""What lowering each group of tensors does, before anything is converted: the damage measured, the outliers counted.

Law: a group's damage is the mean paired change of log loss when that group alone is written in `probe` bits. A group
stays high unless shown harmless: its damage per part of the weights that it would save is compared with that of the
others, and a group whose interval reaches beyond its share of the margin is kept. The input embedding, the output head
and attention begin as kept; the feed-forward groups begin as to be lowered. A measurement may move either.
Inside a lowered group, layers whose weights have far outliers are kept: one value of a block sets the step of all
others, so the step grows with max / rms.

Failure modes: damages of groups add up only while they are small; a probe type that every group bears tells nothing
about fewer bits (it is asked again at each rung as a whole).
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from trimtab.core.stats import Interval
from trimtab.core.types import Verdict
from trimtab.engines.gguf_tensors import FEED_FORWARD, Group
from trimtab.quality.paired import PairedResult

OUTLIER_RATIO: Final = 4.0
"""A layer's tensor is heavy in outliers from so many times the median spread (max over rms of blocks) of its group."""


class TensorSpread(msgspec.Struct, frozen=True, kw_only=True):
    """How a tensor's values spread. `peak`: largest absolute value over the root mean square of all."""

    name: str
    group: Group
    layer: int | None
    values: int
    peak: float
    kurtosis: float


class GroupDamage(msgspec.Struct, frozen=True, kw_only=True):
    """What lowering one group alone did. `share`: part of all weights in it."""

    group: Group
    share: float
    result: PairedResult


class GroupChoice(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a group is lowered, and why."""

    group: Group
    lowered: bool
    because: str
    share: float
    harm: float | None = None
    interval: Interval | None = None


class Sensitivity(msgspec.Struct, frozen=True, kw_only=True):
    """What stays high and what may be lowered. `outliers`: tensors kept for their spread."""

    groups: tuple[GroupChoice, ...]
    outliers: tuple[TensorSpread, ...]
    probe: str

    @property
    def lowered(self) -> tuple[Group, ...]:
        """Groups that may be lowered."""
        return tuple(one.group for one in self.groups if one.lowered)

    @property
    def kept_tensors(self) -> frozenset[str]:
        """Names of tensors that stay as they are within lowered groups."""
        lowered = self.lowered
        return frozenset(one.name for one in self.outliers if one.group in lowered)


def choose_groups(damages: Sequence[GroupDamage], *, margin: float) -> tuple[GroupChoice, ...]:
    """Decide for each group. `margin`: nats per token that all of them together may cost.

    A group's share of the margin is its share of the weights that were probed.
    """
    whole = math.fsum(one.share for one in damages)
    return tuple(_choice(one, margin * one.share / whole if whole else 0.0) for one in damages)


def _choice(damage: GroupDamage, allowed: float) -> GroupChoice:
    result, group = damage.result, damage.group
    starts_lowered = group in FEED_FORWARD
    known = result.interval is not None and result.verdict is not Verdict.ERROR
    if not known:
        lowered, words = starts_lowered, f"not measured ({result.because}); as its kind usually is"
    elif result.interval is not None and result.interval.high <= allowed:
        lowered, words = (
            True,
            f"shown harmless: at most {result.interval.high:+.4f} of {allowed:.4f} nats",
        )
    elif result.interval is not None and result.interval.low > allowed:
        lowered, words = (
            False,
            f"shown harmful: at least {result.interval.low:+.4f}, {allowed:.4f} nats allowed",
        )
    else:
        lowered = starts_lowered
        words = "neither shown; as its kind usually is"
    return GroupChoice(
        group=group,
        lowered=lowered,
        because=words,
        share=damage.share,
        harm=result.harm,
        interval=result.interval,
    )


def heavy_tensors(
    spreads: Sequence[TensorSpread], *, ratio: float = OUTLIER_RATIO
) -> tuple[TensorSpread, ...]:
    """Return the tensors whose peak is `ratio` times the median of their group, the heaviest first."""
    by_group: dict[Group, list[TensorSpread]] = {}
    for spread in spreads:
        by_group.setdefault(spread.group, []).append(spread)
    heavy = [
        one
        for members in by_group.values()
        for one in members
        if len(members) > 2 and one.peak >= ratio * _median([each.peak for each in members])
    ]
    return tuple(sorted(heavy, key=lambda one: (-one.peak, one.name)))


def shares_of(values: Mapping[Group, int]) -> dict[Group, float]:
    """Return each group's part of all weights."""
    whole = sum(values.values())
    return {group: count / whole for group, count in values.items()} if whole else {}


def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return 0.5 * (ordered[middle - 1] + ordered[middle])
