"""trimtab's gateway in front of given engines, with a ledger on disk.

python -m bench.proxy.front PORT FOLDER URL...
"""

import asyncio
import random
import sys
from pathlib import Path

import uvloop

from trimtab.core.config import GatewayConfig
from trimtab.core.cost import START_COST
from trimtab.core.prefix import BlockHasher, PrefixIndex
from trimtab.core.types import ReplicaState, Role
from trimtab.engines.llamacpp import LlamaCppFormat
from trimtab.policies.loadstate import LoadState
from trimtab.policies.router import Router
from trimtab.policies.routing import build_policies
from trimtab.runtime.clock import SystemClock
from trimtab.runtime.gateway import Gateway
from trimtab.runtime.ledger import SqliteLedger
from trimtab.runtime.secret import Secret

BLOCK_BYTES = 64


async def main(port: int, folder: Path, urls: list[str]) -> None:
    """Serve until killed."""
    load = LoadState()
    for number, url in enumerate(urls):
        load.set_replica(
            id=f"r{number}",
            url=url,
            role=Role.MIXED,
            revision="fake",
            state=ReplicaState.READY,
            slots=1_024,
            speculating=False,
        )
    clock = SystemClock()
    router = Router(
        load, PrefixIndex(100_000, BLOCK_BYTES), build_policies(START_COST), random.Random(1)
    )
    gateway = Gateway(
        GatewayConfig(port=port, streams_max=8_192),
        router,
        LlamaCppFormat(),
        SqliteLedger(folder / "ledger.db", clock=clock, queue_max=100_000),
        clock,
        hasher=BlockHasher(b"bench", BLOCK_BYTES),
        secret=Secret(bytes(32)),
        model="fake",
        on_record=lambda _: None,
    )
    await gateway.start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    Path(sys.argv[2]).mkdir(parents=True, exist_ok=True)
    uvloop.run(main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]))
