"""Configuration of hand-overs: when a prompt is prefilled on another replica, how long that may take, what it may hold.

Which replicas prefill for others is said elsewhere; without one nothing here has an effect.
"""

from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from trimtab.core.config_base import Strict, check_finite


class PlaceRule(StrEnum):
    """Where prompts are prefilled: where it is predicted to be faster, or always in one place, to be compared with."""

    PREDICTED = "predicted"
    LOCAL = "local"
    REMOTE = "remote"


class HandOverConfig(Strict, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a prompt's KV comes from another replica, and within which bounds."""

    place: Annotated[
        PlaceRule,
        Meta(
            description="predicted: where it is faster; local or remote: always there, to compare with."
        ),
    ] = PlaceRule.PREDICTED
    chunk_tokens: Annotated[
        int,
        Meta(
            ge=0,
            description="Uncached tokens up to which a prompt never travels; 0: engine.chunk_tokens.",
        ),
    ] = 0
    margin: Annotated[
        float,
        Meta(ge=0.0, lt=1.0, description="Part of the local prediction by which remote must win."),
    ] = 0.05
    stall_weight: Annotated[
        float,
        Meta(
            ge=0.0,
            description=(
                "What a millisecond that a running stream stands still counts: 1, as much as one that a request waits; "
                "against targets alone, TTFT target / (answer tokens x TPOT target)."
            ),
        ),
    ] = 1.0
    setup_ms: Annotated[
        float,
        Meta(ge=0.0, description="What a hand-over costs beside its bytes, until it is measured."),
    ] = 5.0
    ms_per_token: Annotated[
        float,
        Meta(ge=0.0, description="What a token's KV costs to move, until it is measured."),
    ] = 0.02
    prefill_timeout_s: Annotated[
        float,
        Meta(gt=0, description="Longest wait for another replica's prefill, its queue included."),
    ] = 60.0
    transfer_timeout_s: Annotated[
        float,
        Meta(gt=0, description="Longest time to bring KV over, waiting for room included."),
    ] = 10.0
    parcels_max: Annotated[
        int, Meta(ge=1, le=4096, description="Parcels of KV that may lie in memory at once.")
    ] = 16
    parcels_mib_max: Annotated[
        int, Meta(ge=1, description="Memory that parcels of KV may hold at once, in MiB.")
    ] = 1024
    parcel_lease_s: Annotated[
        float,
        Meta(
            gt=0,
            description=(
                "How long a parcel is kept that nobody asks for any more: at least as long as it may wait to be "
                "brought over, `transfer_timeout_s`."
            ),
        ),
    ] = 120.0
    nixl_lease_s: Annotated[
        float,
        Meta(
            gt=2.0,
            description="How long attached vLLM servers keep KV that nobody fetches: their kv_lease_duration.",
        ),
    ] = 30.0

    def mark_tokens(self, engine_chunk_tokens: int) -> int:
        """Return the uncached tokens up to which a prompt never travels, given the engine's chunk."""
        return self.chunk_tokens or engine_chunk_tokens

    def __post_init__(self) -> None:
        """Refuse a lease that ends while its parcel may still be waited for; raises ValueError."""
        check_finite(self, "handover")
        if self.parcel_lease_s < self.transfer_timeout_s:
            raise ValueError(
                f"handover.parcel_lease_s = {self.parcel_lease_s:g} must be at least handover.transfer_timeout_s = "
                f"{self.transfer_timeout_s:g}, or a parcel is gone while it is waited for: raise it, or wait less"
            )
