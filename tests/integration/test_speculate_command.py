"""`trimtab speculate` as a person runs it: files, exit codes, errors; the engines are fakes whose law is known."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from draft_kit import REVISION, FakeStage, Law

from trimtab.core.ports import Clock
from trimtab.interfaces import speculate_cli
from trimtab.interfaces.cli import main
from trimtab.levers.speculation_found import Speculated
from trimtab.rollout.short_record import complete, parse_record
from trimtab.runtime.speculate import Progress, Speculator
from trimtab.runtime.speculate_answer import answer_of
from trimtab.runtime.speculate_ask import SpeculateAsk

CHEAP, DEAR = Law(base=10.0, token=0.2), Law(base=0.1, token=10.0, looking=1.0)


def run(monkeypatch: pytest.MonkeyPatch, folder: Path, law: Law, *more: str) -> Result:
    """Run the command over fake engines of a law, on requests of which some repeat their prompt."""

    class Fake(Speculator):
        def __init__(self, ask: SpeculateAsk, clock: Clock, on_progress: Progress) -> None:
            super().__init__(ask, clock, on_progress)
            self.asked = ask

        async def run(self) -> Speculated:
            measured = await self.measure(FakeStage(law))  # type: ignore[arg-type]
            return answer_of(measured, self.asked, REVISION, machine="here", took_s=1.0)

    monkeypatch.setattr(speculate_cli, "Speculator", Fake)
    requests = folder / "requests.jsonl"
    code = [" ".join(f"code{n}_{at}" for at in range(60)) for n in range(4)]
    lines = [{"prompt": f"repeat EDIT {each} END now", "label": "edit"} for each in code]
    lines += [{"prompt": f"tell me of {n} in other words", "label": "chat"} for n in range(3)]
    requests.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    given = [] if "--requests" in more else ["--requests", str(requests)]
    words = ["speculate", *given, "--batches", "1,2,4", "--depths", "4,8", *more]
    return CliRunner().invoke(main, [*words, "--report", str(folder / "out")])


def test_what_pays_ends_as_a_record_that_a_rollout_takes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Exit code 0; page, JSON and record lie in the folder; the record completes for a plain fleet."""
    result = run(monkeypatch, tmp_path, CHEAP)
    assert result.exit_code == 0, result.output
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"index.html", "speculated.json", "lever.toml"}
    text = (tmp_path / "out" / "lever.toml").read_text()
    record = complete(parse_record(text, source="lever.toml"), baseline=REVISION, now_s=0.0)
    assert "label=edit" in {str(cut) for cut in record.cuts}
    assert "rollout propose" in result.output


def test_what_does_not_pay_ends_with_four_and_leaves_no_record(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Not even the one of an earlier run."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "lever.toml").write_text("old")
    result = run(monkeypatch, tmp_path, DEAR)
    assert result.exit_code == 4, result.output
    assert not (tmp_path / "out" / "lever.toml").exists()
    assert "it stays off" in result.output


def test_json_is_the_whole_answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What is printed is what is written."""
    result = run(monkeypatch, tmp_path, CHEAP, "--json")
    written = json.loads((tmp_path / "out" / "speculated.json").read_text())
    assert json.loads(result.stdout) == written
    assert written["judged_label"] == "edit"


def test_broken_request_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One clear line with the file and the line, and exit code 1."""
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"prompt": "a"}\n{"prompt": 7}\n')
    result = run(monkeypatch, tmp_path, CHEAP, "--requests", str(broken))
    assert result.exit_code == 1
    assert "broken.jsonl, line 2" in result.output


@pytest.mark.parametrize("option", [("--batches", "0"), ("--depths", "1"), ("--rounds", "1")])
def test_numbers_out_of_bounds_are_wrong_usage(option: tuple[str, str], tmp_path: Path) -> None:
    """Exit code 2, before anything starts."""
    result = CliRunner().invoke(main, ["speculate", *option, "--report", str(tmp_path / "out")])
    assert result.exit_code == 2
    assert not (tmp_path / "out").exists()
