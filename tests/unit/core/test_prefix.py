"""The prefix index promises what an engine still holds, and stops promising what it does not deliver."""

import pytest
from index_kit import held_by

from trimtab.core.decision import Held, columns_for
from trimtab.core.prefix import BlockHasher, PrefixIndex

BLOCK = 10


def index(*, blocks_max: int = 1000, slots: int | None = 2, replicas: str = "a") -> PrefixIndex:
    made = PrefixIndex(blocks_max, BLOCK)
    for replica in replicas if slots else "":
        made.set_slots(replica, slots or 1, similarity=0.1)
    return made


def tokens(made: PrefixIndex, blocks: tuple[int, ...], replica: str = "a") -> int:
    """Tokens held of a prompt of one token per byte, with one byte beyond its last full block."""
    size = len(blocks) * BLOCK + 1
    return next(one.tokens for one in held_by(made, blocks, size, size) if one.replica == replica)


def serve(made: PrefixIndex, *prompts: tuple[int, ...], replica: str = "a") -> None:
    for prompt in prompts:
        made.record(replica, prompt)
        made.finished(replica, prompt)


def chain(name: int, length: int, shared: tuple[int, ...] = ()) -> tuple[int, ...]:
    return (*shared, *(name * 1000 + place for place in range(length)))


def test_hash_of_a_prefix_is_a_prefix_of_the_hashes() -> None:
    """Each block's hash covers all before it, and only full blocks are hashed."""
    hasher = BlockHasher(b"secret", 4)
    assert hasher.blocks(b"abcdefgh")[:1] == hasher.blocks(b"abcdxxx")
    assert len(hasher.blocks(b"abcdefg")) == 1


def test_equal_blocks_after_different_heads_have_different_hashes() -> None:
    """A block counts only behind the same prompt."""
    hasher = BlockHasher(b"secret", 4)
    assert hasher.blocks(b"aaaabbbb")[1] != hasher.blocks(b"ccccbbbb")[1]


def test_hashes_depend_on_the_key() -> None:
    """Hashes of one installation say nothing to another."""
    assert BlockHasher(b"one", 4).blocks(b"aaaa") != BlockHasher(b"two", 4).blocks(b"aaaa")


def test_block_size_below_one_is_refused() -> None:
    """A size of 0 would never end."""
    with pytest.raises(ValueError, match="block_bytes"):
        BlockHasher(b"key", 0)


def test_finished_prompt_is_held() -> None:
    """What was served is promised for a longer prompt with the same head."""
    made = index()
    serve(made, chain(1, 5))
    assert tokens(made, chain(1, 8)) == 50


def test_last_token_is_never_promised() -> None:
    """An engine computes at least one token even of a prompt that it holds whole."""
    made = index()
    serve(made, chain(1, 5))
    assert held_by(made, chain(1, 5), 50, 50) == (Held(replica="a", tokens=49, displaced=0),)


def test_new_prompt_takes_over_the_slot_with_the_longest_prefix() -> None:
    """The old tail of that slot is gone, the other slot keeps its chain."""
    made = index()
    serve(made, chain(1, 10), chain(2, 10))
    serve(made, chain(3, 5, shared=chain(1, 5)))
    assert tokens(made, chain(1, 10)) == 50
    assert tokens(made, chain(2, 10)) == 100


def test_prefix_of_a_tenth_or_less_does_not_take_its_slot() -> None:
    """Such a prompt takes the slot that finished longest ago instead."""
    made = index()
    serve(made, chain(1, 10), chain(2, 10))
    serve(made, chain(3, 9, shared=chain(2, 1)))
    assert tokens(made, chain(2, 10)) == 100
    assert tokens(made, chain(1, 10)) == 0


def test_shared_head_makes_a_new_prompt_overwrite_a_slot_though_another_is_empty() -> None:
    """The engine goes by the prefix first; the index must not promise what that overwrote."""
    made = index()
    system = chain(9, 5)
    serve(made, chain(1, 5, shared=system))
    serve(made, chain(2, 5, shared=system))
    assert tokens(made, chain(1, 5, shared=system)) == 50


def test_engine_that_asks_for_more_similarity_keeps_the_slot() -> None:
    """With half of the prompt needed, a shared head of 40% leaves the other session's slot alone."""
    made = PrefixIndex(1000, BLOCK)
    made.set_slots("a", 2, similarity=0.5)
    system = chain(9, 4)
    serve(made, chain(1, 6, shared=system), chain(2, 6, shared=system))
    assert tokens(made, chain(1, 6, shared=system)) == 100
    assert tokens(made, chain(2, 6, shared=system)) == 100


