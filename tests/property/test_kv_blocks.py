"""Laws of the exact index: it holds what a plain model of stored and removed blocks holds."""

from hypothesis import given
from hypothesis import strategies as st

from trimtab.core.kv_blocks import KvBatch, KvBlocks, KvEvent, KvRemoved, KvStored

SIZE = 2
PROMPTS = st.lists(st.integers(0, 2), min_size=SIZE, max_size=8).map(tuple)
DOES = st.sampled_from(["store", "store", "remove", "leave"])
STEPS = st.lists(st.tuples(st.sampled_from("ab"), DOES, PROMPTS), max_size=30)


@given(STEPS, PROMPTS)
def test_held_tokens_are_those_of_a_plain_model(
    steps: list[tuple[str, str, tuple[int, ...]]], asked: tuple[int, ...]
) -> None:
    """Prompts are stored whole, lose their last block, on two replicas that come and go; a lookup finds the rest."""
    known, model = KvBlocks(), {"a": set[tuple[int, ...]](), "b": set[tuple[int, ...]]()}
    sequences = {"a": 0, "b": 0}
    names: dict[tuple[int, ...], int] = {}
    for replica, does, prompt in steps:
        if does == "leave":
            known.leave(replica)
            model[replica].clear()
            continue
        whole = len(prompt) // SIZE * SIZE
        heads = [prompt[: end + SIZE] for end in range(0, whole, SIZE)]
        hashes = tuple(names.setdefault(head, len(names)) for head in heads)
        event: KvEvent = KvRemoved(blocks=hashes[-1:])
        if does == "store":
            event = KvStored(
                blocks=hashes,
                parent=None,
                tokens=prompt[:whole],
                block_tokens=SIZE,
                extras=(b"",) * len(heads),
            )
            model[replica].update(heads)
        else:
            model[replica].discard(heads[-1])
        known.take(
            replica,
            KvBatch(sequence=sequences[replica], at_s=0.0, rank=0, events=(event,)),
        )
        sequences[replica] += 1
    expected = {}
    for replica, held in model.items():
        length = 0
        while length + SIZE <= len(asked) and asked[: length + SIZE] in held:
            length += SIZE
        if length:
            expected[replica] = length
    assert known.held(asked) == expected
    assert known.blocks == sum(len(held) for held in model.values())
    for replica, held in model.items():
        assert known.held_tokens(replica) == SIZE * len(held)


def test_replica_that_left_makes_room_for_the_next_one() -> None:
    """However many come and go, as many bits are used as there were at once, and a new one holds nothing of others."""
    known = KvBlocks()
    stored = KvStored(blocks=(1,), parent=None, tokens=(1, 2), block_tokens=SIZE, extras=(b"",))
    for number in range(5):
        known.take("stays", KvBatch(sequence=number, at_s=0.0, rank=0, events=()))
        known.take(f"r{number}", KvBatch(sequence=0, at_s=0.0, rank=0, events=(stored,)))
        assert known.held((1, 2)) == {f"r{number}": SIZE}
        known.leave(f"r{number}")
        assert known.held((1, 2)) == {}
        assert not known.exact(f"r{number}")
    assert known.places == 2
