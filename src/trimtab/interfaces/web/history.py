"""What lies behind the page's present state, in parts a reader asks for: all rollouts, what happened, a lever's chain.

Nothing of it is sent unasked, and every answer is bounded: a fleet may have had ten thousand rollouts and events.
"""

from pathlib import Path
from typing import Final

import msgspec
from aiohttp import web

from trimtab.core.events import AnyEvent, kind_of
from trimtab.core.narrate import chain, tell, tell_event
from trimtab.core.types import RolloutState
from trimtab.runtime.ledger_reader import SqliteReader
from trimtab.runtime.wire import ApiError

STEPS_MAX: Final = 200
"""Steps of a chain in one answer."""

HAPPENED_MAX: Final = 50
"""Events in one answer."""

HAPPENED_KINDS: Final = (
    "run_started",
    "run_ended",
    "replica_crashed",
    "health_changed",
    "fleet_sized",
    "config_reloaded",
    "diagnosed",
    "lever_proposed",
    "rollout_moved",
    "cuts_kept",
    "quality_scored",
    "verification_due",
    "trigger_moved",
    "frozen",
    "ledger_gap",
)
"""Decisions and incidents; looks at gates are told in the chain of their lever."""


class Chain(msgspec.Struct, frozen=True, kw_only=True):
    """Steps `first` to `first + len(steps)` of `total`, oldest first, in words."""

    total: int
    first: int
    steps: tuple[str, ...]


class Happened(msgspec.Struct, frozen=True, kw_only=True):
    """An event in words; `at_s`: seconds since 1970."""

    seq: int
    at_s: float
    kind: str
    text: str


def chain_of(path: Path, lever: str, before: int | None) -> Chain:
    """Return the last steps of a lever's chain, or those before step `before`; raises `LedgerError`."""
    with SqliteReader(path) as reader:
        steps = chain(lever, reader.told(lever))
    end = len(steps) if before is None else max(0, min(before, len(steps)))
    first = max(0, end - STEPS_MAX)
    return Chain(
        total=len(steps), first=first, steps=tuple(tell(step) for step in steps[first:end])
    )


def happened(path: Path, before_seq: int | None) -> tuple[Happened, ...]:
    """Return the newest events that a person asks about, newest first; raises `LedgerError`."""
    with SqliteReader(path) as reader:
        found = reader.latest(HAPPENED_KINDS, before_seq=before_seq, limit=HAPPENED_MAX)
    return tuple(
        Happened(
            seq=each.seq,
            at_s=each.at_s,
            kind=kind_of(each.event),
            text=_named(each.event),
        )
        for each in found
    )


def _named(event: AnyEvent) -> str:
    """Tell an event with its lever, which a chain need not name and a list of all levers must."""
    text = tell_event(event)
    lever = getattr(event, "lever", None)
    return f"{lever}: {text}" if isinstance(lever, str) and lever not in text else text


def number_asked(request: web.Request, name: str) -> int | None:
    """Return a number of a query, None where it is not asked for; raises `ApiError`."""
    text = request.query.get(name)
    if text is None:
        return None
    if not text.isdecimal() or len(text) > 15:
        raise ApiError(
            400, "invalid_request_error", "bad_request", f"{name} must be a number of 0 or more"
        )
    return int(text)


def state_asked(request: web.Request) -> RolloutState | None:
    """Return the state of a query, None where any will do; raises `ApiError`."""
    text = request.query.get("state", "")
    if not text:
        return None
    try:
        return RolloutState(text)
    except ValueError as error:
        known = ", ".join(state.value for state in RolloutState)
        raise ApiError(
            400, "invalid_request_error", "bad_request", f"state must be one of {known}"
        ) from error
