"""`trimtab prompts` as a person runs it: every format of file, exit codes, and no text of a prompt in its output."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from prompts_kit import chat, nonce_at_top, shuffled_tools, words

from trimtab.interfaces.cli import main


def run(folder: Path, lines: Iterable[object], *options: str) -> Result:
    """Write lines to a file and lint it."""
    path = folder / "requests.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return CliRunner().invoke(main, ["prompts", str(path), *options])


def answer(folder: Path, lines: Iterable[object], *options: str) -> Mapping:
    return json.loads(run(folder, lines, "--bytes-per-token", "4", "--json", *options).output)


def test_changing_line_in_one_session(tmp_path: Path) -> None:
    """20 requests that are equal but for five hexadecimal digits: where, how much, the fix, and what will not help."""
    done = run(tmp_path, nonce_at_top(), "--bytes-per-token", "4", "--prefill-tokens-per-s", "1200")
    assert done.exit_code == 1, done.output
    for said in (
        "divergence at token ~40 in system block 0: what changes is 5 hexadecimal digits (20 variants)",
        "Reuse ceiling now: 0.07% (40 tokens a request)",
        "Reuse ceiling after the fix: 100.00%",
        "take what changes out of the prompt (or send it as a header)",
        "49,967 ms now",
        "ms saved a request (at the given rate)",
        "- routing by prefix: at most 0.07% of a prompt is held by any replica",
    ):
        assert said in done.output, said


@pytest.mark.parametrize(("requests", "tokens", "at"), [(3, 4_000, 100), (8, 9_000, 7), (2, 700, 300)])  # fmt: skip
def test_changing_line_with_other_numbers(
    tmp_path: Path, requests: int, tokens: int, at: int
) -> None:
    """The place and the ceiling are computed, not known."""
    found = answer(tmp_path, nonce_at_top(requests, tokens=tokens, at=at))
    (only,) = found["findings"]
    assert (round(only["token"]), only["variants"]) == (at, requests)
    assert found["share_now"] == pytest.approx(at / tokens, rel=0.02)


def test_offset_in_bytes_with_a_byte_a_token(tmp_path: Path) -> None:
    """A field at byte 41 is at token 41 for a tokenizer of bytes."""
    texts = [f"{'a' * 40} {at:05x} {'b ' * 5_000}" for at in range(700_000, 700_005)]
    lines = [chat(("system", text), ("user", "go")) for text in texts]
    (only,) = answer(tmp_path, lines, "--bytes-per-token", "1")["findings"]
    assert 41 <= only["token"] <= 46


def test_shuffled_tools_in_one_session(tmp_path: Path) -> None:
    """27 orders: sort by name."""
    done = run(tmp_path, shuffled_tools())
    assert done.exit_code == 1
    assert "tool order varies (27 orders)" in done.output
    assert "remedy: sort the tools by name" in done.output


def test_hit_share_of_a_proxy_against_the_engine(tmp_path: Path) -> None:
    """The engine's counters are trusted, and the conflict alone makes the exit code."""
    lines = [chat(("system", words(1, 300)), ("user", words(at, 300))) for at in range(4)]
    done = run(tmp_path, lines, "--hit-share", "proxy=0.95", "--hit-share", "engine=0")
    assert done.exit_code == 1
    assert "proxy says that 95% of the prompt tokens were reused, the engine 0%" in done.output
    assert "the engine is trusted" in " ".join(done.output.split())


def test_clean_prompts_are_silent(tmp_path: Path) -> None:
    """A session that only grows: exit code 0 and no layout, no remedy."""
    history = [("system", words(1, 200)), ("user", "first")]
    lines = []
    for turn in range(4):
        lines.append(chat(*history))
        history += [("assistant", words(turn, 50)), ("user", f"more {turn}")]
    done = run(tmp_path, lines)
    assert done.exit_code == 0
    assert "Nothing in the prompts keeps a cache from reusing what is the same." in done.output
    assert "remedy" not in done.output


def test_single_request_cannot_be_judged(tmp_path: Path) -> None:
    """Exit code 4 and the reason."""
    done = run(tmp_path, nonce_at_top(1))
    assert done.exit_code == 4
    assert "no two requests of one session or application to compare" in done.output


