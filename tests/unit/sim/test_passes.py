"""Passes of a llama.cpp step against cases worked out by hand from its rule."""

import pytest

from trimtab.sim.passes import passes_of

CASES = {
    "one stream": ([(3, 1)], [1]),
    "neighbours decode together": ([(0, 1), (1, 1), (2, 1)], [3]),
    "a gap between them parts them": ([(0, 1), (2, 1)], [1, 1]),
    "a gap parts two pairs": ([(0, 1), (1, 1), (3, 1)], [2, 1]),
    "a lone prompt": ([(2, 200)], [200]),
    "a prompt after its neighbour's decode": ([(0, 1), (1, 100)], [2, 99]),
    "a prompt before its neighbour's decode": ([(3, 1), (2, 100)], [1, 100]),
    "a prompt between two decodes": ([(0, 1), (2, 1), (1, 100)], [2, 1, 99]),
    "two prompts of unlike size": ([(0, 40), (1, 100)], [80, 60]),
    "two prompts whose slots are apart": ([(0, 40), (2, 100)], [40, 100]),
    "nothing of a slot": ([(0, 0), (1, 5)], [5]),
    "no slot": ([], []),
}


@pytest.mark.parametrize("case", CASES)
def test_slots_share_a_pass_where_they_follow_each_other(case: str) -> None:
    """With as many tokens of each, up to the least that one of them has left."""
    batch, expected = CASES[case]
    assert passes_of(batch, 256) == expected


def test_pass_holds_no_more_than_its_most() -> None:
    """Three slots of four tokens in passes of eight: two of each, twice."""
    assert passes_of([(0, 4), (1, 4), (2, 4)], 8) == [6, 6]


def test_every_token_is_in_one_pass() -> None:
    """Whatever the slots and sizes."""
    batch = [(0, 1), (3, 1), (5, 1), (1, 17), (2, 90), (4, 33), (6, 200)]
    assert sum(passes_of(batch, 64)) == sum(tokens for _, tokens in batch)
