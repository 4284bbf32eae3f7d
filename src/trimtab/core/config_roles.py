"""Configuration of roles: how many replicas prefill for the others, and whether that follows the traffic."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Final

from msgspec import Meta

from trimtab.core.config_base import Strict, check_finite
from trimtab.core.revision import Speculation

_OF_THE_KV_KEY: Final = ("model", "blocked_weights", "kv_type", "context_tokens", "slots")
"""Keys of `engine` that a role cannot have of its own."""


CHUNK_TOKENS_MIN: Final = 32
"""The smallest prefill batch of a replica."""


class RolesMode(StrEnum):
    """Whether roles stay as they were told or follow the traffic."""

    FIXED = "fixed"
    FOLLOW = "follow"


class PrefillEngineConfig(Strict, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What replicas that prefill for others run otherwise than `[engine]`, which all others run. Another value makes a
    change of role a restart. Model, slots, context and KV type cannot differ: only equal KV keys pair. Not for
    attached servers, which are started by others.
    """

    threads: Annotated[
        int,
        Meta(
            ge=0,
            description=(
                "Threads, at most the machine's cores; 0: as the others. More than its share of the cores are not "
                "pinned."
            ),
        ),
    ] = 0
    chunk_tokens: Annotated[
        int,
        Meta(
            ge=0, le=65_536, description="Largest prefill batch, in tokens; 0: engine.chunk_tokens."
        ),
    ] = 0
    speculation: Annotated[
        Speculation | None,
        Meta(
            description=(
                'Speculation, a table as `engine.speculation`, such as `{method = "off"}`; null: engine.speculation.'
            )
        ),
    ] = None

    def __post_init__(self) -> None:
        """Refuse a chunk that the engine cannot have; raises ValueError."""
        if 0 < self.chunk_tokens < CHUNK_TOKENS_MIN:
            raise ValueError(
                f"chunk_tokens = {self.chunk_tokens} must be 0 or at least {CHUNK_TOKENS_MIN}"
            )


class RolesConfig(Strict, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Roles of replicas. Those of attached servers begin as `fleet.attached` tells.

    Ratios are P90 over target, window means; shares from 0.
    """

    mode: Annotated[
        RolesMode,
        Meta(description="`fixed`: roles change when somebody asks; `follow`: with the traffic."),
    ] = RolesMode.FIXED
    prefill: Annotated[
        int, Meta(ge=0, description="Replicas that prefill for the others at the start: the last.")
    ] = 0
    ttft_ms: Annotated[float, Meta(gt=0, description="Target of the time to the first token.")] = (
        2000.0
    )
    tpot_ms: Annotated[float, Meta(gt=0, description="Target of the time per token after it.")] = (
        100.0
    )
    tick_s: Annotated[float, Meta(gt=0, description="Seconds between decisions.")] = 1.0
    window_s: Annotated[float, Meta(gt=0, description="Seconds that ratios look back.")] = 60.0
    cooldown_s: Annotated[
        float,
        Meta(
            ge=0,
            description=(
                "Seconds without a change after one: at least `window_s`, better more by what a change takes."
            ),
        ),
    ] = 180.0
    ticks: Annotated[int, Meta(ge=1, description="Ticks in a row that must ask for a change.")] = 3
    samples_min: Annotated[int, Meta(ge=1, description="Requests that a P90 needs.")] = 10
    act_above: Annotated[
        float, Meta(gt=0, le=2, description="Ratio above which a phase needs a replica.")
    ] = 0.55
    act_below: Annotated[
        float, Meta(gt=0, le=2, description="Ratio below which it can give one.")
    ] = 0.40
    rest_below: Annotated[
        float, Meta(gt=0, le=2, description="Predicted ratio, N/(N-1), that the rest must keep.")
    ] = 0.85
    kv_high: Annotated[
        float, Meta(gt=0, le=1, description="Share of KV from which the decode side is full.")
    ] = 0.90
    gain_min: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="Part of a replica that decode must be predicted to gain by a move.",
        ),
    ] = 0.10
    work_high: Annotated[
        float, Meta(gt=0, le=1, description="Busy share from which another may come.")
    ] = 0.70
    changes_per_hour: Annotated[
        float, Meta(gt=0, description="Most changes a replica and hour, mean over all replicas.")
    ] = 2.0
    transfer_high: Annotated[
        float,
        Meta(gt=0, le=2, description="Part of the TTFT target above which transfers are dear."),
    ] = 0.25
    drain_s: Annotated[
        float, Meta(gt=0, description="Longest wait for running requests at a change of role.")
    ] = 60.0
    prefill_engine: PrefillEngineConfig = PrefillEngineConfig()

    def __post_init__(self) -> None:
        """Refuse marks that leave no hysteresis, and a cool-down within the window; raises ValueError."""
        check_finite(self, "roles")
        if self.act_below >= self.act_above:
            raise ValueError(
                f"roles.act_below = {self.act_below:g} must be below roles.act_above = {self.act_above:g}"
            )
        if self.cooldown_s < self.window_s:
            raise ValueError(
                f"roles.cooldown_s = {self.cooldown_s:g} must be at least roles.window_s = {self.window_s:g}, or what "
                "was seen before a change asks for the next: raise it, or look back less"
            )


def kv_key_trouble(data: Mapping[str, object]) -> str:
    """Say which key of a file gives a role what the KV key hangs on, with its path; empty if none does."""
    roles = data.get("roles")
    engine = roles.get("prefill_engine") if isinstance(roles, Mapping) else None
    if not isinstance(engine, Mapping):
        return ""
    for key in _OF_THE_KV_KEY:
        if key in engine:
            return (
                f"{key} is that of engine for all roles: replicas hand KV over only where model, slots, context and KV "
                f"type are equal - at `$.roles.prefill_engine.{key}`"
            )
    return ""