def test_what_a_new_prompt_would_overwrite_is_told() -> None:
    """The tokens beyond the common prefix in the slot it would take."""
    made = index()
    system = chain(9, 5)
    serve(made, chain(1, 5, shared=system))
    assert held_by(made, chain(2, 5, shared=system), 100, 100)[0].displaced == 50


def test_busy_slot_is_not_taken_over() -> None:
    """A running prompt keeps its slot; the next one gets another, however alike they are."""
    made = index()
    made.record("a", chain(1, 10))
    assert tokens(made, chain(1, 12)) == 0
    made.finished("a", chain(1, 10))
    assert tokens(made, chain(1, 12)) == 100


def test_prompt_without_a_free_slot_waits_for_the_first_to_end() -> None:
    """It takes that slot then, and its chain replaces the one that was there."""
    made = index()
    for name in (1, 2, 3):
        made.record("a", chain(name, 10))
    made.finished("a", chain(1, 10))
    made.finished("a", chain(3, 10))
    assert tokens(made, chain(3, 10)) == 100
    assert tokens(made, chain(1, 10)) == 0


def test_waiting_prompt_that_is_given_up_leaves_nothing() -> None:
    """A client that leaves before its turn changes no slot."""
    made = index(slots=1)
    made.record("a", chain(1, 10))
    made.record("a", chain(2, 10))
    made.finished("a", chain(2, 10))
    made.finished("a", chain(1, 10))
    assert tokens(made, chain(1, 10)) == 100
    assert made.stats().blocks == 10


def test_finishing_what_never_began_changes_nothing() -> None:
    """A late report after a restart is harmless."""
    made = index()
    made.finished("a", chain(1, 10))
    made.finished("nobody", chain(1, 10))
    assert made.stats().blocks == 0


def test_forgotten_replica_holds_nothing_and_keeps_its_slots() -> None:
    """After a restart the model is that of an empty engine with as many slots."""
    made = index(slots=1)
    made.record("a", chain(1, 10))
    made.forget("a")
    assert tokens(made, chain(1, 10)) == 0
    serve(made, chain(1, 10), chain(2, 10))
    assert tokens(made, chain(1, 10)) == 0


def test_replica_that_left_leaves_no_slots() -> None:
    """Once the last replica with slots is gone, lookups go by groups of replicas again and nothing is known of it."""
    made = index(slots=1)
    made.record("a", chain(1, 10))
    made.leave("a")
    made.finished("a", chain(1, 10))
    made.record("b", chain(1, 10))
    found = made.held_columns(chain(1, 10), 101, 101)
    assert found.matches(columns_for(("a", "b")), 1) is not None
    assert held_by(made, chain(1, 10), 101, 101) == (Held(replica="b", tokens=100, displaced=0),)


def test_names_that_come_and_go_need_no_more_room_than_those_that_are_there() -> None:
    """With an address in each name every start brings a new one; late news of one that left does not keep it."""
    made = index(slots=None, blocks_max=20)
    for number in range(100):
        name = f"r{number}"
        made.meet(("stays", name))
        serve(made, chain(number, 2), replica=name)
        made.leave(name)
        made.finished(name, chain(number, 2))
        made.correct(name, chain(number, 2), 100, 0)
    for _ in range(100):
        made.record("late", chain(1, 2))
        serve(made, chain(2, 20), replica="stays")
        made.meet(("stays",))
    assert made.held_columns(chain(1, 2), 20, 20).displaced.size == 2
    assert len(made._numbers) == 1


def test_answer_given_before_a_departure_stays_what_it_was() -> None:
    """Whoever comes next takes the free number, and holds nothing of what the one before it held."""
    made = index(slots=None)
    fleet = columns_for(("a", "b"))
    made.meet(("a", "b"))
    serve(made, chain(1, 10), replica="a")
    serve(made, chain(1, 10), replica="b")
    before = made.held_columns(chain(1, 10), 101, 101)
    made.leave("a")
    between = made.held_columns(chain(1, 10), 101, 101)
    after_fleet = columns_for(("b", "c"))
    made.meet(("b", "c"))
    assert [before.by(name) for name in "abc"] == [100, 100, 0]
    assert [between.by(name) for name in "abc"] == [0, 100, 0]
    for given, held in ((before, (100, 100)), (between, (0, 100))):
        assert given.over(fleet)[0].tolist() == list(held)
        assert given.over(after_fleet)[0].tolist() == [100, 0]
        [match] = given.matches(after_fleet, 1) or ()
        assert match.places() == [0] or match.places() == (0,)
    serve(made, chain(2, 10), replica="c")
    assert [tokens(made, chain(2, 10), name) for name in "bc"] == [0, 100]


