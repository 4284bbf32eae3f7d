"""Step costs, measurements and recorded days for tests of what reads them."""

import json
from collections.abc import Sequence

import msgspec
from events_kit import request

from trimtab.core.cost import CostModel
from trimtab.core.decision import FleetView, Held, ReplicaView, RouteRequest
from trimtab.core.events import AnyEvent, Calibrated, RequestServed
from trimtab.core.step_cost import StepCost
from trimtab.core.types import ReplicaState, Role
from trimtab.policies.routing import build_policies
from trimtab.sim.fit import Limits, serve
from trimtab.sim.jobs import ReplicaSpec
from trimtab.sim.measured import Measured

TRUTH = StepCost(
    overhead_ms=2.0,
    weights_ms=12.0,
    token_ms=0.05,
    stream_ms=0.1,
    context_ms=0.00003,
    pair_ms=0.000001,
    source="made up",
)
LIMITS = Limits(kv_tokens=40_000, streams_max=32)

COST = CostModel(
    prefill_base_ms=5.0,
    prefill_ms_per_token=0.5,
    step_base_ms=20.0,
    step_ms_per_stream=2.0,
    prefill_samples=9,
    step_samples=9,
    source="test",
)
MIN_MATCH_TOKENS = 32
LOAD_BOUND = 1.25


def measurement(count: int = 40, *, gap_s: float = 0.4) -> list[Measured]:
    """Requests of many sizes as an engine of cost TRUTH would have served them."""
    asked = [
        Measured(
            at_s=number * gap_s,
            input_tokens=200 + 137 * (number * 7 % 11),
            output_tokens=20 + 13 * (number * 5 % 9),
            first_token_s=0.0,
            last_token_s=0.0,
        )
        for number in range(count)
    ]
    return served_by(asked, LIMITS.spec(TRUTH))


def served_by(asked: Sequence[Measured], spec: ReplicaSpec, seed: int = 1) -> list[Measured]:
    """The requests with the times at which such replicas serve them."""
    served, _ = serve(asked, spec, seed)
    return [
        msgspec.structs.replace(
            one,
            first_token_s=one.at_s + times.ttft_ms / 1000.0,
            last_token_s=one.at_s + times.e2e_ms / 1000.0,
        )
        for one, times in zip(asked, served, strict=True)
    ]


def engine_lines(measured: Sequence[Measured], *, start_s: float = 1000.0) -> list[str]:
    """The same as a file of engine times, scheduled halfway to the first token."""
    return [
        json.dumps(
            {
                "input_toks": one.input_tokens,
                "output_toks": one.output_tokens,
                "queued_ts": start_s + one.at_s,
                "scheduled_ts": start_s + (one.at_s + one.first_token_s) / 2.0,
                "first_token_ts": start_s + one.first_token_s,
                "last_token_ts": start_s + one.last_token_s,
            }
        )
        for one in measured
    ]


def recorded_day(
    requests: int = 24, *, policy: str = "prefix_affine", label: str = "chat"
) -> list[AnyEvent]:
    """A calibration and requests that a policy routed over two replicas, kept as a gateway keeps them."""
    decides = build_policies(COST, load_bound=LOAD_BOUND, min_match_tokens=MIN_MATCH_TOKENS)[policy]
    events: list[AnyEvent] = [Calibrated(revision="rev", cost=COST)]
    for number in range(requests):
        view = FleetView(
            at_s=float(number), replicas=(_replica("r0", number % 3), _replica("r1", 1))
        )
        view = msgspec.structs.replace(view, sequence=number)
        holder = "r0" if number % 4 < 2 else "r1"
        asked = RouteRequest(
            request_id=f"q{number}",
            prompt_tokens=1000,
            output_tokens_expected=40,
            session=f"s{number % 5}",
            label=label,
            held=(Held(replica=holder, tokens=800),) if number % 4 else (),
        )
        draw = number / max(1, requests)
        decision = decides.decide(view, asked, draw)
        base = request(
            number,
            replica=decision.replica,
            label=label,
            policy=policy,
            arrived_at_s=float(number),
            finished_at_s=number + 0.1 + 0.02 * 40,
            ttft_ms=100.0 + number,
        )
        events.append(
            RequestServed(record=base.record, decision=decision, view=view, asked=asked, draw=draw)
        )
    return events


def _replica(name: str, running: int) -> ReplicaView:
    return ReplicaView(
        id=name,
        url=f"http://{name}",
        role=Role.MIXED,
        revision="rev",
        state=ReplicaState.READY,
        slots=8,
        running=running,
        decode_tokens_outstanding=200 * running,
    )
