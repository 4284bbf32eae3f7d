"""Changing lines and shuffled tools in every format of body: other numbers, a needed fact missing, and silence."""

import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from prompts_kit import Body, chat, nonce_at_top, shuffled_tools, tool, words
from test_prompts_cli import answer, run

Format = Callable[[Body], object]


def as_chat(body: Body) -> object:
    return body


def as_batch_line(body: Body) -> object:
    return {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": body}


def as_text(body: Body) -> object:
    """A completion: the same text in one prompt, in a session that is named."""
    return {"prompt": "\n".join(each["content"] for each in body["messages"]), "session": "s"}


def as_token_ids(body: Body) -> object:
    """A completion of token ids, a token a byte."""
    text = "\n".join(each["content"] for each in body["messages"])
    return {"prompt": list(text.encode()), "session": "s"}


def with_system_beside(body: Body) -> object:
    """A body whose system text stands beside its messages, in blocks."""
    system, *rest = body["messages"]
    return {"system": [{"type": "text", "text": system["content"]}], "messages": rest}


def with_parts(body: Body) -> object:
    """A chat body whose contents are lists of parts."""
    messages = [
        {**each, "content": [{"type": "text", "text": each["content"]}]}
        for each in body["messages"]
    ]
    return {**body, "messages": messages}


@pytest.mark.parametrize(
    ("form", "where", "token", "share"),
    [
        (as_chat, "system block 0", 40, 40 / 3000),
        (as_batch_line, "system block 0", 40, 40 / 3000),
        (with_system_beside, "system block 0", 40, 40 / 3000),
        (with_parts, "system block 0", 40, 40 / 3000),
        (as_text, "message 0 (prompt)", 40, 40 / 3000),
        (as_token_ids, "message 0 (prompt)", 160, 160 / 12000),
    ],
)
def test_changing_field_is_found_in_every_format(
    tmp_path: Path, form: Format, where: str, token: int, share: float
) -> None:
    """Its place, its kind, how many values it took, and the reuse that is left before it."""
    lines = [form(body) for body in nonce_at_top(9, tokens=3000)]
    found = answer(tmp_path, lines)
    (only,) = found["findings"]
    assert only["where"].startswith(where)
    assert (round(only["token"]), only["variants"]) == (token, 9)
    assert found["share_now"] == pytest.approx(share, rel=0.03)
    assert found["share_after"] > 0.99


@pytest.mark.parametrize(
    ("form", "said"),
    [
        (lambda at: f"Today is 2026-03-{at + 1:02d}T09:00:00Z.", "date"),
        (lambda at: f"request {random.Random(at).getrandbits(128):032x}", "hexadecimal"),
        (lambda at: f"You have {97 + at} credits left.", "number"),
    ],
    ids=["date", "request id", "count"],
)
def test_kind_of_what_changes_is_told_without_its_text(
    tmp_path: Path, form: Callable[[int], str], said: str
) -> None:
    """A date, an id, a count: named as such, and never quoted."""
    lines = [chat(("system", f"{form(at)}\n{words(3, 400)}"), ("user", "go on")) for at in range(5)]
    done = run(tmp_path, lines)
    assert (done.exit_code, said in done.output) == (1, True), done.output
    assert "credits" not in done.output
    assert "what changes out of the prompt" in done.output


def test_saving_needs_a_rate(tmp_path: Path) -> None:
    """Without a prefill rate, or a model and its hardware, tokens are told and no time."""
    found = answer(tmp_path, nonce_at_top(4, tokens=3000))
    assert (found["prefill_ms_now"], found["prefill_ms_after"]) == (None, None)
    assert any("give the prefill rate" in each for each in found["unknown"])
    found = answer(tmp_path, nonce_at_top(4, tokens=3000), "--prefill-tokens-per-s", "1000")
    assert found["prefill_ms_now"] - found["prefill_ms_after"] == pytest.approx(2960, rel=0.01)


def test_changing_line_at_the_end_costs_nothing(tmp_path: Path) -> None:
    """The same field in the last user message: nothing to fix."""
    lines = [chat(("system", words(4, 600)), ("user", f"at {at:05x}: go on")) for at in range(6)]
    assert run(tmp_path, lines).exit_code == 0


def flat(body: Body) -> Body:
    """Tools without the `function` around them, as some clients send them."""
    return {**body, "tools": [each["function"] for each in body["tools"]]}


@pytest.mark.parametrize(
    ("requests", "tools", "form"),
    [(27, 12, dict), (9, 6, dict), (14, 9, flat), (14, 9, as_batch_line)],
    ids=["27 requests", "other numbers", "flat tools", "batch lines"],
)
def test_orders_of_tools_are_counted(
    tmp_path: Path, requests: int, tools: int, form: Callable[[Body], Any]
) -> None:
    """One finding over all requests, with as many orders as there are, and the fix in one word."""
    bodies = shuffled_tools(requests, tools=tools)
    orders = {tuple(each["function"]["name"] for each in body["tools"]) for body in bodies}
    found = answer(tmp_path, [form(body) for body in bodies])
    (only,) = found["findings"]
    assert (only["cause"], only["variants"]) == ("tool_order_varies", len(orders))
    assert only["remedy"] == "sort the tools by name"


def test_tools_in_one_order_are_silent(tmp_path: Path) -> None:
    """Sorted by name each time: nothing to fix."""
    lines = [
        {**body, "tools": sorted(body["tools"], key=lambda each: each["function"]["name"])}
        for body in shuffled_tools(8)
    ]
    done = run(tmp_path, lines)
    assert (done.exit_code, "tool order" in done.output) == (0, False)


def test_tools_of_a_single_request_cannot_be_judged(tmp_path: Path) -> None:
    """One order of one request is no variation."""
    assert run(tmp_path, shuffled_tools(1)).exit_code == 4


@pytest.mark.parametrize(
    ("shares", "code", "words"),
    [
        (("proxy=0.95", "engine=0"), 1, "the engine is trusted"),
        (("gateway=0.7", "engine=0.2"), 1, "gateway says that 70%"),
        (("proxy=0.95", "engine=0.93"), 0, ""),
        (("proxy=0.95",), 0, ""),
    ],
    ids=["95 against 0", "other numbers", "agree", "engine untold"],
)
def test_stated_hit_shares_are_held_against_the_engine(
    tmp_path: Path, shares: Iterable[str], code: int, words: str
) -> None:
    """A conflict is an exit code of its own; without the engine's figure there is none to find."""
    done = run(tmp_path, grown(), *(part for each in shares for part in ("--hit-share", each)))
    assert done.exit_code == code, done.output
    assert words in " ".join(done.output.split())


def grown(turns: int = 6) -> list[Body]:
    """A session that only grows, almost all of which can be reused."""
    history = [("system", words(5, 900)), ("user", "first")]
    made = []
    for turn in range(turns):
        made.append(chat(*history))
        history += [("assistant", words(50 + turn, 10)), ("user", f"more {turn}")]
    return made


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("chat_template_kwargs", {"date": "2026-03-01"}),
        ("documents", [{"text": "one"}]),
        ("functions", [tool("one")]),
    ],
)
def test_what_only_a_template_knows_is_named_and_not_called_equal(
    tmp_path: Path, field: str, value: object
) -> None:
    """Nothing found in the rest is no clean bill: exit code 4, and the field is told."""
    done = run(tmp_path, [{**body, field: value} for body in grown()])
    assert (done.exit_code, f"what {field} add to prompts" in done.output) == (4, True)


def test_images_are_named_and_not_called_equal(tmp_path: Path) -> None:
    """An image is no text: what it costs, and whether it is the same, is not known here."""
    image = {"type": "image_url", "image_url": {"url": "data:,"}}
    lines = [
        {
            "messages": [
                {"role": "user", "content": [image, {"type": "text", "text": words(6, 300)}]}
            ]
        }
        for _ in range(3)
    ]
    done = run(tmp_path, lines)
    assert (done.exit_code, "image_url" in done.output) == (4, True), done.output
    assert "Nothing in what was compared of the prompts" in done.output


def test_results_of_tools_inside_messages_are_compared(tmp_path: Path) -> None:
    """A result that is sent back with another text each turn is an edited history."""
    lines = []
    for at in range(4):
        result = {"type": "tool_result", "tool_use_id": "t", "content": f"{at:06x} " * 50}
        messages = [
            {"role": "user", "content": "begin"},
            {"role": "user", "content": [result]},
            {"role": "assistant", "content": words(7, 400)},
            {"role": "user", "content": f"next {at}"},
        ]
        lines.append({"system": words(8, 100), "messages": messages})
    found = answer(tmp_path, lines)
    assert [each["cause"] for each in found["findings"]] == ["history_is_edited"]
