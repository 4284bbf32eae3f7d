"""Recorded bodies as arrivals: lengths from the text, blocks shared as far as the texts agree."""

import random

import msgspec
import pytest

from trimtab.sim.arrivals import Arrival
from trimtab.sim.bodies import from_bodies
from trimtab.workloads.base import WorkloadError
from trimtab.workloads.files import from_jsonl
from trimtab.workloads.traces import TraceParams

SYSTEM = "You are a careful engineer. " * 20


def body(question: str, **more: object) -> dict[str, object]:
    """A chat body."""
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
    return {"messages": messages, "max_tokens": 32} | more


def arrivals(*bodies: dict[str, object]) -> list[Arrival]:
    """What a file of these bodies becomes."""
    lines = [msgspec.json.encode(one).decode() for one in bodies]
    workload = from_jsonl(lines, TraceParams(), random.Random(1), file="b.jsonl")
    numbers = range(1, len(lines) + 1)
    return from_bodies(workload, block_tokens=16, file="b.jsonl", lines=numbers)


def test_bodies_share_the_blocks_of_what_their_texts_share() -> None:
    """A common system prompt is common blocks; another one shares nothing; times and names stay."""
    one, other, apart = arrivals(
        body("What is a heap? " * 8, timestamp=10.0, session="a"),
        body("How does TCP start? " * 8, timestamp=12.5, session="b", max_tokens=7),
        {"prompt": "Once upon a time " * 40, "max_tokens": 5, "timestamp": 13.0},
    )
    assert [each.at_s for each in (one, other, apart)] == [0.0, 2.5, 3.0]
    assert (one.session, other.session, other.output_tokens) == ("a", "b", 7)
    shared = sum(a == b for a, b in zip(one.hashes, other.hashes, strict=False))
    assert shared == len(SYSTEM) // (16 * 4)
    assert set(one.hashes).isdisjoint(apart.hashes)
    assert all(len(each.hashes) <= each.input_tokens // 16 for each in (one, other, apart))


def test_same_prompt_twice_is_the_same_blocks() -> None:
    """Names do not depend on when or by whom a prompt was sent."""
    one, other = arrivals(body("Why?"), body("Why?", session="z"))
    assert one.hashes == other.hashes


def test_answer_of_unknown_length_is_refused_with_line_and_field() -> None:
    """Nothing says how long a server would have gone on."""
    with pytest.raises(WorkloadError, match=r"b.jsonl, line 2, max_tokens"):
        arrivals(body("Why?"), body("Why not?", max_tokens=None))
