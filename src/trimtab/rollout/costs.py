"""What an output token costs: the price of the time in which replicas worked for an arm, over its output tokens.

    cost per million output tokens = price per hour * busy seconds / 3600 / output tokens * 1,000,000

Busy seconds are the union of [arrival, end] of the arm's requests. At matched batch each request stands for itself,
as b streams share a replica's time. Prices are constants that are known at the look: units are of seconds per token,
and the ratio of the prices moves them all alike.
"""

import math
from collections.abc import Iterable, Sequence

import msgspec

from trimtab.core.cuts import Cut
from trimtab.core.gate import GateSpec
from trimtab.core.record import RequestRecord
from trimtab.core.stats import Interval
from trimtab.rollout.answer import ArmExtras, Measured
from trimtab.rollout.blocks import Block
from trimtab.rollout.comparison import output_tokens_per_s, own_output_tokens_per_s, union_s
from trimtab.rollout.sources import BlockRatio, RequestRatio

MILLION = 1_000_000
HOUR_S = 3600.0


def seconds_per_token(group: Sequence[RequestRecord]) -> float | None:
    """Return the busy seconds of a group over its output tokens; None if unknown or without tokens."""
    rate = output_tokens_per_s(group)
    return 1.0 / rate if rate else None


def own_seconds_per_token(record: RequestRecord) -> float | None:
    """Return a request's seconds per output token; at equal batch it stands for all streams."""
    rate = own_output_tokens_per_s(record)
    return 1.0 / rate if rate else None


class UnitCost:
    """Cost per output token, candidate over baseline."""

    def __init__(self, *, cut: Cut | None, alphas: Iterable[float], matched: bool) -> None:
        self.version = 0
        self._ratio: RequestRatio | BlockRatio = (
            RequestRatio(own_seconds_per_token, cut=cut, alphas=alphas, matched=True)
            if matched
            else BlockRatio(seconds_per_token, cut=cut, alphas=alphas)
        )
        # Busy seconds and output tokens of each arm.
        self._sums = [[0.0, 0.0], [0.0, 0.0]]

    def take(self, block: Block) -> None:
        """Take the block's good requests."""
        self.version += 1
        self._ratio.take(block)
        for arm in (0, 1):
            mine = [r.record for r in block.within(self._ratio.cut) if r.ok and r.candidate == arm]
            self._sums[arm][0] += union_s((one.arrived_at_s, one.finished_at_s) for one in mine)
            self._sums[arm][1] += sum(one.tokens.output or 0 for one in mine)

    def measured(self, spec: GateSpec, stop_alpha: float | None, extras: ArmExtras) -> Measured:
        """Return candidate over baseline at the prices of the look; without both prices nothing can be measured."""
        prices = extras.price_baseline, extras.price_candidate
        found = self._ratio.measured(spec, None, extras)
        if not prices[0] or not prices[1]:
            asked = found.n_baseline + found.n_candidate + found.unmeasured
            return Measured(
                n_baseline=0,
                n_candidate=0,
                n_units=0,
                value=None,
                interval=None,
                harm_low=-1.0,
                harm_high=math.inf,
                harm_now=None,
                unmeasured=asked,
                note="no price is known",
            )
        factor = prices[1] / prices[0]
        interval = found.interval
        moved = None
        if interval is not None:
            moved = Interval(interval.low * factor, interval.high * factor, interval.level)
        low = -math.inf if stop_alpha is None else self._ratio.running.log_low(stop_alpha)
        value = None if found.value is None else found.value * factor
        return msgspec.structs.replace(
            found,
            value=value,
            interval=moved,
            harm_low=-1.0 if moved is None else moved.low - 1.0,
            harm_high=math.inf if moved is None else moved.high - 1.0,
            harm_now=None if value is None else value - 1.0,
            may_stop=stop_alpha is None or low + math.log(factor) > 0.0,
            note=self._told(prices[0], prices[1]),
        )

    def copy(self) -> "UnitCost":
        """Return one that goes on from here by itself."""
        made = UnitCost(cut=self._ratio.cut, alphas=(), matched=False)
        made.version = self.version
        made._ratio = self._ratio.copy()
        made._sums = [list(arm) for arm in self._sums]
        return made

    def _told(self, baseline: float, candidate: float) -> str:
        told = [
            f"{name} {price * busy_s / HOUR_S / tokens * MILLION:.4g}"
            for name, price, (busy_s, tokens) in zip(
                ("baseline", "candidate"), (baseline, candidate), self._sums, strict=True
            )
            if tokens
        ]
        return f"per million output tokens: {', '.join(told)}" if told else ""
