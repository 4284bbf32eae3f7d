"""A fake engine that streams server-sent events at a steady pace, as cheaply as Python can.

    python -m bench.proxy.engine PORT

Answers any POST of a chat with a stream of events of about 190 bytes. How many and how far apart stands at the
beginning of the last message ("shape EVENTS GAP_MS"): some proxies rename or drop the fields of a body that could say
it. The content of the first event is when the request had arrived and when the event left, in nanoseconds of the
machine's monotonic clock, so that whoever reads it knows how long everything between took. A last message that
begins with "numbered" instead gets its fourth word and a number as the text of each event, so that what is lost or
doubled on the way is seen. Every GET answers 200, for health checks of any name; /metrics speaks as vLLM does, in
front of which most of these proxies stand.
"""

import asyncio
import json
import sys
import time
from typing import Final, cast

import httptools
import uvloop

HEAD: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-cache\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
MODELS: Final = json.dumps(
    {"object": "list", "data": [{"id": "fake", "object": "model", "max_model_len": 100_000}]}
).encode()
BUFFER_BYTES_MAX: Final = 65_536
END: Final = b"0\r\n\r\n"


def framed(data: bytes) -> bytes:
    """Return data as one HTTP chunk."""
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def event(content: str | None, finish: str | None = None) -> bytes:
    """Return one chunk of a chat completion as an engine sends it."""
    delta = {} if content is None else {"content": content}
    made = {
        "id": "chatcmpl-0123456789abcdef",
        "object": "chat.completion.chunk",
        "created": 1764500000,
        "model": "fake",
        "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}],
    }
    return b"data: " + json.dumps(made, separators=(",", ":")).encode() + b"\n\n"


def usage(tokens: int) -> bytes:
    """Return the chunk that tells usage."""
    made = {
        "id": "chatcmpl-0123456789abcdef",
        "object": "chat.completion.chunk",
        "created": 1764500000,
        "model": "fake",
        "choices": [],
        "usage": {"prompt_tokens": 9, "completion_tokens": tokens, "total_tokens": tokens + 9},
    }
    return b"data: " + json.dumps(made, separators=(",", ":")).encode() + b"\n\n"


def answer(name: str, tokens: int) -> bytes:
    """Return a whole answer that is not streamed."""
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": name},
        "finish_reason": "stop",
    }
    told = {"prompt_tokens": 9, "completion_tokens": tokens, "total_tokens": tokens + 9}
    return json.dumps({"object": "chat.completion", "choices": [choice], "usage": told}).encode()


TOKEN: Final = framed(event(" token"))
STOP: Final = framed(event(None, "stop"))
DONE: Final = framed(b"data: [DONE]\n\n")


def metrics(running: int) -> bytes:
    """Return what vLLM's /metrics says of load."""
    name = 'engine="0",model_name="fake"'
    lines = (
        "# TYPE vllm:num_requests_running gauge",
        f"vllm:num_requests_running{{{name}}} {running}.0",
        "# TYPE vllm:num_requests_waiting gauge",
        f"vllm:num_requests_waiting{{{name}}} 0.0",
        "# TYPE vllm:kv_cache_usage_perc gauge",
        f"vllm:kv_cache_usage_perc{{{name}}} 0.1",
    )
    return "\n".join((*lines, "")).encode()


RUNNING: Final[set["Connection"]] = set()
"""Connections that stream, of the one server of this process."""


class Connection(asyncio.Protocol):
    """One connection of a proxy: requests one after the other."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        # uvloop's transports are no subclasses
        self._transport = cast(asyncio.Transport, transport)
        self._parser = httptools.HttpRequestParser(self)
        self._body: list[bytes] = []
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    def connection_lost(self, error: Exception | None) -> None:
        """Stop the stream."""
        RUNNING.discard(self)
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        """Parse."""
        self._parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        """Note what is asked for."""
        self._url = url

    def on_body(self, data: bytes) -> None:
        """Collect."""
        self._body.append(data)

    def on_message_complete(self) -> None:
        """Answer."""
        body, self._body = b"".join(self._body), []
        if self._parser.get_method() == b"GET":
            is_metrics = self._url.partition(b"?")[0] == b"/metrics"
            self._whole(metrics(len(RUNNING)) if is_metrics else MODELS)
            return
        asked = json.loads(body)
        kind, events, gap_ms, name, *_ = f"{asked['messages'][-1]['content']} - -".split(" ", 4)
        self._tokens = self._left = int(events)
        self._name = name if kind == "numbered" else ""
        if not asked.get("stream"):
            self._whole(answer(self._name, self._tokens))
            return
        self._gap_s = float(gap_ms) / 1_000.0
        self._wants_usage = bool((asked.get("stream_options") or {}).get("include_usage"))
        RUNNING.add(self)
        arrived_ns = time.monotonic_ns()
        self._transport.write(HEAD)
        self._timer = self._loop.call_later(self._gap_s, self._first, arrived_ns)

    def _whole(self, body: bytes) -> None:
        head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
        self._transport.write(head.encode() + b"\r\n\r\n" + body)

    def _first(self, arrived_ns: int) -> None:
        self._due_s = self._loop.time() + self._gap_s
        said = f"t {arrived_ns} {time.monotonic_ns()} t" if not self._name else f"{self._name} 0"
        self._transport.write(framed(event(said)))
        self._left -= 1
        self._timer = self._loop.call_at(self._due_s, self._next)

    def _next(self) -> None:
        self._due_s += self._gap_s
        if self._transport.get_write_buffer_size() < BUFFER_BYTES_MAX:
            if self._left <= 0:
                self._end()
                return
            self._transport.write(self._token())
            self._left -= 1
        self._timer = self._loop.call_at(self._due_s, self._next)

    def _token(self) -> bytes:
        if not self._name:
            return TOKEN
        return framed(event(f"{self._name} {self._tokens - self._left}"))

    def _end(self) -> None:
        told = framed(usage(self._tokens)) if self._wants_usage else b""
        RUNNING.discard(self)
        self._transport.write(STOP + told + DONE + END)
        self._timer = None


async def serve(port: int) -> None:
    """Listen until the process is told to end."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Connection, "127.0.0.1", port, backlog=4_096)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
