"""Shows a validation of the planner's estimates: errors by hardware, engine and model, and layouts chosen."""

from rich.console import Console
from rich.table import Table

from trimtab.planning.validate import Part, Score, Validation

UNITS = (
    "coverage, mdape and p90 in percent; covers, right_split and regret are fractions; "
    "kN: N measured rows of the group calibrate and are not scored"
)
_COLUMNS = (
    "hardware, engine, model",
    "rows",
    "TPOT k0",
    "k2",
    "k4",
    "p90 k4",
    "TTFT k0",
    "k2",
    "k4",
    "p90 k4",
    "cover k4",
    "right",
    "regret",
    "right, 2 measured",
    "regret",
)


def print_validation(validation: Validation, console: Console) -> None:
    """Print everything first, then each group; numbers are percent, a dash is unknown."""
    table = Table(title=f"Estimates against measured layouts (seed {validation.seed})")
    for number, column in enumerate(_COLUMNS):
        table.add_column(column, justify="right" if number else "left", overflow="fold")
    table.add_row("everything", *_cells(validation.overall), style="bold")
    for label, part in validation.groups.items():
        table.add_row(label, *_cells(part))
    console.print(table)
    console.print(f"Shown in percent; as JSON: {UNITS}.", highlight=False)
    for label, why in validation.refused.items():
        console.print(f"left out: {label}: {why}", highlight=False, markup=False)


def _cells(part: Part) -> list[str]:
    k0, k2, k4 = part.k0, part.k2, part.k4
    return [
        str(k0.rows),
        *(_percent(each.tpot_mdape) for each in (k0, k2, k4)),
        _percent(k4.tpot_p90),
        *(_percent(each.ttft_mdape) for each in (k0, k2, k4)),
        _percent(k4.ttft_p90),
        _share(_cover(k4)),
        *(_share(each) for each in (part.right_split, part.regret)),
        *(_share(each) for each in (part.right_split_2, part.regret_2)),
    ]


def _cover(score: Score) -> float | None:
    return score.interval_cover


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100.0 * value:.0f}"
