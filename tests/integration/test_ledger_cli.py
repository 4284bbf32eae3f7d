"""`trimtab ledger`: what each command prints, and how it ends."""

import json
import sqlite3
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from events_kit import LEVER, OTHER, SteppingClock, story

from trimtab.interfaces.ledger_cli import ledger as command
from trimtab.runtime.ledger import SqliteLedger


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger with a lever's life in it."""
    made = tmp_path_factory.mktemp("ledger") / "ledger.sqlite"
    sink = SqliteLedger(made, clock=SteppingClock())
    ids: list[str] = []
    for event, cause in story():
        ids.append(sink.append(event, cause_id=None if cause is None else ids[cause]))
    sink.close()
    return made


def run(path: Path, *arguments: str) -> Result:
    return CliRunner().invoke(command, ["--ledger", str(path), *arguments])


def test_list_prints_the_newest_events_in_order(path: Path) -> None:
    """A line an event: seq, id, time, kind, first words."""
    lines = run(path, "list", "--limit", "3").output.splitlines()
    assert [line.split("\t")[0] for line in lines] == ["23", "24", "25"]
    _, event_id, when, kind, words = lines[0].split("\t")
    assert (len(event_id), when[:4], kind) == (16, "2027", "trigger_moved")
    assert words.startswith("Trigger batch over break-even fired")


def test_list_is_narrowed_by_kind_and_lever(path: Path) -> None:
    """Both together mean both."""
    arguments = ("list", "--kind", "lever_proposed", "--lever", OTHER, "--json")
    (line,) = run(path, *arguments).output.splitlines()
    found = json.loads(line)
    assert (found["seq"], found["event"]["kind"]) == (22, "lever_proposed")


def test_list_of_nothing_says_so(path: Path) -> None:
    """An empty answer is not an empty screen."""
    assert run(path, "list", "--kind", "nothing").output == "No such events.\n"


def test_show_prints_words_and_the_event_itself(path: Path) -> None:
    """One event by its seq: where it stands, what it says, all its fields."""
    shown = run(path, "show", "18")
    assert "Effect on ttft_ms, all traffic: 0.58 of the baseline" in shown.output
    assert '"n_candidate": 150' in shown.output
    assert json.loads(run(path, "show", "18", "--json").output)["seq"] == 18


def test_chain_tells_the_whole_story_in_order(path: Path) -> None:
    """From the reading to the trigger, everything that belongs to the lever and nothing else."""
    told = run(path, "chain", LEVER).output
    parts = [
        f"Lever {LEVER}: 18 events",
        "skipped_lost_share = 61%",
        "Diagnosis (baseline)",
        f"Chosen: {LEVER}",
        f"Proposed {LEVER}",
        "Budgets, predicted",
        "Look 3",
        "from canary to ramping",
        "Effect on ttft_ms",
        "let go",
    ]
    places = [told.find(part) for part in parts]
    assert -1 not in places
    assert places == sorted(places)
    assert OTHER not in told


def test_chain_is_found_by_the_id_of_any_of_its_events(path: Path) -> None:
    """Whoever has an event's id gets to its lever."""
    assert run(path, "chain", "14").output == run(path, "chain", LEVER).output


def test_chain_as_json_has_one_event_a_line(path: Path) -> None:
    """For other tools."""
    lines = run(path, "chain", LEVER, "--json").output.splitlines()
    assert [json.loads(line)["seq"] for line in lines][:3] == [1, 3, 5]


def test_unknown_names_end_with_1_and_say_what_there_is(path: Path) -> None:
    """An unknown lever lists the known ones; an unknown event says how to find one."""
    lever = run(path, "chain", "nobody")
    assert (lever.exit_code, f"{OTHER}, {LEVER}" in lever.output) == (1, True)
    event = run(path, "show", "999")
    assert (event.exit_code, "trimtab ledger list" in event.output) == (1, True)


def test_missing_ledger_ends_with_2_and_names_the_option(tmp_path: Path) -> None:
    """A wrong path is wrong usage."""
    missing = run(tmp_path / "none.sqlite", "verify")
    assert (missing.exit_code, "--ledger PATH" in missing.output) == (2, True)


def test_verify_says_how_much_is_whole(path: Path) -> None:
    """Exit code 0, the number of events and the head."""
    found = run(path, "verify")
    assert (found.exit_code, "25 events are whole, up to 25" in found.output) == (0, True)
    assert json.loads(run(path, "verify", "--json").output)["bad_seq"] is None


def test_verify_ends_with_1_and_names_the_place(path: Path, tmp_path: Path) -> None:
    """A broken ledger is an error that says where."""
    broken = tmp_path / "broken.sqlite"
    broken.write_bytes(path.read_bytes())
    db = sqlite3.connect(broken)
    db.executescript(
        "DROP TRIGGER events_are_never_changed; UPDATE events SET at_s = 0 WHERE seq = 9"
    )
    db.close()
    found = run(broken, "verify")
    assert (found.exit_code, f"{broken}: broken at event 9:" in found.output) == (1, True)
    assert json.loads(run(broken, "verify", "--json").output)["bad_seq"] == 9


def test_export_gives_every_event_and_every_chain(path: Path, tmp_path: Path) -> None:
    """jsonl has all events; markdown has a heading per lever and its sentences."""
    lines = run(path, "export").output.splitlines()
    assert [json.loads(line)["seq"] for line in lines] == list(range(1, 26))
    out = tmp_path / "story.md"
    done = run(path, "export", "--format", "markdown", "--out", str(out))
    text = out.read_text()
    assert (done.exit_code, done.output) == (0, f"wrote {out}\n")
    assert f"## {LEVER}" in text
    assert "  - premise: 61% of prompt tokens" in text
    assert [each.name for each in tmp_path.iterdir()] == ["story.md"]


def test_export_into_a_missing_folder_ends_with_2(path: Path, tmp_path: Path) -> None:
    """The file that cannot be written is named."""
    out = tmp_path / "no" / "out.jsonl"
    found = run(path, "export", "--out", str(out))
    assert (found.exit_code, f"{out} cannot be written" in found.output) == (2, True)


def test_path_comes_from_the_environment_or_the_configuration(path: Path, tmp_path: Path) -> None:
    """Without --ledger the path is that of TRIMTAB_LEDGER, else the configuration's."""
    config = tmp_path / "trimtab.toml"
    config.write_text(f'[ledger]\npath = "{path}"\n')
    runner = CliRunner(env={"TRIMTAB_LEDGER": None})
    found = runner.invoke(command, ["--config", str(config), "verify"])
    assert (found.exit_code, str(path) in found.output) == (0, True)
    found = runner.invoke(command, ["verify"], env={"TRIMTAB_LEDGER": str(path)})
    assert (found.exit_code, str(path) in found.output) == (0, True)


def test_configuration_with_an_unknown_key_is_refused_with_its_path(tmp_path: Path) -> None:
    """The error names the file and the key."""
    config = tmp_path / "trimtab.toml"
    config.write_text("[ledger]\npat = 1\n")
    found = CliRunner().invoke(command, ["--config", str(config), "verify"])
    assert (found.exit_code, "unknown field `pat` - at `$.ledger`" in found.output) == (1, True)
