"""vLLM's KV events: frames as its publisher makes them, and frames that nobody should make."""

import msgspec
import pytest

from trimtab.core.kv_blocks import KvBlocks, KvCleared, KvNews, KvRemoved, KvStored
from trimtab.core.ports import EngineFormatError
from trimtab.engines.vllm_kv_events import read_kv_frames

STORED = {
    "type": "BlockStored",
    "block_hashes": [b"\x01" * 32, b"\x02" * 32],
    "parent_block_hash": None,
    "token_ids": [1, 2, 3, 4],
    "block_size": 2,
    "lora_id": None,
    "medium": "GPU",
    "lora_name": None,
    "group_idx": 0,
}
REMOVED = {"type": "BlockRemoved", "block_hashes": [b"\x02" * 32], "medium": "GPU"}
CLEARED = {"type": "AllBlocksCleared"}


def frames(*events: object, sequence: int = 0, rank: int | None = None) -> list[bytes]:
    payload = [12.5, list(events)] + ([] if rank is None else [rank])
    return [b"", sequence.to_bytes(8, "big"), msgspec.msgpack.encode(payload)]


def test_events_of_a_message_are_read_in_order() -> None:
    """Stored, removed and cleared come out as they were sent, with sequence, time and rank."""
    batch = read_kv_frames(frames(STORED, REMOVED, CLEARED, sequence=7, rank=1))
    assert (batch.sequence, batch.at_s, batch.rank, batch.left_out) == (7, 12.5, 1, 0)
    stored, removed, cleared = batch.events
    assert isinstance(stored, KvStored)
    assert (stored.blocks, stored.tokens) == ((b"\x01" * 32, b"\x02" * 32), (1, 2, 3, 4))
    assert removed == KvRemoved(blocks=(b"\x02" * 32,))
    assert cleared == KvCleared()


def test_arrays_of_older_versions_mean_the_same() -> None:
    """Events as arrays that begin with their type."""
    old = ["BlockStored", [11, 12], None, [1, 2, 3, 4], 2, None, "GPU"]
    batch = read_kv_frames(frames(old, ["BlockRemoved", [12]], ["AllBlocksCleared"]))
    assert [type(one).__name__ for one in batch.events] == ["KvStored", "KvRemoved", "KvCleared"]


def test_blocks_that_are_not_on_the_device_and_unknown_events_are_left_out() -> None:
    """A block on disk is not held; an event of a later version does not break those beside it."""
    offloaded = STORED | {"medium": "CPU"}
    batch = read_kv_frames(frames(offloaded, {"type": "BlockMoved"}, STORED))
    assert (len(batch.events), batch.left_out) == (1, 2)


@pytest.mark.parametrize(
    "broken",
    [
        [b"", b"12345678"],
        [b"", b"123", b""],
        [b"", b"\x00" * 8, b"\xc1"],
        [b"", b"\x00" * 8, msgspec.msgpack.encode({"ts": 1})],
        frames(STORED | {"token_ids": [1, 2, 3]}),
        frames(STORED | {"block_size": 0}),
        frames(STORED | {"block_hashes": "no"}),
        frames(STORED | {"extra_keys": [None]}),
        frames(5),
    ],
)
def test_frames_that_cannot_be_read_are_a_typed_error(broken: list[bytes]) -> None:
    """Nothing but `EngineFormatError` comes out of frames that are wrong."""
    with pytest.raises(EngineFormatError):
        read_kv_frames(broken)


def test_tokens_are_found_where_events_say_they_are() -> None:
    """Blocks hang on each other by the engine's hashes, and are found by their tokens on each replica."""
    known = KvBlocks()
    known.take("a", read_kv_frames(frames(STORED)))
    more = STORED | {"block_hashes": [7], "parent_block_hash": b"\x02" * 32, "token_ids": [5, 6]}
    known.take("a", read_kv_frames(frames(more, sequence=1)))
    known.take("b", read_kv_frames(frames(STORED | {"block_hashes": [1, 2]})))
    assert known.held([1, 2, 3, 4, 5, 6, 9, 9]) == {"a": 6, "b": 4}
    assert known.held([1, 2, 9, 9]) == {"a": 2, "b": 2}
    assert known.held([2, 1]) == {}
    known.take("a", read_kv_frames(frames(REMOVED, sequence=2)))
    assert known.held([1, 2, 3, 4, 5, 6]) == {"a": 2, "b": 4}
    assert (known.held_tokens("a"), known.blocks) == (4, 4)


def test_salt_and_adapter_are_part_of_a_block() -> None:
    """The same tokens under a salt or an adapter are not the same block."""
    known = KvBlocks()
    known.take("a", read_kv_frames(frames(STORED | {"extra_keys": [["salt"], None]})))
    salted = (msgspec.msgpack.encode(["salt"]), b"")
    assert known.held([1, 2, 3, 4]) == {}
    assert known.held([1, 2, 3, 4], salted) == {"a": 4}
    known.take("b", read_kv_frames(frames(STORED | {"lora_name": "x"})))
    assert known.held([1, 2, 3, 4], (msgspec.msgpack.encode(["x"]),)) == {"b": 4}


@pytest.mark.parametrize(
    ("sequence", "news"),
    [(1, KvNews.RESTARTED), (5, KvNews.RESTARTED), (6, KvNews.IN_ORDER), (9, KvNews.GAP)],
)
def test_sequence_tells_restarts_and_gaps(sequence: int, news: KvNews) -> None:
    """Going back is a restart, a jump may hide removals: both drop what was known. The next number keeps it."""
    known = KvBlocks()
    known.take("a", read_kv_frames(frames(STORED, sequence=5)))
    assert known.take("a", read_kv_frames(frames(sequence=sequence))) is news
    assert known.held([1, 2, 3, 4]) == ({"a": 4} if news is KvNews.IN_ORDER else {})


def test_cleared_and_forgotten_replicas_hold_nothing() -> None:
    """All blocks cleared, or a replica that is gone."""
    known = KvBlocks()
    for name in ("a", "b"):
        known.take(name, read_kv_frames(frames(STORED)))
    assert known.take("a", read_kv_frames(frames(CLEARED, sequence=1))) is KvNews.CLEARED
    known.forget("b")
    assert (known.held([1, 2, 3, 4]), known.blocks) == ({}, 0)


def test_blocks_without_a_known_parent_and_beyond_the_bound_are_counted() -> None:
    """What has no place in a prompt is not claimed; memory has a bound."""
    known = KvBlocks(blocks_max=3)
    known.take("a", read_kv_frames(frames(STORED | {"parent_block_hash": 99})))
    assert (known.blocks, known.left_out) == (0, 2)
    known.take("a", read_kv_frames(frames(STORED, sequence=1)))
    known.take("b", read_kv_frames(frames(STORED)))
    assert (known.blocks, known.left_out) == (3, 3)
