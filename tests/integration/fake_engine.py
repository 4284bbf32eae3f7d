"""A server on loopback that answers in llama.cpp's formats, follows a script byte by byte, and notes what it saw.

It speaks raw HTTP/1.1, so that a test can cut an answer anywhere: keep-alive, chunked bodies, resets.
"""

import asyncio
import json
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nServer: llama.cpp\r\nContent-Type: text/event-stream\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)


@dataclass
class Seen:
    """One request as it arrived."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    connection: int

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def json_or_none(self, field_name: str) -> Any:
        """Return a field of the body, None if the body is no JSON object."""
        try:
            return json.loads(self.body).get(field_name)
        except ValueError:
            return None


class DiesError(Exception):
    """Raised by a script: the connection is reset here."""


Script = Callable[[Seen], AsyncIterator[bytes]]


@dataclass
class FakeEngine:
    """Serves scripts: async generators of the bytes to write, from the status line on."""

    script: Script | None = None
    words: tuple[str, ...] = ("Hello", ",", " world", "!")
    pause_s: float = 0.0
    cached_tokens: int = 0
    requests: list[Seen] = field(default_factory=list)
    aborted_at_s: list[float] = field(default_factory=list)
    served: int = 0
    connections: int = 0
    open_connections: int = 0
    url: str = ""
    tls: ssl.SSLContext | None = None

    async def start(self, port: int = 0) -> str:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port, ssl=self.tls)
        self.port: int = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        return self.url

    async def stop(self) -> None:
        self._server.close()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        self.open_connections += 1
        try:
            await self._connection(reader, writer, self.connections)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self.open_connections -= 1
            self._tasks.discard(task)
            writer.close()

    async def _connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int
    ) -> None:
        first = await reader.read(1)
        while first:
            seen = await read_request(reader, first, number)
            self.requests.append(seen)
            more = asyncio.create_task(reader.read(1))
            try:
                if not await self._answer(seen, writer, more):
                    return
                first = await more
            finally:
                more.cancel()
                await asyncio.gather(more, return_exceptions=True)

    async def _answer(
        self, seen: Seen, writer: asyncio.StreamWriter, more: "asyncio.Task[bytes]"
    ) -> bool:
        """Write the script; False when the connection is at its end."""
        writing = asyncio.create_task(self._write(seen, writer))
        try:
            await asyncio.wait({writing, more}, return_when=asyncio.FIRST_COMPLETED)
            if not writing.done():
                self.aborted_at_s.append(asyncio.get_running_loop().time())
                return False
            try:
                await writing
            except DiesError:
                reset(writer)
                return False
            except ConnectionError:
                self.aborted_at_s.append(asyncio.get_running_loop().time())
                return False
            self.served += 1
            # As llama.cpp's server does: it says keep-alive, and closes after every stream all the same.
            return not seen.json_or_none("stream") and seen.headers.get("connection") != "close"
        finally:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)

    async def _write(self, seen: Seen, writer: asyncio.StreamWriter) -> None:
        script = self.script or self.completion
        async for piece in script(seen):
            writer.write(piece)
            await writer.drain()

    async def completion(self, seen: Seen) -> AsyncIterator[bytes]:
        """Answer like llama.cpp: a stream of one chunk per word with usage and timings, or one JSON body."""
        if not seen.json.get("stream"):
            await asyncio.sleep(self.pause_s * len(self.words))
            yield whole(200, self.body(seen))
            return
        yield STREAM_HEAD
        for event in self.events(seen):
            await asyncio.sleep(self.pause_s)
            yield chunked(event)
        yield b"0\r\n\r\n"

    def events(self, seen: Seen) -> list[bytes]:
        """Return the events of a stream as llama.cpp sends them."""
        usage = (seen.json.get("stream_options") or {}).get("include_usage")
        events = [sse(chunk({"role": "assistant", "content": None}))]
        events += [sse(chunk({"content": word})) for word in self.words]
        last = chunk({}, finish="stop")
        if not usage:
            last |= {"timings": self.timings(seen)}
        events.append(sse(last))
        if usage:
            events.append(sse(self.usage_chunk(seen)))
        return [*events, b"data: [DONE]\n\n"]

    def usage_chunk(self, seen: Seen) -> dict[str, Any]:
        return chunk({}, choices=[]) | {"usage": self.usage(seen), "timings": self.timings(seen)}

    def body(self, seen: Seen) -> bytes:
        text = "".join(self.words)
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        return json.dumps(
            {
                "id": "chatcmpl-1",
                "object": "chat.completion",
                "choices": [choice],
                "usage": self.usage(seen),
                "timings": self.timings(seen),
            }
        ).encode()

    def usage(self, seen: Seen) -> dict[str, Any]:
        prompt = prompt_tokens(seen)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": len(self.words),
            "total_tokens": prompt + len(self.words),
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }

    def timings(self, seen: Seen) -> dict[str, Any]:
        return {
            "cache_n": self.cached_tokens,
            "prompt_n": prompt_tokens(seen) - self.cached_tokens,
            "prompt_ms": 2.0,
            "predicted_n": len(self.words),
            "predicted_ms": 9.0,
        }


async def read_request(reader: asyncio.StreamReader, first: bytes, connection: int) -> Seen:
    """Read one request with a body of known length."""
    head = (first + await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    line, *rest = head.split("\r\n")
    method, path, _ = line.split(" ")
    headers = {
        name.lower(): value.strip()
        for name, _, value in (item.partition(":") for item in rest if item)
    }
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Seen(method, path, headers, body, connection)


def prompt_tokens(seen: Seen) -> int:
    """Count the prompt at four bytes to a token."""
    return max(1, len(seen.body) // 4)


def chunk(
    delta: dict[str, Any], *, finish: str | None = None, choices: Any = None
) -> dict[str, Any]:
    """Return one stream chunk as a value."""
    made = [{"index": 0, "finish_reason": finish, "delta": delta}]
    return {
        "choices": made if choices is None else choices,
        "created": 1,
        "id": "chatcmpl-1",
        "model": "fake",
        "object": "chat.completion.chunk",
    }


def sse(value: Any) -> bytes:
    """Return a value as one server-sent event."""
    return b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n"


def chunked(data: bytes) -> bytes:
    """Return bytes as one chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def whole(status: int, body: bytes, headers: Iterable[str] = ()) -> bytes:
    """Return a whole JSON response."""
    extra = "".join(f"{header}\r\n" for header in headers).encode()
    return b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\n%bContent-Length: %d\r\n\r\n%b" % (
        status,
        extra,
        len(body),
        body,
    )


def stream_of(parts: Iterable[bytes], *, gap_s: float = 0.0, ends: bool = True) -> Script:
    """Return a script that sends a stream's body in these parts, then ends it or breaks off."""

    async def script(seen: Seen) -> AsyncIterator[bytes]:
        yield STREAM_HEAD
        for part in parts:
            if part:
                yield chunked(part)
                await asyncio.sleep(gap_s)
        if not ends:
            raise DiesError
        yield b"0\r\n\r\n"

    return script


def answer_of(data: bytes) -> Script:
    """Return a script that sends these bytes."""

    async def script(seen: Seen) -> AsyncIterator[bytes]:
        yield data

    return script


async def die(seen: Seen) -> AsyncIterator[bytes]:
    """Break the connection before any byte of an answer."""
    raise DiesError
    yield b""


async def hang(seen: Seen) -> AsyncIterator[bytes]:
    """Never answer."""
    await asyncio.sleep(3600)
    yield b""


def reset(writer: asyncio.StreamWriter) -> None:
    """Close a connection with a reset, as the death of a process does."""
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
    writer.transport.abort()
