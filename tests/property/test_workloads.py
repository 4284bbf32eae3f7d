"""Laws of workloads: nothing is lost or invented between a source and the planned requests."""

import json
import random
from collections.abc import Callable

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from trimtab.workloads.base import (
    PeakShape,
    Workload,
    WorkloadError,
    arrivals,
    estimate_tokens,
    looks_looping,
)
from trimtab.workloads.chat import ChatParams, chat
from trimtab.workloads.files import from_azure_csv, from_coding_sessions, from_jsonl, from_mooncake
from trimtab.workloads.traces import TraceParams, to_runs

PARAMS = TraceParams(context_tokens=600, output_tokens_max=40)

seeds = st.integers(min_value=0, max_value=2**32)
peaks = st.builds(
    lambda period_s, low, extra: PeakShape(period_s=period_s, low=low, high=low + extra),
    st.floats(min_value=0.5, max_value=500),
    st.floats(min_value=0, max_value=3),
    st.floats(min_value=0.1, max_value=3),
)


@given(rate=st.floats(min_value=0.01, max_value=20), peak=peaks, seed=seeds)
def test_arrivals_are_ordered_inside_the_run_and_repeatable(
    rate: float, peak: PeakShape, seed: int
) -> None:
    """Any process is sorted, lies in [0, duration), and depends on its seed only."""
    times = arrivals(rate, 30.0, peak, random.Random(seed))
    assert list(times) == sorted(times)
    assert all(0.0 <= at < 30.0 for at in times)
    assert times == arrivals(rate, 30.0, peak, random.Random(seed))


@given(peak=peaks, at_s=st.floats(min_value=0, max_value=10_000))
def test_peak_multiplier_stays_between_its_ends(peak: PeakShape, at_s: float) -> None:
    """The multiplier never leaves [low, high], up to rounding."""
    assert peak.low - 1e-9 <= peak.multiplier(at_s) <= peak.high + 1e-9


@given(first=st.text(max_size=200), second=st.text(max_size=200))
def test_estimate_is_positive_and_counts_no_more_than_bytes(first: str, second: str) -> None:
    """An estimate lies between 1 and the bytes of a text, and is 0 only for nothing."""
    for text in (first, second, first + second):
        assert (estimate_tokens(text) == 0) == (text == "")
        assert estimate_tokens(text) <= len(text.encode())


@given(
    unit=st.lists(st.sampled_from(["alpha", "beta", "gamma", "delta"]), min_size=1, max_size=9),
    repeats=st.integers(min_value=6, max_value=12),
)
def test_any_phrase_repeated_six_times_is_a_loop(unit: list[str], repeats: int) -> None:
    """Whatever the phrase, saying it over and over is detected."""
    assert looks_looping(" ".join(unit * repeats))


@given(words=st.lists(st.integers(min_value=0, max_value=10**9), unique=True, max_size=300))
def test_text_without_a_repeated_word_is_no_loop(words: list[int]) -> None:
    """A text in which nothing repeats cannot be a loop."""
    assert not looks_looping(" ".join(f"w{word}" for word in words))


@given(ids=st.lists(st.integers(min_value=0, max_value=30), max_size=80))
def test_runs_unfold_to_the_ids(ids: list[int]) -> None:
    """Writing ids as runs loses nothing and changes no order."""
    assert [first + at for first, count in to_runs(ids) for at in range(count)] == ids


@st.composite
def mooncake_entries(draw: st.DrawFn) -> list[dict[str, object]]:
    """Requests whose prompts branch off a common chain of blocks."""
    count = draw(st.integers(min_value=1, max_value=8))
    entries: list[dict[str, object]] = []
    clock = 0
    for number in range(count):
        clock += draw(st.integers(min_value=0, max_value=5_000))
        shared = draw(st.integers(min_value=0, max_value=12))
        own = draw(st.integers(min_value=0 if shared else 1, max_value=6))
        ids = [*range(shared), *range(1_000 * (number + 1), 1_000 * (number + 1) + own)]
        tokens = len(ids) * 512 - draw(st.integers(min_value=0, max_value=511))
        entries.append(
            {"timestamp": clock, "input_length": tokens, "output_length": number, "hash_ids": ids}
        )
    return entries