def test_lines_of_a_batch_file_are_read(tmp_path: Path) -> None:
    """The body stands one level deeper."""
    lines = [
        {"custom_id": str(at), "method": "POST", "url": "/v1/chat/completions", "body": body}
        for at, body in enumerate(nonce_at_top(4, tokens=2_000))
    ]
    assert [each["variants"] for each in answer(tmp_path, lines)["findings"]] == [4]


def test_exported_ledger_is_read(tmp_path: Path) -> None:
    """Records have hashes only: where it parts is told, how much a fix gives is not."""
    other = {"seq": 1, "event": {"kind": "run_ended", "run_id": "r", "reason": "done"}}
    served = [
        {
            "seq": 2 + at,
            "event": {
                "kind": "request_served",
                "record": {
                    "request_id": str(at),
                    "segments": [
                        {"kind": "system", "hash": f"h{at}", "tokens": 900, "exact": False},
                        {"kind": "user", "hash": "u", "tokens": 30},
                    ],
                },
            },
        }
        for at in range(3)
    ]
    found = answer(tmp_path, [other, *served])
    assert (found["requests"], found["share_now"], found["share_after"]) == (3, 0.0, None)
    (only,) = found["findings"]
    assert (only["cause"], only["where"], only["variants"]) == ("hash_differs", "system block 0", 3)


def test_model_and_hardware_give_the_least_saving(tmp_path: Path) -> None:
    """60,000 tokens of an 8B model on an H100 take most of a second at the very best."""
    done = run(tmp_path, nonce_at_top(3), "--model", "Llama-3.1-8B-Instruct", "--hardware", "H100")
    assert "(at least, at the ceiling of the hardware)" in done.output
    assert "Expected TTFT without queueing:" in done.output


def test_no_text_of_a_prompt_is_printed(tmp_path: Path) -> None:
    """Neither in words nor as JSON: places, kinds and counts only."""
    lines = [
        chat(("system", f"secret-{at}-swordfish\n{words(2, 300)}"), ("user", "hush-hush"))
        for at in range(3)
    ]
    for options in ((), ("--json",)):
        done = run(tmp_path, lines, *options)
        assert done.exit_code == 1
        assert [word for word in ("swordfish", "hush", "secret") if word in done.output] == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "line 1"),
        ("[]\n", "no JSON object"),
        ('{"model": "m"}\n', "exactly one of messages (chat) and prompt"),
        ('{"messages": 5}\n', "messages must be an array"),
        ('{"messages": [5]}\n', "each of messages must be an object"),
        ('{"prompt": {}}\n', "prompt must be"),
        ('{"segments": [5]}\n', "give a request's record"),
        ("\xff\n", "line 1"),
    ],
)
def test_broken_file_names_the_line(tmp_path: Path, text: str, said: str) -> None:
    """One line, exit code 3."""
    path = tmp_path / "broken.jsonl"
    path.write_bytes(text.encode("latin-1"))
    done = CliRunner().invoke(main, ["prompts", str(path)])
    assert done.exit_code == 3, done.output
    assert said in done.output
    assert len(done.output.strip().splitlines()) == 1


@pytest.mark.parametrize(
    "options",
    [
        ("--hit-share", "proxy"),
        ("--hit-share", "proxy=2"),
        ("--hit-share", "=0.5"),
        ("--bytes-per-token", "0"),
        ("--prefill-tokens-per-s", "0"),
        ("--model", "Llama-3.1-8B"),
    ],
)
def test_wrong_usage_is_exit_code_2(tmp_path: Path, options: tuple[str, ...]) -> None:
    """Before the file is read."""
    assert run(tmp_path, nonce_at_top(2, tokens=100), *options).exit_code == 2


def test_unknown_model_or_hardware_is_one_line(tmp_path: Path) -> None:
    """The names that are known are listed."""
    done = run(tmp_path, [], "--model", "nobody/knows", "--hardware", "H100")
    assert done.exit_code == 3
    assert "no known model" in done.output


def test_missing_file_is_wrong_usage(tmp_path: Path) -> None:
    """As everywhere."""
    done = CliRunner().invoke(main, ["prompts", str(tmp_path / "none.jsonl")])
    assert done.exit_code == 2
