"""What readings beside the times say of a run: ranks that wait for each other, and KV that was moved.

    unequal ranks     the busiest at least 1.25 times as busy as the least, and a tenth of the time more: the others
                      wait for it at every collective
    power under cap   devices that say they are busy and draw less than 0.8 of their limit: they wait more than compute
    KV moved          what the engine's transfer counters (NIXL) grew by: part of the time to the first token

Busy on a device is the exporter's (a kernel was resident, which a waiting collective is too), on a processor the part
of the traced time in computation. Public case: two cards without peer access at 82% and 51%, under their power limit.
"""

from collections.abc import Iterator, Sequence
from statistics import mean
from typing import Final

import msgspec

UNEQUAL_RATIO: Final = 1.25
UNEQUAL_SHARE: Final = 0.1
POWER_LOW_SHARE: Final = 0.8
BUSY_SHARE: Final = 0.5


class Ranks(msgspec.Struct, frozen=True, kw_only=True):
    """Means over a run of each rank or device, in their order. `source`: who said so; empty where nobody did.

    `busy_shares`: 0 to 1. `power_w`, `power_limit_w`: watts.
    """

    source: str
    busy_shares: tuple[float, ...] = ()
    power_w: tuple[float, ...] = ()
    power_limit_w: tuple[float, ...] = ()


class Transfers(msgspec.Struct, frozen=True, kw_only=True):
    """What transfer counters grew by over a run; `seconds` are of all transfers together."""

    count: float
    seconds: float
    bytes: float


def signs_of(
    ranks: Sequence[Ranks], transfers: Sequence[Transfers], ttft_ms: float, requests: int
) -> Iterator[str]:
    """Give what the readings of a layout's runs say, in words; `ttft_ms` and `requests` are of all those runs."""
    for each in _merged(ranks):
        yield from _busy(each)
        yield from _power(each)
    count = sum(each.count for each in transfers)
    if count and requests:
        seconds = sum(each.seconds for each in transfers)
        moved = sum(each.bytes for each in transfers)
        each_ms = 1000.0 * seconds / requests
        yield (
            f"KV moved by the transfer counters: {moved / 1e6 / requests:.3g} MB and {each_ms:.3g} ms a request, "
            f"{each_ms / ttft_ms:.0%} of the time to the first token ({count:.0f} transfers)"
        )


def _merged(found: Sequence[Ranks]) -> Iterator[Ranks]:
    """Give one reading for each source: the means over runs that saw as many ranks as the last one."""
    for source in dict.fromkeys(each.source for each in found):
        mine = [each for each in found if each.source == source]
        yield Ranks(
            source=source,
            busy_shares=_means([each.busy_shares for each in mine]),
            power_w=_means([each.power_w for each in mine]),
            power_limit_w=_means([each.power_limit_w for each in mine]),
        )


def _means(runs: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
    alike = [run for run in runs if len(run) == len(runs[-1])]
    return tuple(mean(values) for values in zip(*alike, strict=True))


def _busy(ranks: Ranks) -> Iterator[str]:
    shares = ranks.busy_shares
    if len(shares) < 2:
        return
    most, least = max(shares), min(shares)
    told = f"ranks were busy {least:.0%} to {most:.0%} of the time ({ranks.source})"
    if most >= UNEQUAL_RATIO * least and most - least >= UNEQUAL_SHARE - 1e-9:
        yield f"{told}: unequal, the others wait for the busiest"
    else:
        yield f"{told}: equal"


def _power(ranks: Ranks) -> Iterator[str]:
    pairs = list(zip(ranks.power_w, ranks.power_limit_w, strict=False))
    if not pairs:
        return
    shares = [power / limit for power, limit in pairs if limit > 0.0]
    if not shares:
        return
    told = (
        f"devices drew {min(shares):.0%} to {max(shares):.0%} of their power limit ({ranks.source})"
    )
    busy = ranks.busy_shares and max(ranks.busy_shares) >= BUSY_SHARE
    waiting = busy and max(shares) < POWER_LOW_SHARE
    yield f"{told}: busy and under it, so they wait more than they compute" if waiting else told
