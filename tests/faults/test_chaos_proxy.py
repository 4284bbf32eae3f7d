"""The chaos proxy does what its faults say, at the byte they say, and leaves nothing behind."""

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from chaos_proxy import ChaosProxy, Fault, FaultKind

EVENTS = tuple(f"data: {number}\n\n".encode() for number in range(5))
SAID = b"".join(EVENTS)
ASKED = b"question"


class Target:
    """Reads a question, answers `SAID` in pieces, and closes; keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []
        self.ended = 0

    async def start(self, pieces: tuple[bytes, ...]) -> int:
        self._pieces = pieces
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def stop(self) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = b""
        try:
            while len(asked) < len(ASKED) and (data := await reader.read(100)):
                asked += data
            for piece in self._pieces if asked else ():
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0.001)
        except ConnectionError:
            pass  # the fault of the test
        finally:
            self.asked.append(asked)
            self.ended += 1
            writer.close()


@pytest_asyncio.fixture
async def target() -> AsyncIterator[Target]:
    made = Target()
    yield made
    await made.stop()


async def ask(port: int, *, read_s: float = 2.0) -> tuple[bytes, str]:
    """Return what came back, and how it ended: "end", "reset" or "silence"."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(ASKED)
    got = b""
    try:
        async with asyncio.timeout(read_s):
            while data := await reader.read(100):
                got += data
        how = "end"
    except ConnectionError:
        how = "reset"
    except TimeoutError:
        how = "silence"
    writer.close()
    return got, how


async def gone(proxy: ChaosProxy) -> bool:
    """Say whether the proxy lets every connection go within a second."""
    for _ in range(100):
        if not proxy.open_connections:
            return True
        await asyncio.sleep(0.01)
    return False


@pytest.mark.parametrize(
    ("fault", "expected", "how"),
    [
        (Fault(), SAID, "end"),
        (Fault(FaultKind.DELAY, seconds=0.05), SAID, "end"),
        (Fault(FaultKind.DRIP, drop_bytes=3), SAID, "end"),
        (Fault(FaultKind.CLOSE, after_bytes=13), SAID[:13], "end"),
        (Fault(FaultKind.CLOSE, after_bytes=4, in_event=2), EVENTS[0] + EVENTS[1] + b"data", "end"),
        (Fault(FaultKind.CLOSE, in_event=5), SAID, "end"),
        (Fault(FaultKind.HALF_CLOSE, after_bytes=5), SAID[:5], "end"),
        (Fault(FaultKind.GARBAGE, in_event=1, data=b"?!"), EVENTS[0] + b"?!" + SAID[9:], "end"),
        (Fault(FaultKind.HANG, after_bytes=9), SAID[:9], "silence"),
    ],
)
@pytest.mark.parametrize("pieces", [(SAID,), EVENTS, tuple(SAID[at : at + 1] for at in range(45))])
async def test_fault_strikes_at_its_byte(
    target: Target, pieces: tuple[bytes, ...], fault: Fault, expected: bytes, how: str
) -> None:
    """However the answer is cut into pieces, what passes is the same, and nothing stays open."""
    async with ChaosProxy(await target.start(pieces), lambda _: fault) as proxy:
        assert (expected, how) == await ask(
            proxy.port, read_s=0.1 if fault.kind is FaultKind.HANG else 2.0
        )
        assert await gone(proxy)
        assert (0 if fault.kind is FaultKind.NONE else 1) == proxy.struck.total()


async def test_reset_is_seen_as_a_reset(target: Target) -> None:
    """The asking side gets what was before the place, or nothing, and then a reset and no clean end."""
    fault = Fault(FaultKind.RESET, after_bytes=9)
    async with ChaosProxy(await target.start(EVENTS), lambda _: fault) as proxy:
        got, how = await ask(proxy.port)
        assert await gone(proxy)
    assert (SAID[:9].startswith(got), how) == (True, "reset")


@pytest.mark.parametrize("kind", [FaultKind.HANG, FaultKind.CLOSE, FaultKind.HALF_CLOSE])
async def test_fault_on_the_way_there_hits_the_question(target: Target, kind: FaultKind) -> None:
    """The target gets the question only up to the place."""
    fault = Fault(kind, after_bytes=3, up=True)
    async with ChaosProxy(await target.start((SAID,)), lambda _: fault) as proxy:
        _, how = await ask(proxy.port, read_s=0.1 if kind is FaultKind.HANG else 2.0)
        assert await gone(proxy)
        await asyncio.sleep(0.02)
    expected = "end" if kind is not FaultKind.HANG else "silence"
    assert (expected, [b"que"]) == (how, target.asked)


async def test_each_connection_gets_the_fault_of_its_number(target: Target) -> None:
    """Connections are numbered from 0 in the order in which they came."""
    faults = [Fault(), Fault(FaultKind.CLOSE, after_bytes=2), Fault()]
    async with ChaosProxy(await target.start(EVENTS), faults.__getitem__) as proxy:
        got = [(await ask(proxy.port))[0] for _ in faults]
    assert [SAID, SAID[:2], SAID] == got


async def test_absent_target_closes_the_connection() -> None:
    """Where nobody listens behind the proxy, its own side ends too."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        async with ChaosProxy(taken.getsockname()[1]) as proxy:
            got, _ = await ask(proxy.port)
            assert await gone(proxy)
    assert got == b""
