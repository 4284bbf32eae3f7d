"""Traces read up to a horizon: no further than it takes, and nothing that is needed is missed."""

import json
import random
from collections.abc import Iterable, Iterator

import pytest

from trimtab.workloads.trace_files import azure_records, coding_records, mooncake_records

GAP_S = 30.0


def guarded(lines: Iterable[str], count: int) -> Iterator[str]:
    """So many lines; whoever asks for another reads too far."""
    for number, line in enumerate(lines):
        if number >= count:
            pytest.fail(f"line {number + 1} was read")
        yield line


def test_lines_after_the_horizon_are_not_read() -> None:
    """Ten seconds from the first request, which is not at 0: the line after tells that they are over."""
    mooncake = [
        json.dumps(
            {"timestamp": 7000 + 4000 * at, "input_length": 9, "output_length": 1, "hash_ids": [at]}
        )
        for at in range(9)
    ]
    made = mooncake_records(guarded(mooncake, 4), file="m", horizon_s=10.0)
    assert [one.at_s for one in made] == [7.0, 11.0, 15.0]
    azure = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    azure += [f"2023-11-16 18:17:{10 + 4 * at}.0000000,500,8" for at in range(9)]
    found = azure_records(guarded(azure, 5), file="a", horizon_s=10.0)
    assert [one.at_s - found[0].at_s for one in found] == [0.0, 4.0, 8.0]


def session(number: int) -> str:
    """A session whose sub-agent goes on for longer than it; its first request is 3 s late."""
    requests = [
        {"t": 3.0, "type": "n", "in": 640, "out": 9, "new": [0, 10]},
        {
            "t": 8.0,
            "type": "subagent",
            "agent_id": "x",
            "requests": [
                {"t": at, "type": "n", "in": 64, "out": 9, "new": [20, 1]} for at in (0.0, 25.0)
            ],
        },
        {"t": 12.0, "type": "n", "in": 768, "out": 9, "lcp": 10, "new": [10, 2]},
    ]
    return json.dumps({"id": f"s{number}", "block_size": 64, "requests": requests})


@pytest.mark.parametrize("horizon_s", [0.0, 4.9, 5.0, 9.0, 30.0, 100.0, 300.0])
def test_sessions_up_to_a_horizon_are_those_of_the_whole_trace(horizon_s: float) -> None:
    """Whatever starts within it is there with the same times, sub-agents too; later sessions are not read."""
    lines = [session(number) for number in range(40)]
    whole, size = coding_records(lines, random.Random(4), file="c", session_gap_s=GAP_S)
    first_s = min(one.at_s for one in whole)
    wanted = [one for one in whole if one.at_s - first_s <= horizon_s]
    last = max(one.line for one in wanted)
    rng = random.Random(4)
    made, same_size = coding_records(
        guarded(lines, last + 2), rng, file="c", session_gap_s=GAP_S, horizon_s=horizon_s
    )
    assert same_size == size
    assert [one for one in made if one.at_s - first_s <= horizon_s] == wanted
    assert len(made) <= len(wanted) + 4
