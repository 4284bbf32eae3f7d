"""The simulated block pool: reuse, order of eviction, and what is promised."""

import pytest

from trimtab.sim.blocks import BlockPool


def test_blocks_of_an_ended_request_are_reused_and_its_unnamed_ones_are_free() -> None:
    """What a later prompt begins with is there; what was generated is not found again."""
    pool = BlockPool(10)
    pool.hold((1, 2, 3), 0, 2)
    assert (pool.free, pool.available) == (5, 5)
    pool.release((1, 2, 3), 2)
    assert (pool.free, pool.available, pool.match((1, 2, 9))) == (7, 10, 2)


def test_tails_are_evicted_before_the_blocks_they_hang_on() -> None:
    """So that a block that is there has all before it."""
    pool = BlockPool(4)
    pool.hold((1, 2, 3), 0, 0)
    pool.release((1, 2, 3), 0)
    pool.hold((7, 8), 0, 0)
    assert (pool.match((1, 2, 3)), pool.evictions) == (2, 1)


def test_shared_block_stays_held_until_its_last_user_ends() -> None:
    """Two requests hold it once each."""
    pool = BlockPool(4)
    pool.hold((1, 2), 0, 0)
    pool.hold((1, 2), 2, 1)
    assert pool.available == 1
    pool.release((1, 2), 0)
    assert pool.available == 1
    pool.release((1, 2), 1)
    assert (pool.available, pool.used_share) == (4, 0.0)


def test_room_does_not_count_blocks_that_the_request_itself_takes_back() -> None:
    """A kept block can serve as reused or as room, not as both."""
    pool = BlockPool(3)
    pool.hold((1, 2), 0, 0)
    pool.release((1, 2), 0)
    assert pool.room_for((1, 2), 2, 3)
    assert not pool.room_for((1, 2), 2, 4)


def test_pool_without_blocks_is_refused() -> None:
    """A replica that holds nothing cannot serve."""
    with pytest.raises(ValueError, match="at least one block"):
        BlockPool(0)
