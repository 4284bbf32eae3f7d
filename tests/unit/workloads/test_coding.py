"""Coding sessions: stable prefixes, sizes, sharing, edits that are known exactly."""

import ast
import random
from collections import Counter, defaultdict
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from trimtab.workloads.base import PlannedRequest, Workload, WorkloadError, estimate_tokens
from trimtab.workloads.blocks import draw_edit, find_blocks, function_name
from trimtab.workloads.coding import CodingParams, coding
from trimtab.workloads.texts import CODING_SYSTEM, CODING_TOOLS

Sources = dict[str, str]
SMALL = CodingParams(requests=80, users=6, repositories=3)


def make(params: CodingParams, sources: Sources) -> Workload:
    return coding(params, sources, random.Random(params.seed))


def body_of(request: PlannedRequest) -> dict[str, Any]:
    decoded: dict[str, Any] = msgspec.json.decode(request.body)
    return decoded


def by_session(workload: Workload) -> dict[str, list[PlannedRequest]]:
    sessions: dict[str, list[PlannedRequest]] = defaultdict(list)
    for request in workload.requests:
        sessions[request.session].append(request)
    return sessions


def test_same_seed_gives_identical_bytes(sources: Sources) -> None:
    """Params, sources and generator state alone decide the workload."""
    assert msgspec.json.encode(make(SMALL, sources)) == msgspec.json.encode(make(SMALL, sources))


def test_another_seed_gives_another_workload(sources: Sources) -> None:
    """The generator's randomness is used."""
    other = coding(SMALL, sources, random.Random(99))
    assert [r.body for r in make(SMALL, sources).requests] != [r.body for r in other.requests]


def test_order_of_the_sources_does_not_matter(sources: Sources) -> None:
    """Sources are taken by name, not by the order in which a reader found them."""
    turned = dict(reversed(list(sources.items())))
    assert make(SMALL, sources) == make(SMALL, turned)


def test_each_prompt_starts_with_the_prompt_of_the_turn_before(sources: Sources) -> None:
    """The messages of turn n are the first messages of turn n+1, which adds an answer and an ask."""
    for turns in by_session(make(SMALL, sources)).values():
        assert [request.turn for request in turns] == list(range(len(turns)))
        for earlier, later in pairwise(turns):
            before, after = body_of(earlier)["messages"], body_of(later)["messages"]
            assert after[: len(before)] == before
            assert [m["role"] for m in after[len(before) :]] == ["assistant", "user"]


def test_history_carries_reference_answers(sources: Sources) -> None:
    """The answer to an edit in the next prompt is the expected code, never a model's output."""
    for turns in by_session(make(SMALL, sources)).values():
        for earlier, later in pairwise(turns):
            answer = body_of(later)["messages"][-2]["content"]
            if earlier.expected_text is not None:
                assert answer == f"```python\n{earlier.expected_text}\n```"


def test_all_sessions_share_the_system_prompt_and_tools(sources: Sources) -> None:
    """One system message, tools included, opens every prompt."""
    opened = {body_of(r)["messages"][0]["content"] for r in make(SMALL, sources).requests}
    assert opened == {CODING_SYSTEM + CODING_TOOLS}


def test_users_of_a_repository_share_its_text_and_repositories_differ(sources: Sources) -> None:
    """Six users in three repositories see three repository texts, two users each."""
    readers: dict[str, set[str]] = defaultdict(set)
    for request in make(SMALL, sources).requests:
        readers[body_of(request)["messages"][1]["content"]].add(request.session.split("-")[0])
    assert sorted(len(users) for users in readers.values()) == [2, 2, 2]


def test_default_prompts_grow_from_about_350_to_at_most_1000_tokens(sources: Sources) -> None:
    """Sizes are those a small machine can serve in minutes: 45 to 95 new tokens per turn."""
    sizes: dict[int, list[int]] = defaultdict(list)
    for request in make(SMALL, sources).requests:
        messages = body_of(request)["messages"]
        sizes[request.turn].append(sum(5 + estimate_tokens(m["content"]) for m in messages))
    assert all(280 <= size <= 430 for size in sizes[0])
    assert max(max(each) for each in sizes.values()) <= 1_000
    growth = (sum(sizes[4]) / len(sizes[4]) - sum(sizes[0]) / len(sizes[0])) / 4
    assert 35 <= growth <= 95


def test_prompts_stay_within_a_small_context(sources: Sources) -> None:
    """Where the context is short a session ends early instead of outgrowing it."""
    params = msgspec.structs.replace(SMALL, context_tokens=700, turns_per_session=40, requests=120)
    for request in make(params, sources).requests:
        body = body_of(request)
        prompt = sum(5 + estimate_tokens(m["content"]) for m in body["messages"])
        assert prompt + body["max_tokens"] <= 700


def test_a_context_too_small_for_one_turn_is_refused(sources: Sources) -> None:
    """The error names the field and the fix."""
    params = msgspec.structs.replace(SMALL, context_tokens=512, repository_tokens=320)
    with pytest.raises(WorkloadError, match=r"context_tokens: 512.*lower repository_tokens"):
        make(params, sources)


