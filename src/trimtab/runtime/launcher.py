"""Starts llama.cpp replicas as child processes, moves their slots' KV through files in memory, and ends them.

What can be known before a start is checked before it (model, context, port, memory), so that an error names the cause
and the fix. What was asked is compared with what runs: a replica with another number of slots or less context is an
error.
"""

import asyncio
import contextlib
import os
import socket
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

import aiohttp
import msgspec

from trimtab.core.ports import Clock, EngineFormatError, LaunchError, Placement, SavedKV
from trimtab.core.revision import Revision
from trimtab.engines.llamacpp import LlamaCppFormat, Slot, parse_slots
from trimtab.runtime.child import Child, spawn
from trimtab.runtime.hardware import (
    core_count,
    cpu_seconds,
    memory_available,
    resident_bytes,
    share_cpus,
    usable_cpus,
)
from trimtab.runtime.model import check_model, memory_need
from trimtab.runtime.replica_main import ReplicaOrder
from trimtab.runtime.slot_files import MEMORY_ROOT, SlotFiles

T = TypeVar("T")

HOST: Final = "127.0.0.1"
_HEALTH_EVERY_S: Final = 0.05
_ADMIN_TIMEOUT_S: Final = 30.0
_IDLE_WAIT_S: Final = 2.0
_IDLE_POLL_S: Final = 0.05


class SlotSaved(msgspec.Struct, frozen=True):
    """The engine's answer to saving a slot."""

    n_saved: int
    n_written: int


class SlotRestored(msgspec.Struct, frozen=True):
    """The engine's answer to restoring a slot."""

    n_restored: int
    n_read: int


