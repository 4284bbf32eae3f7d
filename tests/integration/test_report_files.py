"""The report's files: whole or not there, readable back, and the printed summary."""

import io
import stat
from pathlib import Path

import msgspec
import pytest
from result_kit import ROUTING, result
from rich.console import Console

from trimtab.interfaces import report
from trimtab.interfaces.report import ReportError, print_summary, write_report
from trimtab.runtime.result import TuneResult


def test_both_files_are_written_and_result_json_reads_back(tmp_path: Path) -> None:
    """result.json is the result, field for field; nothing else is left in the folder."""
    paths = write_report(result(), tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted(paths)
    back = msgspec.json.decode((tmp_path / "result.json").read_bytes(), type=TuneResult)
    assert back == result()
    assert [stat.S_IMODE(path.stat().st_mode) for path in paths] == [0o644, 0o644]


def test_result_json_has_the_promised_fields(tmp_path: Path) -> None:
    """Scripts that read result.json find these names."""
    write_report(result(), tmp_path)
    found = msgspec.json.decode((tmp_path / "result.json").read_bytes())
    for run in (found["baseline"], found["final"]):
        assert {"n", "ttft_ms", "tpot_ms", "output_tokens_per_s", "prompt_tokens"} <= set(run)
        assert {"cached_tokens", "accepted_per_step", "output_share_by_replica"} <= set(run)
        assert {"mean", "p50", "p95"} <= set(run["ttft_ms"])
    assert {"diagnoses", "budgets", "levers", "triggers", "ledger"} <= set(found)


def test_failure_half_way_leaves_the_old_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that fills up while writing costs the new report, never the old one."""
    write_report(result(), tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(report.os, "fsync", full)
    other = msgspec.structs.replace(result(), workload="chat")
    with pytest.raises(ReportError, match=r"report\.html cannot be written: No space left"):
        write_report(other, tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_missing_folder_is_named(tmp_path: Path) -> None:
    """The error says which file could not be written."""
    with pytest.raises(ReportError, match=r"no/report\.html cannot be written"):
        write_report(result(), tmp_path / "no")


def test_summary_tells_outcome_effect_trigger_and_ledger() -> None:
    """What is printed at the end answers: what changed, which lever, why, was it taken back."""
    file = io.StringIO()
    print_summary(result(), Console(file=file, width=160))
    told = file.getvalue()
    for part in (
        "TTFT, mean",
        f"{ROUTING}: adopted",
        "0.58 of the baseline (90% interval 0.5 to 0.7, n=150 against 140, 9 units)",
        "refused for label=ask",
        "fired at 420 s (5.2 against 4), recovered at 455 s",
        "2412 events, verified",
    ):
        assert part in told
