"""Measures what lowering each group of tensors alone does, and which tensors spread far."""

import asyncio
import mmap
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from trimtab.engines.gguf import GGUFHeader, Tensor, read_header
from trimtab.engines.gguf_rewrite import Floats, decoded
from trimtab.engines.gguf_tensors import LINEAR, Group, TensorKind, TensorPlace, place_of
from trimtab.quality.loss import TextScore, blocks_of
from trimtab.quality.paired import compare, family_level
from trimtab.quality.sensitivity import (
    GroupDamage,
    Sensitivity,
    TensorSpread,
    choose_groups,
    heavy_tensors,
    shares_of,
)
from trimtab.runtime.gguf_codec import GGUFCodec, convert
from trimtab.runtime.quality_pair import loss_margin
from trimtab.runtime.to_end import in_thread

PROBE: Final = TensorKind.Q4_0
PROBED: Final = (*LINEAR, Group.EMBEDDING, Group.HEAD)
PROBE_BUDGET: Final = 5.0
"""Four bits cost more than any rung that would be taken: groups share so many times the margin in this order."""


class Probes(msgspec.Struct, frozen=True, kw_only=True):
    """What is probed and where probes are written."""

    source: Path
    folder: Path
    margin_nats: float
    say: Callable[[str, float], None]


async def sensitivity_of(
    probes: Probes,
    header: GGUFHeader,
    base: Sequence[TextScore],
    score: Callable[[Path], Awaitable[tuple[TextScore, ...]]],
) -> Sensitivity:
    """Lower each group alone, score it, and decide; probes are removed as soon as they are scored."""
    present = {place_of(tensor.name).group for tensor in header.table}
    groups = [group for group in PROBED if group in present]

    async def lowered(group: Group) -> tuple[TextScore, ...]:
        path = probes.folder / f"probe-{group.value}.gguf"
        try:
            await in_thread(convert, probes.source, path, {group: PROBE})
            return await score(path)
        finally:
            path.unlink(missing_ok=True)

    return await probed(
        _values(header, groups),
        base,
        lowered,
        lambda: spreads_of(probes.source),
        probe=PROBE.value,
        margin_nats=probes.margin_nats,
        say=probes.say,
    )


async def probed(
    values: Mapping[Group, int],
    base: Sequence[TextScore],
    lowered: Callable[[Group], Awaitable[tuple[TextScore, ...]]],
    spreads: Callable[[], tuple[TensorSpread, ...]],
    *,
    probe: str,
    margin_nats: float,
    say: Callable[[str, float], None],
) -> Sensitivity:
    """Compare each group, lowered alone, with the original, and decide.

    `values`: how many weights each group has; `lowered`: scores the texts of `base` with one group lowered; `spreads`
    is called in a thread.
    """
    shares = shares_of(values)
    before = [block.loss for block in blocks_of(base)]
    level = family_level(len(values))
    damages: list[GroupDamage] = []
    for number, group in enumerate(values):
        say(f"lowering {group.value} alone", number / len(values))
        after = [block.loss for block in blocks_of(await lowered(group))]
        result = compare(before, after, loss_margin(margin_nats), level=level)
        damages.append(GroupDamage(group=group, share=shares[group], result=result))
    say("looking for outliers", 1.0)
    return Sensitivity(
        groups=choose_groups(damages, margin=PROBE_BUDGET * margin_nats),
        outliers=heavy_tensors(await asyncio.to_thread(spreads)),
        probe=probe,
    )


def spreads_of(source: Path) -> tuple[TensorSpread, ...]:
    """Read how the values of every linear tensor spread; raises `GGUFError`."""
    codec = GGUFCodec()
    with source.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        view = memoryview(data)
        try:
            tensors = read_header(view, file_bytes=len(view)).table
            linear = [one for one in tensors if place_of(one.name).group in LINEAR]
            return tuple(_spread(one, view, codec) for one in linear)
        finally:
            view.release()


def _spread(tensor: Tensor, view: memoryview, codec: GGUFCodec) -> TensorSpread:
    raw = bytes(view[tensor.start : tensor.start + tensor.size])
    return spread_of(tensor.name, place_of(tensor.name), decoded(tensor, raw, codec))


def spread_of(name: str, place: TensorPlace, weights: Floats) -> TensorSpread:
    """Say how the values of one tensor spread."""
    values = weights.ravel().astype(np.float64)
    square = values * values
    power = float(square.mean()) or 1.0
    return TensorSpread(
        name=name,
        group=place.group,
        layer=place.layer,
        values=values.size,
        peak=float(np.abs(values).max() / np.sqrt(power)),
        kurtosis=float((square * square).mean() / power**2),
    )


def _values(header: GGUFHeader, groups: Sequence[Group]) -> dict[Group, int]:
    found = dict.fromkeys(groups, 0)
    for name, count in header.values.items():
        group = place_of(name).group
        if group in found:
            found[group] += count
    return found
