"""The ledger of a simulation: events in virtual time, hash-linked, and the state as the fold over them.

The very events, hashes and fold of a live ledger; only the clock is virtual (seconds since the start) and ids count
up, so that the same run gives the same bytes.
"""

from collections.abc import Callable

from trimtab.core.events import GENESIS_HASH, AnyEvent, Envelope, chain_hash, encode_event
from trimtab.core.state import EMPTY, State, fold

OnEvent = Callable[[Envelope], None]


def _unheard(_: Envelope) -> None:
    """Take no notice of an event."""


class Events:
    """Appends events and keeps their fold; `on_event` hears each one."""

    def __init__(self, on_event: OnEvent = _unheard) -> None:
        self.state: State = EMPTY
        self.count = 0
        self.head = GENESIS_HASH
        self._on_event = on_event

    def append(self, event: AnyEvent, *, at_s: float, cause_id: str | None) -> str:
        """Link an event to the one before and fold it in; returns its id."""
        self.count += 1
        event_id = f"sim-{self.count:08d}"
        linked = chain_hash(
            prev_hash=self.head,
            seq=self.count,
            event_id=event_id,
            cause_id=cause_id,
            at_s=at_s,
            body=encode_event(event),
        )
        envelope = Envelope(
            seq=self.count,
            id=event_id,
            cause_id=cause_id,
            at_s=at_s,
            event=event,
            prev_hash=self.head,
            hash=linked,
        )
        self.head = linked
        self.state = fold(self.state, envelope)
        self._on_event(envelope)
        return event_id
