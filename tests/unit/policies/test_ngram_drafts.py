"""What drafting would have done over a known answer: the engines' rules, counted by position."""

import pytest

from trimtab.policies.ngram_drafts import (
    DraftCounts,
    LongestMatch,
    NewestMatch,
    replay,
)

CODE = list(range(100, 120))


def test_answer_that_repeats_the_prompt_is_accepted_whole() -> None:
    """Once the n-gram stands, every draft agrees, and each step gives its draft and one token more."""
    counts = replay([1, 2, *CODE, 3, 4], CODE, NewestMatch(2, 4), tokens_max=len(CODE))
    assert counts.acceptance == 1.0
    assert counts.tokens == len(CODE) - 1
    assert counts.drafted == counts.accepted
    assert counts.steps + sum(counts.accepted) == counts.tokens


def test_answer_that_repeats_nothing_is_never_drafted() -> None:
    """Coverage is 0 and acceptance is unknown, not 0."""
    counts = replay(CODE, list(range(500, 520)), NewestMatch(2, 4), tokens_max=64)
    assert (counts.drafts, counts.coverage) == (0, 0.0)
    assert counts.acceptance is None
    assert counts.steps == counts.tokens


def test_wrong_draft_is_drafted_and_not_accepted() -> None:
    """The n-gram stands in the prompt and goes on otherwise there: position 1 is drafted and refused."""
    prompt = [9, 1, 2, 3, 4, 5, 6, 7, 8]
    counts = replay(prompt, [1, 2, 30, 31], NewestMatch(2, 4), tokens_max=64)
    assert counts.drafted == (1, 1, 1, 1)
    assert counts.accepted == (0, 0, 0, 0)


def test_acceptance_by_position_falls_where_texts_part() -> None:
    """Two tokens agree, the third does not."""
    prompt = [9, 1, 2, 3, 4, 5, 6, 7, 8]
    counts = replay(prompt, [1, 2, 3, 4, 50, 51], NewestMatch(2, 4), tokens_max=64)
    assert counts.by_position == (1.0, 1.0, 0.0, 0.0)
    assert counts.accepted_per_draft == 2.0


def test_newest_match_drafts_nothing_shorter_than_its_n_gram() -> None:
    """Near the end of what stands there fewer tokens than the n-gram follow: the engine does not draft them."""
    history = [9, 1, 2, 3, 7, 1, 2, 3, 5, 6, 1, 2, 3]
    assert list(NewestMatch(3, 4).draft(history)) == [5, 6, 1, 2]
    short = [9, 7, 7, 7, 1, 2, 3, 5, 1, 2, 3]
    assert list(NewestMatch(3, 4).draft(short)) == [5, 1, 2]
    loop = [9, 8, 7, 1, 2, 1, 2, 1, 2]
    assert list(NewestMatch(2, 4).draft(loop)) == []


def test_newest_match_waits_for_a_text_longer_than_n_gram_and_draft() -> None:
    """As the engine does, which otherwise has nothing to copy."""
    assert list(NewestMatch(2, 8).draft([1, 2, 3, 4, 5, 1, 2])) == []


def test_longest_match_prefers_the_longer_suffix_and_then_the_earliest_place() -> None:
    """vLLM's rule; a single token is looked up only where it may be."""
    history = [1, 2, 3, 40, 5, 2, 3, 41, 1, 2, 3]
    assert list(LongestMatch(1, 3, 2).draft(history)) == [40, 5]
    assert list(LongestMatch(1, 2, 2).draft([8, 2, 3, 40, 2, 3, 41, 9, 2, 3])) == [40, 2]
    assert list(LongestMatch(3, 3, 2).draft([8, 2, 3, 40, 9, 2, 3])) == []


def test_draft_stops_where_the_answer_must_end() -> None:
    """The engine drafts no further than the tokens that are left to it."""
    counts = replay([9, *CODE], CODE[:4], NewestMatch(2, 8), tokens_max=4)
    assert len(counts.drafted) == 1
    assert counts.tokens == 3


def test_counts_add_up() -> None:
    """Positions that one of them never drafted count as none."""
    one = DraftCounts(requests=1, tokens=10, steps=6, drafted=(2, 2), accepted=(2, 1))
    other = DraftCounts(requests=1, tokens=4, steps=4, drafted=(1,), accepted=(0,))
    both = one + other
    assert (both.requests, both.tokens, both.steps) == (2, 14, 10)
    assert (both.drafted, both.accepted) == ((3, 2), (2, 1))
    assert both.tokens_per_step == pytest.approx(1.4)
    assert both.draft_share == pytest.approx(0.3)