def test_free_place_between_others_is_no_place_in_the_fleet() -> None:
    """Where a replica left from the middle, those behind it are still found where they stand."""
    made = index(slots=None)
    made.meet(("a", "b", "c", "d"))
    for name in "acd":
        serve(made, chain(1, 10), replica=name)
    made.leave("b")
    [match] = made.held_columns(chain(1, 10), 101, 101).matches(columns_for(tuple("acd")), 1) or ()
    assert (match.places(), match.tokens) == ([0, 1, 2], 100)


def test_paged_replica_holds_many_prompts() -> None:
    """Without slots, blocks are shared and nothing is overwritten within the bound."""
    made = index(slots=None)
    serve(made, chain(1, 10), chain(2, 10), chain(3, 10))
    assert [tokens(made, chain(name, 10)) for name in (1, 2, 3)] == [100, 100, 100]


def test_paged_replica_drops_the_oldest_tails_first() -> None:
    """What remains of a dropped prompt is always a head of it."""
    made = index(blocks_max=15, slots=None)
    serve(made, chain(1, 10), chain(2, 10))
    assert tokens(made, chain(1, 10)) == 50
    assert tokens(made, chain(2, 10)) == 100
    assert made.stats().evictions == 5


def test_bound_holds_over_all_replicas_together() -> None:
    """The oldest chain anywhere gives way, of whatever kind its replica is."""
    made = index(blocks_max=25, replicas="ab")
    serve(made, chain(1, 10), replica="a")
    serve(made, chain(2, 10), replica="b")
    serve(made, chain(3, 10), replica="paged")
    assert made.stats().blocks == 25
    assert tokens(made, chain(1, 10), "a") == 50


def test_replica_that_empties_again_and_again_queues_once() -> None:
    """What is kept to find the oldest chain grows with the replicas, not with their restarts, and still finds it."""
    made = index(blocks_max=25, slots=None)
    for _ in range(50):
        serve(made, chain(1, 10), replica="a")
        made.forget("a")
    assert len(made._oldest) == 1
    serve(made, chain(2, 10), replica="b")
    serve(made, chain(1, 10), replica="a")
    serve(made, chain(3, 10), replica="c")
    assert [tokens(made, chain(*one), name) for one, name in (((2, 10), "b"), ((1, 10), "a"))] == [
        50,
        100,
    ]


def test_prompt_longer_than_the_bound_is_known_by_its_head() -> None:
    """One huge prompt cannot push the index over its bound."""
    made = index(blocks_max=5)
    serve(made, chain(1, 20))
    assert tokens(made, chain(1, 20)) == 50


def test_replica_that_does_not_deliver_is_distrusted() -> None:
    """From 20 promises on, less than half delivered means that nothing is promised any more."""
    made = index()
    serve(made, chain(1, 10))
    for _ in range(19):
        made.correct("a", chain(1, 10), 100, 10)
    assert tokens(made, chain(1, 10)) == 100
    made.correct("a", chain(1, 10), 100, 10)
    assert tokens(made, chain(1, 10)) == 0
    assert made.believed("a", chain(1, 10), 101, 101) == 100


def test_distrusted_replica_recovers_when_it_delivers_again() -> None:
    """Beliefs go on being compared while nothing is promised, so trust can come back."""
    made = index()
    serve(made, chain(1, 10))
    for _ in range(30):
        made.correct("a", chain(1, 10), 100, 0)
    for _ in range(10):
        made.correct("a", chain(1, 10), 100, 100)
    assert made.trust("a").trusted
    assert tokens(made, chain(1, 10)) == 100


def test_promise_of_nothing_teaches_nothing() -> None:
    """A new prompt says nothing about the cache."""
    made = index()
    made.correct("a", chain(1, 10), 0, 0)
    assert made.trust("a").samples == 0


def test_equal_number_of_slots_changes_nothing_and_another_starts_empty() -> None:
    """Telling the slots again with each reading must not throw the model away."""
    made = index()
    serve(made, chain(1, 10))
    made.set_slots("a", 2, similarity=0.1)
    assert tokens(made, chain(1, 10)) == 100
    made.set_slots("a", 4)
    assert tokens(made, chain(1, 10)) == 0


@pytest.mark.parametrize(("blocks_max", "block_bytes"), [(0, 16), (16, 0)])
def test_empty_bounds_are_refused(blocks_max: int, block_bytes: int) -> None:
    """An index must be able to hold one block of one byte."""
    with pytest.raises(ValueError, match="at least 1"):
        PrefixIndex(blocks_max, block_bytes)


def test_no_slots_are_refused() -> None:
    """A replica without slots could serve nothing."""
    with pytest.raises(ValueError, match="slots"):
        index().set_slots("a", 0)
