"""The table of a validation."""

import io

from rich.console import Console

from trimtab.interfaces.plan_validation import print_validation
from trimtab.planning.validate import Part, Score, Validation


def part(rows: int, right: float | None) -> Part:
    score = Score(rows=rows, coverage=100.0, tpot_mdape=8.25, ttft_mdape=21.0, interval_cover=0.9)
    return Part(
        k0=score,
        k2=score,
        k4=Score(rows=0, coverage=100.0),
        decisions=3,
        right_split=right,
        regret=0.125,
        right_split_2=0.8,
        regret_2=0.05,
    )


def test_table_shows_every_group_and_a_dash_for_the_unknown() -> None:
    """Everything, each group, percent throughout, and what has no row is a dash, not a zero."""
    text = io.StringIO()
    found = Validation(overall=part(40, 0.625), groups={"h100_sxm/vllm/m": part(7, None)}, seed=3)
    print_validation(found, Console(file=text, width=200))
    lines = text.getvalue().splitlines()
    group = next(line for line in lines if "h100_sxm/vllm/m" in line)
    everything = next(line for line in lines if "everything" in line)
    assert "8.2" in everything
    assert "62" in everything
    assert group.count("-") >= 4
    assert "seed 3" in text.getvalue()
