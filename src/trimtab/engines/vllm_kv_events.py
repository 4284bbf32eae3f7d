"""vLLM's KV events: frames of its publisher to typed events. No sockets.

Frames: [topic, sequence (8 bytes, big-endian), payload]. Payload: msgpack of [time, events, data parallel rank?],
events as maps with `type` (vLLM 0.32 and others that send maps) or as arrays that begin with their type (older ones).
A block's hash is the engine's own and means nothing but equality; the chain of blocks is given by `parent_block_hash`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from trimtab.core.kv_blocks import KvBatch, KvCleared, KvEvent, KvRemoved, KvStored
from trimtab.core.ports import EngineFormatError

SEQUENCE_BYTES: Final = 8
PAYLOAD_BYTES_MAX: Final = 64 * 1024 * 1024

_STORED_FIELDS: Final = (
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
)


class _Stored(msgspec.Struct):
    block_hashes: list[int | bytes]
    token_ids: list[int]
    block_size: int
    parent_block_hash: int | bytes | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[list[Any] | None] | None = None


class _Removed(msgspec.Struct):
    block_hashes: list[int | bytes]
    medium: str | None = None


def read_kv_frames(frames: Sequence[bytes]) -> KvBatch:
    """Read one message of the publisher; raises `EngineFormatError` saying what is wrong with it.

    Events of a type that is not known are counted and left out; so are blocks that are not on the device, which a
    request would have to wait for.
    """
    if len(frames) != 3 or len(frames[1]) != SEQUENCE_BYTES:
        raise EngineFormatError(
            f"KV events have three frames with a sequence of 8 bytes, got {[len(one) for one in frames]} bytes"
        )
    if len(frames[2]) > PAYLOAD_BYTES_MAX:
        raise EngineFormatError(f"KV events of {len(frames[2])} bytes are over the limit")
    try:
        at_s, events, *rank = msgspec.msgpack.decode(frames[2])
        read = [_event(one) for one in events]
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        raise EngineFormatError(f"KV events cannot be read: {error}") from error
    known = tuple(one for one in read if one is not None)
    return KvBatch(
        sequence=int.from_bytes(frames[1], "big", signed=True),
        at_s=float(at_s),
        rank=rank[0] if rank and isinstance(rank[0], int) else 0,
        events=known,
        left_out=len(read) - len(known),
    )


def _event(raw: object) -> KvEvent | None:
    kind, fields = _named(raw)
    match kind:
        case "BlockStored":
            stored = msgspec.convert(fields, _Stored)
            return None if _is_elsewhere(stored.medium) else _stored(stored)
        case "BlockRemoved":
            removed = msgspec.convert(fields, _Removed)
            if _is_elsewhere(removed.medium):
                return None
            return KvRemoved(blocks=tuple(removed.block_hashes))
        case "AllBlocksCleared":
            return KvCleared()
        case _:
            return None


def _named(raw: object) -> tuple[object, Mapping[str, object]]:
    """Return an event's type and its fields by name."""
    if isinstance(raw, dict):
        return raw.get("type"), raw
    if isinstance(raw, list) and raw:
        names = ("block_hashes", "medium") if raw[0] == "BlockRemoved" else _STORED_FIELDS
        return raw[0], dict(zip(names, raw[1:], strict=False))
    raise ValueError("an event is neither a map nor an array")


def _is_elsewhere(medium: str | None) -> bool:
    return medium is not None and medium.upper() not in ("GPU", "")


def _stored(read: _Stored) -> KvStored:
    size, count = read.block_size, len(read.block_hashes)
    if size < 1 or len(read.token_ids) != size * count:
        raise ValueError(f"{count} blocks of {size} tokens came with {len(read.token_ids)} tokens")
    extras = read.extra_keys or [None] * count
    if len(extras) != count:
        raise ValueError(f"{count} blocks came with extra keys for {len(extras)}")
    own = [[read.lora_name]] if read.lora_name else [None]
    return KvStored(
        blocks=tuple(read.block_hashes),
        parent=read.parent_block_hash,
        tokens=tuple(read.token_ids),
        block_tokens=size,
        extras=tuple(_extra(one) for one in (extras if read.extra_keys else own * count)),
    )


def _extra(keys: list[Any] | None) -> bytes:
    """Return what beside tokens went into a block's hash (adapter, images, salt) as bytes; empty for nothing."""
    return msgspec.msgpack.encode(keys) if keys else b""
