"""The composition root: builds every object once, starts them in order, stops them in reverse.

Order matters. The ledger opens first (a second gateway on the same ledger is refused before anything runs), then
the replicas start, then the gateway listens. At the end traffic drains, the gateway stops, then the replicas, and the
ledger closes last so that it holds how everything ended.
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec
from aiohttp import web

from trimtab import __version__
from trimtab.core.config import Config
from trimtab.core.cost import START_COST, CostModel
from trimtab.core.decision import FleetView, RoutingPolicy
from trimtab.core.events import RunEnded, RunStarted
from trimtab.core.ports import Clock, LaunchError
from trimtab.core.prefix import BlockHasher, PrefixIndex
from trimtab.core.record import RequestRecord
from trimtab.core.revision import Revision
from trimtab.core.traffic import TrafficPlan
from trimtab.core.types import ReplicaState
from trimtab.diagnosis.names import FleetFacts
from trimtab.engines.llamacpp import LlamaCppFormat
from trimtab.policies.loadstate import LoadState
from trimtab.policies.router import Router
from trimtab.policies.routing import build_policies
from trimtab.runtime.fleet import Fleet, ReplicaInfo
from trimtab.runtime.gateway import Gateway
from trimtab.runtime.hardware import Hardware, memory_available, read_hardware
from trimtab.runtime.launcher import LlamaCppLauncher
from trimtab.runtime.ledger import SqliteLedger
from trimtab.runtime.model import baseline_revision
from trimtab.runtime.probes import Probes, Target
from trimtab.runtime.secret import load_secret
from trimtab.runtime.situation import ProcessSample

RECORDS_MAX = 20_000
VIEWS_MAX = 3_600
VIEW_EVERY_S = 0.5
DRAIN_S = 20.0


class System:
    """A fleet with its gateway and ledger. `start`, use, `stop`; use as an async context manager."""

    def __init__(
        self,
        config: Config,
        clock: Clock,
        *,
        command: str,
        seed: int = 0,
        extra_routes: Callable[["System"], Iterable[web.AbstractRouteDef]] = lambda _: (),
        log_folder: Path | None = None,
        secret_path: Path | None = None,
        admin_token: str | None = None,
    ) -> None:
        self.config = config
        self.clock = clock
        self.hardware: Hardware = read_hardware()
        self.baseline: Revision = baseline_revision(config.engine)
        self._command = command
        self.run_id = f"{command}-{clock.wall_s():.0f}-{random.randrange(1 << 24):06x}"
        self.load = LoadState()
        self.engine = LlamaCppFormat()
        self.ledger = SqliteLedger(
            config.ledger.path,
            clock=clock,
            queue_max=config.ledger.queue_max,
            keep_events=config.ledger.keep_events,
        )
        try:
            self._build(seed, extra_routes, log_folder, secret_path, admin_token)
        except BaseException:
            self.ledger.close()
            raise
        self._records: deque[RequestRecord] = deque(maxlen=RECORDS_MAX)
        self._views: deque[FleetView] = deque(maxlen=VIEWS_MAX)
        self._listeners: list[Callable[[RequestRecord], None]] = []
        self._states: dict[str, ReplicaState] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self.port = 0
        self.started_event: str | None = None

    def _build(
        self,
        seed: int,
        extra_routes: Callable[["System"], Iterable[web.AbstractRouteDef]],
        log_folder: Path | None,
        secret_path: Path | None,
        admin_token: str | None,
    ) -> None:
        config = self.config
        secret = self.secret = load_secret(secret_path)
        self.launcher = LlamaCppLauncher(
            clock=self.clock,
            start_timeout_s=config.fleet.start_timeout_s,
            threads=config.engine.threads,
            log_folder=log_folder,
        )
        self.index = PrefixIndex(config.routing.index_blocks_max, config.routing.block_bytes)
        self.router = Router(
            self.load,
            self.index,
            self._policies(START_COST),
            random.Random(seed),
            plan=TrafficPlan(policy=config.routing.policy),
        )
        self.fleet = Fleet(
            config,
            self.launcher,
            self.ledger,
            self.clock,
            self._on_change,
            in_flight=self.in_flight,
        )
        self.probes = Probes(
            self._targets, self.launcher, self.clock, every_s=config.fleet.probe_every_s
        )
        self.gateway = Gateway(
            config.gateway,
            self.router,
            self.engine,
            self.ledger,
            self.clock,
            hasher=BlockHasher(secret.derive("prefix blocks"), config.routing.block_bytes),
            secret=secret,
            model=self.baseline.model.name,
            on_record=self._on_record,
            extra_routes=extra_routes(self),
            admin_token=admin_token,
            hardware=self.hardware.label,
            topology=topology_of(config.fleet.replicas),
        )

    async def __aenter__(self) -> "System":
        await self.start()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await self.stop("ended" if error is None else f"stopped by {type(error).__name__}")

    async def start(
        self,
        *,
        revisions: dict[str, Revision] | None = None,
        plan: TrafficPlan | None = None,
        settings: dict[str, str | int | float | bool] | None = None,
    ) -> None:
        """Start replicas, probes and gateway; raises what could not be had, with everything stopped again."""
        started = RunStarted(
            run_id=self.run_id,
            command=self._command,
            version=__version__,
            settings={**self.settings(), **(settings or {})},
        )
        self.started_event = self.ledger.append(started, cause_id=None, durable=True)
        if plan is not None:
            self.router.plan = plan
        names = [f"r{index}" for index in range(self.config.fleet.replicas)]
        try:
            await self.gateway.check_address()
            await self.fleet.start(
                revisions or dict.fromkeys(names, self.baseline), cause_id=self.started_event
            )
            self.port = await self.gateway.start()
        except BaseException as error:
            cancelled = isinstance(error, asyncio.CancelledError)
            await self.stop(
                "interrupted at the start" if cancelled else f"could not start: {error}"
            )
            raise
        self._tasks = [
            asyncio.create_task(self.probes.run()),
            asyncio.create_task(self._sample_views()),
        ]

    async def stop(self, reason: str) -> None:
        """Drain, stop the gateway and the replicas, close the ledger. No process is left behind."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        try:
            if self.port:
                await self.gateway.drain(min(DRAIN_S, self.config.fleet.stop_grace_s))
            await self.gateway.stop()
        finally:
            try:
                await self.fleet.stop()
            finally:
                self.ledger.append(
                    RunEnded(run_id=self.run_id, reason=reason), cause_id=self.started_event
                )
                self.ledger.close()

    @property
    def url(self) -> str:
        """Where the gateway listens."""
        host = self.config.gateway.host
        return f"http://{'127.0.0.1' if host in ('0.0.0.0', '::') else host}:{self.port}"

    @property
    def records(self) -> tuple[RequestRecord, ...]:
        """Recent records, oldest first, bounded."""
        return tuple(self._records)

    def records_since(self, wall_s: float) -> list[RequestRecord]:
        """Records of requests that arrived at or after a moment of the wall clock."""
        return [record for record in self._records if record.arrived_at_s >= wall_s]

    def views_since(self, wall_s: float) -> list[FleetView]:
        """Views sampled at or after a moment of the wall clock."""
        return [view for view in self._views if view.at_s >= wall_s]

    def listen(self, listener: Callable[[RequestRecord], None]) -> None:
        """Hear every finished request from now on."""
        self._listeners.append(listener)

    def use_cost(self, cost: CostModel) -> None:
        """Route by measured costs from now on."""
        self.router.set_policies(self._policies(cost))

    def in_flight(self, replica: str) -> int:
        """Requests that the gateway has on a replica."""
        view = self.load.view(0.0).replica(replica)
        return 0 if view is None else view.in_flight

    def url_of(self, replica: str) -> str | None:
        """Where a replica serves, None unless it is ready."""
        view = self.load.view(0.0).replica(replica)
        return view.url if view is not None and view.state is ReplicaState.READY else None

    def ready_url(self, replica: str) -> str:
        """Where a replica serves; raises `LaunchError` unless it is ready."""
        url = self.url_of(replica)
        if url is None:
            raise LaunchError(
                f"replica {replica} is not ready; see its log and `trimtab ledger list`"
            )
        return url

    def process_sample(self) -> ProcessSample:
        """CPU seconds, resident bytes and latest engine readings of every replica now."""
        replicas = self.fleet.replica_ids()
        return ProcessSample(
            self.clock.wall_s(),
            {replica: self.launcher.cpu_s(replica) for replica in replicas},
            {replica: self.launcher.memory_bytes(replica) for replica in replicas},
            {replica: self.probes.readings(replica) for replica in replicas},
        )

    def fleet_facts(self) -> FleetFacts:
        """What is known of the fleet without measuring it."""
        infos = self.fleet.infos()
        resident = sum(self.launcher.memory_bytes(info.id) or 0 for info in infos)
        free = memory_available()
        return FleetFacts(
            replicas=len(infos),
            slots=self.baseline.slots,
            context_tokens=self.baseline.context_tokens,
            threads=infos[0].threads if infos else 1,
            memory_available_bytes=None if free is None else free + resident,
        )

    def settings(self) -> dict[str, str | int | float | bool]:
        """The settings that shape a run, flat, for the ledger and the report."""
        flat: dict[str, str | int | float | bool] = {
            "machine": self.hardware.label,
            "revision": self.baseline.id,
        }
        for section, fields in msgspec.to_builtins(self.config).items():
            for name, value in fields.items():
                if isinstance(value, str | int | float | bool):
                    flat[f"{section}.{name}"] = value
        return flat

    def _policies(self, cost: CostModel) -> Mapping[str, RoutingPolicy]:
        routing = self.config.routing
        return dict(
            build_policies(
                cost, load_bound=routing.load_bound, min_match_tokens=routing.min_match_tokens
            )
        )

    def _targets(self) -> dict[str, Target]:
        ready = (
            info
            for info in self.fleet.infos()
            if info.state in (ReplicaState.READY, ReplicaState.DRAINING)
        )
        return {info.id: Target(url=info.url, threads=info.threads) for info in ready}

    def _on_change(self, info: ReplicaInfo) -> None:
        before = self._states.get(info.id)
        self._states[info.id] = info.state
        self.load.set_replica(
            id=info.id,
            url=info.url,
            role=info.role,
            revision=info.revision.id,
            state=info.state,
            slots=info.revision.slots,
            speculating=info.revision.speculation.is_on,
            started_at_s=info.started_at_s,
        )
        if before is None:
            self.index.set_slots(info.id, info.revision.slots)
        elif (
            info.state is ReplicaState.READY
            and before is not ReplicaState.DRAINING
            and not info.kv_kept
        ):
            self.router.forget(info.id)

    def forget(self, replica: str) -> None:
        """Drop what is known of a replica that has left the fleet."""
        self._states.pop(replica, None)
        self.load.remove_replica(replica)
        self.router.forget(replica)

    def _on_record(self, record: RequestRecord) -> None:
        self._records.append(record)
        for listener in self._listeners:
            listener(record)

    async def _sample_views(self) -> None:
        while True:
            # A slot that holds a finished prompt is cache, not load, so the engine's KV share stays out of views.
            self._views.append(self.load.view(self.clock.wall_s()))
            await asyncio.sleep(VIEW_EVERY_S)


def topology_of(replicas: int) -> str:
    """Return what serves, in words."""
    return f"{replicas} replicas on one host"
