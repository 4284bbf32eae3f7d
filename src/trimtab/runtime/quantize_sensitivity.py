"""Measures what lowering each group of tensors alone does, and which tensors spread far."""

import asyncio
import mmap
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from trimtab.engines.gguf import GGUFHeader, Tensor, read_header
from trimtab.engines.gguf_rewrite import decoded
from trimtab.engines.gguf_tensors import LINEAR, Group, TensorKind, place_of
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

PROBE: Final = TensorKind.Q4_0
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
    groups = [group for group in (*LINEAR, Group.EMBEDDING, Group.HEAD) if group in present]
    shares = shares_of(_values(header, groups))
    before = [block.loss for block in blocks_of(base)]
    level = family_level(len(groups))
    margin = loss_margin(probes.margin_nats)
    damages: list[GroupDamage] = []
    for number, group in enumerate(groups):
        probes.say(f"lowering {group.value} alone", number / len(groups))
        path = probes.folder / f"probe-{group.value}.gguf"
        try:
            await asyncio.to_thread(convert, probes.source, path, {group: PROBE})
            after = [block.loss for block in blocks_of(await score(path))]
        finally:
            path.unlink(missing_ok=True)
        result = compare(before, after, margin, level=level)
        damages.append(GroupDamage(group=group, share=shares[group], result=result))
    probes.say("looking for outliers", 1.0)
    spreads = await asyncio.to_thread(spreads_of, probes.source)
    return Sensitivity(
        groups=choose_groups(damages, margin=PROBE_BUDGET * probes.margin_nats),
        outliers=heavy_tensors(spreads),
        probe=PROBE.value,
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
    values = decoded(tensor, raw, codec).ravel().astype(np.float64)
    square = values * values
    power = float(square.mean()) or 1.0
    place = place_of(tensor.name)
    return TensorSpread(
        name=tensor.name,
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
