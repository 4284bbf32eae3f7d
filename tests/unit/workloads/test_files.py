"""Recorded requests: every format with good and with broken lines."""

import json
import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from trimtab.workloads.base import Workload, WorkloadError
from trimtab.workloads.files import from_azure_csv, from_coding_sessions, from_jsonl, from_mooncake
from trimtab.workloads.traces import TraceParams, to_runs
from trimtab.workloads.words import WORDS, block_words

PARAMS = TraceParams(context_tokens=1_000, output_tokens_max=50)


def prompts(workload: Workload) -> list[str]:
    return [msgspec.json.decode(r.body)["messages"][0]["content"] for r in workload.requests]


def shared_words(first: str, second: str) -> int:
    pairs = zip(first.split(), second.split(), strict=False)
    return next(
        (at for at, (a, b) in enumerate(pairs) if a != b),
        min(len(first.split()), len(second.split())),
    )


def moon(timestamp: float, tokens: int, out: int, ids: list[int]) -> str:
    return json.dumps(
        {"timestamp": timestamp, "input_length": tokens, "output_length": out, "hash_ids": ids}
    )


MOON = [
    moon(1_000, 1_500, 100, [7, 8, 9]),
    moon(1_500, 2_000, 20, [7, 8, 10, 11]),
    moon(3_000, 400, 1, [7]),
]


def test_mooncake_times_are_kept_from_the_first_request() -> None:
    """Milliseconds become seconds since the first request, times the stated factor."""
    assert [r.send_at_s for r in from_mooncake(MOON, PARAMS, file="m").requests] == [0.0, 0.5, 2.0]
    slow = msgspec.structs.replace(PARAMS, time_factor=4.0)
    assert [r.send_at_s for r in from_mooncake(MOON, slow, file="m").requests] == [0.0, 2.0, 8.0]


def test_mooncake_prompts_share_text_exactly_where_they_share_blocks() -> None:
    """Two shared blocks of 512 scale to two shared blocks of text, and nothing after them is shared."""
    workload = from_mooncake(MOON, PARAMS, file="m")
    words = int(workload.scale["block_words"])
    first, second, third = prompts(workload)
    assert shared_words(first, second) == 2 * words
    assert first.startswith(third)


def test_mooncake_scale_is_stated_and_fits_the_context() -> None:
    """The longest prompt and output fit the context, by the factors that the workload states."""
    workload = from_mooncake(MOON, PARAMS, file="m")
    assert workload.scale["input_factor"] == pytest.approx((1_000 - 50 - 40) / 2_000)
    assert workload.scale["output_factor"] == pytest.approx(0.5)
    assert max(len(text.split()) for text in prompts(workload)) <= 910
    assert [msgspec.json.decode(r.body)["max_tokens"] for r in workload.requests] == [50, 10, 1]


def test_an_input_factor_that_outgrows_the_context_is_refused() -> None:
    """The error names the line that does not fit and the largest factor that would."""
    params = msgspec.structs.replace(PARAMS, input_factor=0.9)
    with pytest.raises(WorkloadError, match=r"m, line 2: 2000 input tokens.*at most 0\.455"):
        from_mooncake(MOON, params, file="m")


def test_only_the_first_requests_are_taken_when_asked() -> None:
    """requests_max cuts the workload, not the times of what remains."""
    params = msgspec.structs.replace(PARAMS, requests_max=2)
    assert [r.send_at_s for r in from_mooncake(MOON, params, file="m").requests] == [0.0, 0.5]


AZURE = [
    "TIMESTAMP,ContextTokens,GeneratedTokens\n",
    "2023-11-16 18:17:03.9799600,400,10\n",
    "2023-11-16 18:17:04.0319600,300,8\n",
    "2023-11-16 18:17:05.9799600,110,27\n",
]


def test_azure_times_and_lengths_are_kept() -> None:
    """Times keep their microseconds and lengths that fit are not scaled."""
    workload = from_azure_csv(AZURE, PARAMS, file="a")
    assert [round(r.send_at_s, 6) for r in workload.requests] == [0.0, 0.052, 2.0]
    assert [len(text.split()) for text in prompts(workload)] == [400, 300, 110]
    assert [r.expected_output_tokens for r in workload.requests] == [10, 8, 27]


def test_azure_prompts_share_nothing() -> None:
    """The trace knows of no shared text, so none is made."""
    first, second, third = prompts(from_azure_csv(AZURE, PARAMS, file="a"))
    assert max(shared_words(first, second), shared_words(second, third)) <= 2


def agent(at_s: float, tokens: int, lcp: int, new: list[int], **more: Any) -> dict[str, Any]:
    return {"t": at_s, "type": "n", "in": tokens, "out": 30, "lcp": lcp, "new": new, **more}


def session(requests: list[dict[str, Any]], name: str = "s1", **more: Any) -> str:
    return json.dumps({"id": name, "block_size": 64, "requests": requests, **more})


