"""A TCP proxy on loopback that spoils connections as it is told, to stand before an engine or before the gateway.

Each connection gets one `Fault`, chosen by its number. Faults hit the way back (from the target to whoever asked),
where answers are; `up=True` hits the way there instead, where requests are. Bytes are counted from its first.
"""

import asyncio
import enum
import socket
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

CHUNK_BYTES = 65_536
EVENT_END = b"\n\n"
ABORT_LINGER = b"\x01\x00\x00\x00\x00\x00\x00\x00"
"""SO_LINGER with a time of zero: closing sends a reset."""


class FaultKind(enum.Enum):
    """What happens to a connection once its fault's place is reached."""

    NONE = "none"
    DELAY = "delay"
    RESET = "reset"
    CLOSE = "close"
    HALF_CLOSE = "half_close"
    DRIP = "drip"
    GARBAGE = "garbage"
    HANG = "hang"


@dataclass(frozen=True)
class Fault:
    """What a connection meets, and where: after so many bytes, or so many bytes into the event of that number.

    `seconds`: of a delay, or between two drops of a drip. `drop_bytes`: size of a drop. `data`: the garbage.
    """

    kind: FaultKind = FaultKind.NONE
    after_bytes: int = 0
    in_event: int | None = None
    up: bool = False
    seconds: float = 0.0
    drop_bytes: int = 1
    data: bytes = b"\x00\xff garbage \r\n"


NO_FAULT = Fault()


class _Place:
    """Finds the byte at which a fault strikes, over any split of the bytes."""

    def __init__(self, fault: Fault) -> None:
        self._fault = fault
        self._events = 0
        self._tail = b""
        self._left = fault.after_bytes

    def take(self, data: bytes) -> int | None:
        """Return how many bytes of `data` stand before the place, None where all do."""
        start = 0
        wanted = self._fault.in_event
        while wanted is not None and self._events < wanted:
            seen = self._tail + data[start:]
            at = seen.find(EVENT_END)
            if at < 0:
                self._tail = seen[-1:]
                return None
            start += at + len(EVENT_END) - len(self._tail)
            self._tail = b""
            self._events += 1
        if len(data) - start < self._left:
            self._left -= len(data) - start
            return None
        return start + self._left


@dataclass
class ChaosProxy:
    """Listens on loopback and passes bytes to `target_port` until a connection's fault strikes."""

    target_port: int
    choose: Callable[[int], Fault] = lambda _: NO_FAULT
    connections: int = 0
    open_connections: int = 0
    struck: Counter[FaultKind] = field(default_factory=Counter)

    async def start(self) -> str:
        """Listen; return the address."""
        self._tasks: set[asyncio.Task[object]] = set()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return f"http://127.0.0.1:{self.port}"

    async def stop(self) -> None:
        """Close everything."""
        self._server.close()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def __aenter__(self) -> "ChaosProxy":
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        self.open_connections += 1
        fault = self.choose(self.connections - 1)
        try:
            await self._join(reader, writer, fault)
        except (OSError, asyncio.CancelledError):
            pass  # an end of either side ends both
        finally:
            self.open_connections -= 1
            self._tasks.discard(task)
            writer.close()

    async def _join(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, fault: Fault
    ) -> None:
        onward_reader, onward_writer = await asyncio.open_connection("127.0.0.1", self.target_port)
        there, back = (fault, NO_FAULT) if fault.up else (NO_FAULT, fault)
        asker_gone = asyncio.Event()
        asking = asyncio.create_task(self._pass(reader, onward_writer, there, asker_gone))
        answering = asyncio.create_task(self._pass(onward_reader, writer, back, asker_gone))
        asking.add_done_callback(lambda _: asker_gone.set())
        try:
            # The end of one way may be half a close; a failure of one ends both.
            await asyncio.wait((asking, answering), return_when=asyncio.FIRST_EXCEPTION)
        finally:
            asking.cancel()
            answering.cancel()
            onward_writer.close()
            await asyncio.gather(asking, answering, return_exceptions=True)

    async def _pass(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        fault: Fault,
        asker_gone: asyncio.Event,
    ) -> None:
        place = None if fault.kind is FaultKind.NONE else _Place(fault)
        while data := await reader.read(CHUNK_BYTES):
            before = None if place is None else place.take(data)
            if before is None:
                await write(writer, data)
                continue
            await write(writer, data[:before])
            self.struck[fault.kind] += 1
            place = None
            if not await _strike(fault, reader, writer, data[before:], asker_gone):
                raise ConnectionAbortedError
        writer.write_eof()


async def _strike(
    fault: Fault,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    rest: bytes,
    asker_gone: asyncio.Event,
) -> bool:
    """Do what a fault says with the bytes from its place on; False where the connection ends with it."""
    match fault.kind:
        case FaultKind.DELAY:
            await asyncio.sleep(fault.seconds)
            await write(writer, rest)
        case FaultKind.GARBAGE:
            await write(writer, fault.data + rest)
        case FaultKind.DRIP:
            await _drip(fault, reader, writer, rest)
        case FaultKind.HALF_CLOSE:
            writer.write_eof()
            await _until_left(fault, reader, asker_gone)
            return False
        case FaultKind.HANG:
            await _until_left(fault, reader, asker_gone)
            return False
        case FaultKind.RESET:
            sock: socket.socket = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABORT_LINGER)
            writer.transport.abort()
            return False
        case FaultKind.CLOSE | FaultKind.NONE:
            return False
    return True


async def _until_left(
    fault: Fault, reader: asyncio.StreamReader, asker_gone: asyncio.Event
) -> None:
    """Wait until the asking side has left; on the way there its bytes are what says so, so they are swallowed."""
    if not fault.up:
        await asker_gone.wait()
        return
    while await reader.read(CHUNK_BYTES):
        continue


async def _drip(
    fault: Fault, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, rest: bytes
) -> None:
    while rest:
        for at in range(0, len(rest), fault.drop_bytes):
            await write(writer, rest[at : at + fault.drop_bytes])
            await asyncio.sleep(fault.seconds)
        rest = await reader.read(CHUNK_BYTES)


async def write(writer: asyncio.StreamWriter, data: bytes) -> None:
    """Write and wait for room; nothing where there is nothing."""
    if data:
        writer.write(data)
        await writer.drain()
