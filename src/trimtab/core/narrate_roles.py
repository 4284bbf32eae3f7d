"""Sentences about roles of replicas and about KV that moves between them."""

from trimtab.core.events import RolesDecided
from trimtab.core.handover import HandOver
from trimtab.core.narrate_words import UNKNOWN, clause
from trimtab.core.roles import RolesSeen


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
        seen = _seen_words(event.seen)
    advice = f"; would help: {', '.join(made.advice)}" if made.advice else ""
    lacks = f"; unknown: {', '.join(made.unknown)}" if made.unknown else ""
    return (
        f"Roles: {what} ({made.reason.value}): P90 of TTFT at {ttft} and of TPOT at {tpot} of their targets"
        f"{seen}{lacks}{advice}."
    )


def _seen_words(seen: RolesSeen) -> str:
    """Say what a tick saw: how many of each role, over which window, of how many requests and hand-overs."""
    words = [f"{seen.prefill} prefill and {seen.decode} others ready"]
    window = "" if seen.window_s is None else f" in {seen.window_s:,.0f} s"
    words.append(f"n={seen.samples}{window}")
    if seen.lost_share is not None:
        words.append(f"answers lose {seen.lost_share:.0%} of their time to load")
    if seen.transfer_ms_p90 is not None:
        dear = "" if seen.dearness_p90 is None else f", {seen.dearness_p90:.2f} of what is dear"
        words.append(
            f"P90 of {seen.transfers} transfers {seen.transfer_ms_p90:,.0f} ms{dear}{window}"
        )
    return f", {', '.join(words)}"


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
