"""Tokens that the tokens before them foretell: in a text, in earlier answers, and the interval of a share."""

import pytest

from trimtab.workloads.foretold import Earlier, foretold, pieces, ratio_of


def test_pieces_put_together_are_the_text() -> None:
    """Nothing is lost, so that equal pieces mean equal text."""
    text = "def total(values):\n    return sum(values)  # na\u00efve \u4f60\u597d"
    assert "".join(pieces(text)) == text


def test_text_that_repeats_is_foretold() -> None:
    """Three rounds of five tokens: in the second and third each follows what it followed before."""
    hit, of = foretold([1, 2, 3, 4, 5] * 3, 3)
    assert (hit, of) == (15 - 3 - 5, 12)


@pytest.mark.parametrize("text", [[1, 2, 3], [], list(range(50))])
def test_text_without_repetition_is_not(text: list[int]) -> None:
    """Nothing stood before."""
    assert foretold(text, 3)[0] == 0


def test_last_follower_counts() -> None:
    """What followed last time is foretold, not what followed first."""
    assert foretold([1, 2, 7, 1, 2, 8, 1, 2, 8], 2) == (1, 7)


def test_answer_is_compared_with_earlier_ones_and_not_with_itself() -> None:
    """The first answer is new however much it repeats; the same one again is known."""
    earlier = Earlier(3)
    answer = [1, 2, 3, 4, 1, 2, 3, 4]
    assert earlier.take(answer) == (0, 5)
    assert earlier.take(answer) == (5, 5)
    assert earlier.take([9, 9, 9, 9]) == (0, 1)


def test_share_is_over_all_tokens_with_an_interval_over_answers() -> None:
    """Long answers weigh more; one answer alone has no interval."""
    found = ratio_of([5, 45], [10, 90])
    assert found.value == pytest.approx(0.5)
    assert found.interval is not None
    assert (found.interval.low, found.interval.high) == pytest.approx((0.5, 0.5))
    apart = ratio_of([0, 90, 10, 50], [10, 90, 90, 60])
    assert apart.interval is not None
    assert apart.value is not None
    assert apart.interval.low < apart.value < apart.interval.high
    assert ratio_of([1], [2]).interval is None
    assert ratio_of([], []).value is None