def common(first: list[object], second: list[object]) -> int:
    """Length of the common prefix."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(first), len(second)))


@given(entries=mooncake_entries())
def test_mooncake_prompts_share_as_much_text_as_blocks(entries: list[dict[str, object]]) -> None:
    """Any two prompts share at least the words of their common whole blocks, and all fit."""
    workload = from_mooncake([json.dumps(entry) for entry in entries], PARAMS, file="m")
    words = [
        list(msgspec.json.decode(request.body)["messages"][0]["content"].split())
        for request in workload.requests
    ]
    every, each = int(workload.scale["blocks_kept_every"]), int(workload.scale["block_words"])
    for at, entry in enumerate(entries):
        assert 1 <= len(words[at]) <= 600 - 40
        for other in range(at):
            ids, others = entry["hash_ids"], entries[other]["hash_ids"]
            assert isinstance(ids, list)
            assert isinstance(others, list)
            due = -(-common(ids, others) // every) * each
            due = min(due, len(words[at]), len(words[other]))
            assert common(list(words[at]), list(words[other])) >= due


@given(
    lengths=st.lists(
        st.tuples(st.integers(min_value=1, max_value=9_000), st.integers(0, 2_000)),
        min_size=1,
        max_size=20,
    )
)
def test_azure_order_and_proportions_are_kept(lengths: list[tuple[int, int]]) -> None:
    """One request per row, in order, each scaled by the stated factors."""
    rows = [f"2023-11-16 18:17:{at:02d}.5,{a},{b}" for at, (a, b) in enumerate(lengths)]
    header = "TIMESTAMP,ContextTokens,GeneratedTokens"
    workload = from_azure_csv([header, *rows], PARAMS, file="a")
    assert [request.send_at_s for request in workload.requests] == list(
        map(float, range(len(rows)))
    )
    for request, (tokens, output) in zip(workload.requests, lengths, strict=True):
        body = msgspec.json.decode(request.body)
        scaled = int(tokens * workload.scale["input_factor"])
        assert max(1, scaled * 0.85 - 1) <= len(body["messages"][0]["content"].split())
        assert len(body["messages"][0]["content"].split()) <= max(1, scaled)
        assert body["max_tokens"] == max(1, int(output * workload.scale["output_factor"]))


@given(line=st.text(max_size=80), seed=seeds)
def test_garbage_is_a_workload_error_and_nothing_else(line: str, seed: int) -> None:
    """No text makes a loader fail in any other way, or load without a request."""
    loaders = (
        lambda: from_mooncake([line], PARAMS, file="f"),
        lambda: from_azure_csv(["TIMESTAMP,ContextTokens,GeneratedTokens", line], PARAMS, file="f"),
        lambda: from_coding_sessions([line], PARAMS, random.Random(seed), file="f"),
        lambda: from_jsonl([line], PARAMS, random.Random(seed), file="f"),
    )
    outcomes = [outcome_of(load) for load in loaders]
    assert all(outcome == "loaded" or outcome.startswith("f") for outcome in outcomes)


def outcome_of(load: Callable[[], Workload]) -> str:
    """Say "loaded" for a workload with requests, else what the error said."""
    try:
        return "loaded" if load().requests else "empty"
    except WorkloadError as error:
        return str(error)


@given(seed=seeds, users=st.integers(1, 6), turns=st.integers(1, 5))
def test_turns_of_a_chat_session_are_numbered_and_grow(seed: int, users: int, turns: int) -> None:
    """Within a session turns count up from 0 and each prompt begins with the one before."""
    params = ChatParams(requests=25, users=users, turns_per_session=turns)
    before: dict[str, list[object]] = {}
    for request in chat(params, random.Random(seed)).requests:
        messages = msgspec.json.decode(request.body)["messages"]
        earlier = before.get(request.session, [])
        assert request.turn == len(earlier) // 2
        assert messages[: len(earlier)] == earlier
        before[request.session] = messages
