"""Laws of drafting over known answers: the index finds what a search finds, and no token is counted twice."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from trimtab.policies.ngram_drafts import LongestMatch, NewestMatch, agreed, replay

TOKENS = st.lists(st.integers(0, 5), min_size=1, max_size=60)


def newest_by_search(history: Sequence[int], match: int, depth: int) -> list[int]:
    """The engine's own loop, from the end backwards; place 0 stands for no match there."""
    length = len(history) - 1
    if length <= match + depth + 1:
        return []
    pattern = list(history[len(history) - match :])
    for at in range(length - match - 1, 0, -1):
        if list(history[at : at + match]) == pattern:
            most = min(depth, length - (at + match))
            return list(history[at + match : at + match + most]) if most >= match else []
    return []


def longest_by_search(history: Sequence[int], low: int, high: int, depth: int) -> list[int]:
    for size in range(high, low - 1, -1):
        for at in range(len(history) - size):
            if size < len(history) and history[at : at + size] == history[len(history) - size :]:
                return list(history[at + size : at + size + depth])
    return []


@given(TOKENS, st.integers(1, 4), st.integers(1, 6))
def test_newest_match_drafts_what_the_engines_search_drafts(
    tokens: list[int], match: int, depth: int
) -> None:
    """At every length of a text that grows, by one index."""
    rule = NewestMatch(match, depth)
    for end in range(1, len(tokens) + 1):
        history = tokens[:end]
        assert list(rule.draft(history)) == newest_by_search(history, match, depth)


@given(TOKENS, st.integers(1, 2), st.integers(2, 4), st.integers(1, 6))
def test_longest_match_drafts_what_a_search_drafts(
    tokens: list[int], low: int, high: int, depth: int
) -> None:
    """The longest suffix, and of that the earliest place."""
    rule = LongestMatch(low, high, depth)
    for end in range(1, len(tokens) + 1):
        history = tokens[:end]
        assert list(rule.draft(history)) == longest_by_search(history, low, high, depth)


@given(TOKENS, TOKENS, st.integers(1, 3), st.integers(1, 6), st.integers(1, 80))
def test_every_token_comes_from_a_step_or_from_a_draft(
    prompt: list[int], output: list[int], match: int, depth: int, most: int
) -> None:
    """Steps and accepted tokens make the answer, but for a last step whose bonus token would lie beyond its end."""
    counts = replay(prompt, output, NewestMatch(match, depth), tokens_max=most)
    given_away = counts.steps + sum(counts.accepted) - counts.tokens
    assert given_away in (0, 1)
    assert len(counts.drafted) <= depth
    assert list(counts.drafted) == sorted(counts.drafted, reverse=True)
    assert all(a <= d for a, d in zip(counts.accepted, counts.drafted, strict=True))
    assert list(counts.accepted) == sorted(counts.accepted, reverse=True)


@given(TOKENS, TOKENS)
def test_agreement_is_a_common_beginning(one: list[int], other: list[int]) -> None:
    """No longer than either, and the next tokens differ."""
    n = agreed(one, other)
    assert one[:n] == other[:n]
    assert n == min(len(one), len(other)) or one[n] != other[n]
