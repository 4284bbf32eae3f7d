"""What a walk over the ladder found: everything that its report, its page and its lever record are made of."""

import msgspec

from trimtab.quality.eval_scores import EvalOutcome
from trimtab.quality.ladder import RungChoice, RungResult
from trimtab.quality.sensitivity import Sensitivity


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What was to be measured, said before it was. Positions and blocks are per kind of text.

    `spread_max`: standard deviation of a block's difference up to which an equal candidate passes nine times of ten.
    """

    positions: dict[str, int]
    blocks: dict[str, int]
    block_tokens: int
    margin_nats: float
    spread_max: dict[str, float]
    free_prompts: int
    eval_items: int
    eval_items_total: int
    eval_runs: int = 1
    """Seeded runs of each sampled item."""
    harness: tuple[str, ...] = ()
    """Tasks that lm-eval runs against every arm; how many documents they have is known when they have run."""
    eval_margin: float = 0.02
    """Share of eval items that may be lost."""
    rounds: int
    concurrencies: tuple[int, ...]


class Confirmation(msgspec.Struct, frozen=True, kw_only=True):
    """A second full run of the chosen rung."""

    result: RungResult
    holds: bool
    because: str


class Quantized(msgspec.Struct, frozen=True, kw_only=True):
    """The whole answer. `repeats_exactly`: whether the original, scored twice, gave the same to the last digit."""

    engine: str
    model: str
    model_sha256: str
    original: str
    original_note: str
    plan: Plan
    repeats_exactly: bool
    repeat_spread: float
    sensitivity: Sensitivity | None
    results: tuple[RungResult, ...]
    choice: RungChoice
    confirmation: Confirmation | None
    artifact: str | None
    lever_record: str | None
    kv_binds: bool
    notes: tuple[str, ...]
    machine: str
    took_s: float
    items: tuple[EvalOutcome, ...] = ()
    floors: dict[str, float] = {}
    """By kind of eval: how much the original's own runs differ, as a share of items."""