def test_sources_without_short_functions_are_refused() -> None:
    """Too little material is an error that says what is missing."""
    with pytest.raises(WorkloadError, match="fill 0 of 3 repositories"):
        make(SMALL, {"a.py": "x = 1\n"})


def test_broken_source_is_refused_by_name_and_line() -> None:
    """A text that is no Python is named with its line."""
    with pytest.raises(WorkloadError, match=r"cut\.py, line 1: not valid Python"):
        make(SMALL, {"cut.py": "def f(:\n"})


def test_edit_share_is_met_even_by_a_short_workload(sources: Sources) -> None:
    """Kinds are dealt in proportion, so 200 requests with 60% edits have 45 to 75%."""
    params = msgspec.structs.replace(SMALL, requests=200)
    labels = Counter(request.label for request in make(params, sources).requests)
    assert set(labels) == {"edit", "question"}
    assert 90 <= labels["edit"] <= 150


@pytest.mark.parametrize(("share", "labels"), [(1.0, {"edit"}), (0.0, {"question"})])
def test_extreme_edit_shares_have_one_kind(
    share: float, labels: set[str], sources: Sources
) -> None:
    """All edits or all questions is possible."""
    params = msgspec.structs.replace(SMALL, edit_share=share)
    assert {request.label for request in make(params, sources).requests} == labels


def test_edits_are_greedy_and_questions_partly_sampled(sources: Sources) -> None:
    """Edits run at temperature 0; about half of the questions at 0.7."""
    params = msgspec.structs.replace(SMALL, requests=300, edit_share=0.3)
    temperatures: dict[str, Counter[float]] = defaultdict(Counter)
    for request in make(params, sources).requests:
        temperatures[request.label][body_of(request)["temperature"]] += 1
    assert set(temperatures["edit"]) == {0.0}
    sampled = temperatures["question"][0.7] / temperatures["question"].total()
    assert 0.4 <= sampled <= 0.6


def test_expected_edits_are_valid_code_that_fits_the_output(sources: Sources) -> None:
    """An expected answer parses, is known for edits only, and fits max_tokens with its fence."""
    for request in make(SMALL, sources).requests:
        assert (request.expected_text is not None) == (request.label == "edit")
        assert request.expected_output_tokens is not None
        assert request.expected_output_tokens <= body_of(request)["max_tokens"]
        if request.expected_text is not None:
            ast.parse(request.expected_text)


def test_requests_are_in_order_of_time_and_numbered(sources: Sources) -> None:
    """Positions count up and intended times never step back."""
    requests = make(SMALL, sources).requests
    assert [request.index for request in requests] == list(range(80))
    times = [request.send_at_s for request in requests]
    assert times == sorted(times)


def test_users_think_between_turns_when_the_rate_leaves_them_time(sources: Sources) -> None:
    """At a low rate no user sends two turns within the least think time."""
    params = msgspec.structs.replace(SMALL, rate_per_s=0.1, think_s_min=3.0)
    last: dict[str, float] = {}
    for request in make(params, sources).requests:
        user = request.session.split("-")[0]
        assert request.send_at_s - last.get(user, -3.0) >= 3.0
        last[user] = request.send_at_s


def test_duration_bounds_the_workload(sources: Sources) -> None:
    """With a duration, requests stop at its end."""
    params = CodingParams(duration_s=30.0, rate_per_s=2.0)
    workload = make(params, sources)
    assert workload.requests[-1].send_at_s < 30.0
    assert len(workload.requests) > 20


@pytest.mark.parametrize("length", [{}, {"requests": 5, "duration_s": 5.0}])
def test_params_want_exactly_one_length(length: dict[str, Any]) -> None:
    """Neither or both of requests and duration_s is refused."""
    with pytest.raises(ValueError, match="exactly one"):
        CodingParams(**length)


def test_unknown_param_is_refused_with_its_path() -> None:
    """Params are strict when they come from a file."""
    with pytest.raises(msgspec.ValidationError, match="unknown field `user`"):
        msgspec.convert({"requests": 5, "user": 3}, CodingParams)


def test_blocks_are_whole_plain_functions(sources: Sources) -> None:
    """Every block has 3 to 8 lines, parses to one function, and is real text of its file."""
    blocks = [block for found in find_blocks(sources, tokens_max=60).values() for block in found]
    assert len(blocks) > 100
    for block in blocks:
        assert 3 <= len(block.code.splitlines()) <= 8
        assert [type(node) for node in ast.parse(block.code).body] == [ast.FunctionDef]
        assert function_name(block.code) == block.name
        assert block.code.splitlines()[0] in sources[block.module]


def test_an_edit_changes_something_and_keeps_the_code_valid(sources: Sources) -> None:
    """A chain of 40 edits of one function stays valid, and each step differs from the last."""
    rng = random.Random(4)
    code = find_blocks(sources, tokens_max=36)["xml/dom/minidom.py"][0].code
    for _ in range(40):
        edit = draw_edit(code, rng)
        ast.parse(edit.code)
        assert edit.code != code
        assert len(edit.code) < 2 * len(code) + 40
        code = edit.code
