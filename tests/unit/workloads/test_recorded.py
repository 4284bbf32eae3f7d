"""Requests as a fleet recorded them: read, refused with line and field, and turned into shared blocks."""

import pytest

from trimtab.sim.arrivals import from_records
from trimtab.workloads.base import WorkloadError
from trimtab.workloads.recorded import read_recorded, recorded_records

FILE = "served.jsonl"
LINES = (
    '{"at_s": 5.0, "input_tokens": 10, "output_tokens": 3, "session": "a", "label": "edit"}',
    '{"at_s": 6.0, "input_tokens": 12, "output_tokens": 1, "like": 0, "shared_tokens": 9}',
    '{"at_s": 6.0, "input_tokens": 20, "output_tokens": 2, "like": 1, "shared_tokens": 12}',
    '{"at_s": 7.0, "input_tokens": 11, "output_tokens": 2, "like": 0, "shared_tokens": 4}',
)


def test_shared_beginnings_become_the_same_blocks_to_the_token() -> None:
    """A prompt that is like another one is like all that other is like, as far as it goes."""
    records = recorded_records(LINES, file=FILE)
    ids = [[first + at for first, count in one.runs for at in range(count)] for one in records]
    assert [len(one) for one in ids] == [10, 12, 20, 11]
    assert ids[1][:9] == ids[0][:9]
    assert ids[1][9] != ids[0][9]
    assert ids[2][:12] == ids[1]
    assert (ids[3][:4], ids[3][4] in ids[0]) == (ids[0][:4], False)
    arrivals = from_records(records, trace_block_tokens=1, block_tokens=4)
    assert [len(one.hashes) for one in arrivals] == [2, 3, 5, 2]
    shared = [len(set(arrivals[0].hashes) & set(one.hashes)) for one in arrivals]
    assert shared == [2, 2, 2, 1]
    assert (arrivals[0].session, arrivals[0].label, arrivals[1].session) == ("a", "edit", "line-2")
    assert [one.at_s for one in arrivals] == [0.0, 1.0, 1.0, 2.0]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('{"at_s": 4.0, "input_tokens": 9, "output_tokens": 1}', "line 5, at_s"),
        ('{"at_s": 9.0, "input_tokens": 9, "output_tokens": 1, "like": 4}', "line 5, like"),
        (
            '{"at_s": 9.0, "input_tokens": 9, "output_tokens": 1, "like": 0, "shared_tokens": 10}',
            "line 5, shared_tokens",
        ),
        (
            '{"at_s": 9.0, "input_tokens": 9, "output_tokens": 1, "shared_tokens": 1}',
            "line 5, shared_tokens",
        ),
        (
            '{"at_s": 9.0, "input_tokens": 9, "output_tokens": 1, "cached_tokens": 10}',
            "line 5, cached_tokens",
        ),
        (
            '{"at_s": 9.0, "input_tokens": 9, "output_tokens": 1, "first_token_s": 8.0}',
            "line 5, first_token_s",
        ),
        (
            '{"at_s": 9.0, "input_tokens": 9, "output_tokens": 1, "first_token_s": 9.5, "last_token_s": 9.1}',
            "line 5, last_token_s",
        ),
        ('{"at_s": 9.0, "input_tokens": 0, "output_tokens": 1}', "input_tokens"),
        ('{"at_s": -1.0, "input_tokens": 4, "output_tokens": 1}', "at_s"),
    ],
)
def test_line_that_cannot_be_is_refused_with_its_field(line: str, told: str) -> None:
    """Times out of order, more shared than there is, a reference forward, times that go back."""
    with pytest.raises(WorkloadError, match=f"{FILE}.*{told}"):
        read_recorded((*LINES, line), file=FILE)


def test_empty_file_is_refused() -> None:
    """Nothing can be played of it."""
    with pytest.raises(WorkloadError, match="no request in it"):
        read_recorded(("", " "), file=FILE)
