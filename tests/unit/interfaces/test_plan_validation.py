"""The table of a validation."""

import io
import re
from itertools import pairwise

import pytest
from rich.console import Console

from trimtab.interfaces.plan_validation import print_validation
from trimtab.planning.validate import VERDICT_ROWS, Part, Score, Validation

LONG = "h200_sxm/sglang/Qwen/Qwen3-235B-A22B-Instruct-2507-FP8-with-a-name-beyond-any-terminal"


def part(rows: int, right: float | None, *, few: bool = False) -> Part:
    score = Score(
        rows=rows, coverage=100.0, tpot_mdape=8.25, tpot_p90=139.54, ttft_mdape=194.23,
        ttft_p90=1284.6, interval_cover=1.0,
    )  # fmt: skip
    return Part(
        k0=score,
        k2=score,
        k4=Score(rows=0, coverage=100.0) if few else score,
        decisions=3,
        right_split=right,
        regret=0.125,
        right_split_2=1.0,
        regret_2=0.05,
        few_rows=few,
    )


def printed(width: int) -> str:
    groups = {"h100_sxm/vllm/m": part(7, None, few=True), LONG: part(1836, 1.0)}
    text = io.StringIO()
    found = Validation(overall=part(1836, 0.625), groups=groups, seed=3)
    print_validation(found, Console(file=text, width=width))
    return text.getvalue()


def test_table_shows_every_group_and_a_dash_for_the_unknown() -> None:
    """Everything, each group, percent throughout, and what has no row is a dash, not a zero."""
    lines = printed(200).splitlines()
    below = {line.split(" (")[0]: after for line, after in pairwise(lines)}
    assert below["everything"].split()[:2] == ["1836", "8.2"]
    assert "62" in below["everything"].split()
    assert below["h100_sxm/vllm/m"].split().count("-") == 6
    assert "seed 3" in lines[0]


@pytest.mark.parametrize("width", [80, 100, 160])
def test_no_figure_is_broken_on_any_usual_terminal(width: int) -> None:
    """A group's figures are one line under its name, under their heads; only names may be cut in two."""
    lines = printed(width).splitlines()
    rows = [line for line in lines if re.fullmatch(r"[-\d. ]+", line)]
    assert [len(row.split()) for row in rows] == [14, 14, 14]
    heads = next(line for line in lines if line.startswith("rows"))
    assert len(heads.split()) == 14
    assert {len(row) for row in rows} == {len(heads)}
    assert max(map(len, lines)) <= width


def test_small_groups_and_figures_in_sample_are_said() -> None:
    """A median of few rows is no verdict, and fitted rows are no proof."""
    text = " ".join(printed(80).split())
    assert f"h100_sxm/vllm/m (0 scored at k4, under {VERDICT_ROWS}: no verdict)" in text
    assert "k0 is in-sample" in text
