"""A table of measured layouts, validated through the shell with estimators of its own."""

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from trimtab.core.layout import (
    Demand,
    EstimateSource,
    Expected,
    Layout,
    MemoryFit,
    PlanInputError,
    Span,
)
from trimtab.interfaces.cli import main
from trimtab.planning.measured import COLUMNS, Group
from trimtab.planning.plan_ports import Estimator
from trimtab.runtime.plan_validate import estimate_rows, read_table, validate_table
from trimtab.runtime.served_sources import SourceError


class TwiceTooFast:
    """Expects half of 8 ms per token and half of 100 ms for the first, whatever is asked."""

    def fit(self, layout: Layout, demand: Demand) -> MemoryFit:
        raise AssertionError("a validation asks for times only")

    def expected(self, layout: Layout, demand: Demand) -> Expected:
        if layout.tp == 8:
            raise PlanInputError("layout", "unknown")
        return Expected(
            layout=layout,
            batch=demand.concurrency or 1.0,
            ttft_ms=Span(value=50.0),
            tpot_ms=Span(value=4.0),
            queue_ms=0.0,
            prefill_ms=50.0,
            step_ms=4.0,
            output_tokens_per_s=1.0,
            communication_share=None,
            source=EstimateSource.ROOFLINE,
        )


def build(group: Group, precision: str) -> Estimator:
    if group.model == "nobody/knows":
        raise PlanInputError("model", "unknown", ("m",))
    return TwiceTooFast()


def write(path: Path, models: tuple[str, ...], sizes: tuple[int, ...] = (1, 2, 4)) -> Path:
    lines = [",".join(COLUMNS)]
    for model in models:
        for tp in sizes:
            for clients in (4, 8, 16, 32):
                name = f"{model}-{tp}-{clients}"
                lines.append(
                    f"{name},vllm,1,{model},h100_sxm,fp8,1024,256,{clients},{tp},{tp},1,1,1,100,8"
                )
    path.write_text("\n".join(lines) + "\n")
    return path


def test_errors_shrink_with_measured_rows(tmp_path: Path) -> None:
    """An estimate of half is 50% off uncorrected, up to the prior's bias, and nearly right after four rows."""
    found = validate_table(write(tmp_path / "t.csv", ("m",)), 1, build).overall
    assert found.k0.tpot_mdape == pytest.approx(50.0, abs=6.0)
    assert found.k4.tpot_mdape is not None
    assert found.k4.tpot_mdape < 15.0


def test_unknown_models_and_layouts_lower_the_coverage_only(tmp_path: Path) -> None:
    """What cannot be estimated is counted and said, and stops nothing."""
    path = write(tmp_path / "t.csv", ("m", "nobody/knows"), (1, 2, 4, 8))
    estimated = estimate_rows(read_table(path), build)
    assert len(estimated.runs) == 12
    assert list(estimated.refused) == ["h100_sxm/vllm/nobody/knows fp8"]
    found = validate_table(path, 1, build)
    assert found.overall.k0.coverage == 37.5
    assert list(found.refused) == ["h100_sxm/vllm/nobody/knows fp8"]


def test_missing_file_is_said(tmp_path: Path) -> None:
    """A path that is no readable file is one error that names it."""
    with pytest.raises(SourceError, match="absent"):
        validate_table(tmp_path / "absent.csv", 1, build)


def test_command_prints_the_validation_as_json(tmp_path: Path) -> None:
    """The command asks its own estimator, here a roofline, and prints the agreed fields."""
    path = write(tmp_path / "t.csv", ("meta-llama/Llama-3.1-8B-Instruct",), (1, 2))
    path.write_text(path.read_text().replace("h100_sxm", "RTX 4090"))
    result = CliRunner().invoke(main, ["plan", "--validate", str(path), "--json", "--seed", "3"])
    assert result.exit_code == 0, result.output
    found = msgspec.json.decode(result.stdout)
    overall = found["overall"]
    assert [overall[k]["rows"] for k in ("k0", "k2", "k4")] == [8, 6, 4]
    assert {
        "coverage",
        "tpot_mdape",
        "tpot_p90",
        "ttft_mdape",
        "ttft_p90",
        "interval_cover",
    } <= set(overall["k4"])
    assert {"right_split", "regret", "right_split_2", "regret_2"} <= set(overall)
    assert list(found["groups"]) == ["RTX 4090/vllm/meta-llama/Llama-3.1-8B-Instruct"]
    assert found["seed"] == 3


def test_command_names_the_missing_column(tmp_path: Path) -> None:
    """A table that is none ends with code 3 and one line that names the column."""
    path = tmp_path / "t.csv"
    path.write_text("id,engine\n1,vllm\n")
    result = CliRunner().invoke(main, ["plan", "--validate", str(path)])
    assert (result.exit_code, "engine_version" in result.output) == (3, True)


def test_public_table_is_read_whole(public_data: Path) -> None:
    """Every row of the table is read, and clients of attention groups are those of the whole server."""
    rows = read_table(public_data / "serving" / "measured_layouts.csv")
    groups = [row for row in rows if row.load.layout.attention_dp > 1]
    assert (len(rows), len(groups)) == (1836, 94)
    assert max(row.load.clients for row in groups) == 2048.0
