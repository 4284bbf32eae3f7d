"""What a walk over precisions needs of an engine: a port, and what goes through it."""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple, Protocol

from trimtab.core.ports import LaunchError
from trimtab.quality.ladder import Rung, RungResult
from trimtab.quality.loss import TextScore
from trimtab.quality.rung_results import RungFacts
from trimtab.quality.sensitivity import Sensitivity
from trimtab.runtime.quality_arm import QualityArm, Window


class RungError(LaunchError):
    """A rung that this model cannot have, whatever the machine; the message says why."""


Progress = Callable[[str, float], None]
"""(what is being done, part of the whole that is done)."""


class OriginalArm(NamedTuple):
    """The original as it runs. `source`: as it was given; `path`: what runs, and `note` says what stands for it.

    `vocabulary`: how many tokens the model knows.
    """

    arm: QualityArm
    source: str
    sha256: str
    path: str
    note: str
    vocabulary: int | None = None


class RungArm(NamedTuple):
    """A rung as it runs. `facts`: what the engine itself says of it, where it says more than the file does."""

    arm: QualityArm
    facts: RungFacts


class LadderEngine(Protocol):
    """The side of one engine. Failures are `LaunchError`s that say what to do."""

    @property
    def version(self) -> str:
        """Name and version, such as `vllm/0.32.0`."""
        ...

    @property
    def machine(self) -> str:
        """What an arm runs on, in words."""
        ...

    async def original(self, say: Progress) -> OriginalArm:
        """Start the original; it runs until `close`."""
        ...

    async def sensitivity(
        self, windows: Sequence[Window], scores: Sequence[TextScore], say: Progress
    ) -> Sensitivity:
        """Lower each group of tensors alone; `scores`: of the windows under the original."""
        ...

    def rungs(self, found: Sensitivity | None) -> tuple[Rung, ...]:
        """Return the ladder, the original first; rungs that share files stand side by side."""
        ...

    async def write(self, rung: Rung, found: Sensitivity | None) -> RungFacts:
        """Have the rung's files, written now unless they are there, and return what they hold; raises `RungError`."""
        ...

    def started(self, rung: Rung) -> AbstractAsyncContextManager[RungArm]:
        """Start a rung that was written; it ends with the context."""
        ...

    def resident_bytes(self) -> int | None:
        """Return the memory of the rung that runs."""
        ...

    def discard(self) -> None:
        """Remove the files of the rung that was written last, if they are kept no longer."""
        ...

    async def keep(self, rung: Rung) -> str:
        """Keep the files of the rung that was written last and return where they lie."""
        ...

    def notes(self, results: Sequence[RungResult]) -> tuple[str, ...]:
        """Say what a reader of the table must know."""
        ...

    async def close(self) -> None:
        """End whatever runs and remove what was written on the way."""
        ...
