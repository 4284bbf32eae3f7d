"""Hears what engines publish of their KV cache and hands it to the router. Needs pyzmq, which is optional.

An engine binds its publisher (`tcp://*:5557`) and is connected to, or connects itself, and then the address is bound
here: `bind:tcp://127.0.0.1:5557`. Binding is for loopback and `ipc://` only: whoever can send to it can make the
gateway believe in caches that are not there.
"""

import asyncio
import importlib
import ipaddress
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

from trimtab.core.kv_blocks import KvBatch
from trimtab.core.ports import EngineFormatError, LaunchError
from trimtab.engines.vllm_kv_events import read_kv_frames

BIND: Final = "bind:"
MESSAGES_WAITING_MAX: Final = 10_000


class KvEventsError(LaunchError):
    """KV events cannot be heard; the message says why and what to do."""


class Receiver(Protocol):
    """A socket that gives messages of several frames."""

    async def recv_multipart(self) -> Sequence[bytes]:
        """Wait for the next message."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


def open_receiver(endpoint: str) -> Receiver:
    """Open a subscriber; raises `KvEventsError` without pyzmq, or for an address that may not be bound."""
    binds, address = endpoint.startswith(BIND), endpoint.removeprefix(BIND)
    if binds and not _may_bind(address):
        raise KvEventsError(
            f"KV events may be bound on loopback or ipc:// only, not on {address} - at `$.routing.kv_events`"
        )
    try:
        zmq = importlib.import_module("zmq")
        context = importlib.import_module("zmq.asyncio").Context.instance()
    except ImportError as error:
        raise KvEventsError(
            f"KV events of {address} need pyzmq, which is not installed: pip install 'trimtab[kv-events]',"
            " or take the entry out of `$.routing.kv_events`"
        ) from error
    socket: Any = context.socket(zmq.SUB)
    try:
        socket.setsockopt(zmq.RCVHWM, MESSAGES_WAITING_MAX)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.SUBSCRIBE, b"")
        (socket.bind if binds else socket.connect)(address)
    except zmq.ZMQError as error:
        socket.close()
        raise KvEventsError(f"KV events cannot be heard on {address}: {error}") from error
    receiver: Receiver = socket
    return receiver


def _may_bind(address: str) -> bool:
    parts = urlsplit(address)
    if parts.scheme in ("ipc", "inproc"):
        return True
    try:
        return ipaddress.ip_address(parts.hostname or "").is_loopback
    except ValueError:
        return parts.hostname == "localhost"


class KvListener:
    """Listens to the publishers of several replicas: `open`, then `run` for as long as it is awaited."""

    def __init__(
        self,
        endpoints: Mapping[str, str],
        heard: Callable[[str, KvBatch], object],
        *,
        opened: Callable[[str], Receiver] = open_receiver,
    ) -> None:
        """Take the endpoint of each replica and who is to hear its batches."""
        self._endpoints = dict(endpoints)
        self._heard = heard
        self._opened = opened
        self._receivers: dict[str, Receiver] = {}
        self.unreadable: dict[str, int] = dict.fromkeys(endpoints, 0)
        """By replica, messages that could not be read; what they told is missing, which their sequence shows."""

    def open(self) -> None:
        """Open all of them; raises `KvEventsError` where one cannot be, with all closed again."""
        try:
            for replica, endpoint in self._endpoints.items():
                self._receivers[replica] = self._opened(endpoint)
        except KvEventsError:
            self.close()
            raise

    async def run(self) -> None:
        """Hear all that are open until cancelled, and close them then."""
        try:
            async with asyncio.TaskGroup() as group:
                for replica, receiver in self._receivers.items():
                    group.create_task(self._hear(replica, receiver))
        finally:
            self.close()

    def close(self) -> None:
        """Let go of all sockets."""
        for receiver in self._receivers.values():
            receiver.close()
        self._receivers.clear()

    async def _hear(self, replica: str, receiver: Receiver) -> None:
        while True:
            frames = await receiver.recv_multipart()
            try:
                batch = read_kv_frames(frames)
            except EngineFormatError:
                self.unreadable[replica] += 1
                continue
            self._heard(replica, batch)
