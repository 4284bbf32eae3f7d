"""What Python adds to one request: all of the gateway between the bytes of a client and those of a replica.

    python bench/bench_gateway_request.py [REQUESTS] [--profile]

Sockets are left out: a client's connection and a replica's are fed and take bytes here. Everything else is as in a
gateway before two attached servers: prefix index, routing, record, metrics, ledger with its thread. A request has
12 kB, half of them shared by all, and is answered by 34 events, each in a read of its own. CPU time of the process,
the least and the median of passes of 50 requests, of three at least; `--profile` says where it goes.
"""

import asyncio
import cProfile
import pstats
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Final, cast

import uvloop

from trimtab.core.config import GatewayConfig, RoutingConfig
from trimtab.core.cost import START_COST
from trimtab.core.prefix import BlockHasher, PrefixIndex
from trimtab.core.traffic import TrafficPlan
from trimtab.core.types import ReplicaState, Role
from trimtab.engines.llamacpp import LlamaCppFormat
from trimtab.policies.loadstate import LoadState
from trimtab.policies.router import Router
from trimtab.policies.routing import build_policies
from trimtab.runtime.access import Access
from trimtab.runtime.clock import SystemClock
from trimtab.runtime.front import Front
from trimtab.runtime.gateway import Gateway
from trimtab.runtime.ledger import SqliteLedger
from trimtab.runtime.secret import Secret
from trimtab.runtime.upstream import Upstream
from trimtab.runtime.upstream_connection import UpstreamConnection

sys.path.append(str(Path(__file__).resolve().parents[1]))
from bench.proxy.client import Clients, Shape
from bench.proxy.engine import DONE, END, HEAD, STOP, TOKEN, framed, usage

REQUESTS: Final = 1_000
PASS: Final = 50
PASSES_MIN: Final = 3
EVENTS: Final = 32
LAST: Final = STOP + framed(usage(EVENTS)) + DONE + END


class Wire:
    """A transport that goes nowhere: it counts what is written to it."""

    def __init__(self) -> None:
        self.written = 0
        self.was_asked = asyncio.Event()

    def write(self, data: bytes) -> None:
        """Take bytes."""
        self.written += len(data)
        self.was_asked.set()

    def get_extra_info(self, name: str) -> None:
        """Know nothing."""

    def is_closing(self) -> bool:
        """Say that it is open."""
        return False

    def abort(self) -> None:
        """Do nothing."""

    close = pause_reading = resume_reading = abort


class Replica:
    """The one connection to a replica, fed by hand."""

    def __init__(self) -> None:
        self.wire = Wire()
        self.connection = UpstreamConnection("replica")
        self.connection.connection_made(cast(asyncio.Transport, self.wire))

    async def connect(self, *_: object) -> UpstreamConnection:
        """Stand in for the making of a connection."""
        return self.connection


async def one(front: Front, replica: Replica, request: bytes) -> None:
    """Let one request pass."""
    replica.wire.was_asked.clear()
    front.data_received(request)
    await replica.wire.was_asked.wait()
    take = replica.connection.data_received
    take(HEAD)
    for _ in range(3):
        await asyncio.sleep(0)
    for _ in range(EVENTS):
        take(TOKEN)
    take(LAST)
    while front._serving is not None:  # noqa: ASYNC110 - connections set no event
        await asyncio.sleep(0)


def gateway(folder: Path) -> tuple[Gateway, SqliteLedger]:
    """Return a gateway before two servers."""
    load, routing, secret = LoadState(), RoutingConfig(), Secret(bytes(32))
    for name in ("a", "b"):
        load.set_replica(
            id=name,
            url=f"http://{name}",
            role=Role.MIXED,
            revision="r",
            state=ReplicaState.READY,
            slots=64,
            speculating=False,
        )
        load.seen(name, now_s=time.monotonic(), kv_used_share=0.1, running=0, waiting=0)
    router = Router(
        load,
        PrefixIndex(routing.index_blocks_max, routing.block_bytes),
        build_policies(START_COST),
        random.Random(1),
        plan=TrafficPlan(policy="prefix_affine"),
    )
    ledger = SqliteLedger(folder / "ledger.sqlite", clock=SystemClock())
    made = Gateway(
        GatewayConfig(port=0),
        router,
        LlamaCppFormat(),
        ledger,
        SystemClock(),
        hasher=BlockHasher(secret.derive("prefix blocks"), routing.block_bytes),
        secret=secret,
        model="fake",
        on_record=lambda record: None,
        access=lambda url: Access(keeps_streams=True),
    )
    return made, ledger


async def main() -> None:
    """Print what a request costs."""
    count = int(sys.argv[1]) if sys.argv[1:2] and sys.argv[1].isdigit() else REQUESTS
    profile = cProfile.Profile(time.process_time) if "--profile" in sys.argv else None
    clients = Clients(1, Shape(streams=64, events=EVENTS, gap_ms=20.0))
    requests = [clients.request(number) for number in range(64)]
    with tempfile.TemporaryDirectory(prefix="trimtab-request-") as folder:
        served, ledger = gateway(Path(folder))
        await served.start()
        replica = Replica()
        # The one thing that is not as it comes: there is no socket to connect.
        Upstream._connect = replica.connect  # type: ignore[method-assign,assignment]
        fronts = [client(served) for _ in requests]
        found = []
        for turn in range(max(PASSES_MIN, count // PASS)):
            if profile is not None and turn == 2:
                profile.enable()
            began_s = time.process_time()
            for at in range(PASS):
                number = (turn * PASS + at) % len(requests)
                await one(fronts[number], replica, requests[number])
            found.append((time.process_time() - began_s) / PASS * 1e6)
        if profile is not None:
            profile.disable()
        await served.stop()
        ledger.close()
    print(f"{min(found):.0f} us a request at least, {statistics.median(found):.0f} at the median")
    if profile is not None:
        pstats.Stats(profile).sort_stats("tottime").print_stats(60)


def client(served: Gateway) -> Front:
    """Return a client's connection."""
    front = Front(served._serve, asyncio.Protocol, served._front._limits, set())
    front.connection_made(cast(asyncio.Transport, Wire()))
    return front


if __name__ == "__main__":
    uvloop.run(main())
