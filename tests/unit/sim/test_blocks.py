"""The simulated block pool: reuse, order of eviction, and what is promised."""

import pytest

from trimtab.sim.blocks import BlockPool


def taken(pool: BlockPool, hashes: tuple[int, ...], private: int = 0) -> None:
    """Give a new prompt its blocks and let it fill them, beside `private` unnamed ones."""
    pool.hold((), len(hashes) + private)
    pool.name(hashes)


def test_blocks_of_an_ended_request_are_reused_and_its_unnamed_ones_are_free() -> None:
    """What a later prompt begins with is there; what was generated is not found again."""
    pool = BlockPool(10)
    taken(pool, (1, 2, 3), 2)
    assert (pool.free, pool.available) == (5, 5)
    pool.release((1, 2, 3), 2)
    assert (pool.free, pool.available, pool.match((1, 2, 9))) == (7, 10, 2)


def test_tails_are_evicted_before_the_blocks_they_hang_on() -> None:
    """So that a block that is there has all before it."""
    pool = BlockPool(4)
    taken(pool, (1, 2, 3))
    pool.release((1, 2, 3), 0)
    taken(pool, (7, 8))
    assert (pool.match((1, 2, 3)), pool.evictions) == (2, 1)


def test_shared_block_stays_held_until_its_last_user_ends() -> None:
    """Two requests hold it once each."""
    pool = BlockPool(4)
    taken(pool, (1, 2))
    pool.hold((1, 2), 1)
    assert pool.available == 1
    pool.release((1, 2), 0)
    assert pool.available == 1
    pool.release((1, 2), 1)
    assert (pool.available, pool.used_share) == (4, 0.0)


def test_room_does_not_count_blocks_that_the_request_itself_takes_back() -> None:
    """A kept block can serve as reused or as room, not as both."""
    pool = BlockPool(3)
    taken(pool, (1, 2))
    pool.release((1, 2), 0)
    assert pool.room_for((1, 2), 2, 3)
    assert not pool.room_for((1, 2), 2, 4)


def test_pool_without_blocks_is_refused() -> None:
    """A replica that holds nothing cannot serve."""
    with pytest.raises(ValueError, match="at least one block"):
        BlockPool(0)


def test_block_has_no_name_before_it_is_filled() -> None:
    """What was promised to a request and never computed is found by nobody, and is free once it goes."""
    pool = BlockPool(5)
    pool.hold((), 4)
    assert (pool.match((1, 2, 3)), pool.free) == (0, 1)
    pool.name((1,))
    pool.release((1,), 3)
    assert (pool.match((1, 2, 3)), pool.free, pool.available) == (1, 4, 5)


@pytest.mark.parametrize("kept", [True, False])
def test_block_filled_twice_counts_once(kept: bool) -> None:
    """Whether whoever filled it first still runs or not; nothing is lost when both have gone."""
    pool = BlockPool(6)
    pool.hold((), 2)
    taken(pool, (1, 2))
    if kept:
        pool.release((1, 2), 0)
    pool.name((1, 2))
    assert (pool.free, pool.available) == (4, 4)
    pool.release((1, 2), 0)
    if not kept:
        pool.release((1, 2), 0)
    assert (pool.available, pool.match((1, 2))) == (6, 2)
