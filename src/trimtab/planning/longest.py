"""How long a request may be: the limit that a server is started with, which must fit the memory that was planned.

A mean is no limit, since about half of the requests are longer. So the limit is, in this order: the context that was
asked for; the model's own; what the cache of one replica holds, less a share for the error of the memory's estimate,
because vLLM does not start with a limit beyond its cache. Where a model does not tell its own, a multiple of the mean
stands for it.
"""

from bisect import bisect_right
from typing import Final

import msgspec

from trimtab.core.layout import Demand, Layout
from trimtab.core.served import ModelShape
from trimtab.planning.memory import STORED_KV_BITS, kv_need, step_defaults

TRUSTED_SHARE: Final = 0.9
"""Of the cache that was planned; the rest is what the estimate may be off."""

MARGIN: Final = 4
BLOCK_TOKENS: Final = 16


class CacheRoom(msgspec.Struct, frozen=True, kw_only=True):
    """The cache of the fullest rank of one replica: its bytes, the width of a value, and the device's memory."""

    kv_bytes: float
    device_bytes: float
    kv_bits: float = STORED_KV_BITS


class Longest(msgspec.Struct, frozen=True, kw_only=True):
    """The longest request in tokens, and why it is that, as a sentence without its end."""

    tokens: int
    because: str


def longest_request(
    model: ModelShape, layout: Layout, demand: Demand, room: CacheRoom, *, asked_by: str
) -> Longest:
    """Return the limit of one replica. `asked_by`: who asked for the demand's context, where it has one."""
    mean = demand.input_tokens + demand.output_tokens
    if demand.context_tokens is not None:
        return Longest(tokens=demand.context_tokens, because=asked_by)
    own = model.context_tokens_max
    wanted = own or MARGIN * mean
    what = (
        "the model's own" if own else f"{MARGIN} times the mean, for the model's own is not known"
    )
    held = _held(model, layout, room, most=wanted)
    counted = f"the plan's memory was counted for requests of the mean, {mean:,} tokens"
    if held >= wanted:
        return Longest(
            tokens=wanted, because=f"{what}; {counted}, so fewer run at once if they are longer"
        )
    return Longest(
        tokens=max(mean, held),
        because=f"what {TRUSTED_SHARE:.0%} of a replica's KV cache holds, for {what}, {wanted:,}, does not fit it; "
        f"{counted}. --context plans for another",
    )


def stream_bytes(model: ModelShape, layout: Layout, tokens: int, room: CacheRoom) -> float:
    """Return the bytes that a request of so many tokens holds in the cache of a rank."""
    need = kv_need(
        model,
        layout,
        tokens,
        kv_bits=room.kv_bits,
        batch_tokens_max=step_defaults(room.device_bytes).batch_tokens,
    )
    return need.stream_bytes if need else 0.0


def _held(model: ModelShape, layout: Layout, room: CacheRoom, *, most: int) -> int:
    """Return the longest request that the cache holds, at most `most`; whole blocks where it is shorter."""
    bytes_max = TRUSTED_SHARE * room.kv_bytes
    if stream_bytes(model, layout, most, room) <= bytes_max:
        return most
    blocks = range(1, most // BLOCK_TOKENS + 1)
    held = bisect_right(
        blocks, bytes_max, key=lambda count: stream_bytes(model, layout, count * BLOCK_TOKENS, room)
    )
    return held * BLOCK_TOKENS
