"""The floor of a proxy on one loop: two protocols that hand each other what they read, and nothing else.

    python -m bench.proxy.bare PORT ENGINE_PORT

A client's connection has a connection of its own to the engine. No HTTP is read, nothing is counted, and nobody waits
for anybody: one read, one call, one write. What a proxy in Python costs above this is its own.
"""

import asyncio
import sys
from typing import cast

import uvloop


class Half(asyncio.Protocol):
    """One of the two connections: what it reads goes to the other."""

    other: asyncio.Transport | None = None

    def __init__(self) -> None:
        self.early: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        # uvloop's transports are no subclasses
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Pass it on, or keep it until there is somewhere to pass it."""
        if self.other is None:
            self.early.append(data)
        else:
            self.other.write(data)

    def connection_lost(self, error: Exception | None) -> None:
        """End the other too."""
        if self.other is not None:
            self.other.close()


class Client(Half):
    """The connection of a client, which begins the other."""

    def __init__(self, engine_port: int) -> None:
        super().__init__()
        self.engine_port = engine_port

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connect to the engine."""
        super().connection_made(transport)
        self.joining = asyncio.get_running_loop().create_task(self.join())

    async def join(self) -> None:
        """Tie the two together once both are there."""
        loop = asyncio.get_running_loop()
        transport, half = await loop.create_connection(Half, "127.0.0.1", self.engine_port)
        self.other, half.other = transport, self.transport
        transport.writelines(self.early)
        if self.transport.is_closing():
            transport.close()


async def serve(port: int, engine_port: int) -> None:
    """Listen until the process is told to end."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Client(engine_port), "127.0.0.1", port, backlog=4_096)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), int(sys.argv[2])))
