"""Shares of bad requests by arm: errors as they happen, outputs that differ.

Errors count at once, before their block is over: a burst must be seen while it lasts. They are kept by block, because
the pair of blocks in which a share changed is left out afterwards, and a new share begins anew.
"""

from functools import lru_cache

from trimtab.core.cuts import Cut
from trimtab.core.gate import GateSpec
from trimtab.core.stats import difference_bounds, difference_e_value
from trimtab.rollout.answer import ArmExtras, Measured
from trimtab.rollout.blocks import Row
from trimtab.rollout.comparison import is_servers_error

# Many looks see the counts of the one before.
_difference_bounds = lru_cache(maxsize=1024)(difference_bounds)

Counts = tuple[int, int, int, int]
"""Bad and all of the baseline, bad and all of the candidate."""


def measured_rate(
    spec: GateSpec,
    counts: Counts,
    *,
    allowed: float,
    stop_alpha: float | None,
    n_units: int | None,
    unmeasured: int = 0,
    note: str = "",
) -> Measured:
    """Return the difference of two shares; what `allowed` has beyond the margin does not count as harm."""
    bad_b, n_b, bad_c, n_c = counts
    bounds = _difference_bounds(bad_b, n_b, bad_c, n_c, alpha=spec.alpha)
    now = bad_c / n_c - bad_b / n_b if n_b and n_c else None
    shift = spec.margin - allowed
    harm_low = bounds.low + shift
    any_harm = stop_alpha is None or (
        harm_low > spec.margin
        and difference_e_value(bad_b, n_b, bad_c, n_c, margin=0.0) >= 1.0 / stop_alpha
    )
    return Measured(
        n_baseline=n_b,
        n_candidate=n_c,
        n_units=n_units,
        value=now,
        interval=bounds if n_b and n_c else None,
        harm_low=harm_low,
        harm_high=bounds.high + shift,
        harm_now=None if now is None else now + shift,
        may_stop=any_harm,
        unmeasured=unmeasured,
        note=note,
    )


def measured_outputs(spec: GateSpec, stop_alpha: float | None, extras: ArmExtras) -> Measured:
    """Return how much more often the candidate's outputs differ than the baseline's from themselves."""
    counts = (extras.floor_differs, extras.floor_n, extras.outputs_differ, extras.outputs_n)
    return measured_rate(spec, counts, allowed=spec.margin, stop_alpha=stop_alpha, n_units=None)


class BlockCounts:
    """Bad and all requests of each arm, by block, so that blocks can be forgotten."""

    __slots__ = ("_blocks", "blocks_met", "sums")

    def __init__(self) -> None:
        self._blocks: dict[int, list[int]] = {}
        # Bad and all of the baseline, bad and all of the candidate; blocks in which each arm had any.
        self.sums = [0, 0, 0, 0]
        self.blocks_met = [0, 0]

    @property
    def counts(self) -> Counts:
        """Everything counted so far."""
        bad_b, n_b, bad_c, n_c = self.sums
        return bad_b, n_b, bad_c, n_c

    def add(self, block: int, *, candidate: bool, bad: bool) -> None:
        """Count one request."""
        counts = self._blocks.setdefault(block, [0, 0, 0, 0])
        at = 2 * candidate
        self.blocks_met[candidate] += not counts[at + 1]
        for place, plus in ((at, bad), (at + 1, True)):
            counts[place] += plus
            self.sums[place] += plus

    def forget(self, before: int, blocks: frozenset[int]) -> None:
        """Forget the blocks before one, and some others."""
        for number in [each for each in self._blocks if each < before or each in blocks]:
            counts = self._blocks.pop(number)
            for arm in (0, 1):
                self.blocks_met[arm] -= counts[2 * arm + 1] > 0
            for place, count in enumerate(counts):
                self.sums[place] -= count


class Errors:
    """Requests that ended badly through no fault of the client's, by arm; those whose client left are told apart."""

    def __init__(self, cut: Cut | None) -> None:
        self.cut = cut
        self._stayed = BlockCounts()
        self._left = BlockCounts()

    def take(self, block: int, row: Row) -> None:
        """Count one request."""
        if self.cut is not None and self.cut not in row.cuts:
            return
        left = row.record.client_aborted
        self._left.add(block, candidate=row.candidate, bad=left)
        if not left:
            self._stayed.add(block, candidate=row.candidate, bad=is_servers_error(row.record))

    def forget(self, before: int, blocks: frozenset[int]) -> None:
        """Forget the blocks before one, and some others."""
        self._stayed.forget(before, blocks)
        self._left.forget(before, blocks)

    def measured(self, spec: GateSpec, stop_alpha: float | None) -> Measured:
        """Return the difference of the shares."""
        left_b, all_b, left_c, all_c = self._left.counts
        note = ""
        if left_b or left_c:
            note = f"clients left: baseline {left_b} of {all_b}, candidate {left_c} of {all_c}"
        return measured_rate(
            spec,
            self._stayed.counts,
            allowed=spec.margin,
            stop_alpha=stop_alpha,
            n_units=min(self._stayed.blocks_met),
            note=note,
        )
