"""What a simulation says beside its figures, as tables in words: hand-overs, roles, drafts, the rollout's course."""

from collections import Counter
from collections.abc import Callable, Sequence

import msgspec

from trimtab.core.narrate_words import UNKNOWN
from trimtab.interfaces.simulate_words import Read, cell, total
from trimtab.sim.compare import Comparison
from trimtab.sim.figures import BreakEven, RoleFigures, SpeculationFigures, TransferFigures
from trimtab.sim.measured import Regime
from trimtab.sim.regimes import BEYOND, extrapolated, pooled
from trimtab.sim.rollout import RolloutCourse
from trimtab.sim.run import SimResult

GIGA = 1e9


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """A table with its heading and a note under it."""

    anchor: str
    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


Row = tuple[str, str, Read]


def _of_transfers(read: Callable[[TransferFigures], float | None]) -> Read:
    return lambda run: None if run.transfers is None else read(run.transfers)


def _of_roles(read: Callable[[RoleFigures], float | None]) -> Read:
    return lambda run: None if run.roles is None else read(run.roles)


def _of_speculation(read: Callable[[SpeculationFigures], float | None]) -> Read:
    return lambda run: None if run.speculation is None else read(run.speculation)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


_TRANSFERS: tuple[Row, ...] = (
    ("hand-overs", "{:,.0f}", _of_transfers(lambda one: float(one.moved))),
    (
        "part of decisions",
        "{:.1%}",
        _of_transfers(lambda one: one.moved / max(1, sum(one.reasons.values()))),
    ),
    ("transfer p50", "{:,.1f} ms", _of_transfers(lambda one: one.ms.p50)),
    ("transfer p95", "{:,.1f} ms", _of_transfers(lambda one: one.ms.p95)),
    ("moved", "{:,.1f} GB", _of_transfers(lambda one: one.bytes / GIGA)),
    ("given up", "{:,.0f}", _of_transfers(lambda one: float(sum(one.failures.values())))),
    ("prediction error", "{:.0%}", _of_transfers(lambda one: one.error_mean)),
)
_ROLES: tuple[Row, ...] = (
    ("prefill replicas, mean", "{:,.1f}", _of_roles(lambda one: _mean(one.prefill))),
    ("prefill replicas, most", "{:,.0f}", _of_roles(lambda one: max(one.prefill, default=0))),
    ("prefill replicas, least", "{:,.0f}", _of_roles(lambda one: min(one.prefill, default=0))),
    ("role changes", "{:,.0f}", _of_roles(lambda one: float(len(one.changes)))),
    ("changes a replica and hour", "{:.2f}", _of_roles(lambda one: one.changes_per_replica_hour)),
)


_COST: tuple[Row, ...] = (
    ("replica-hours", "{:,.2f}", lambda run: run.replica_hours),
    ("price", "{:,.2f}", lambda run: run.cost),
    ("per million output tokens", "{:,.3f}", lambda run: run.cost_per_million_output_tokens),
    ("per 1,000 good requests", "{:,.3f}", lambda run: run.cost_per_thousand_good),
)
_OF_WHAT = (
    "Of ready replicas over the whole run, its first and last seconds too, in the unit of price_per_hour; tokens and "
    "good requests are those that finished."
)


def _share(regime: Regime) -> Read:
    return lambda run: sum(one.share for one in run.regimes if one.regime is regime)


_REGIMES: tuple[Row, ...] = tuple((one.value, "{:.1%}", _share(one)) for one in Regime)
_SPECULATION: tuple[Row, ...] = (
    ("accepted of drafted", "{:.1%}", _of_speculation(lambda one: one.acceptance)),
    ("coverage", "{:.1%}", _of_speculation(lambda one: one.coverage)),
    ("depth, mean", "{:.2f}", _of_speculation(lambda one: _mean(one.depth))),
    ("depth changes", "{:,.0f}", _of_speculation(lambda one: float(one.depth_changes))),
)