class LlamaCppLauncher:
    """Implements `Launcher`. Make it on the event loop of the process's main thread; `close` it in the end.

    `start_timeout_s`: longest wait for one replica. `available`: tells the bytes that can still be allocated.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        start_timeout_s: float,
        threads: int = 0,
        log_folder: Path | None = None,
        memory_root: Path = MEMORY_ROOT,
        available: Callable[[], int | None] = memory_available,
    ) -> None:
        self._clock = clock
        self._start_timeout_s = start_timeout_s
        self._threads = threads
        self._available = available
        self._format = LlamaCppFormat()
        self._children: dict[str, Child] = {}
        self._urls: dict[str, str] = {}
        self._starting_bytes: dict[str, int] = {}
        self._saves = 0
        self._closed = False
        try:
            self._slot_files = SlotFiles(memory_root)
        except OSError as error:
            raise LaunchError(
                f"no folder for slot files under {memory_root}: {error.strerror}"
            ) from error
        self.slot_folder = self._slot_files.folder
        self._log_folder = log_folder or Path(tempfile.gettempdir()) / f"trimtab-logs-{os.getuid()}"
        self._http: aiohttp.ClientSession | None = None

    def place(self, replicas: Sequence[str], *, ports: Sequence[int] = ()) -> tuple[Placement, ...]:
        """Return where replicas run: shares of the cores, and free ports unless `ports` are given."""
        shares = share_cpus(
            len(replicas), threads=self._threads, cpus=usable_cpus(), cores=core_count()
        )
        chosen = tuple(ports) or free_ports(len(replicas))
        return tuple(
            Placement(
                replica=replica,
                host=HOST,
                port=port,
                threads=share.threads,
                cpus=share.cpus,
                slot_dir=str(self._slot_files.folder),
                log_path=str(self._log_folder / f"{os.getpid()}-{replica}.log"),
            )
            for replica, share, port in zip(replicas, shares, chosen, strict=True)
        )

    async def start(self, revision: Revision, placement: Placement) -> str:
        """See `Launcher`."""
        replica = placement.replica
        if self._closed:
            raise LaunchError(f"replica {replica} was not started: the launcher is closed")
        if (old := self._children.get(replica)) is not None and old.exit_code is None:
            raise LaunchError(f"replica {replica} runs already as process {old.pid}")
        try:
            self._check(revision, placement)
            async with asyncio.timeout(self._start_timeout_s):
                return await self._start(revision, placement)
        except TimeoutError as error:
            await self.stop(replica, grace_s=0)
            raise LaunchError(
                f"replica {replica} was not healthy within {self._start_timeout_s:g} s: "
                "raise fleet.start_timeout_s"
            ) from error
        except BaseException:
            await self.stop(replica, grace_s=0)
            raise
        finally:
            self._starting_bytes.pop(replica, None)

    def _check(self, revision: Revision, placement: Placement) -> None:
        """Check what can be known beforehand, and set memory aside until the start is over."""
        header = check_model(revision.model.path)
        trained = header.context_tokens
        if trained is not None and revision.context_tokens > trained:
            raise LaunchError(
                f"replica {placement.replica}: a context of {revision.context_tokens} tokens is more than the "
                f"{trained} the model was trained with: lower engine.context_tokens"
            )
        check_port(placement)
        need, available = memory_need(revision, header), self._available()
        set_aside = sum(self._starting_bytes.values())
        if available is not None and need.total + set_aside > available:
            taken = (
                f", of which starting replicas take {set_aside >> 20:,} MiB" if set_aside else ""
            )
            raise LaunchError(
                f"replica {placement.replica} needs about {need}, and {available >> 20:,} MiB are available{taken}: "
                "lower engine.slots, engine.context_tokens or fleet.replicas"
            )
        self._starting_bytes[placement.replica] = need.total

    async def _start(self, revision: Revision, placement: Placement) -> str:
        try:
            params = dict(self._format.launch_args(revision, placement))
        except EngineFormatError as error:
            raise LaunchError(f"replica {placement.replica}: {error}") from error
        order = ReplicaOrder(params=params, cpus=placement.cpus, parent_pid=os.getpid())
        child = await spawn(placement.replica, order, Path(placement.log_path))
        self._children[placement.replica] = child
        if self._closed:
            raise LaunchError(
                f"replica {placement.replica} was not started: the launcher is closed"
            )
        url = await child.ready()
        self._urls[placement.replica] = url
        await self._await_health(child, url)
        await self._check_effective(revision, placement.replica)
        return url

    async def _await_health(self, child: Child, url: str) -> None:
        while child.exit_code is None:
            if await self._is_healthy(url):
                return
            await asyncio.sleep(_HEALTH_EVERY_S)
        words = child.last_words or "no words"
        raise LaunchError(f"replica {child.replica} ended before it was healthy (engine: {words})")

    async def _is_healthy(self, url: str) -> bool:
        try:
            async with self._session().get(f"{url}/health") as response:
                return response.status == 200
        except aiohttp.ClientError:
            return False

    async def _check_effective(self, revision: Revision, replica: str) -> None:
        slots = await self.slots(replica)
        context = min((slot.n_ctx for slot in slots), default=0)
        if len(slots) != revision.slots or context < revision.context_tokens:
            raise LaunchError(
                f"replica {replica} runs {len(slots)} slots of {context} tokens, not "
                f"{revision.slots} of {revision.context_tokens}"
            )

    async def stop(self, replica: str, *, grace_s: float) -> None:
        """See `Launcher`."""
        child = self._children.get(replica)
        if child is None:
            return
        await child.stop(grace_s=grace_s)
        if self._children.get(replica) is child:
            del self._children[replica]
            self._urls.pop(replica, None)

    async def close(self) -> None:
        """End whatever still runs, and remove the slot files. Nothing starts after this."""
        self._closed = True
        await asyncio.gather(*(self.stop(replica, grace_s=0) for replica in [*self._children]))
        if self._http is not None:
            await self._http.close()
        self._slot_files.close()

    async def wait_exit(self, replica: str) -> int | None:
        """Wait until a replica's process has ended and return its exit code; None if it has no process."""
        child = self._children.get(replica)
        return None if child is None else await child.wait()

    def pid(self, replica: str) -> int | None:
        """Return a replica's process id, None if it has no running process."""
        child = self._children.get(replica)
        return child.pid if child is not None and child.exit_code is None else None

    def last_words(self, replica: str) -> str:
        """Return the last line of a replica's log, empty if there is none."""
        child = self._children.get(replica)
        return "" if child is None else child.last_words

    def memory_bytes(self, replica: str) -> int | None:
        """See `Launcher`."""
        pid = self.pid(replica)
        return None if pid is None else resident_bytes(pid)

    def cpu_s(self, replica: str) -> float | None:
        """See `Launcher`."""
        pid = self.pid(replica)
        return None if pid is None else cpu_seconds(pid)

    async def slots(self, replica: str) -> tuple[Slot, ...]:
        """Return a replica's slots; waits while it computes a batch; raises `LaunchError`."""
        body = await self._admin("GET", replica, "/slots")
        try:
            return parse_slots(body)
        except EngineFormatError as error:
            raise LaunchError(f"replica {replica}: {error}") from error

    async def save_kv(self, replica: str) -> SavedKV:
        """See `Launcher`. Busy slots are left out, after a short wait for cancelled requests to end.

        What does not fit into memory is left out too: compare the tokens. Files are in order of their tokens.
        """
        began_s = self._clock.mono_s()
        self._saves += 1
        found: list[tuple[SlotSaved, int, str]] = []
        # The fullest first: where the room in memory ends, the least is lost. All are tried, because the engine does
        # not say what a slot holds that was restored and not used since.
        slots = await self._settled_slots(replica)
        for slot in sorted(slots, key=lambda slot: -slot.n_prompt_tokens):
            name = f"{replica}-{self._saves}-{slot.id}.kv"
            saved = await self._save_slot(replica, slot.id, name)
            if saved is not None:
                found.append((saved, slot.id, name))
        found.sort(key=lambda item: -item[0].n_saved)
        return SavedKV(
            replica=replica,
            files=tuple((slot, name) for _, slot, name in found),
            tokens=sum(saved.n_saved for saved, _, _ in found),
            bytes=sum(saved.n_written for saved, _, _ in found),
            took_ms=(self._clock.mono_s() - began_s) * 1000.0,
        )

    async def _settled_slots(self, replica: str) -> list[Slot]:
        deadline_s = self._clock.mono_s() + _IDLE_WAIT_S
        slots = await self.slots(replica)
        while any(slot.is_processing for slot in slots) and self._clock.mono_s() < deadline_s:
            await asyncio.sleep(_IDLE_POLL_S)
            slots = await self.slots(replica)
        return [slot for slot in slots if not slot.is_processing]

    async def _save_slot(self, replica: str, slot: int, name: str) -> SlotSaved | None:
        """Save one slot; None, and no file, where it is empty or did not fit into memory."""
        path = self._slot_files.folder / name
        try:
            body = await self._admin("POST", replica, f"/slots/{slot}?action=save", filename=name)
            saved = _read(replica, body, SlotSaved)
        except LaunchError:
            path.unlink(missing_ok=True)
            if self.pid(replica) is None:
                raise
            return None
        if saved.n_saved == 0 or not path.exists() or path.stat().st_size < saved.n_written:
            path.unlink(missing_ok=True)
            return None
        path.chmod(0o600)
        return saved

    async def restore_kv(self, replica: str, saved: SavedKV) -> SavedKV:
        """See `Launcher`. Files go back to their own slots, or to free ones where there are fewer slots now."""
        began_s = self._clock.mono_s()
        try:
            slots = [slot.id for slot in await self.slots(replica) if not slot.is_processing]
            files: list[tuple[int, str]] = []
            tokens = size = 0
            for slot, name in assign_slots(saved.files, slots):
                path = f"/slots/{slot}?action=restore"
                body = await self._admin("POST", replica, path, filename=name)
                restored = _read(replica, body, SlotRestored)
                files.append((slot, name))
                tokens, size = tokens + restored.n_restored, size + restored.n_read
        finally:
            self.discard_kv(saved)
        took_ms = (self._clock.mono_s() - began_s) * 1000.0
        return SavedKV(
            replica=replica, files=tuple(files), tokens=tokens, bytes=size, took_ms=took_ms
        )

    async def erase_kv(self, replica: str) -> None:
        """Empty every idle slot, so that the next run starts with a cold cache; raises `LaunchError`."""
        for slot in await self._settled_slots(replica):
            await self._admin("POST", replica, f"/slots/{slot.id}?action=erase")

    def discard_kv(self, saved: SavedKV) -> None:
        """Remove saved slots that will not be restored."""
        for _, name in saved.files:
            (self._slot_files.folder / name).unlink(missing_ok=True)

    def _session(self) -> aiohttp.ClientSession:
        if self._http is None:
            # Not kept alive: each open connection holds a thread of the engine's server.
            connector = aiohttp.TCPConnector(force_close=True)
            timeout = aiohttp.ClientTimeout(total=_ADMIN_TIMEOUT_S)
            self._http = aiohttp.ClientSession(connector=connector, timeout=timeout)
        return self._http

    async def _admin(self, method: str, replica: str, path: str, **body: str) -> bytes:
        """Ask a replica's own API; raises `LaunchError` unless it answers 200."""
        url = self._urls.get(replica)
        if url is None:
            raise LaunchError(f"replica {replica} does not run")
        what = f"replica {replica} did not answer {method} {path}"
        try:
            async with self._session().request(method, url + path, json=body or None) as response:
                data = await response.read()
                status = response.status
        except (aiohttp.ClientError, TimeoutError) as error:
            raise LaunchError(f"{what}: {type(error).__name__}") from error
        if status != 200:
            raise LaunchError(f"{what}: status {status}")
        return data


