"""The port behind which step times come from: measured kernel tables, or a roofline where those have no data.

A `StepTimes` speaks of one replica in one layout. Its batches are those of one attention rank, as the ranks of an
engine step together: with attention data-parallel over 4 groups, 64 streams are a batch of 16. A pipeline's times are
those of one microbatch through all stages. Times are of the devices alone: what a server adds (queues, scheduling, the
host) is not in them.
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from trimtab.core.layout import EstimateSource, Layout
from trimtab.core.served import EngineKind


class Serving(msgspec.Struct, frozen=True, kw_only=True):
    """What decides step times besides the layout.

    `model`: a name, or a folder that holds a config.json. `system`: an accelerator by any of its names. `precision`: of
    the weights ("bf16", "fp8", "nvfp4", "w4a16"), empty: as the checkpoint has them. `kv_bits`: of a value in the KV
    cache, None: as the checkpoint implies. `engine_version` is only compared with that of the tables.
    """

    model: str
    system: str
    engine: EngineKind
    precision: str = ""
    kv_bits: float | None = None
    engine_version: str = ""


class NoTimes(msgspec.Struct, frozen=True, kw_only=True):
    """No times for this serving or layout: what is missing, and the nearest names there are times for."""

    because: str
    nearest: tuple[str, ...] = ()


class StepTimes(Protocol):
    """Milliseconds of the steps of one replica in one layout; arguments are at least 1, cached tokens at least 0."""

    @property
    def source(self) -> EstimateSource:
        """What the times rest on."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know: another version than asked for, another precision, extended tables."""
        ...

    @property
    def extended(self) -> bool:
        """Whether some of it was extrapolated from measured kernels of other shapes."""
        ...

    def decode_ms(self, batch: float, context_tokens: float) -> float:
        """Return one step in which each of `batch` streams of a rank, `context_tokens` long, makes a token."""
        ...

    def communication_ms(self, batch: float, context_tokens: float) -> float | None:
        """Return the part of that step that collectives take; None where it cannot be told apart."""
        ...

    def prefill_ms(
        self, prompt_tokens: float, cached_tokens: float, *, busy_share: float = 1.0
    ) -> float:
        """Return one step that computes a whole prompt of a rank; its first `cached_tokens` are there.

        `busy_share`: part (0 to 1) of the attention groups that have a prompt in that step. Experts that groups share
        see the tokens of all of them.
        """
        ...

    def beside_ms(
        self,
        chunk_tokens: float,
        prompt_tokens: float,
        cached_tokens: float,
        batch: float,
        *,
        busy_share: float = 1.0,
    ) -> float:
        """Return what a chunk of a prompt adds to a step in which `batch` streams make a token; never below 0."""
        ...


class Parted(msgspec.Struct, frozen=True, kw_only=True):
    """Times of a mixture's layout: `no_exchange` without what ranks send each other for the experts, `no_experts`
    without the routed experts too.
    """

    whole: StepTimes
    no_exchange: StepTimes
    no_experts: StepTimes


class KernelTables(Protocol):
    """Where measured times come from. Loads on first use and keeps what it loaded."""

    def times(self, serving: Serving, layout: Layout) -> StepTimes | NoTimes:
        """Return the step times of a layout, or why there are none. Never reaches for a network."""
        ...

    def times_of_all(
        self, servings: Sequence[Serving], layout: Layout
    ) -> tuple[StepTimes | NoTimes, ...]:
        """Return the step times of a layout in several servings.

        Extended ones are looked for where none of the servings has measured ones; elsewhere an agreement takes none.
        """
        ...

    def parted(self, serving: Serving, layout: Layout) -> Parted | NoTimes:
        """Return a mixture's step times with those of its parts, or why there are none."""
        ...