SESSION = session(
    [
        agent(0.0, 640, 0, [1, 10]),
        agent(5.0, 760, 9, [20, 3]),
        {"t": 6.0, "type": "subagent", "agent_id": "a1", "requests": [agent(1.0, 128, 0, [50, 2])]},
        agent(9.0, 960, 12, [30, 2, 40, 1]),
    ]
)


def test_coding_session_prompts_keep_and_add_blocks() -> None:
    """The second prompt keeps nine blocks of the first; the third keeps all of the second."""
    workload = from_coding_sessions([SESSION], PARAMS, random.Random(1), file="c")
    words = int(workload.scale["block_words"])
    main = [
        t for t, r in zip(prompts(workload), workload.requests, strict=True) if r.session == "s1"
    ]
    assert shared_words(main[0], main[1]) == 9 * words
    assert shared_words(main[1], main[2]) == len(main[1].split())


def test_a_sub_agent_is_a_session_of_its_own() -> None:
    """Its time counts from its parent's start of it, and its turns from 0."""
    workload = from_coding_sessions([SESSION], PARAMS, random.Random(1), file="c")
    seen = [(r.session, r.turn, r.send_at_s, r.label) for r in workload.requests]
    assert seen == [
        ("s1", 0, 0.0, "agent"),
        ("s1", 1, 5.0, "agent"),
        ("s1/a1", 0, 7.0, "subagent"),
        ("s1", 2, 9.0, "agent"),
    ]


def test_block_ids_are_local_to_a_session() -> None:
    """The same id in two sessions is different text."""
    lines = [session([agent(0.0, 640, 0, [1, 10])], name) for name in ("x", "y")]
    first, second = prompts(from_coding_sessions(lines, PARAMS, random.Random(1), file="c"))
    assert shared_words(first, second) <= 2


def test_sessions_marked_as_duplicates_are_left_out() -> None:
    """A line that says it is the same as another adds nothing."""
    lines = [SESSION, json.dumps({"id": "s2", "same_as": "s1"})]
    workload = from_coding_sessions(lines, PARAMS, random.Random(1), file="c")
    assert {r.session for r in workload.requests} == {"s1", "s1/a1"}


