"""Validates estimates against measured layouts: errors by hardware, engine and model, before and after calibration.

For k of 0, 2 and 4: in every group k rows, drawn by a seed, calibrate; they and rows that repeat the very same run
(same load, times equal to half a percent, such as one run filed twice) are not scored. Nothing crosses from one
group to another. Errors are |predicted - measured| / measured in percent: the median and the 90th percentile over
scored rows. Cover is the fraction of scored measured times, TTFT and TPOT alike, inside their 90% intervals. Rows
without any estimate are counted in `coverage` and nowhere else.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from random import Random
from typing import Final

import msgspec

from trimtab.core.layout import Span
from trimtab.planning.calibrate import Run, calibrate
from trimtab.planning.correction import Phase, Prior
from trimtab.planning.intervals import Widths
from trimtab.planning.measured import Group, MeasuredLayout
from trimtab.planning.measured_errors import PRIORS, WIDTHS
from trimtab.planning.validate_choice import Decision, decide_all

CALIBRATING: Final = (0, 2, 4)
VERDICT_ROWS: Final = 20
"""Of fewer scored rows no median is a verdict: nine times in ten it lies anywhere from their third tenth to their
seventh, and a 90th percentile is hardly below the largest."""

PROPOSED: Final = 2
NOTES: Final = (
    "On the public table of docs/plan-accuracy.md k0 is in-sample: what servers add and the numbers of priors and "
    "intervals were fitted to its rows. Figures of models that were left out are there.",
    f"No verdict holds on a group of which fewer than {VERDICT_ROWS} rows are scored (few_rows).",
)
_SAME_RUN: Final = 0.005


class Scored(msgspec.Struct, frozen=True, kw_only=True):
    """One scored run, what was predicted of each phase, and whether a bound cut a correction."""

    run: Run
    predicted: Mapping[Phase, Span]
    pegged: bool

    def error(self, phase: Phase) -> float:
        """Return |predicted - measured| / measured of a phase, in percent."""
        measured = self.run.measured_ms(phase)
        return 100.0 * abs(self.predicted[phase].value - measured) / measured

    def covered(self, phase: Phase) -> bool:
        """Say whether the measured time lies in the predicted interval."""
        inside = self.predicted[phase]
        assert inside.low is not None
        assert inside.high is not None
        return inside.low <= self.run.measured_ms(phase) <= inside.high


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """Errors with one number of calibrating rows, in percent; covers and `pegged` are fractions; None without a row.

    `rows`: scored ones; `coverage`: percent of the table's rows that had an estimate; `pegged`: part of the scored
    rows whose correction a bound cut.
    """

    rows: int
    coverage: float
    tpot_mdape: float | None = None
    tpot_p90: float | None = None
    ttft_mdape: float | None = None
    ttft_p90: float | None = None
    interval_cover: float | None = None
    tpot_cover: float | None = None
    ttft_cover: float | None = None
    pegged: float | None = None


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """How well layouts were chosen: decisions, the fraction that was right, and the mean regret."""

    decisions: int
    right: float | None = None
    regret: float | None = None


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """The validation of a group, or of everything. `right_split_2`, `regret_2`: with two proposed measurements.

    `few_rows`: some of its scores rest on fewer than `VERDICT_ROWS` rows, and no verdict holds.
    """

    k0: Score
    k2: Score
    k4: Score
    decisions: int
    right_split: float | None
    regret: float | None
    right_split_2: float | None
    regret_2: float | None
    few_rows: bool = False


class Validation(msgspec.Struct, frozen=True, kw_only=True):
    """A whole validation; `groups` by their label, `seed` drew the calibrating rows.

    `refused`: why a row could not be read, or a group at a precision not estimated, by its label. `notes`: what the
    figures do not say.
    """

    overall: Part
    groups: Mapping[str, Part]
    seed: int
    refused: Mapping[str, str] = {}
    notes: tuple[str, ...] = NOTES


def validate(
    rows: Sequence[MeasuredLayout],
    runs: Sequence[Run],
    seed: int,
    *,
    priors: Mapping[Phase, Prior] = PRIORS,
    widths: Widths = WIDTHS,
) -> Validation:
    """Validate estimates: `rows` is the whole table, `runs` those of them that have an estimate."""
    of_group: dict[Group, list[Run]] = defaultdict(list)
    for run in runs:
        of_group[run.row.group].append(run)
    counts: dict[Group, int] = defaultdict(int)
    for row in rows:
        counts[row.group] += 1
    scored = {
        k: {
            group: _score_group(of_group[group], k, priors, widths, seed)
            for group in sorted(counts)
        }
        for k in CALIBRATING
    }
    plain = decide_all(runs, priors, 0)
    helped = decide_all(runs, priors, PROPOSED)

    def part(groups: Sequence[Group]) -> Part:
        chosen = set(groups)
        total = sum(counts[group] for group in groups)
        known = sum(len(of_group[group]) for group in groups)
        scores = [
            _score([one for group in groups for one in scored[k][group]], known, total)
            for k in CALIBRATING
        ]
        without = _choice([one for one in plain if one.group in chosen])
        with_two = _choice([one for one in helped if one.group in chosen])
        return Part(
            k0=scores[0],
            k2=scores[1],
            k4=scores[2],
            decisions=without.decisions,
            right_split=without.right,
            regret=without.regret,
            right_split_2=with_two.right,
            regret_2=with_two.regret,
            few_rows=min(score.rows for score in scores) < VERDICT_ROWS,
        )

    ordered = sorted(counts)
    return Validation(
        overall=part(ordered),
        groups={group.label: part([group]) for group in ordered},
        seed=seed,
    )


def _score_group(
    runs: Sequence[Run], k: int, priors: Mapping[Phase, Prior], widths: Widths, seed: int
) -> list[Scored]:
    """Return the scored rows of a group; none where it has too few rows to calibrate and to score."""
    if len(runs) <= k:
        return []
    order = sorted(runs, key=lambda run: run.row.id)
    Random(f"{seed}/{order[0].row.group.label}").shuffle(order)
    calibrating, rest = order[:k], order[k:]
    group = order[0].row.group
    fitted = calibrate(group.system, group.engine, calibrating, priors=priors, widths=widths)
    return [
        Scored(
            run=run,
            predicted={
                phase: fitted.span(phase, run.row.load, run.expected_ms(phase)) for phase in Phase
            },
            pegged=any(
                fitted.pegged(phase, run.row.load, run.expected_ms(phase)) for phase in Phase
            ),
        )
        for run in rest
        if not any(_same_run(run.row, seen.row) for seen in calibrating)
    ]


def _same_run(one: MeasuredLayout, other: MeasuredLayout) -> bool:
    same_load = msgspec.structs.replace(one.load, run="") == msgspec.structs.replace(
        other.load, run=""
    )
    return (
        same_load
        and abs(one.tpot_ms / other.tpot_ms - 1.0) <= _SAME_RUN
        and abs(one.ttft_ms / other.ttft_ms - 1.0) <= _SAME_RUN
    )


def _score(scored: Sequence[Scored], known: int, total: int) -> Score:
    coverage = round(100.0 * known / total, 2)
    if not scored:
        return Score(rows=0, coverage=coverage)
    errors = {phase: sorted(one.error(phase) for one in scored) for phase in Phase}
    covers = {phase: sum(one.covered(phase) for one in scored) / len(scored) for phase in Phase}
    return Score(
        rows=len(scored),
        coverage=coverage,
        tpot_mdape=_quantile(errors[Phase.DECODE], 0.5),
        tpot_p90=_quantile(errors[Phase.DECODE], 0.9),
        ttft_mdape=_quantile(errors[Phase.FIRST_TOKEN], 0.5),
        ttft_p90=_quantile(errors[Phase.FIRST_TOKEN], 0.9),
        interval_cover=round(sum(covers.values()) / len(covers), 4),
        tpot_cover=round(covers[Phase.DECODE], 4),
        ttft_cover=round(covers[Phase.FIRST_TOKEN], 4),
        pegged=round(sum(one.pegged for one in scored) / len(scored), 4),
    )


def _quantile(ordered: Sequence[float], share: float) -> float:
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return round(ordered[low] + (ordered[high] - ordered[low]) * (place - low), 2)


def _choice(decisions: Sequence[Decision]) -> Choice:
    if not decisions:
        return Choice(decisions=0)
    return Choice(
        decisions=len(decisions),
        right=round(sum(one.right for one in decisions) / len(decisions), 4),
        regret=round(sum(one.regret for one in decisions) / len(decisions), 4),
    )
