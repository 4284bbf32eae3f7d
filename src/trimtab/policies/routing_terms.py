"""What one replica would cost a request, in plain numbers: the law that every decision follows.

Fleets of a few replicas are decided by these functions, one replica after the other (`routing_few`); large ones by the
same law over whole columns (`routing_many`). Candidates are explained by these functions alone.
"""

from typing import Final

from trimtab.core.cost import CostModel

LOAD_BOUND: Final = 1.25
MIN_MATCH_TOKENS: Final = 32
PREFERRED_BONUS_MS: Final = 250.0
KV_TRIVIAL_SHARE: Final = 0.8
REUSE_PROBABILITY: Final = 0.5
"""How likely a displaced prompt would have been asked for again; not measured."""

EQUAL_MS: Final = 1e-6
"""Scores, and loads in tokens, no further apart than this are equal."""

TERM_NAMES: Final = ("wait", "prefill", "decode", "displaced", "preferred")

Terms = tuple[float, float, float, float, float]
"""Milliseconds by `TERM_NAMES`; their sum in this order is the score."""


def decode_weight(slots: float, cost: CostModel) -> float:
    """Return what one output token costs on a full replica of so many slots, in tokens of prefill."""
    if cost.prefill_ms_per_token <= 0.0:
        return 1.0
    whole = max(1.0, slots)
    step = cost.step_base_ms + cost.step_ms_per_stream * whole
    return step / whole / cost.prefill_ms_per_token


def times_ms(
    cost: CostModel,
    slots: float,
    running: float,
    waiting: float,
    prefill: float,
    decode: float,
    new_tokens: float,
    output: float,
) -> tuple[float, float, float]:
    """Return the predicted milliseconds of waiting, of prefill and of decode on one replica.

    Waiting: outstanding prefill comes first. If no slot is free, slots become free at the rate
    slots / (mean remaining output tokens * step_ms(slots)), one for each request ahead and one for this.
    Prefill: of the `new_tokens` that are not held there; none cost nothing. Decode: in the batch that it would join.
    """
    per_token, per_stream = cost.prefill_ms_per_token, cost.step_ms_per_stream
    wait = prefill * per_token
    in_flight = running + waiting
    if in_flight >= slots:
        whole = slots if slots > 1.0 else 1.0
        remaining = decode / in_flight if in_flight > 1.0 else decode
        step = cost.step_base_ms + per_stream * whole
        wait += (in_flight - slots + 1) * remaining * (step / whole)
    batch = running + 1.0 if running + 1.0 < slots else slots
    return (
        wait,
        cost.prefill_base_ms + per_token * new_tokens if new_tokens > 0 else 0.0,
        output * (cost.step_base_ms + per_stream * (batch if batch > 1.0 else 1.0)),
    )
