"""Who holds what of a prompt, told in the order of a fleet."""

import sys
from types import FrameType

import numpy as np

from trimtab.core.decision import columns_for
from trimtab.core.holdings import HeldColumns, Match

NAMES = tuple(f"r{number:04d}" for number in range(1_000))


def matches_in_another_order(count: int) -> tuple[list[Match], int]:
    """Return who holds the same where the first replica came last, and how many calls it took to say so."""
    names = NAMES[:count]
    places = {name: at for at, name in enumerate((*names[1:], names[0], "gone"))}
    groups = (((1 << count + 1) - 2, 64), (1, 900))
    held = HeldColumns(places, None, np.zeros(count + 1), displaces=False, groups=groups)
    columns = columns_for(names)
    held.matches(columns, 1)
    calls = 0

    def counted(frame: FrameType, event: str, arg: object) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(counted)
    try:
        found = held.matches(columns, 1)
    finally:
        sys.setprofile(before)
    assert found is not None
    return found, calls


def test_groups_in_another_order_are_told_in_the_order_of_the_fleet() -> None:
    """Whoever has left the fleet is in no group, and the others stand where they stand in it."""
    [common, longest], _ = matches_in_another_order(4)
    assert (common.bits, longest.bits, longest.first) == (0b1101, 0b0010, 1)
    assert (common.places(), common.tokens, longest.tokens) == ([0, 2, 3], 64, 900)


def test_work_for_a_group_in_another_order_does_not_grow_with_it() -> None:
    """A replica that joined out of order must not cost every later decision a step for each holder."""
    assert matches_in_another_order(4)[1] == matches_in_another_order(1_000)[1]
