"""All connections of clients: listening, watching for slow ones, and ending them."""

import asyncio
import ssl
from typing import Final

from trimtab.runtime.front import Front, Pages, Serve
from trimtab.runtime.front_rules import FrontLimits

LOOK_EVERY_S_MAX: Final = 1.0
BACKLOG: Final = 1024


class FrontServer:
    """Listens and keeps the connections that it made."""

    def __init__(self, serve: Serve, limits: FrontLimits) -> None:
        self._serve = serve
        self._limits = limits
        self._fronts: set[Front] = set()
        self._server: asyncio.Server | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._look_every_s = min(
            LOOK_EVERY_S_MAX, limits.head_s / 4, limits.body_idle_s / 4, limits.keep_alive_s / 4
        )

    @property
    def connections(self) -> int:
        """Connections of clients to /v1 that are open."""
        return len(self._fronts)

    def use_limits(self, limits: FrontLimits) -> None:
        """Keep new connections within other limits; those that are open keep theirs."""
        self._limits = limits

    async def start(
        self, host: str, port: int, pages: Pages, *, tls: ssl.SSLContext | None = None
    ) -> int:
        """Listen and return the port; raises OSError where that cannot be had."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: Front(self._serve, pages, self._limits, self._fronts),
            host,
            port,
            ssl=tls,
            backlog=BACKLOG,
        )
        self._timer = loop.call_later(self._look_every_s, self._look)
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        for front in tuple(self._fronts):
            front.look(now_s)
        self._timer = loop.call_later(self._look_every_s, self._look)

    def close_idle(self) -> None:
        """Close connections without a request; the others close after their answer."""
        for front in tuple(self._fronts):
            front.close_when_idle()

    def stop_listening(self) -> None:
        """Take no new connection."""
        if self._server is not None:
            self._server.close()

    async def stop(self, wait_s: float) -> None:
        """Close every connection once its bytes are out, those that take too long without."""
        self.stop_listening()
        self.close_idle()
        loop = asyncio.get_running_loop()
        until_s = loop.time() + wait_s
        while self._fronts and loop.time() < until_s:  # noqa: ASYNC110 - connections set no event
            await asyncio.sleep(0.01)
        for front in tuple(self._fronts):
            front.abort()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._server is not None:
            await self._server.wait_closed()
            self._server = None
