"""Evals of two arms compared: by kind, by length of the prompt, against the noise of the original with itself.

Law: an item asked once is right or wrong, and pairs are judged by their flips. A sampled item is asked several times
by seeds, both arms by the same ones; its score is the share of runs that were right, and pairs are judged by the
differences of these, or where few differ by how many do. The floor is the largest difference between two runs of the
original over all items of the kind: the ruler's own error. A loss no larger than the floor is never shown to be one:
such a fail becomes a hold.

Failure modes: the floor is the largest of a few runs and grows with their number; a judge that favours one style is
noise to neither arm.
"""

import itertools
from collections.abc import Sequence
from typing import Final

import msgspec

from trimtab.core.cuts import input_tokens_bucket
from trimtab.core.types import Verdict
from trimtab.quality.evals import EvalItem, Item
from trimtab.quality.paired import (
    Direction,
    Margin,
    PairedResult,
    compare_right,
    compare_shares,
    family_level,
)

RUNS_DEFAULT: Final = 3
"""Seeded runs of a sampled item."""


class Harness(msgspec.Struct, frozen=True, kw_only=True):
    """Tasks of lm-eval to run against every arm. `include`: a folder with task files; `items_max`: of each task."""

    tasks: tuple[str, ...] = ()
    include: str = ""
    items_max: int = 1000


class EvalSet(msgspec.Struct, frozen=True, kw_only=True):
    """Items that are asked, and how many the files hold. `runs`: of each sampled item."""

    items: tuple[Item, ...]
    total: int
    runs: int = RUNS_DEFAULT
    harness: Harness = Harness()

    def runs_of(self, item: Item) -> int:
        """Return how often an item is asked."""
        return self.runs if isinstance(item, EvalItem) and item.is_sampled else 1


class EvalAnswer(msgspec.Struct, frozen=True):
    """What one arm made of one item: right or wrong in each seeded run; tokens of its prompt as the engine counts."""

    right: tuple[bool, ...]
    input_tokens: int | None = None

    @property
    def score(self) -> float:
        """Share of runs that were right."""
        return sum(self.right) / len(self.right)


class EvalOutcome(msgspec.Struct, frozen=True):
    """One eval item and what an arm made of it."""

    id: str
    kind: str
    answer: EvalAnswer


def eval_gate(kind: str) -> str:
    """Name the gate on a kind of eval."""
    return f"evals, {kind}"


def kinds_of(items: Sequence[EvalOutcome]) -> tuple[str, ...]:
    """Return the kinds of items, in order of appearance."""
    return tuple(dict.fromkeys(item.kind for item in items))


def eval_gates(
    base: Sequence[EvalOutcome], rung: Sequence[EvalOutcome], margin_share: float
) -> dict[str, PairedResult]:
    """Compare item by item: each kind as a whole, and by length of prompt where it has several; all held at once.

    `margin_share`: share of items that may be lost. Lengths are those under the original. Raises `ValueError` where
    both arms were not asked the same.
    """
    if [item.id for item in base] != [item.id for item in rung]:
        raise ValueError("both arms must be asked the same items, in the same order")
    margin = Margin(value=margin_share, unit="of items", direction=Direction.HIGHER_IS_BETTER)
    groups: dict[str, list[int]] = {}
    for kind in kinds_of(base):
        places = [at for at, item in enumerate(base) if item.kind == kind]
        groups[eval_gate(kind)] = places
        groups.update(_by_length(eval_gate(kind), places, base))
    level = family_level(len(groups))
    return {
        name: _compared(
            [base[at].answer for at in places], [rung[at].answer for at in places], margin, level
        )
        for name, places in groups.items()
    }


def _by_length(
    name: str, places: Sequence[int], base: Sequence[EvalOutcome]
) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for at in places:
        tokens = base[at].answer.input_tokens
        if tokens is not None:
            found.setdefault(input_tokens_bucket(tokens), []).append(at)
    ordered = sorted(found, key=lambda bucket: int(bucket.partition("-")[0].rstrip("+")))
    # One range alone says what the kind as a whole says.
    return {f"{name} {bucket}": found[bucket] for bucket in ordered} if len(found) > 1 else {}


def _compared(
    base: Sequence[EvalAnswer], rung: Sequence[EvalAnswer], margin: Margin, level: float
) -> PairedResult:
    if all(len(one.right) == 1 for one in (*base, *rung)):
        return compare_right(
            [one.right[0] for one in base], [one.right[0] for one in rung], margin, level=level
        )
    found = compare_shares(
        [one.score for one in base],
        [one.score for one in rung],
        margin,
        runs=max(len(one.right) for one in (*base, *rung)),
        level=level,
    )
    floor = noise_floor(base)
    if floor is None or found.harm is None:
        return found
    words = f"{found.because}; the original differs by {floor:.1%} from itself"
    if found.verdict is Verdict.FAIL and found.harm <= floor:
        return msgspec.structs.replace(
            found, verdict=Verdict.HOLD, because=f"{words}: inside the noise floor"
        )
    return msgspec.structs.replace(found, because=words)


def noise_floor(answers: Sequence[EvalAnswer]) -> float | None:
    """Return the largest difference in share right between two runs of one arm; None where it ran once."""
    sampled = [one for one in answers if len(one.right) > 1]
    if not sampled:
        return None
    once = sum(one.right[0] for one in answers if len(one.right) == 1)
    shares = [
        (once + sum(one.right[run] for one in sampled)) / len(answers)
        for run in range(min(len(one.right) for one in sampled))
    ]
    return max(abs(a - b) for a, b in itertools.combinations(shares, 2))


def floors_of(base: Sequence[EvalOutcome]) -> dict[str, float]:
    """Return the noise floor of each kind that was asked several times."""
    found = {
        kind: noise_floor([item.answer for item in base if item.kind == kind])
        for kind in kinds_of(base)
    }
    return {kind: floor for kind, floor in found.items() if floor is not None}
