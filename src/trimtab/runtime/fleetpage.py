"""What the gateway's informing pages say, as values ready for JSON."""

from collections.abc import Iterable

import msgspec

from trimtab.core.decision import FleetView, ReplicaView
from trimtab.core.traffic import TrafficPlan


def models_page(models: Iterable[str]) -> object:
    """Return the list of models as OpenAI clients read it: those that every replica serves."""
    return {
        "object": "list",
        "data": [
            {"id": model, "object": "model", "created": 0, "owned_by": "trimtab"}
            for model in models
        ],
    }


def fleet_page(view: FleetView, plan: TrafficPlan) -> object:
    """Return every replica with its load, and the traffic plan that is followed."""
    return {
        "replicas": [_replica(replica) for replica in view.replicas],
        "plan": msgspec.to_builtins(plan),
    }


def _replica(replica: ReplicaView) -> dict[str, object]:
    return {
        "id": replica.id,
        "url": replica.url,
        "role": replica.role.value,
        "revision": replica.revision,
        "state": replica.state.value,
        "slots": replica.slots,
        "speculating": replica.speculating,
        "load": {
            "running": replica.running,
            "waiting": replica.waiting,
            "prefill_tokens_outstanding": replica.prefill_tokens_outstanding,
            "decode_tokens_outstanding": replica.decode_tokens_outstanding,
            "tokens_outstanding": replica.prefill_tokens_outstanding
            + replica.decode_tokens_outstanding,
            "kv_used_share": replica.kv_used_share,
        },
    }
