"""Whose turn it is on a decode side: as many requests of this gateway as it has slots, first come first served.

Without it a parcel would wait for an idle slot that requests in the engine's own queue take one after the other. Only
fleets that prefill apart wait here; a request waits no longer than it would have in the engine's queue.
"""

import asyncio

from trimtab.core.decision import ReplicaView


class Place:
    """One request's place on its decode side. `take` and `give` may be called again and change nothing then."""

    def __init__(self, room: asyncio.Semaphore | None) -> None:
        self._room = room
        self._is_taken = False

    async def take(self) -> None:
        """Wait for the place; not at all where nothing bounds them."""
        if self._room is not None and not self._is_taken:
            await self._room.acquire()
            self._is_taken = True

    def give(self) -> None:
        """Let the next one have it."""
        if self._room is not None and self._is_taken:
            self._is_taken = False
            self._room.release()


class Rooms:
    """The places of every decode side, by its slots; a replica that tells of none has no bound."""

    def __init__(self) -> None:
        self._rooms: dict[str, tuple[int, asyncio.Semaphore]] = {}

    def place(self, replica: ReplicaView) -> Place:
        """Return a place to be taken. Where the number of slots changed, requests there run out uncounted."""
        if replica.slots <= 0:
            return Place(None)
        slots, room = self._rooms.get(replica.id, (0, None))
        if room is None or slots != replica.slots:
            room = asyncio.Semaphore(replica.slots)
            self._rooms[replica.id] = (replica.slots, room)
        return Place(room)

    def forget(self, replica: str) -> None:
        """Note that a replica left."""
        self._rooms.pop(replica, None)
