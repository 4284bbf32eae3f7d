"""What a system has in place of replicas of its own: attached servers, and nobody's processes to read."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from trimtab.core.config import Config, FleetConfig
from trimtab.core.ports import Clock, LaunchError, LedgerSink
from trimtab.engines.served_load import EngineLoad
from trimtab.runtime.attach import AttachedFleet
from trimtab.runtime.discovery import Discovery
from trimtab.runtime.fleet import ReplicaInfo
from trimtab.runtime.keepalive import KeepAliveError, keepalive_trouble, watch_keepalive

KEEPALIVE_WATCHED_S: Final = 2.0
"""How much longer than the gateway's own idle time a server's keep-alive is watched."""


class NoProcesses:
    """Answers for processes that are on other machines: nothing is known of them."""

    def pid(self, replica: str) -> int | None:
        """None."""
        return None

    def memory_bytes(self, replica: str) -> int | None:
        """None."""
        return None

    def cpu_s(self, replica: str) -> float | None:
        """None."""
        return None


class Attached:
    """The attached servers of one system: who they are, how loaded, and what is wrong with how they are reached.

    `say` may be set later; until then warnings are only kept.
    """

    def __init__(
        self,
        config: Config,
        sink: LedgerSink,
        clock: Clock,
        *,
        on_change: Callable[[ReplicaInfo], None],
        on_load: Callable[[str, EngineLoad, float], None],
        on_gone: Callable[[str], None],
        in_flight: Callable[[str], int],
        pool_idle_s: float,
    ) -> None:
        self.say: Callable[[str], None] = lambda _: None
        self.fleet = AttachedFleet(
            config,
            sink,
            clock,
            on_change,
            on_load=on_load,
            on_gone=on_gone,
            in_flight=in_flight,
        )
        self.discovery = Discovery(config.fleet, self.fleet.want, lambda text: self.say(text))
        self._config = config.fleet
        self._clock = clock
        self._pool_idle_s = pool_idle_s
        self.warnings: dict[str, str] = {}
        """By replica: what its owner or the operator of the gateway should change."""
        self._watched: set[str] = set()
        self._watching: set[asyncio.Task[None]] = set()
        self._task: asyncio.Task[None] | None = None

    async def start(self, *, cause_id: str | None) -> None:
        """Find the servers and return once one is ready; raises `ConfigError`, `LaunchError`."""
        await self.fleet.start(await self.discovery.first(), cause_id=cause_id)
        self._task = asyncio.create_task(self.discovery.run())

    def use_config(self, fleet: FleetConfig, *, pool_idle_s: float) -> None:
        """Follow another configuration; raises `LaunchError`, with everything as it was, if that cannot be."""
        before = self._config
        self.fleet.use_config(fleet)
        try:
            self.discovery.use_config(fleet)
        except LaunchError:
            self.fleet.use_config(before)
            raise
        self._config = fleet
        if pool_idle_s != self._pool_idle_s:
            self._pool_idle_s = pool_idle_s
            self._watched.clear()
            self.warnings.clear()
            for info in self.fleet.infos():
                self.changed(info)

    def changed(self, info: ReplicaInfo) -> None:
        """Look at the keep-alive of a server that is reached for the first time."""
        if self.fleet.identity(info.id) is None or info.url in self._watched:
            return
        self._watched.add(info.url)
        task = asyncio.create_task(self._watch(info.id, info.url))
        self._watching.add(task)
        task.add_done_callback(self._watching.discard)

    async def _watch(self, replica: str, url: str) -> None:
        at_most_s = self._pool_idle_s + KEEPALIVE_WATCHED_S
        # A server that cannot be watched is left out by the health checks if it is not well.
        with contextlib.suppress(KeepAliveError):
            kept = await watch_keepalive(
                url, self.fleet.access(url), self._clock, at_most_s=at_most_s
            )
            trouble = keepalive_trouble(self._pool_idle_s, kept, replica=replica)
            if trouble:
                self.warnings[replica] = trouble
                self.say(f"warning     {trouble}")

    async def stop(self) -> None:
        """Let go of everything; the servers run on."""
        tasks = [*self._watching, *([self._task] if self._task is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.fleet.stop()
