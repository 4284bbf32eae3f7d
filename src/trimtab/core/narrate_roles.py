"""Sentences about roles of replicas and about KV that moves between them."""

from trimtab.core.events import RolesDecided
from trimtab.core.handover import HandOver
from trimtab.core.narrate_words import UNKNOWN, clause
from trimtab.core.roles import RolesDecision, RolesSeen


def tell_roles(event: RolesDecided) -> str:
    """Say what the role control decided, or a person asked for, and by which figures."""
    what = "roles stay"
    if event.replica is not None and event.role is not None:
        what = f"replica {event.replica} changes to {event.role.value}"
    if event.decision is None:
        return f"Roles: {what}: {clause(event.because)}."
    made = event.decision
    seen = ""
    if event.seen is not None:
        seen = _seen_words(event.seen)
    advice = f"; would help: {', '.join(made.advice)}" if made.advice else ""
    lacks = f"; unknown: {', '.join(made.unknown)}" if made.unknown else ""
    return (
        f"Roles: {what} ({made.reason.value}): {_ratio_words(made, event.seen)}"
        f"{seen}{lacks}{advice}."
    )


def _ratio_words(made: RolesDecision, seen: RolesSeen | None) -> str:
    """Say how near TTFT and TPOT are to their targets: what was decided by, and what this tick saw, each as what it is.

    The mean is over the window's ticks: a tick alone may say the contrary of it.
    """
    words = (
        f"P90 of TTFT at {_ratio(made.ttft_ratio)} and of TPOT at {_ratio(made.tpot_ratio)} of their targets, "
        "mean over ticks, each counted up to 2"
    )
    if seen is None:
        return words
    ttft = _ratio(seen.ttft_ms_p90, seen.ttft_target_ms)
    tpot = _ratio(seen.tpot_ms_p90, seen.tpot_target_ms)
    return f"{words} (at this tick {ttft} and {tpot})"


def _ratio(value: float | None, target: float = 1.0) -> str:
    return UNKNOWN if value is None else f"{value / target:.2f}"


def _seen_words(seen: RolesSeen) -> str:
    """Say what a tick saw: how many of each role, over which window, of how many requests and hand-overs."""
    words = [f"{seen.prefill} prefill and {seen.decode} others ready"]
    window = _in(seen.window_s)
    words.append(f"n={seen.samples}{window}")
    if seen.in_flight is not None:
        words.append(f"{seen.in_flight:.1f} requests under way on average")
    if seen.lost_share is not None:
        of = "" if seen.answers is None else f" (n={seen.answers}{_in(seen.work_window_s)})"
        words.append(f"answers lose {seen.lost_share:.0%} of their time to load{of}")
    if seen.transfer_ms_p90 is not None:
        dear = "" if seen.dearness_p90 is None else f", {seen.dearness_p90:.2f} of what is dear"
        words.append(
            f"P90 of {seen.transfers} transfers {seen.transfer_ms_p90:,.0f} ms{dear}{window}"
        )
    return f", {', '.join(words)}"


def _in(window_s: float | None) -> str:
    return "" if window_s is None else f" in {window_s:,.0f} s"


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
