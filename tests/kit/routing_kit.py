"""Costs, fleets and requests for tests of routing."""

from trimtab.core.cost import CostModel
from trimtab.core.decision import FleetView, Held, ReplicaView, RouteRequest
from trimtab.core.types import ReplicaState, Role

COST = CostModel(
    prefill_base_ms=0.0,
    prefill_ms_per_token=10.0,
    step_base_ms=20.0,
    step_ms_per_stream=5.0,
    prefill_samples=9,
    step_samples=9,
    source="test",
)
"""A decode token of a full replica of 8 slots costs 60 / 8 / 10 = 0.75 prompt tokens."""


def replica(
    name: str,
    *,
    prefill: int = 0,
    decode: int = 0,
    running: int = 0,
    waiting: int = 0,
    kv: float | None = None,
    state: ReplicaState = ReplicaState.READY,
    slots: int = 8,
) -> ReplicaView:
    return ReplicaView(
        id=name,
        url=f"http://{name}",
        role=Role.MIXED,
        revision="rev",
        state=state,
        slots=slots,
        running=running,
        waiting=waiting,
        prefill_tokens_outstanding=prefill,
        decode_tokens_outstanding=decode,
        kv_used_share=kv,
    )


def fleet(*replicas: ReplicaView, sequence: int = 0) -> FleetView:
    return FleetView(at_s=1.0, replicas=replicas, sequence=sequence)


def request(
    *,
    prompt: int = 1000,
    output: int = 50,
    held: dict[str, int] | None = None,
    displaced: dict[str, int] | None = None,
    session: str | None = "s",
    allowed: tuple[str, ...] | None = None,
    preferred: tuple[str, ...] = (),
    hot: int = 0,
) -> RouteRequest:
    overwrites = displaced or {}
    return RouteRequest(
        request_id="q",
        prompt_tokens=prompt,
        output_tokens_expected=output,
        session=session,
        held=tuple(
            Held(replica=name, tokens=(held or {}).get(name, 0), displaced=overwrites.get(name, 0))
            for name in sorted({*(held or {}), *overwrites})
        ),
        allowed=allowed,
        preferred=preferred,
        hot_tokens=hot,
    )
