"""What Python adds to one streamed event: from the bytes of the replica's socket to the bytes of the client's.

    python bench/bench_streamed_event.py [EVENTS]

Sockets and event loop are left out: what is timed is the connection to the replica, the relay and the exchange with the
client, with everything that is kept of an event. `alone`: each event comes by itself; `together`: four in one read, as
when the gateway is behind; `parsed`: a chunk in another form each time (its length in capitals), which only the parser
understands. CPU time of the thread, the least and the median of eight passes; `loop` is one turn of an empty loop.
"""

import asyncio
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, cast

from trimtab.core.config import GatewayConfig
from trimtab.core.ports import RequestFacts
from trimtab.core.types import Constraint
from trimtab.engines.llamacpp import LlamaCppFormat
from trimtab.policies.loadstate import LoadState
from trimtab.runtime.clock import SystemClock
from trimtab.runtime.exchange import Exchange, Line
from trimtab.runtime.recorder import Measurement
from trimtab.runtime.relay_stream import StreamPump
from trimtab.runtime.secret import Secret
from trimtab.runtime.upstream import UpstreamResponse
from trimtab.runtime.upstream_connection import UpstreamConnection
from trimtab.runtime.wire import Headers

sys.path.append(str(Path(__file__).resolve().parents[1]))
from bench.proxy.engine import HEAD, TOKEN

EVENTS: Final = 20_000
PASSES: Final = 8
FACTS: Final = RequestFacts(
    model=None,
    stream=True,
    wants_usage=False,
    temperature=None,
    max_tokens=None,
    constraint=Constraint.FREE,
    segments=(),
)


class Nowhere:
    """A client's line and a replica's transport at once: takes everything and sends nothing."""

    is_full = False

    def send(self, data: bytes) -> None:
        """Take bytes for the client."""

    def write(self, data: bytes) -> None:
        """Take bytes for the replica."""

    def is_closing(self) -> bool:
        """Say that it is open."""
        return False

    def abort(self) -> None:
        """Do nothing."""

    def wanted(self, exchange: Exchange) -> None:
        """Do nothing."""


async def stream() -> Callable[[bytes], None]:
    """Begin a stream and return what takes the bytes that come from its replica."""
    nowhere = Nowhere()
    connection = UpstreamConnection("replica")
    connection.connection_made(cast(asyncio.Transport, nowhere))
    connection.request(b"", b"")
    connection.data_received(HEAD)
    exchange = Exchange(
        cast(Line, nowhere),
        method=b"POST",
        target=b"/v1/chat/completions",
        headers=Headers([]),
        version=b"1.1",
        keep_alive=True,
    )
    seen = Measurement("q", "/v1/chat/completions", at_s=0.0, mono_s=0.0)
    seen.facts = FACTS
    pump = StreamPump(
        exchange,
        seen,
        LlamaCppFormat(),
        LoadState(),
        SystemClock(),
        Secret(bytes(32)),
        lambda why: None,
        lambda: exchange.begin(200, []),
    )
    answer = UpstreamResponse(connection, GatewayConfig(), "replica")
    TASKS.append(asyncio.ensure_future(answer.pump(pump.take, pump.lane)))
    await asyncio.sleep(0)
    for _ in range(3):
        connection.data_received(TOKEN)
    return connection.data_received


TASKS: Final[list[asyncio.Future[None]]] = []


async def cost(piece: bytes, events: int, each: int) -> tuple[float, float]:
    """Return the microseconds of an event, least and median, where `piece` has so many each time."""
    found = []
    for _ in range(PASSES):
        take = await stream()
        began_s = time.thread_time()
        for _ in range(events // each):
            take(piece)
        found.append((time.thread_time() - began_s) / (events // each * each) * 1e6)
        TASKS.pop().cancel()
    return min(found), statistics.median(found)


async def main() -> None:
    """Print a line for each way in which events come."""
    events = int(sys.argv[1]) if len(sys.argv) > 1 else EVENTS
    size, _, rest = TOKEN.partition(b"\r\n")
    pieces = {
        "alone": (TOKEN, 1),
        "together": (TOKEN * 4, 4),
        "parsed": (size.upper().rjust(4, b"0") + b"\r\n" + rest, 1),
    }
    for name, (piece, each) in pieces.items():
        least, median = await cost(piece, events, each)
        print(f"{name}: {least:.2f} us an event at least, {median:.2f} at the median")
    began_s = time.thread_time()
    for _ in range(1_000_000):
        pass
    print(f"loop {(time.thread_time() - began_s) * 1e3:.0f} ns")


if __name__ == "__main__":
    asyncio.run(main())
