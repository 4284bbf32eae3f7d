"""What an evaluation found of both arms: items passed or not, as counts, by cut. No text of an item is kept."""

from typing import Annotated

import msgspec
from msgspec import Meta


class CutScores(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The items of one cut that were asked of both arms.

    `losses` passed with the baseline alone, `wins` with the candidate alone; both are None where the arms were asked
    other items, or nobody kept which passed.
    """

    cut: str = "all"
    n: Annotated[int, Meta(ge=1)]
    baseline_passed: Annotated[int, Meta(ge=0)]
    candidate_passed: Annotated[int, Meta(ge=0)]
    losses: Annotated[int, Meta(ge=0)] | None = None
    wins: Annotated[int, Meta(ge=0)] | None = None

    @property
    def loss(self) -> float:
        """The part of the items lost: above 0 the candidate is worse."""
        return (self.baseline_passed - self.candidate_passed) / self.n

    def plus(self, other: "CutScores") -> "CutScores":
        """Return both together; they pair only if both do."""
        pairs = None not in (self.losses, self.wins, other.losses, other.wins)
        return CutScores(
            cut=self.cut,
            n=self.n + other.n,
            baseline_passed=self.baseline_passed + other.baseline_passed,
            candidate_passed=self.candidate_passed + other.candidate_passed,
            losses=(self.losses or 0) + (other.losses or 0) if pairs else None,
            wins=(self.wins or 0) + (other.wins or 0) if pairs else None,
        )

    def minus(self, part: "CutScores") -> "CutScores | None":
        """Return the items that are not in a part of these; None where nothing is left."""
        if part.n >= self.n:
            return None
        pairs = None not in (self.losses, self.wins, part.losses, part.wins)
        return CutScores(
            cut=self.cut,
            n=self.n - part.n,
            baseline_passed=self.baseline_passed - part.baseline_passed,
            candidate_passed=self.candidate_passed - part.candidate_passed,
            losses=(self.losses or 0) - (part.losses or 0) if pairs else None,
            wins=(self.wins or 0) - (part.wins or 0) if pairs else None,
        )


class Scores(msgspec.Struct, frozen=True, kw_only=True):
    """One evaluation of a lever. `revision`: what the candidate ran, for scores say nothing of another.

    `floor`: the largest difference between `floor_runs` runs of the baseline against itself, None if it was not run.
    """

    evaluation: str
    revision: str
    cuts: tuple[CutScores, ...]
    floor: float | None = None
    floor_runs: int = 0
