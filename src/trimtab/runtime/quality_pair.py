"""A rung held against the original in quality: both run, and each meets the same texts and beginnings."""

import asyncio
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Final

import aiohttp
import msgspec

from trimtab.quality.loss import LossBlock, TextScore, blocks_of, cuts_of
from trimtab.quality.paired import Direction, Margin, PairedResult, compare, family_level
from trimtab.runtime.quality_arm import QualityArm, Window

CONNECTIONS_MAX: Final = 8
POSITION_EDGES: Final = (256, 1024, 4096)


async def scored(arm: QualityArm, windows: Sequence[Window]) -> tuple[TextScore, ...]:
    """Score every window, one after the other, so that each position is computed alone and repeats exactly."""
    return tuple([await arm.score(window) for window in windows])


def loss_gates(
    base: Sequence[TextScore], rung: Sequence[TextScore], margin: Margin
) -> dict[str, PairedResult]:
    """Compare block by block, for each kind of text and each range of positions, all of them held at once."""
    before, after = blocks_of(base), blocks_of(rung)
    cuts = cuts_of(before, POSITION_EDGES)
    level = family_level(len(cuts))
    return {
        f"log loss, {cut.name}": compare(
            _losses(before, cut.holds), _losses(after, cut.holds), margin, level=level
        )
        for cut in cuts
    }


def _losses(blocks: Sequence[LossBlock], holds: Callable[[LossBlock], bool]) -> list[float]:
    return [block.loss for block in blocks if holds(block)]


def loss_margin(nats: float) -> Margin:
    """Return the margin on log loss."""
    return Margin(value=nats, unit="nats a token", direction=Direction.LOWER_IS_BETTER)


FREE_TEMPERATURE: Final = 0.7
FREE_MARGIN_NATS: Final = 0.2
FREE_EDGES: Final = (0, 16, 48)


class Writing(msgspec.Struct, frozen=True):
    """What one arm wrote: sampled with a seed, and greedily."""

    sampled: tuple[int, ...]
    greedy: tuple[int, ...]


async def written(
    arm: QualityArm, beginnings: Sequence[Window], tokens: int, seed: int
) -> tuple[Writing, ...]:
    """Let an arm continue each beginning; raises `ArmError`."""
    gate = asyncio.Semaphore(arm.streams)

    async def one(number: int, begun: Window) -> Writing:
        before = begun.tokens[: begun.first]
        async with gate:
            sampled = await arm.write(
                before, tokens, temperature=FREE_TEMPERATURE, seed=seed + number
            )
            greedy = await arm.write(before, tokens, temperature=0.0, seed=seed)
        return Writing(sampled.tokens, greedy.tokens)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(*numbered)) for numbered in enumerate(beginnings)]
    except ExceptionGroup as errors:
        # The others were ended because one failed.
        raise errors.exceptions[0] from None
    return tuple(task.result() for task in tasks)


async def judged(
    judge: QualityArm, beginnings: Sequence[Window], writings: Sequence[Writing]
) -> tuple[TextScore, ...]:
    """Score what was sampled under the original; its positions count from the first written token."""
    found: list[TextScore] = []
    for begun, writing in zip(beginnings, writings, strict=True):
        before = begun.tokens[: begun.first]
        window = msgspec.structs.replace(begun, tokens=(*before, *writing.sampled))
        score = await judge.score(window)
        found.append(msgspec.structs.replace(score, first_position=0))
    return tuple(found)


def free_gates(base: Sequence[TextScore], rung: Sequence[TextScore]) -> dict[str, PairedResult]:
    """Compare what both wrote, by output position: errors that build up show late or not at all.

    The unit is one beginning; its own sampled text is worth its mean loss under the original in that range.
    """
    margin = loss_margin(FREE_MARGIN_NATS)
    edges = [*FREE_EDGES, None]
    gates: dict[str, PairedResult] = {}
    ranges = list(itertools.pairwise(edges))
    for low, high in ranges:
        pairs = [
            (old.losses[low:high], new.losses[low:high])
            for old, new in zip(base, rung, strict=True)
        ]
        whole = [(old, new) for old, new in pairs if old and new]
        name = f"own writing, output {low}-{'' if high is None else high}"
        gates[name] = compare(
            [math.fsum(old) / len(old) for old, _ in whole],
            [math.fsum(new) / len(new) for _, new in whole],
            margin,
            level=family_level(len(ranges)),
        )
    return gates


def _first_difference(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many tokens agree from the start."""
    for at, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return at
    return min(len(one), len(other))


def plain_session() -> aiohttp.ClientSession:
    """Return a session for scoring, with as many connections to an arm as it is asked at once."""
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit_per_host=CONNECTIONS_MAX))


def signs_of(base: Sequence[Writing], rung: Sequence[Writing]) -> dict[str, float]:
    """Return early signs, never gates: how long both agree at temperature 0, and how often to the end."""
    agreed = [_first_difference(a.greedy, b.greedy) for a, b in zip(base, rung, strict=True)]
    if not agreed:
        return {}
    same = sum(a.greedy == b.greedy for a, b in zip(base, rung, strict=True))
    return {
        "tokens_until_first_difference": sum(agreed) / len(agreed),
        "same_answers_share": same / len(agreed),
    }
