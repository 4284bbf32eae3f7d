"""What is held anywhere in a fleet, as pools of blocks tell it."""

import random

import pytest

from trimtab.sim.blocks import BlockPool
from trimtab.sim.holders import Holders


def pools_of(holders: Holders, count: int, *, blocks: int) -> list[BlockPool]:
    """Pools that are counted together."""
    pools = [BlockPool(blocks) for _ in range(count)]
    for pool in pools:
        pool.holders = holders
    return pools


def test_longest_beginning_is_that_of_the_replica_that_holds_most() -> None:
    """Blocks of two replicas do not add up to more than one of them has."""
    holders = Holders()
    one, other = pools_of(holders, 2, blocks=8)
    for pool, hashes in ((one, [1, 2, 3]), (other, [1, 9])):
        pool.hold([], len(hashes))
        pool.name(hashes)
    asked = ([1, 2, 3, 4], [1, 9, 94], [7, 72], [])
    assert [holders.longest(one) for one in asked] == [3, 2, 0, 0]


def test_what_every_replica_lost_is_held_nowhere() -> None:
    """A restart of one leaves what the other has."""
    holders = Holders()
    one, other = pools_of(holders, 2, blocks=8)
    for pool in (one, other):
        pool.hold([], 2)
        pool.name([1, 2])
    one.clear()
    assert holders.longest([1, 2]) == 2
    other.clear()
    assert holders.longest([1, 2]) == 0
    with pytest.raises(KeyError):
        holders.left([1])


@pytest.mark.parametrize("seed", range(5))
def test_count_agrees_with_asking_every_pool(seed: int) -> None:
    """Through reuse, sharing, eviction and restarts of full pools."""
    rng = random.Random(seed)
    holders = Holders()
    pools = pools_of(holders, 3, blocks=24)
    chains = [[group * 100 + at for at in range(8)] for group in range(6)]
    running: list[tuple[BlockPool, list[int]]] = []
    for _ in range(400):
        pool, hashes = rng.choice(pools), rng.choice(chains)[: rng.randint(1, 8)]
        matched = pool.match(hashes)
        if pool.room_for(hashes, matched, len(hashes)):
            pool.hold(hashes[:matched], len(hashes) - matched)
            pool.name(hashes[matched:])
            running.append((pool, hashes))
        if running and rng.random() < 0.7:
            done, named = running.pop(rng.randrange(len(running)))
            done.release(named, 0)
        if rng.random() < 0.01:
            pool.clear()
            running = [(one, named) for one, named in running if one is not pool]
        for asked in chains:
            assert holders.longest(asked) == max(one.match(asked) for one in pools)
    assert sum(pool.evictions for pool in pools) > 0
