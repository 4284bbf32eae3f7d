"""A fleet as columns: what was made of its work is kept, and put right where work changed."""

import numpy as np

from trimtab.core.columns import CHANGED_MAX, FleetColumns, Floats


class Counted:
    """Rules whose only figure is how much is running, and how often they swept over all."""

    def __init__(self) -> None:
        self.sweeps = 0

    def whole(self, columns: FleetColumns) -> Floats:
        self.sweeps += 1
        return columns.running[None, :].copy()

    def one(
        self, running: float, waiting: float, prefill: float, decode: float, slots: float
    ) -> tuple[float, ...]:
        return (running,)


def columns_of(count: int) -> FleetColumns:
    ids = tuple(f"r{at:02}" for at in range(count))
    hashes = np.arange(count, dtype=np.uint64)
    return FleetColumns(ids, {id_: at for at, id_ in enumerate(ids)}, hashes)


def test_few_changes_are_put_right_without_a_sweep_and_many_by_one() -> None:
    """Between two decisions work changes in a few places; after more of them everything is made anew."""
    columns, rules = columns_of(CHANGED_MAX + 1), Counted()
    for changes, sweeps in ((0, 1), (CHANGED_MAX, 1), (CHANGED_MAX + 1, 2), (3, 2)):
        for number in range(changes):
            columns.running[number] += 1
            columns.changed(number)
        np.testing.assert_array_equal(columns.of_work("key", lambda _: rules)[0], columns.running)
        assert rules.sweeps == sweeps


def test_changes_that_nobody_asks_about_any_more_take_no_room() -> None:
    """A plan may change to a policy that never looks at work: what is remembered for the old one has an end."""
    columns, rules = columns_of(2), Counted()
    columns.of_work("key", lambda _: rules)
    for number in range(100 * CHANGED_MAX):
        columns.changed(number % 2)
        assert len(columns._changed) <= CHANGED_MAX


def test_a_sessions_first_place_is_that_of_its_order() -> None:
    """Whether few equals are told apart in plain numbers or many by columns, a session has the same place."""
    ids = tuple(f"r{at:03}" for at in range(200))
    hashes = np.array([at * 0x9E3779B97F4A7C15 % 2**64 for at in range(200)], dtype=np.uint64)
    columns = FleetColumns(ids, {id_: at for at, id_ in enumerate(ids)}, hashes)
    for key in (0, 1, 0xDEADBEEF, 2**64 - 1):
        expected = int(np.argmin(columns.session_places(key)))
        assert expected == columns.session_first(key, range(200))