def test_tiny_scales_keep_every_kth_block_and_the_common_prefix() -> None:
    """At a scale of under a word per block, blocks are thinned and prefixes stay common."""
    lines = [session([agent(0.0, 64_000, 0, [0, 1_000]), agent(1.0, 76_800, 900, [5_000, 300])])]
    workload = from_coding_sessions(lines, PARAMS, random.Random(1), file="c")
    every, words = int(workload.scale["blocks_kept_every"]), int(workload.scale["block_words"])
    assert every > 1
    first, second = prompts(workload)
    assert shared_words(first, second) == -(-900 // every) * words


BODIES = [
    '{"timestamp": 10.5, "session": "a", "model": "m", "messages": [{"role": "user", "content": "x"}]}',
    '{"timestamp": 11.0, "prompt": "once", "top_p": 0.5}',
    '{"timestamp": 12.5, "session": "a", "messages": [{"role": "user", "content": "y"}], "label": "chat"}',
]


def test_jsonl_bodies_are_sent_as_they_are() -> None:
    """Only timestamp, session and label leave the body; a missing model becomes "default"."""
    workload = from_jsonl(BODIES, PARAMS, random.Random(1), file="b")
    assert [msgspec.json.decode(r.body) for r in workload.requests] == [
        {"model": "m", "messages": [{"role": "user", "content": "x"}]},
        {"prompt": "once", "top_p": 0.5, "model": "default"},
        {"messages": [{"role": "user", "content": "y"}], "model": "default"},
    ]
    seen = [(r.session, r.turn, r.send_at_s, r.endpoint, r.label) for r in workload.requests]
    assert seen == [
        ("a", 0, 0.0, "/v1/chat/completions", "file"),
        ("line-2", 0, 0.5, "/v1/completions", "file"),
        ("a", 1, 2.0, "/v1/chat/completions", "chat"),
    ]


def test_jsonl_without_times_gets_seeded_arrivals() -> None:
    """No timestamps at all means Poisson arrivals at the stated rate, the same for the same seed."""
    lines = ['{"prompt": "a"}'] * 50
    first, second = (from_jsonl(lines, PARAMS, random.Random(3), file="b") for _ in range(2))
    assert first == second
    assert 25.0 < first.requests[-1].send_at_s < 100.0


def mooncake(lines: list[str]) -> Workload:
    return from_mooncake(lines, PARAMS, file="f")


def azure(lines: list[str]) -> Workload:
    return from_azure_csv(lines, PARAMS, file="f")


def sessions(lines: list[str]) -> Workload:
    return from_coding_sessions(lines, PARAMS, random.Random(1), file="f")


def jsonl(lines: list[str]) -> Workload:
    return from_jsonl(lines, PARAMS, random.Random(1), file="f")


BROKEN: list[tuple[Callable[[list[str]], Workload], list[str], str]] = [
    (mooncake, [], "f: no request in it"),
    (mooncake, [MOON[0], '{"timestamp": 2'], "f, line 2: Input data was truncated"),
    (
        mooncake,
        [MOON[0], '{"timestamp": 2000}'],
        "f, line 2: .*missing required field `input_length`",
    ),
    (mooncake, [moon(0, -4, 1, [1])], r"f, line 1: .*\$\.input_length"),
    (mooncake, [MOON[0].replace("8", '"x"')], r"f, line 1: .*\$\.hash_ids"),
    (mooncake, [moon(0, 1_500, 1, [1, 2])], "f, line 1, hash_ids: 2 ids.*takes 3 blocks"),
    (mooncake, [MOON[1], "\n", MOON[0]], "f, line 3, timestamp: earlier than line 1; sort"),
    (azure, [], "f, line 1: the header"),
    (azure, ["a,b,c"], "f, line 1: the header is 'a,b,c'"),
    (azure, AZURE[:1], "f: no request in it"),
    (azure, [*AZURE, "2023-11-16 18:17:06,1\n"], "f, line 5: 2 fields instead of 3"),
    (azure, [AZURE[0], "yesterday,1,1\n"], "f, line 2, TIMESTAMP: 'yesterday'"),
    (azure, [AZURE[0], "2023-11-16 18:17:06,-1,1\n"], "f, line 2, ContextTokens: '-1'"),
    (azure, [AZURE[0], "2023-11-16 18:17:06,1,1.5\n"], "f, line 2, GeneratedTokens: '1.5'"),
    (azure, [AZURE[0], AZURE[3], AZURE[1]], "f, line 3, TIMESTAMP: earlier than line 2"),
    (sessions, ["{}"], "f, line 1: .*missing required field `id`"),
    (sessions, ['{"id": "a", "requests": []}'], "f, line 1, block_size: None"),
    (sessions, [SESSION, SESSION.replace("64", "32", 1)], "f, line 2, block_size: 32, expected 64"),
    (sessions, [session([agent(0.0, 64, 3, [1, 1])])], r"f, line 1, requests\[0\]\.lcp: 3 blocks"),
    (sessions, [session([agent(0.0, 64, 0, [1])])], r"f, line 1, requests\[0\]\.new: give pairs"),
    (
        sessions,
        [session([agent(0.0, 900, 0, [1, 2])])],
        r"requests\[0\]\.in: 900 tokens do not match",
    ),
    (
        sessions,
        [session([agent(2.0, 64, 0, [1, 1]), agent(1.0, 64, 1, [])])],
        r"f, line 1, requests\[1\]\.t: 1\.0 s after 2\.0 s",
    ),
    (jsonl, [], "f: no request in it"),
    (jsonl, ["[1]"], "f, line 1: Expected `object`"),
    (jsonl, ["not json"], "f, line 1: JSON is malformed"),
    (jsonl, ['{"model": "m"}'], "f, line 1, messages: a body needs exactly one"),
    (jsonl, ['{"prompt": "a", "messages": [1]}'], "f, line 1, messages: a body needs exactly one"),
    (jsonl, ['{"messages": []}'], "f, line 1, messages: empty"),
    (jsonl, ['{"prompt": 5}'], "f, line 1, prompt: empty or of a wrong type"),
    (jsonl, [BODIES[0], '{"prompt": "a"}'], "f, line 2, timestamp: None is no number"),
    (jsonl, ['{"prompt": "a", "timestamp": "1"}'], "f, line 1, timestamp: '1' is no number"),
    (jsonl, [BODIES[2], BODIES[0]], "f, line 2, timestamp: 10.5 comes after 12.5; sort"),
    (jsonl, ['{"prompt": "a", "session": 4}'], "f, line 1, session: 4 is no text"),
]


@pytest.mark.parametrize(("load", "lines", "message"), BROKEN)
def test_broken_file_is_refused_with_line_field_and_fix(
    load: Callable[[list[str]], Workload], lines: list[str], message: str
) -> None:
    """A broken line never loads, and the error says where and what."""
    with pytest.raises(WorkloadError, match=message):
        load(lines)


def test_output_room_larger_than_the_context_is_refused() -> None:
    """A context without room for a prompt names the two fields."""
    params = TraceParams(context_tokens=128, output_tokens_max=100)
    with pytest.raises(WorkloadError, match="context_tokens: 128 leaves no room"):
        from_mooncake(MOON, params, file="m")


def test_block_text_belongs_to_its_key() -> None:
    """Same key, same text; a shorter text is the beginning of a longer one; keys differ."""
    assert block_words("1:a:7", 8) == block_words("1:a:7", 20)[:8]
    assert block_words("1:a:7", 8) != block_words("1:a:8", 8)
    assert len(set(WORDS)) == len(WORDS) > 400


def test_runs_hold_the_ids_in_order() -> None:
    """Consecutive ids become one run, a jump or a step back a new one."""
    assert to_runs([3, 4, 5, 9, 9, 8]) == ((3, 3), (9, 1), (9, 1), (8, 1))
