"""`trimtab repeats` as a person runs it: every place of an answer, groups, exit codes, and no text in its output."""

import itertools
import json
import random
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from prompts_kit import chat, words

from trimtab.interfaces.cli import main


def run(folder: Path, lines: Iterable[object], *options: str) -> Result:
    """Write lines to a file and ask what repeats."""
    path = folder / "requests.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return CliRunner().invoke(main, ["repeats", str(path), *options])


def told(folder: Path, lines: Iterable[object], *options: str) -> Mapping:
    done = run(folder, lines, "--json", *options)
    assert done.exit_code in (0, 4), done.output
    return json.loads(done.stdout)


def group(answer: Mapping, name: str) -> Mapping:
    return next(each for each in answer["groups"] if each["name"] == name)


def code(seed: int) -> str:
    """A function of some lines that do not repeat each other."""
    rng = random.Random(seed)
    names = [f"{rng.choice('abcdefghij')}{rng.randrange(10**5)}" for _ in range(40)]
    lines = [
        f"    {one} = {other}({rng.randrange(10**4)})" for one, other in itertools.pairwise(names)
    ]
    return "\n".join(["def work():", *lines])


def edits(count: int) -> list[dict[str, object]]:
    """Requests that ask for a function again with one line changed, and their answers."""
    found = []
    for seed in range(count):
        text = code(seed)
        answer = text.replace("(", "[", 1)
        body = chat(("system", "You edit code."), ("user", f"Change one line:\n{text}"))
        found.append({**body, "label": "edit", "output": answer, "temperature": 0})
    return found


def tales(count: int) -> list[dict[str, object]]:
    """Requests for new text, and their answers."""
    return [
        {**chat(("user", words(900 + seed, 40))), "label": "tale", "output": words(seed, 60), "temperature": 1}
        for seed in range(count)
    ]  # fmt: skip


def test_edits_and_tales_are_told_apart(tmp_path: Path) -> None:
    """By label and by temperature, with exit code 0 and the next step named."""
    done = run(tmp_path, [*edits(8), *tales(8)])
    assert done.exit_code == 0, done.output
    assert "label=edit" in done.output
    assert "trimtab speculate" in done.output
    answer = told(tmp_path, [*edits(8), *tales(8)])
    verdicts = {each["name"]: each["worth"] for each in answer["groups"]}
    assert (verdicts["label=edit"], verdicts["label=tale"]) == ("worth a trial", "leave off")
    assert (verdicts["temperature=0"], verdicts["temperature=sampled"]) == (
        "worth a trial",
        "leave off",
    )
    assert group(answer, "all")["answers"] == 16


def in_response(line: dict[str, object]) -> dict[str, object]:
    text = line.pop("output")
    return {**line, "response": {"choices": [{"message": {"role": "assistant", "content": text}}]}}


def in_batch(line: dict[str, object]) -> dict[str, object]:
    whole = in_response(line)
    body = {name: value for name, value in whole.items() if name != "response"}
    response = {"body": whole["response"]}
    return {"custom_id": "a", "body": body, "response": response, "label": "edit"}


def in_history(line: dict[str, object]) -> dict[str, object]:
    messages, text = line["messages"], line.pop("output")
    assert isinstance(messages, list)
    more = [{"role": "assistant", "content": text}, {"role": "user", "content": "thanks"}]
    return {**line, "messages": [*messages, *more]}


@pytest.mark.parametrize("written", [in_response, in_batch, in_history])
def test_answer_is_found_wherever_it_is_written(tmp_path: Path, written: object) -> None:
    """The same answers at another place cover the same."""
    assert callable(written)
    plain = group(told(tmp_path, edits(6)), "label=edit")
    other = group(told(tmp_path, [written(line) for line in edits(6)]), "label=edit")
    assert other["coverage"]["value"] == pytest.approx(plain["coverage"]["value"])
    assert other["answers"] == 6


def test_answer_of_a_history_counts_once(tmp_path: Path) -> None:
    """Told beside its request and sent again twice by later turns."""
    (line,) = edits(1)
    later = in_history(dict(line))
    found = group(told(tmp_path, [line, later, later]), "all")
    assert (found["requests"], found["answers"]) == (3, 1)


def test_token_ids_are_exact(tmp_path: Path) -> None:
    """Ids of prompt and answer: nothing is guessed."""
    rng = random.Random(1)
    ids = [[rng.randrange(1000) for _ in range(80)] for _ in range(4)]
    lines = [{"prompt": each, "output_ids": each[20:70]} for each in ids]
    answer = told(tmp_path, lines)
    assert answer["exact"] is True
    assert group(answer, "all")["coverage"]["value"] > 0.7


def test_ids_and_text_are_never_compared(tmp_path: Path) -> None:
    """Ids beside a text prompt: its text counts if it is told, else no answer is; the same the other way round."""
    ids = [*range(50)]
    both = [{**line, "output_ids": ids} for line in edits(4)]
    plain = group(told(tmp_path, edits(4)), "all")
    assert group(told(tmp_path, both), "all")["coverage"] == plain["coverage"]
    alone = [{name: each for name, each in line.items() if name != "output"} for line in both]
    turned = [{"prompt": ids, "output": "0 1 2 3 4 5 6 7"}] * 2
    found = told(tmp_path, [*alone, *turned])
    assert (group(found, "all")["requests"], group(found, "all")["answers"]) == (6, 0)
    assert any("6 requests have token ids on one side" in note for note in found["notes"])


def test_ledger_tells_lengths_and_what_was_drafted(tmp_path: Path) -> None:
    """Records hold no text: coverage where drafts were made, else it cannot be told."""
    record = {"segments": [], "tokens": {"output": 100}, "repetition": 0.6, "label": "edit"}
    plain = [{"event": {"kind": "request_served", "record": record}}] * 3
    done = run(tmp_path, [{"event": {"kind": "tick"}}, *plain])
    assert done.exit_code == 4, done.output
    drafted = [
        {"event": {"kind": "request_served", "record": {**record, "drafting": {"drafted": 90, "accepted": 50 + at}}}}
        for at in range(5)
    ]  # fmt: skip
    answer = told(tmp_path, drafted)
    assert (answer["measured"], group(answer, "label=edit")["worth"]) == (True, "worth a trial")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{\n", "line 1"),
        ('{"messages": [], "prompt": "x"}\n', "exactly one of messages (chat) and prompt"),
        ('{"prompt": "x"}\n[]\n', "line 2: no JSON object"),
        ('{"event": {"kind": "request_served"}}\n', "give a request's record"),
    ],
)
def test_broken_line_is_named(tmp_path: Path, text: str, said: str) -> None:
    """One line of error, exit code 3."""
    path = tmp_path / "requests.jsonl"
    path.write_text(text)
    done = CliRunner().invoke(main, ["repeats", str(path)])
    assert (done.exit_code, said in done.output) == (3, True), done.output


def test_no_text_is_printed(tmp_path: Path) -> None:
    """Neither of prompts nor of answers, in words or as JSON."""
    lines = [
        {**chat(("user", "the secret of room 641A")), "output": "it is hidden well", "label": "x"}
    ]
    shown = run(tmp_path, lines * 3).output + run(tmp_path, lines * 3, "--json").output
    assert [word for word in ("secret", "641A", "hidden") if word in shown] == []