def _read(replica: str, body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.MsgspecError as error:
        raise LaunchError(f"replica {replica} answered with garbage") from error


def assign_slots(
    files: Sequence[tuple[int, str]], slots: Sequence[int]
) -> tuple[tuple[int, str], ...]:
    """Give each file a slot: its own if it is there, else a free one; files beyond the slots get none."""
    kept = files[: len(slots)]
    own = {slot for slot, _ in kept}
    free = iter([slot for slot in slots if slot not in own])
    return tuple((slot if slot in slots else next(free), name) for slot, name in kept)


def free_ports(count: int) -> tuple[int, ...]:
    """Return distinct ports that nobody listens on at the moment."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind((HOST, 0))
        return tuple(each.getsockname()[1] for each in sockets)


def check_port(placement: Placement) -> None:
    """Check that a replica's port can be listened on; raises `LaunchError` that names it."""
    if (trouble := port_trouble(placement.host, placement.port)) is not None:
        raise LaunchError(f"replica {placement.replica} {trouble}")


def port_trouble(host: str, port: int) -> str | None:
    """Say why a port cannot be listened on, as the end of a sentence; None where it can."""
    with socket.socket() as trial:
        # As the engine does: connections that linger from the process before are no obstacle.
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((host, port))
            trial.listen(1)
        except OSError as error:
            return f"cannot listen on {host}:{port}: {error.strerror}; another process may hold the port"
    return None
