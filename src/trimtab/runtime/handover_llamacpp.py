"""Moves KV between llama.cpp replicas of one machine: a slot is saved to a file in memory and restored elsewhere.

A replica prefills one prompt at a time: several at once would all end late. Only a much shorter one is computed beside
a long one, in the first slot: the engine fills each step's chunk in the order of its slots, so that the short one comes
first. The slot is named, by the engine's own rule on a model of what its other slots hold, so that a prompt that begins
like an earlier one computes only its tail. Room for its file is leased before it is computed, by the bytes a token of
earlier parcels of the same KV key, and the file is removed as soon as it is restored. Where it goes is the emptiest
idle slot of the decode side, which is named in the decode request: another request cannot slip in unseen, because what
the engine reused is told in its answer.

An engine that was asked to save or restore cannot be stopped in the middle. Where nobody waits for it any more, a task
of its own waits for the end and then frees the file and the slot.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

import msgspec

from trimtab.core.decision import ReplicaView
from trimtab.core.handover import Delivery, HandOverCause, HandOverError, Parcel
from trimtab.core.ports import Clock, EngineFormat, EngineFormatError, Prefill
from trimtab.core.prefix import SLOT_SIMILARITY
from trimtab.core.prefix_slots import SlotCache
from trimtab.engines.handover_bodies import Saved, prefill_body, read_restored, read_saved
from trimtab.engines.llamacpp import Slot, parse_slots
from trimtab.policies.prefill_turns import Lane
from trimtab.runtime.prefill_answers import refusal
from trimtab.runtime.prefill_turn import PrefillTurn
from trimtab.runtime.slot_files import NoRoomError, ParcelFiles
from trimtab.runtime.upstream import Upstream, UpstreamResponse
from trimtab.runtime.upstream_connection import UpstreamConnectError, UpstreamError
from trimtab.runtime.wire import JSON_TYPE

T = TypeVar("T")

ROOM_POLL_S: Final = 0.02
UNWANTED_S: Final = 5.0
PASSING_SLOT: Final = 0
BYTES_PER_TOKEN_START: Final = 0
"""Before the first parcel nobody knows its size: the bound on their number holds alone."""

KEYS_MAX: Final = 64
"""KV keys whose bytes a token are remembered; of more, the first is forgotten."""


class _NotOkError(EngineFormatError):
    """A replica answered with another status than 200."""

    def __init__(self, words: str, answer: UpstreamResponse) -> None:
        super().__init__(words)
        self.answer = answer


class _Site:
    """One prefill side: whose turn it is, and what its slots are believed to hold."""

    def __init__(self, slots: int, started_at_s: float) -> None:
        self.turn = PrefillTurn(passes=slots > 1)
        self.started_at_s = started_at_s
        self._first = 1 if slots > 1 else 0
        self.cache = SlotCache(slots - self._first, SLOT_SIMILARITY)
        self.ticks = 0

    def choose(self, blocks: tuple[int, ...], key: int, lane: Lane) -> int:
        """Return the slot for a prompt: the first to pass, else the one the engine would take, noted as taken."""
        if lane is Lane.PASSING:
            return PASSING_SLOT
        self.ticks += 1
        place, _ = self.cache.take(blocks, key, self.ticks)
        self.cache.release(blocks, key, self.ticks)
        return self._first + place


class LlamaCppTransfer:
    """Implements `KvTransfer` by slot files. What it still waits for ends when the way to replicas is closed."""

    def __init__(
        self,
        upstream: Upstream,
        engine: EngineFormat,
        files: ParcelFiles,
        clock: Clock,
        *,
        lease_s: float,
        unwanted_s: float = UNWANTED_S,
    ) -> None:
        """Take the way to replicas, and where their files lie; `lease_s`: how long a parcel may wait.

        `unwanted_s`: how long a save or a restore is waited for that nobody wants any more.
        """
        self._upstream = upstream
        self._engine = engine
        self._files = files
        self._clock = clock
        self._lease_s = lease_s
        self._unwanted_s = unwanted_s
        self._sites: dict[str, _Site] = {}
        self._taken: dict[str, set[int]] = {}
        self._bytes_per_token: dict[str, int] = {}
        self._parcels = 0
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def transport(self) -> str:
        """See `KvTransfer`."""
        return "a file in shared memory"

    def has_room(self, source: ReplicaView, prompt_tokens: int) -> bool:
        """See `KvTransfer`."""
        return self._files.lacks(self._expected_bytes(source, prompt_tokens)) is None

    def _expected_bytes(self, source: ReplicaView, tokens: int) -> int:
        return self._bytes_per_token.get(source.kv_key, BYTES_PER_TOKEN_START) * tokens

    def _measured(self, source: ReplicaView, bytes_per_token: int) -> None:
        known = self._bytes_per_token
        if source.kv_key not in known and len(known) >= KEYS_MAX:
            del known[next(iter(known))]
        known[source.kv_key] = max(1, bytes_per_token)

    @property
    def unfinished(self) -> int:
        """Saves and restores that nobody waits for any more and that have not ended."""
        return len(self._tasks)

    @property
    def files(self) -> ParcelFiles:
        """The parcels that lie in memory now."""
        return self._files

    def taken(self, replica: str) -> int:
        """Slots of a decode side that are set aside for hand-overs now."""
        return len(self._taken.get(replica, ()))

    async def prefill(
        self, what: Prefill, source: ReplicaView, *, holds: Callable[[], None]
    ) -> Parcel:
        """See `KvTransfer`."""
        site = self._site(source)
        async with site.turn.taken(what.prompt_tokens, held=what.held_tokens) as lane:
            began_s = self._clock.mono_s()
            slot = site.choose(what.blocks, what.blocks[-1] if what.blocks else 0, lane)
            name = self._leased(source, what.prompt_tokens)
            try:
                parcel = await self._computed(what, source, slot, name)
            except BaseException:
                self._files.free(name)
                raise
            if lane is Lane.MAIN:
                # The next to pass overwrites the first slot, and no other prompt is computed there.
                holds()
            computed_s = self._clock.mono_s()
            size, saved = await self._exported(parcel, source, slot)
            waited_ms = (self._clock.mono_s() - computed_s) * 1000.0
        tokens, export_ms = saved.n_saved, _own_ms(saved.timings.save_ms, waited_ms)
        if tokens < parcel.prompt_tokens:
            self._files.free(parcel.handle)
            raise HandOverError(
                HandOverCause.EXPORT_FAILED,
                f"slot {slot} of {source.id} held {tokens} of {parcel.prompt_tokens} tokens",
            )
        return msgspec.structs.replace(
            parcel,
            tokens=parcel.prompt_tokens,
            bytes=size,
            is_out=True,
            prefill_ms=(computed_s - began_s) * 1000.0,
            export_ms=export_ms,
            setup_ms=waited_ms - export_ms,
        )

    def _leased(self, source: ReplicaView, tokens: int) -> str:
        """Set room aside for a parcel and return its name."""
        self._parcels += 1
        name = f"parcel-{source.id}-{self._parcels}.kv"
        self._lease(name, self._expected_bytes(source, tokens))
        return name

    def _lease(self, name: str, expected_bytes: int) -> None:
        """Set as much room aside as is expected now; where there is none, none is held."""
        try:
            self._files.lease(name, expected_bytes=expected_bytes)
        except NoRoomError as error:
            self._files.free(name)
            raise HandOverError(HandOverCause.NO_ROOM_FOR_PARCEL, str(error)) from error

    async def _computed(self, what: Prefill, source: ReplicaView, slot: int, name: str) -> Parcel:
        """Have the prompt computed in a slot; the parcel is named, and not there yet."""
        try:
            body = prefill_body(what.body, slot=slot)
            said = await self._ask(source, what.path, body, what.headers)
            report = self._engine.read_response(said).report
        except _NotOkError as error:
            answer = error.answer
            raise refusal(source.id, what.path, answer.status, answer.headers) from error
        except EngineFormatError as error:
            raise HandOverError(HandOverCause.PREFILL_REFUSED, str(error)) from error
        except UpstreamError as error:
            raise HandOverError(_cause_of(error), str(error)) from error
        if report is None or report.prompt_tokens is None:
            raise HandOverError(
                HandOverCause.PREFILL_REFUSED, f"{source.id} did not say what it computed"
            )
        return Parcel(
            request_id=what.request_id,
            source=source.id,
            handle=name,
            tokens=0,
            prompt_tokens=report.prompt_tokens,
            bytes=None,
            prefill_ms=0.0,
            export_ms=0.0,
            expires_s=self._clock.mono_s() + self._lease_s,
            cached_tokens=report.cached_tokens,
            engine_ms=report.prefill_ms,
        )

    async def _exported(self, parcel: Parcel, source: ReplicaView, slot: int) -> tuple[int, Saved]:
        """Save the slot and return (bytes, what the engine says of it); no file is left where that fails."""
        name = parcel.handle
        # The engine counted the prompt; what was leased for it was an estimate.
        self._lease(name, self._expected_bytes(source, parcel.prompt_tokens))
        loop = asyncio.get_running_loop()
        # Also for a file that an engine writes after nobody waited for it any more.
        loop.call_later(self._lease_s, self._files.free, name)
        try:
            answer = await self._to_the_end(
                self._slot_action(source, slot, "save", name), lambda: self._files.free(name)
            )
            saved = read_saved(answer)
            size = self._files.written(name)
            if size < saved.n_written:
                raise OSError(f"{size} of {saved.n_written} bytes were written")
        except (EngineFormatError, UpstreamError, OSError) as error:
            self._files.free(name)
            raise HandOverError(HandOverCause.EXPORT_FAILED, _words(error)) from error
        self._measured(source, size // max(1, saved.n_saved))
        return size, saved

    async def deliver(self, parcel: Parcel, target: ReplicaView, *, deadline_s: float) -> Delivery:
        """See `KvTransfer`."""
        began_s = self._clock.mono_s()
        self._check_lease(parcel)
        slot = await self._room(parcel, target, deadline_s)
        # Its file may have gone while it waited, which is no failure of what restores it.
        self._check_lease(parcel)
        taken = self._taken.setdefault(target.id, set())
        taken.add(slot)
        chosen_s = self._clock.mono_s()

        def give_back() -> None:
            taken.discard(slot)
            self._files.free(parcel.handle)

        try:
            answer = await self._to_the_end(
                self._slot_action(target, slot, "restore", parcel.handle), give_back
            )
            restored = read_restored(answer)
            if restored.n_restored < parcel.tokens:
                raise EngineFormatError(
                    f"slot {slot} of {target.id} took {restored.n_restored} of {parcel.tokens} tokens"
                )
        except (EngineFormatError, UpstreamError) as error:
            give_back()
            raise HandOverError(HandOverCause.TRANSFER_FAILED, _words(error)) from error
        self._files.free(parcel.handle)
        waited_ms = (self._clock.mono_s() - chosen_s) * 1000.0
        transfer_ms = _own_ms(restored.timings.restore_ms, waited_ms)
        return Delivery(
            target=target.id,
            fields={"id_slot": str(slot)},
            slot=slot,
            tokens=restored.n_restored,
            bytes=restored.n_read,
            setup_ms=(chosen_s - began_s) * 1000.0 + waited_ms - transfer_ms,
            transfer_ms=transfer_ms,
        )

    def _check_lease(self, parcel: Parcel) -> None:
        if self._clock.mono_s() >= parcel.expires_s:
            raise HandOverError(HandOverCause.EXPIRED, f"the lease of {parcel.handle} is over")

    async def _room(self, parcel: Parcel, target: ReplicaView, deadline_s: float) -> int:
        """Return an idle slot of the decode side, the one that loses least; waits for one until the deadline."""
        while True:
            try:
                slots = parse_slots(await self._ask(target, "/slots", b"", (), method=b"GET"))
            except (EngineFormatError, UpstreamError) as error:
                raise HandOverError(HandOverCause.DECODE_LOST, _words(error)) from error
            if not any(slot.n_ctx > parcel.tokens for slot in slots):
                raise HandOverError(
                    HandOverCause.DECODE_REFUSED,
                    f"no slot of {target.id} takes {parcel.tokens} tokens",
                )
            free = self._free(slots, target.id, parcel.tokens)
            if free:
                return min(free, key=lambda slot: (slot.n_prompt_tokens, slot.id)).id
            if self._clock.mono_s() >= deadline_s:
                raise HandOverError(HandOverCause.DECODE_FULL, f"no slot of {target.id} got idle")
            await asyncio.sleep(ROOM_POLL_S)

    def _free(self, slots: tuple[Slot, ...], replica: str, tokens: int) -> list[Slot]:
        taken = self._taken.get(replica, set())
        return [
            slot
            for slot in slots
            if not slot.is_processing and slot.id not in taken and slot.n_ctx > tokens
        ]

    def discard(self, parcel: Parcel) -> None:
        """See `KvTransfer`."""
        self._files.free(parcel.handle)

    def release(self, delivery: Delivery) -> None:
        """See `KvTransfer`."""
        if delivery.slot is not None:
            self._taken.get(delivery.target, set()).discard(delivery.slot)

    def forget(self, replica: str) -> None:
        """Drop what is remembered of a replica that left; what is under way there ends by itself."""
        self._sites.pop(replica, None)
        self._taken.pop(replica, None)

    def _site(self, source: ReplicaView) -> _Site:
        site = self._sites.get(source.id)
        if site is None or site.started_at_s != source.started_at_s:
            # A replica that began anew holds nothing; whoever waits for the old one's turn keeps waiting for it.
            site = self._sites[source.id] = _Site(source.slots, source.started_at_s)
        return site

    async def _slot_action(self, replica: ReplicaView, slot: int, action: str, name: str) -> bytes:
        body = b'{"filename":"%b"}' % name.encode()
        return await self._ask(replica, f"/slots/{slot}?action={action}", body, (JSON_TYPE,))

    async def _ask(
        self,
        replica: ReplicaView,
        path: str,
        body: bytes,
        headers: tuple[tuple[bytes, bytes], ...],
        *,
        method: bytes = b"POST",
    ) -> bytes:
        """Ask a replica; raises `UpstreamError`, and `EngineFormatError` for an answer that is no 200."""
        async with self._upstream.send(
            replica.url, path.encode(), body, list(headers), stream=False, method=method
        ) as answer:
            data = await answer.read()
            if answer.status != 200:
                words = f"{replica.id} answered {path.partition('?')[0]} with {answer.status}"
                raise _NotOkError(words, answer)
            return data

    async def _to_the_end(self, work: Coroutine[Any, Any, T], if_unwanted: Callable[[], None]) -> T:
        """Wait for what an engine cannot stop; if nobody waits any more, `if_unwanted` follows its end."""
        task = asyncio.create_task(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            self._tasks.add(task)
            asyncio.get_running_loop().call_later(self._unwanted_s, task.cancel)

            def ended(done: "asyncio.Task[T]") -> None:
                self._tasks.discard(done)
                if not done.cancelled():
                    done.exception()
                if_unwanted()

            task.add_done_callback(ended)
            raise


def _own_ms(told: float | None, waited_ms: float) -> float:
    """Return what an engine took itself: an engine in the middle of a step comes to a slot only after it."""
    return waited_ms if told is None else min(max(0.0, told), waited_ms)


def _cause_of(error: UpstreamError) -> HandOverCause:
    if isinstance(error, UpstreamConnectError) and not error.reachable:
        return HandOverCause.PREFILL_UNREACHABLE
    return HandOverCause.PREFILL_BROKE_OFF


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__
