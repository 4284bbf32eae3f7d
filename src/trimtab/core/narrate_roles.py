"""Sentences about roles of replicas and about KV that moves between them."""

from trimtab.core.events import RolesDecided
from trimtab.core.handover import HandOver
from trimtab.core.narrate_words import UNKNOWN, clause


def tell_roles(event: RolesDecided) -> str:
    """Say what the role control decided, or a person asked for, and by which figures."""
    what = "roles stay"
    if event.replica is not None and event.role is not None:
        what = f"replica {event.replica} changes to {event.role.value}"
    if event.decision is None:
        return f"Roles: {what}: {clause(event.because)}."
    made = event.decision
    ttft, tpot = (
        UNKNOWN if value is None else f"{value:.2f}" for value in (made.ttft_ratio, made.tpot_ratio)
    )
    seen = ""
    if event.seen is not None:
        seen = f", {event.seen.prefill} prefill and {event.seen.decode} others ready, n={event.seen.samples}"
    advice = f"; would help: {', '.join(made.advice)}" if made.advice else ""
    return f"Roles: {what} ({made.reason.value}): TTFT at {ttft} and TPOT at {tpot} of their targets{seen}{advice}."


def tell_hand_over(event: HandOver) -> str:
    """Say a hand-over in one line: what went where, what arrived of it, in what time, and the cause if it failed."""
    sent = "" if event.tokens_sent is None else f" {event.tokens_sent} tokens"
    size = "" if event.bytes is None else f" ({event.bytes / 1e6:.1f} MB)"
    took = "" if event.transfer_ms is None else f" in {event.transfer_ms:.0f} ms"
    arrived = "" if event.tokens_delivered is None else f"; {event.tokens_delivered} were reused"
    why = "" if event.cause is None else f": {event.cause.value.replace('_', ' ')}"
    return (
        f"Prompt of {event.request_id} from {event.source} to {event.target}{sent}{size}{took}{arrived}; "
        f"{event.outcome.value}{why}."
    )
