"""The client of the comparison: a fixed number of streams, each begun anew when it has ended, as cheap as Python can.

It counts events by their empty lines and reads nothing but the first one, which says how long the engine took.
"""

import asyncio
import json
import random
import re
import time
from dataclasses import dataclass, field
from typing import Final, cast

import httptools

STAMPS: Final = re.compile(rb"t (\d+) (\d+) t")
FIRST_BYTES_MAX: Final = 4_096
RETRY_S: Final = 0.1
PROMPT_CHARS: Final = 6_000


@dataclass
class Counted:
    """What was seen of all streams."""

    events: int = 0
    completed: int = 0
    failed: int = 0
    added_ns: list[int] = field(default_factory=list)
    """Per stream: time to its first event less the time that the engine took for it."""


@dataclass(frozen=True)
class Shape:
    """What is asked for: so many streams, each of so many events, so far apart."""

    streams: int
    events: int
    gap_ms: float

    @property
    def offered_per_s(self) -> float:
        """Events per second if nothing held them up, ends and beginnings of streams aside."""
        return self.streams * 1_000.0 / self.gap_ms


def body(shape: Shape, number: int) -> bytes:
    """Return the body of a stream: a system prompt that all share, and words of its own."""
    rng = random.Random(number)
    own = " ".join(f"{rng.getrandbits(32):x}" for _ in range(PROMPT_CHARS // 18))
    messages = [
        {"role": "system", "content": "You are a careful assistant. " * (PROMPT_CHARS // 58)},
        {"role": "user", "content": f"shape {shape.events} {shape.gap_ms:g} {own}"},
    ]
    asked = {
        "model": "fake",
        "messages": messages,
        "stream": True,
        "max_tokens": shape.events,
    }
    return json.dumps(asked).encode()


class Stream(asyncio.Protocol):
    """One client: asks, reads to the end, asks again, over the same connection while the server keeps it."""

    def __init__(self, clients: "Clients", number: int) -> None:
        self._clients = clients
        self._number = number
        self._transport: asyncio.Transport | None = None
        self._request = clients.request(number)

    async def begin(self) -> None:
        """Connect and ask; tried again until it works or the clients are stopped."""
        loop = asyncio.get_running_loop()
        while not self._clients.stopped:
            self._began_ns = time.monotonic_ns()
            try:
                await loop.create_connection(lambda: self, "127.0.0.1", self._clients.port)
                return
            except OSError:
                self._clients.counted.failed += 1
                await asyncio.sleep(RETRY_S)

    def stop(self) -> None:
        """Hang up."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask."""
        # uvloop's transports are no subclasses
        self._transport = cast(asyncio.Transport, transport)
        self._parser = httptools.HttpResponseParser(self)
        self._ask()

    def _ask(self) -> None:
        assert self._transport is not None
        self._first: bytes | None = b""
        self._tail = b""
        self._is_done = False
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Parse; what is no HTTP ends the connection."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.stop()

    def on_body(self, data: bytes) -> None:
        """Count the events that end here."""
        seen = self._tail + data
        self._clients.counted.events += seen.count(b"\n\n")
        self._tail = b"\n" if seen.endswith(b"\n") and not seen.endswith(b"\n\n") else b""
        if self._first is not None:
            self._read_first(data)
        elif b"[DONE]" in data:
            self._is_done = True

    def _read_first(self, data: bytes) -> None:
        assert self._first is not None
        self._first += data
        found = STAMPS.search(self._first)
        if found is not None:
            engine_ns = int(found[2]) - int(found[1])
            took_ns = time.monotonic_ns() - self._began_ns
            self._clients.counted.added_ns.append(took_ns - engine_ns)
        if found is not None or len(self._first) > FIRST_BYTES_MAX:
            self._first = None

    def on_message_complete(self) -> None:
        """Ask again where the answer was whole and the connection stays."""
        assert self._transport is not None
        if self._parser.get_status_code() != 200 or not self._is_done:
            self.stop()
            return
        self._clients.counted.completed += 1
        self._first = b""
        if self._clients.stopped:
            return
        if not self._parser.should_keep_alive():
            self._transport.close()
            return
        self._began_ns = time.monotonic_ns()
        self._ask()

    def connection_lost(self, error: Exception | None) -> None:
        """Begin again; a connection that ends before its answer does is a failure."""
        if not (self._is_done and self._first == b""):
            self._clients.counted.failed += 1
        self._transport = None
        if not self._clients.stopped:
            self._clients.start(self)


class Clients:
    """All streams of a measurement."""

    def __init__(self, port: int, shape: Shape) -> None:
        self.port = port
        self.shape = shape
        self.counted = Counted()
        self.stopped = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._streams = [Stream(self, number) for number in range(shape.streams)]

    def request(self, number: int) -> bytes:
        """Return the bytes of a stream's request."""
        said = body(self.shape, number)
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(said)}\r\n\r\n"
        )
        return head.encode() + said

    async def begin(self) -> None:
        """Begin all streams, spread over the length of one so that they do not march in step."""
        wait_s = self.shape.events * self.shape.gap_ms / 1_000.0 / len(self._streams)
        for stream in self._streams:
            self.start(stream)
            await asyncio.sleep(wait_s)

    def start(self, stream: Stream) -> None:
        """Connect a stream in the background."""
        task = asyncio.get_running_loop().create_task(stream.begin())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def end(self) -> None:
        """Hang up everywhere."""
        self.stopped = True
        for stream in self._streams:
            stream.stop()
        await asyncio.gather(*self._tasks, return_exceptions=True)
