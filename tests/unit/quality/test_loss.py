"""Blocks and cuts of scored texts."""

import pytest

from trimtab.quality.loss import CutOfLoss, TextScore, blocks_of, cuts_of


def score(kind: str, first: int, losses: list[float]) -> TextScore:
    return TextScore(kind=kind, name="t", first_position=first, losses=tuple(losses))


def test_blocks_are_whole_and_carry_their_place() -> None:
    """Five tokens make two blocks of two; the rest is left out."""
    found = blocks_of([score("code", 10, [1.0, 2.0, 3.0, 5.0, 9.0])], tokens=2)
    assert [(one.position, one.loss) for one in found] == [(10, 1.5), (12, 4.0)]


def test_mean_is_per_token() -> None:
    """Nats a token."""
    assert score("code", 0, [1.0, 2.0, 6.0]).mean == pytest.approx(3.0)


def test_kind_is_cut_by_position_only_where_it_spreads() -> None:
    """One range says nothing that the whole does not."""
    near = blocks_of([score("code", 0, [1.0] * 4)], tokens=2)
    spread = blocks_of([score("code", 0, [1.0] * 4), score("code", 300, [1.0] * 4)], tokens=2)
    assert cuts_of(near, (256,)) == (CutOfLoss("code"),)
    assert [cut.name for cut in cuts_of(spread, (256,))] == ["code", "code 0-256", "code 256-"]


def test_cut_holds_its_own_blocks() -> None:
    """Kind and range both count."""
    cut = CutOfLoss("code", 256, None)
    [near] = blocks_of([score("code", 10, [1.0])], tokens=1)
    [far] = blocks_of([score("code", 256, [1.0])], tokens=1)
    [other] = blocks_of([score("prose", 300, [1.0])], tokens=1)
    assert [cut.holds(one) for one in (near, far, other)] == [False, True, False]
