"""Chat and the mix: little shared, and both parts kept whole."""

import random
from collections import Counter

import msgspec
import pytest

from trimtab.workloads.base import PeakShape, WorkloadError
from trimtab.workloads.chat import ChatParams, MixedParams, chat, mixed
from trimtab.workloads.coding import CodingParams, coding

CODING = CodingParams(requests=40)
CHAT = ChatParams(requests=60)


def test_same_seed_gives_identical_chat() -> None:
    """Params and generator state alone decide the workload."""
    first, second = (msgspec.json.encode(chat(CHAT, random.Random(5))) for _ in range(2))
    assert first == second


def test_chat_prompts_are_short_and_share_little() -> None:
    """No prompt has over 150 words, and first asks hardly repeat."""
    workload = chat(ChatParams(requests=200), random.Random(1))
    bodies = [msgspec.json.decode(request.body) for request in workload.requests]
    words = [sum(len(m["content"].split()) for m in body["messages"]) for body in bodies]
    assert max(words) <= 150
    asks = Counter(body["messages"][-1]["content"] for body in bodies)
    assert asks.most_common(1)[0][1] <= 4


def test_chat_sessions_end_after_their_turns() -> None:
    """A person starts anew after the stated turns, with a history of none."""
    workload = chat(ChatParams(requests=100, turns_per_session=3, users=4), random.Random(2))
    lengths = {
        request.turn: len(msgspec.json.decode(request.body)["messages"])
        for request in workload.requests
    }
    assert lengths == {0: 2, 1: 4, 2: 6}


def test_mix_keeps_every_request_of_both_parts(sources: dict[str, str]) -> None:
    """The merged workload has all bodies of both, in order of time, numbered anew."""
    merged = mixed(MixedParams(coding=CODING, chat=CHAT), sources, random.Random(7))
    rng = random.Random(7)
    parts = (coding(CODING, sources, rng), chat(CHAT, rng))
    expected = sorted(request.body for part in parts for request in part.requests)
    assert sorted(request.body for request in merged.requests) == expected
    assert [request.index for request in merged.requests] == list(range(100))
    times = [request.send_at_s for request in merged.requests]
    assert times == sorted(times)
    assert {request.label for request in merged.requests} == {"edit", "question", "chat"}


def test_mix_refuses_parts_with_different_peaks(sources: dict[str, str]) -> None:
    """One workload has one peak cycle."""
    odd = ChatParams(requests=5, peak=PeakShape(period_s=7.0))
    with pytest.raises(WorkloadError, match="differ in seed or peak"):
        mixed(MixedParams(coding=CODING, chat=odd), sources, random.Random(1))


@pytest.mark.parametrize("length", [{}, {"requests": 5, "duration_s": 5.0}])
def test_chat_wants_exactly_one_length(length: dict[str, float]) -> None:
    """Neither or both of requests and duration_s is refused."""
    with pytest.raises(msgspec.ValidationError, match="exactly one"):
        msgspec.convert(length, ChatParams)
