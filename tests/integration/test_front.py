"""The client side of the data path over real sockets: what is refused, what is bounded, who waits for whom."""

import asyncio
import gzip
import shlex
import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from fake_engine import STREAM_HEAD, FakeEngine, Seen, chunk, chunked, sse
from harness import CHAT, Harness, as_body, chat, until

from trimtab.core.types import ErrorClass
from trimtab.runtime.gateway import GatewayError

HEAD = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\n"
BODY = as_body({"stream": False})


async def ask(fleet: Harness, data: bytes, *, ends: bool = True) -> bytes:
    """Send bytes on a connection of their own and return everything that comes until it is closed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", fleet.port)
    writer.write(data)
    try:
        async with asyncio.timeout(10):
            return await reader.read() if ends else await reader.readuntil(b"\r\n\r\n")
    finally:
        writer.close()


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def request(body: bytes = BODY, *headers: str) -> bytes:
    lines = "".join(f"{header}\r\n" for header in headers)
    return f"{HEAD}{lines}Content-Length: {len(body)}\r\n\r\n".encode() + body


SMUGGLED = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.mark.parametrize(
    "head",
    [
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
        "Content-Length: 0\r\nContent-Length: 5\r\n\r\n",
        "Content-Length: 0, 5\r\n\r\n",
        "Content-Length: +5\r\n\r\n",
        "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        "Transfer-Encoding: chunked\r\n\r\n0x1\r\na\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked\r\n\r\n1\na\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked\r\n\r\n1\r\nab\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n",
        "X: a\r\n folded\r\nContent-Length: 0\r\n\r\n",
        "X: a\nContent-Length: 0\r\n\r\n",
        "X: a\rb\r\nContent-Length: 0\r\n\r\n",
        "X: a\x00b\r\nContent-Length: 0\r\n\r\n",
        ": nameless\r\nContent-Length: 0\r\n\r\n",
        "Host: y\r\nContent-Length: 0\r\n\r\n",
    ],
)
async def test_what_two_servers_could_read_differently_is_refused(head: str) -> None:
    """One 400, the connection closed, nothing behind it answered, no engine asked."""
    engine = FakeEngine()
    async with Harness(engine) as fleet:
        answer = await ask(fleet, HEAD.encode() + head.encode("latin-1") + SMUGGLED)
        await until(lambda: fleet.gateway._front.connections == 0)
    assert (status(answer), answer.count(b"HTTP/1.1 "), engine.requests) == (400, 1, [])
    assert b"Connection: close\r\n" in answer


@pytest.mark.parametrize(
    "path",
    [
        "/v1/../slots/0?action=erase",
        "/v1/%2e%2e/slots",
        "/v1/a%2Fb",
        "/v1//slots",
        "/v1/a\\b",
        "/v1/./x",
        "/v1/..",
    ],
)
async def test_path_that_a_replica_may_read_as_another_is_refused(path: str) -> None:
    """What is behind /v1 is not reached through it."""
    engine = FakeEngine()
    async with Harness(engine) as fleet:
        answer = await ask(fleet, f"POST {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    assert (status(answer), engine.requests) == (400, [])


async def test_nonsense_is_answered_and_closed() -> None:
    """Bytes that are no HTTP, another version, and TLS on a plain port end in one error each."""
    async with Harness(FakeEngine()) as fleet:
        answers = [
            await ask(fleet, data)
            for data in (
                b"nonsense\r\n\r\n",
                b"POST /v1/x HTTP/3.0\r\n\r\n",
                b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
                b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n",
                b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 0\r\n\r\n",
            )
        ]
    assert [status(answer) for answer in answers] == [400] * 5


async def test_head_over_its_limit_is_431() -> None:
    """Long lines, many lines, and a head that never ends; one below the limit passes."""
    engine = FakeEngine()
    async with Harness(engine, head_bytes_max=4096) as fleet:
        fits = await ask(fleet, request(BODY, "X: " + "a" * 3500, "Connection: close"))
        over = await ask(fleet, request(BODY, "X: " + "a" * 5000))
        many = await ask(fleet, request(BODY, *(f"X{n}: 1" for n in range(300))))
        endless = await ask(fleet, HEAD.encode() + b"X: " + b"a" * 30_000)
    assert [status(one) for one in (fits, over, many, endless)] == [200, 431, 431, 431]
    assert len(engine.requests) == 1


async def test_announced_body_over_the_limit_is_refused_before_it_is_sent() -> None:
    """413 comes at the head; the client that waits for 100 never sends what would be thrown away."""
    engine = FakeEngine()
    async with Harness(engine, body_bytes_max=2048) as fleet:
        head = f"{HEAD}Content-Length: 5000000\r\nExpect: 100-continue\r\n\r\n"
        announced = await ask(fleet, head.encode())
        dripped = await ask(
            fleet,
            f"{HEAD}Transfer-Encoding: chunked\r\n\r\n".encode()
            + b"400\r\n%b\r\n" % (b"x" * 1024) * 3,
        )
    assert (status(announced), status(dripped), engine.requests) == (413, 413, [])


async def test_client_that_waits_for_100_is_told_to_go_on() -> None:
    """The body is asked for, then the request is served."""
    async with Harness(FakeEngine()) as fleet:
        reader, writer = await asyncio.open_connection("127.0.0.1", fleet.port)
        head = f"{HEAD}Content-Length: {len(BODY)}\r\nExpect: 100-continue\r\n\r\n"
        writer.write(head.encode())
        go_on = await reader.readuntil(b"\r\n\r\n")
        writer.write(BODY)
        answer = await reader.readuntil(b"\r\n\r\n")
        writer.close()
    assert (status(go_on), status(answer)) == (100, 200)


@pytest.mark.parametrize(
    "sent", [b"", HEAD.encode(), f"{HEAD}Content-Length: 9\r\n\r\n{{".encode()]
)
async def test_slow_client_is_told_and_closed(sent: bytes) -> None:
    """A head or a body that does not come ends in 408; a connection without a word is just closed."""
    engine = FakeEngine()
    settings = {"head_timeout_s": 0.2, "idle_timeout_s": 0.2, "client_keepalive_s": 0.2}
    async with Harness(engine, **settings) as fleet:
        answer = await ask(fleet, sent)
    assert (answer[9:12], engine.requests) == (b"408" if sent else b"", [])


async def test_requests_sent_ahead_are_answered_in_order() -> None:
    """Three requests in one write: three answers, in order, over one connection."""
    engine = FakeEngine(pause_s=0.01)
    async with Harness(engine) as fleet:
        bodies = [as_body(chat(f"number {n}", stream=n == 1)) for n in range(3)]
        sent = b"".join(request(body) for body in bodies[:2]) + request(
            bodies[2], "Connection: close"
        )
        answer = await ask(fleet, sent)
    asked = [seen.json["messages"][-1]["content"] for seen in engine.requests]
    assert asked == ["number 0", "number 1", "number 2"]
    assert (answer.count(b"HTTP/1.1 200"), answer.count(b"data: [DONE]")) == (3, 1)


async def test_page_on_a_connection_of_its_own_is_handed_over() -> None:
    """Pages and /v1 alternate over one client's connections: each page closes its own, byte by byte or at once."""
    async with Harness(FakeEngine()) as fleet:
        served = await ask(fleet, request(BODY, "Connection: close"))
        reader, writer = await asyncio.open_connection("127.0.0.1", fleet.port)
        writer.write(request())
        head = await reader.readuntil(b"\r\n\r\n")
        [length] = [
            line for line in head.decode().split("\r\n") if line.startswith("Content-Length:")
        ]
        await reader.readexactly(int(length.partition(":")[2]))
        for byte in b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n":
            writer.write(bytes([byte]))
            await writer.drain()
        page = await reader.read()
        writer.close()
        at_once = await ask(fleet, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
    assert [status(one) for one in (served, head, page, at_once)] == [200, 200, 200, 200]
    assert b"connection: close" in page.lower()


async def test_wish_for_another_protocol_is_ignored() -> None:
    """Clients that offer HTTP/2 with their first request get HTTP/1.1, their body and all."""
    engine = FakeEngine()
    async with Harness(engine) as fleet:
        answer = await ask(
            fleet,
            request(
                BODY,
                "Connection: Upgrade, HTTP2-Settings",
                "Upgrade: h2c",
                "HTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA",
            ),
            ends=False,
        )
    assert (status(answer), engine.requests[0].body) == (200, BODY)
    assert set() == {"upgrade", "http2-settings"} & set(engine.requests[0].headers)


async def test_client_of_http_1_0_sees_the_stream_end_with_the_connection() -> None:
    """No chunks for who does not know them."""
    engine = FakeEngine()
    body = as_body(None)
    async with Harness(engine) as fleet:
        head = f"POST {CHAT} HTTP/1.0\r\nContent-Length: {len(body)}\r\n\r\n"
        answer = await ask(fleet, head.encode() + body)
    assert (status(answer), answer.endswith(b"data: [DONE]\n\n")) == (200, True)
    assert b"chunked" not in answer.lower()


async def test_compressed_body_is_read_within_the_limit() -> None:
    """gzip is taken apart; one that would be larger than a body may be is refused, and so are other codings."""
    engine = FakeEngine()
    async with Harness(engine, body_bytes_max=100_000) as fleet:
        small = await fleet.post(gzip.compress(BODY), Content_Encoding="gzip")
        bomb = await fleet.post(gzip.compress(b" " * 10_000_000), Content_Encoding="gzip")
        broken = await fleet.post(b"no gzip", Content_Encoding="gzip")
        other = await fleet.post(BODY, Content_Encoding="zstd")
    assert [one.status for one in (small, bomb, broken, other)] == [200, 413, 400, 415]
    assert [seen.body for seen in engine.requests] == [BODY]


async def test_request_that_takes_too_long_in_all_ends_in_one_error() -> None:
    """A stream that goes on and on gets its error event, an answer that does not come 504; the engine is let go."""
    engine = FakeEngine(words=("w",) * 1000, pause_s=0.02)
    async with Harness(engine, total_timeout_s=0.3) as fleet:
        stream, plain = await fleet.post(), await fleet.post(BODY)
        await fleet.record(of=2)
        await until(lambda: len(engine.aborted_at_s) == 2)
    assert (stream.status, stream.body.count(b"total_timeout"), plain.status) == (200, 1, 504)
    assert stream.body.endswith(b"}}\n\n")
    assert {record.error for record in fleet.records} == {ErrorClass.UPSTREAM_TIMEOUT}


async def test_heartbeat_comes_between_events_only() -> None:
    """Comments while a replica is silent between events, none while it is in the middle of one, none unless asked."""
    event = sse(chunk({"content": "one"}))

    async def script(seen: Seen) -> AsyncIterator[bytes]:
        yield STREAM_HEAD
        yield chunked(event)
        await asyncio.sleep(0.35)
        yield chunked(event[:20])
        await asyncio.sleep(0.35)
        yield chunked(event[20:] + b"data: [DONE]\n\n")
        yield b"0\r\n\r\n"

    async with Harness(FakeEngine(script=script), heartbeat_s=0.1) as fleet:
        beating = (await fleet.post()).body
    async with Harness(FakeEngine(script=script)) as fleet:
        silent = (await fleet.post()).body
    said = event + event + b"data: [DONE]\n\n"
    beats = beating.count(b": keep-alive\n\n")
    assert (silent, beating) == (said, event + b": keep-alive\n\n" * beats + said[len(event) :])
    assert 1 <= beats <= 3


async def test_client_that_takes_nothing_is_dropped() -> None:
    """Whoever holds a stream without reading it loses it after the longest silence."""
    engine = FakeEngine(words=("x" * 60_000,) * 700)
    async with Harness(engine, idle_timeout_s=0.5) as fleet:
        _, writer = await asyncio.open_connection("127.0.0.1", fleet.port, limit=2**16)
        writer.write(request(as_body(None)))
        await until(lambda: engine.aborted_at_s, timeout_s=8.0)
        record = await fleet.record()
        writer.close()
    assert (record.status, record.error) == (499, ErrorClass.CLIENT_ABORT)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Make a certificate for loopback."""
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        shlex.split(
            "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost"
            f" -addext subjectAltName=IP:127.0.0.1 -keyout {key} -out {cert}"
        ),
        check=True,
        capture_output=True,
    )
    return cert, key


async def test_tls_serves_streams_and_pages(certificate: tuple[Path, Path]) -> None:
    """Both kinds of answers come over TLS, also after the connection was handed over; a plain client gets none."""
    cert, key = certificate
    context = ssl.create_default_context(cafile=str(cert))
    async with Harness(FakeEngine(), tls_cert=str(cert), tls_key=str(key)) as fleet:
        url = f"https://127.0.0.1:{fleet.port}"
        async with fleet.client.post(url + CHAT, data=as_body(None), ssl=context) as answer:
            stream = await answer.read()
        async with fleet.client.get(url + "/healthz", ssl=context) as answer:
            page = answer.status
        plain = await ask(fleet, request())
    assert (stream.endswith(b"data: [DONE]\n\n"), page, plain[:5]) == (True, 200, b"")


async def test_certificate_that_cannot_be_used_is_a_clear_error(tmp_path: Path) -> None:
    """The message has both keys of the configuration; nothing listens."""
    missing = str(tmp_path / "none.pem")
    fleet = Harness(tls_cert=missing)
    with pytest.raises(GatewayError, match=r"gateway\.tls_cert .*none\.pem.* gateway\.tls_key"):
        await fleet.gateway.start()
