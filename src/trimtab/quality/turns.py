"""In which order two arms are measured, so that neither the order nor the time of day makes one of them look faster.

Law: a round is four passes, A B B A, and which arm is A is drawn. So each arm comes once before and once after the
other, a machine that slows down evenly slows both alike, and nothing that repeats can keep step with one arm. A
round's value of an arm is the geometric mean of its two passes, and the unit of evidence is the ratio of one round.

Failure modes: what differs between the arms by itself, such as how their memory came to lie, stays in every round; it
shows only in the original measured beside itself, which is the noise floor of all ratios.
"""

import math
import random
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from trimtab.quality.ladder import Ratio, Speed, ratio_of


class Pass(NamedTuple):
    """One measurement of one arm. `kept`: whether it counts; equal `prompts`: both arms meet the same ones."""

    is_rung: bool
    prompts: int
    kept: bool


class SpeedSeen(msgspec.Struct, frozen=True):
    """One arm in one pass: milliseconds of a lone stream, output tokens per second by concurrency."""

    ttft_ms: float
    tpot_ms: float
    tokens_per_s: dict[int, float]


def passes_of(rounds: int, *, seed: int) -> tuple[Pass, ...]:
    """Return the passes in order: one of each arm that is not kept, since engines allocate in it, then the rounds."""
    rng = random.Random(f"sides {seed}")
    first = rng.random() < 0.5
    found = [Pass(first, seed, kept=False), Pass(not first, seed, kept=False)]
    for turn in range(rounds):
        ahead = rng.random() < 0.5
        early, late = seed + 2 * turn + 1, seed + 2 * turn + 2
        found += [
            Pass(ahead, early, kept=True),
            Pass(not ahead, early, kept=True),
            Pass(not ahead, late, kept=True),
            Pass(ahead, late, kept=True),
        ]
    return tuple(found)


def prompts_used(rounds: int) -> int:
    """Return by how much the seeds of two measurements must differ, so that no arm meets a prompt twice."""
    return 2 * rounds + 1


def speed_from(base: Sequence[SpeedSeen], rung: Sequence[SpeedSeen]) -> Speed:
    """Compare kept passes of both arms, in their order; raises `ValueError` for lists that are no whole rounds."""
    return _speed(_rounds(base), _rounds(rung))


def _rounds(passes: Sequence[SpeedSeen]) -> tuple[SpeedSeen, ...]:
    if not passes or len(passes) % 2:
        raise ValueError(f"{len(passes)} passes of an arm are no whole rounds of two")
    pairs = zip(passes[::2], passes[1::2], strict=True)
    return tuple(
        SpeedSeen(
            math.sqrt(one.ttft_ms * two.ttft_ms),
            math.sqrt(one.tpot_ms * two.tpot_ms),
            {
                streams: math.sqrt(rate * two.tokens_per_s[streams])
                for streams, rate in one.tokens_per_s.items()
            },
        )
        for one, two in pairs
    )


def _speed(base: Sequence[SpeedSeen], rung: Sequence[SpeedSeen]) -> Speed:
    most = max(base[0].tokens_per_s)

    def score(one: SpeedSeen) -> float:
        return math.sqrt(one.tpot_ms / one.tokens_per_s[most])

    def rates(streams: int) -> Ratio:
        return ratio_of(
            [one.tokens_per_s[streams] for one in base], [one.tokens_per_s[streams] for one in rung]
        )

    return Speed(
        ttft_ms=ratio_of([one.ttft_ms for one in base], [one.ttft_ms for one in rung]),
        tpot_ms=ratio_of([one.tpot_ms for one in base], [one.tpot_ms for one in rung]),
        tokens_per_s={streams: rates(streams) for streams in base[0].tokens_per_s},
        score=ratio_of([score(one) for one in base], [score(one) for one in rung]),
    )