def parts_of(found: Comparison) -> tuple[Part, ...]:
    """Return what there is to say, in order; nothing of sections that the scenario does not have."""
    parts = [
        _compared(found, "cost", "Cost", _COST, _OF_WHAT),
        _compared(found, "transfers", "Hand-overs", _TRANSFERS, _reasons(found)),
        _compared(found, "roles", "Roles", _ROLES, _moves(found)),
        _compared(found, "speculation", "Speculation", _SPECULATION, _break_evens(found)),
        _compared(found, "regimes", "Regimes of the engine model", _REGIMES, _beyond(found)),
    ]
    first = [run for run in found.runs if run.seed == found.seeds[0]]
    parts += [_rollout(found, run, run.rollout) for run in first if run.rollout is not None]
    return tuple(part for part in parts if part is not None)


def _compared(
    found: Comparison, anchor: str, title: str, rows: Sequence[Row], note: str
) -> Part | None:
    if all(getattr(run, anchor) is None for run in found.runs):
        return None
    by_policy = [_runs(found, policy) for policy in found.policies]
    return Part(
        anchor=anchor,
        title=title,
        heads=("", *found.policies),
        rows=tuple(
            (name, *(cell(runs, form, read) for runs in by_policy)) for name, form, read in rows
        ),
        note=note,
    )


def _runs(found: Comparison, policy: str) -> list[SimResult]:
    return [run for run in found.runs if run.policy == policy]


def _reasons(found: Comparison) -> str:
    """Return why prompts went where, of each policy over all seeds."""
    told = []
    for policy in found.policies:
        mine = [run.transfers for run in found.runs if run.policy == policy and run.transfers]
        reasons = total(one.reasons for one in mine)
        failures = total(one.failures for one in mine)
        said = ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in reasons.items())
        lost = "".join(f"; {cause}: {count:,}" for cause, count in failures.items())
        if said:
            told.append(f"{policy}: {said}{lost}")
    return ". ".join(told)


def _moves(found: Comparison) -> str:
    told = []
    for policy in found.policies:
        mine = [run.roles for run in found.runs if run.policy == policy and run.roles]
        counts = Counter(
            f"{move.action.value} ({move.reason.value})" for one in mine for move in one.moves
        )
        if counts:
            said = ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in counts.items())
            told.append(f"{policy}: {said}")
    return ". ".join(told)


def _beyond(found: Comparison) -> str:
    """Return what was simulated and never measured, of each policy; said once where it is the same of all."""
    told = {
        policy: said
        for policy in found.policies
        if (said := extrapolated(pooled([one.regimes for one in _runs(found, policy)]))) is not None
    }
    if not told:
        return ""
    if len(set(told.values())) == 1 and len(told) == len(found.policies):
        return next(iter(told.values()))
    begin = BEYOND if all(said.startswith(BEYOND) for said in told.values()) else ""
    return begin + "; ".join(
        f"{policy}: {said.removeprefix(begin)}" for policy, said in told.items()
    )


def _break_evens(found: Comparison) -> str:
    for run in found.runs:
        if run.speculation is not None and run.speculation.break_even:
            return "By the model drafts pay: " + "; ".join(
                _break_even(one) for one in run.speculation.break_even
            )
    return ""


def _break_even(one: BreakEven) -> str:
    label = one.label or "all labels"
    if one.batch is None:
        return f"{label}, depth {one.depth}: at every batch looked at"
    if one.batch == 0.0:
        return f"{label}, depth {one.depth}: at no batch"
    return f"{label}, depth {one.depth}: up to a batch of {one.batch:.0f}"


def _rollout(found: Comparison, run: SimResult, course: RolloutCourse) -> Part:
    rows = tuple(
        (
            f"{move.at_s:,.0f}",
            move.state.value.replace("_", " "),
            f"{move.share:.0%}",
            UNKNOWN if move.verdict is None else move.verdict.value,
            move.reason,
        )
        for move in course.moves
    )
    ends = [
        f"seed {one.seed}: {one.rollout.state.value.replace('_', ' ')}"
        for one in found.runs
        if one.policy == run.policy and one.rollout is not None
    ]
    left = f"; not asked in a simulation: {', '.join(course.not_asked)}" if course.not_asked else ""
    note = (
        f"{'; '.join(ends)}. {course.looks:,} looks, {course.exposed:,} requests met the candidate, "
        f"{course.triggers_fired} trigger firings, {course.events:,} events{left}."
    )
    return Part(
        anchor=f"rollout-{found.policies.index(run.policy)}",
        title=f"Rollout of {course.lever} over {run.policy} (seed {run.seed})",
        heads=("at s", "state", "share", "verdict", "reason"),
        rows=rows,
        note=note,
    )
