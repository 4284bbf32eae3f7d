"""Which tensor-parallel sizes a model allows, and what a rank of them holds.

Heads are dealt out whole: a size must divide the heads. KV heads are dealt out while there are enough and copied when
there are more ranks than KV heads, for which either must divide the other. So a rank holds max(1, KV heads / size) of
them: beyond that many ranks a larger group saves no KV per rank and only adds copies. A latent KV (MLA) is one head
that every rank needs whole: every rank holds all of it.
"""

import msgspec

from trimtab.core.served import ModelShape


class Refused(msgspec.Struct, frozen=True):
    """A size that cannot be, and why. `with_kv_support`: the query heads alone would allow it."""

    size: int
    because: str
    with_kv_support: bool = False


class LayoutSizes(msgspec.Struct, frozen=True, kw_only=True):
    """The sizes up to a number of devices that a model allows, and those that divide one kind of head only."""

    allowed: tuple[int, ...]
    refused: tuple[Refused, ...]

    def nearest(self, size: int) -> tuple[int, ...]:
        """Return the allowed sizes next to one: the largest below it and the smallest above it."""
        below = [found for found in self.allowed if found < size]
        above = [found for found in self.allowed if found > size]
        return (*below[-1:], *above[:1])


def kv_heads_per_rank(kv_heads: int, size: int) -> float:
    """Return how many KV heads each rank of a group holds; raises ValueError below 1."""
    if kv_heads < 1 or size < 1:
        raise ValueError(f"needs KV heads and ranks, got {kv_heads} over {size}")
    return max(1.0, kv_heads / size)


def kv_bytes_per_rank(shape: ModelShape, size: int) -> float | None:
    """Return the bytes of KV that each rank holds for one token; None where the model's facts do not tell."""
    if shape.kv_bytes_per_token is None or not shape.kv_heads:
        return None
    return shape.kv_bytes_per_token * kv_heads_per_rank(shape.kv_heads, size) / shape.kv_heads


def kv_copies(shape: ModelShape, size: int) -> float | None:
    """Return how many copies of its KV a group holds over all ranks: 1 until ranks outnumber KV heads."""
    each = kv_bytes_per_rank(shape, size)
    return None if each is None or not shape.kv_bytes_per_token else (
        each * size / shape.kv_bytes_per_token
    )  # fmt: skip


def why_not(heads: int, kv_heads: int | None, size: int) -> Refused | None:
    """Say why a size cannot be, None if it can. `kv_heads` None: only the query heads are known."""
    if heads % size:
        return Refused(size, f"{heads} heads do not divide over {size} ranks")
    if kv_heads is None or kv_heads % size == 0 or size % kv_heads == 0:
        return None
    return Refused(
        size,
        f"{kv_heads} KV heads neither divide over {size} ranks nor are copied evenly to them",
        with_kv_support=True,
    )


def layout_sizes(heads: int, kv_heads: int | None, devices: int) -> LayoutSizes:
    """Return the tensor-parallel sizes up to `devices`; raises ValueError without heads or devices."""
    if heads < 1 or devices < 1:
        raise ValueError(f"needs heads and devices, got {heads} on {devices}")
    judged = [(size, why_not(heads, kv_heads, size)) for size in range(1, devices + 1)]
    return LayoutSizes(
        allowed=tuple(size for size, refused in judged if refused is None),
        refused=tuple(refused for _, refused in judged if refused is not None),
    )


def largest_layout(heads: int, kv_heads: int | None, devices: int) -> tuple[int, int]:
    """Return (size, groups) that use all devices with the largest size allowed, such as (4, 2) on 8."""
    sizes = layout_sizes(heads, kv_heads, devices).allowed
    size = max(found for found in sizes if devices % found == 0)
    return size, devices // size
