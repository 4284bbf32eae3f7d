"""Requests to judge drafting by: made ones of every kind, and those that a user gives."""

import json

import pytest

from trimtab.workloads.base import WorkloadError
from trimtab.workloads.draft_samples import (
    RECORD_SCHEMA,
    UNLABELLED,
    read_samples,
    sample_tokens,
    standard_samples,
)
from trimtab.workloads.texts import CHAT_SUBJECTS

FUNCTION = """def {name}(first, second):
    total = first + second
    result = total * {number}
    return result
"""
SOURCES = {
    f"file{n}.py": "\n".join(
        FUNCTION.format(name=f"compute_{n}_{at}", number=at) for at in range(12)
    )
    for n in range(8)
}


def test_made_requests_are_of_every_kind_and_the_edits_are_known() -> None:
    """As many edits as asked for, half as many of each other kind; an edit's answer stands in what is expected."""
    samples = standard_samples(SOURCES, each=6, seed=1)
    labels = [one.label for one in samples]
    assert {label: labels.count(label) for label in labels} == {
        "edit": 6,
        "question": 3,
        "chat": 3,
        "record": 3,
    }
    assert all(one.expected for one in samples if one.label == "edit")
    assert all(one.schema == RECORD_SCHEMA for one in samples if one.label == "record")
    assert samples == standard_samples(SOURCES, each=6, seed=1)


def test_as_many_requests_as_may_be_asked_for_are_made() -> None:
    """More than there are subjects: of each subject one record, and all else in full."""
    samples = standard_samples(SOURCES, each=64, seed=1)
    labels = [one.label for one in samples]
    assert labels.count("edit") == 64
    assert labels.count("record") == len(CHAT_SUBJECTS)


def test_given_requests_keep_label_length_and_schema() -> None:
    """A chat and a plain prompt; without a label they are all traffic."""
    schema = {"type": "object"}
    lines = [
        json.dumps(
            {"messages": [{"role": "user", "content": "hi"}], "label": "a", "max_tokens": 9}
        ),
        json.dumps(
            {
                "prompt": "one two",
                "response_format": {"type": "json_schema", "json_schema": {"schema": schema}},
            }
        ),
    ]
    chat, plain = read_samples(lines, file="r.jsonl", most=10)
    assert (chat.label, chat.tokens_max, chat.schema) == ("a", 9, None)
    assert (plain.label, plain.prompt, plain.schema) == (UNLABELLED, "one two", schema)
    assert sample_tokens(chat) > 0
    assert sample_tokens(plain) > 0


def test_of_many_requests_evenly_spread_ones_are_taken() -> None:
    """Not the first ones, which may all be of one morning."""
    lines = [json.dumps({"prompt": f"p{at}"}) for at in range(100)]
    taken = read_samples(lines, file="r.jsonl", most=4)
    assert [one.prompt for one in taken] == ["p0", "p25", "p50", "p75"]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (['{"prompt": "a"}', "{"], "line 2"),
        (['{"label": "x"}'], "neither messages nor prompt"),
        ([], "no request"),
        (['{"prompt": "a", "max_tokens": 1}'], "max_tokens"),
    ],
)
def test_broken_requests_are_refused_with_their_line(lines: list[str], words: str) -> None:
    """The file and what is wrong are named."""
    with pytest.raises(WorkloadError, match=words):
        read_samples(lines, file="r.jsonl", most=4)
