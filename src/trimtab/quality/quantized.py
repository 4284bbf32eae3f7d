"""What a walk over the ladder found: everything that its report, its page and its lever record are made of."""

import msgspec

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
    rounds: int
    concurrencies: tuple[int, ...]


class EvalOutcome(msgspec.Struct, frozen=True):
    """One eval item and whether the original got it right."""

    id: str
    kind: str
    right: bool


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
