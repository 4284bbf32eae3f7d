"""Outputs that had to be JSON and are not: judged in every cut by constraint, whatever else a lever gains.

Law: harm is the candidate's share of invalid outputs less the baseline's. More than VALIDITY_MARGIN, shown at
VALIDITY_ALPHA over all looks and constraints together, stops the lever or takes the constraint out of it. Counted at
once, as errors are: no pass, no hold. Only whole answers of requests that asked for JSON count.
"""

from collections.abc import Mapping
from typing import Final

from trimtab.core.cuts import Cut, Dimension
from trimtab.core.gate import GateResult, GateSpec, Metric, Question
from trimtab.core.record import RequestRecord
from trimtab.core.stats import difference_bounds, difference_e_value
from trimtab.core.types import Constraint, Verdict
from trimtab.rollout.answer import ArmExtras, Measured
from trimtab.rollout.blocks import Block, Row
from trimtab.rollout.rates import BlockCounts, Counts, measured_rate

VALIDITY_MARGIN: Final = 0.01
VALIDITY_ALPHA: Final = 0.05
CONSTRAINTS: Final = (Constraint.JSON_OBJECT, Constraint.JSON_SCHEMA)


def is_invalid(record: RequestRecord) -> bool:
    """Say whether an output had to be JSON and was not."""
    return record.output_valid is False


class InvalidOutputs:
    """The difference of the shares of invalid outputs, block by block."""

    def __init__(self, cut: Cut | None) -> None:
        self.cut = cut
        self.version = 0
        self._sums = [0, 0, 0, 0]
        self._blocks = [0, 0]

    def take(self, block: Block) -> None:
        """Take the block's outputs that had to be JSON."""
        self.version += 1
        rows = block.within(self.cut)
        for arm in (False, True):
            mine = [row for row in rows if row.candidate is arm]
            self._blocks[arm] += bool(mine)
            known = [row for row in mine if row.record.output_valid is not None]
            self._sums[2 * arm] += sum(is_invalid(row.record) for row in known)
            self._sums[2 * arm + 1] += len(known)

    def measured(self, spec: GateSpec, stop_alpha: float | None, extras: ArmExtras) -> Measured:
        """Return the difference of the shares."""
        bad_b, n_b, bad_c, n_c = self._sums
        return measured_rate(
            spec,
            (bad_b, n_b, bad_c, n_c),
            allowed=spec.margin,
            stop_alpha=stop_alpha,
            n_units=min(self._blocks),
        )

    def copy(self) -> "InvalidOutputs":
        """Return one that goes on from here by itself."""
        made = InvalidOutputs(self.cut)
        made.version = self.version
        made._sums, made._blocks = list(self._sums), list(self._blocks)
        return made


class Validity:
    """Counts the outputs of each constraint at once, as errors are."""

    def __init__(self) -> None:
        self._counts = {constraint: BlockCounts() for constraint in CONSTRAINTS}

    def take(self, block: int, row: Row) -> None:
        """Count one request."""
        counts = self._counts.get(row.record.constraint)
        if counts is not None and row.record.output_valid is not None:
            counts.add(block, candidate=row.candidate, bad=is_invalid(row.record))

    def forget(self, before: int, blocks: frozenset[int]) -> None:
        """Forget the blocks before one, and some others."""
        for counts in self._counts.values():
            counts.forget(before, blocks)

    def vetoes(self, stop_alpha: float | None) -> list[GateResult]:
        """Return a failed, not required result for each constraint whose outputs got worse."""
        return validity_vetoes(
            {constraint: each.counts for constraint, each in self._counts.items()}, stop_alpha
        )


def validity_vetoes(
    counts: Mapping[Constraint, Counts], stop_alpha: float | None
) -> list[GateResult]:
    """Return a failed, not required result for each constraint whose outputs got worse; see `Validity`."""
    found = []
    for constraint, (bad_b, n_b, bad_c, n_c) in counts.items():
        if not n_b or not n_c or bad_c / n_c - bad_b / n_b <= VALIDITY_MARGIN:
            continue
        alpha = VALIDITY_ALPHA / len(CONSTRAINTS)
        bounds = difference_bounds(bad_b, n_b, bad_c, n_c, alpha=alpha)
        any_harm = difference_e_value(bad_b, n_b, bad_c, n_c, margin=0.0)
        if bounds.low <= VALIDITY_MARGIN or (stop_alpha and any_harm < 1.0 / stop_alpha):
            continue
        cut = Cut(Dimension.CONSTRAINT, constraint.value)
        found.append(
            GateResult(
                gate=f"valid outputs in {cut}",
                metric=Metric.INVALID_OUTPUT_RATE,
                question=Question.VETO,
                cut=str(cut),
                verdict=Verdict.FAIL,
                n_baseline=n_b,
                n_candidate=n_c,
                value=bad_c / n_c - bad_b / n_b,
                interval=bounds,
                margin=VALIDITY_MARGIN,
                reason=(
                    f"{1.0 - bad_c / n_c:.1%} of the outputs are valid, {1.0 - bad_b / n_b:.1%} with the baseline: "
                    f"worse by more than {VALIDITY_MARGIN:.0%} is shown"
                ),
                required=False,
            )
        )
    return found
