"""What was promised of `trimtab speculate`, held against a measurement.

    python bench/bench_speculation.py [--read out/speculated.json]

Without a file it measures: the packaged model, small batches, minutes. Each line says what must hold, whether it does,
and the figures.
"""

import argparse
import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from trimtab.core.config import EngineConfig
from trimtab.levers.speculation_depths import PointFigures, bound, is_shown
from trimtab.levers.speculation_found import ERROR_MAX, CutFigures, Pays, Speculated
from trimtab.runtime.clock import SystemClock
from trimtab.runtime.sources import standard_library
from trimtab.runtime.speculate import Speculator
from trimtab.runtime.speculate_ask import SpeculateAsk
from trimtab.workloads.draft_samples import standard_samples

EDIT_GAIN_MIN = 1.4
"""How much less time a token of an edit must take alone."""


def measure() -> Speculated:
    """Measure a little."""
    ask = SpeculateAsk(
        engine=EngineConfig(),
        samples=standard_samples(standard_library(), each=4, seed=1),
        depths=(4, 8),
        batches=(1, 2, 4, 8),
        temperatures=(0.0, 0.7, 1.0),
        loop_s=1.0,
    )
    return asyncio.run(Speculator(ask, SystemClock(), lambda *_: None).run())


def judged(found: Speculated) -> Iterator[tuple[bool, str]]:
    """Yield what must hold: whether it does, and in words."""
    inside, points = found.within
    worst = max(found.points, key=lambda one: abs(one.error))
    yield (
        inside == points,
        f"predicted within {ERROR_MAX:.0%} of measured: {inside} of {points} points, the worst {worst.error:+.0%} "
        f"({worst.batch} streams, depth {worst.depth})",
    )
    held = [one for one in found.plan.choices if one.holds]
    yield (
        len(held) == len(found.plan.choices),
        f"depth within 5% of the best measured, or not told apart from it: {len(held)} of "
        f"{len(found.plan.choices)} batches",
    )
    yield from _edits(found)
    free = [one for one in found.cuts if one.label != found.judged_label and one.valid_off is None]
    claimed = [one for one in free if one.label in found.gaining and one.pays is not Pays.GAINS]
    yield (
        not [one for one in claimed if one.temperature == 0.0],
        "no gain is claimed of other free text that is not there: "
        + (", ".join(_told(one) for one in free) or "none was asked"),
    )
    yield _above(found)
    yield (
        found.rule_drafted == found.engine_drafted,
        f"the rule drafts what the engine drafts: {found.rule_drafted} and {found.engine_drafted} tokens",
    )


def _above(found: Speculated) -> tuple[bool, str]:
    """Hold the depth by batch against what each gains: drafted is what is shown to gain, and nothing that is not."""
    depths = {one.batch: one.depth for one in found.plan.choices}
    off = [one for one in found.points if one.depth and not depths[one.batch]]
    unused = [one for one in off if is_shown(one)]
    unshown = [
        one
        for one in found.points
        if one.depth and one.depth == depths[one.batch] and not is_shown(one)
    ]
    even = found.plan.break_even
    where = f"above batch {even.off_at:.1f}" if off else "nowhere below the largest batch measured"
    return (
        not unused and not unshown,
        f"drafts are off where no gain is shown ({where}; break-even: {even.told}): of {len(off)} depths measured "
        f"there these gain beyond noise: {_points_told(unused)}; drafted without a gain beyond noise: "
        f"{_points_told(unshown)}",
    )


def _points_told(points: Sequence[PointFigures]) -> str:
    """Say which depths at which batches, with their measured intervals."""
    return (
        ", ".join(
            f"depth {one.depth} at {one.batch} [{bound(one.tokens_per_s, low=True) or 0.0:.2f}, "
            f"{bound(one.tokens_per_s, low=False) or float('inf'):.2f}]"
            for one in points
        )
        or "none"
    )


def _edits(found: Speculated) -> Iterator[tuple[bool, str]]:
    edits = [one for one in found.cuts if one.label == found.judged_label]
    alone = [one.tpot_ms.ratio for one in edits if one.temperature == 0.0 and one.tpot_ms.ratio]
    gain = 1.0 / alone[0] if alone else 0.0
    yield (
        gain >= EDIT_GAIN_MIN,
        f"edits gain {EDIT_GAIN_MIN:g}x alone: {gain:.2f}x; " + ", ".join(map(_told, edits)),
    )


def _told(one: CutFigures) -> str:
    ratio, bounds = one.tpot_ms.ratio, one.tpot_ms.interval
    shown = "unknown" if ratio is None else f"{ratio:.2f}"
    if bounds is not None:
        shown += f" [{bounds.low:.2f}, {bounds.high:.2f}]"
    return f"{one.label} at {one.temperature:g}: {shown} (n={one.tpot_ms.n})"


def main() -> None:
    """Print every line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--read", type=Path, help="speculated.json of an earlier measurement.")
    asked = parser.parse_args()
    found = (
        msgspec.json.decode(asked.read.read_bytes(), type=Speculated) if asked.read else measure()
    )
    for holds, words in judged(found):
        print(f"{'holds' if holds else 'DOES NOT HOLD'}: {words}")


if __name__ == "__main__":
    main()
