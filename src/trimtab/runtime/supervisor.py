"""The composition root: builds every object once, starts them in order, stops them in reverse.

Order matters. The ledger opens first (a second gateway on the same ledger is refused before anything runs), then
the replicas start, or the attached servers are found, then the gateway listens. At the end traffic drains, the gateway
stops, then the replicas, and the ledger closes last so that it holds how everything ended.
"""

import asyncio
import random
from collections.abc import Callable, Iterable
from pathlib import Path

from aiohttp import web

from trimtab import __version__
from trimtab.core.config import Config
from trimtab.core.cost import START_COST, CostModel
from trimtab.core.events import RunEnded, RunStarted
from trimtab.core.ports import Clock, LaunchError
from trimtab.core.prefix import BlockHasher, PrefixIndex
from trimtab.core.revision import Revision
from trimtab.core.traffic import TrafficPlan
from trimtab.core.types import ReplicaState, Role
from trimtab.diagnosis.names import FleetFacts
from trimtab.engines.llamacpp import NAME as LLAMACPP
from trimtab.engines.llamacpp import LlamaCppFormat
from trimtab.policies.loadstate import LoadState
from trimtab.policies.places import places_of
from trimtab.policies.router import Router
from trimtab.runtime.attach_member import unseen
from trimtab.runtime.backing import Backing, Hears, backing_of, takes_load
from trimtab.runtime.fleet import Fleet, ReplicaInfo
from trimtab.runtime.fleet_figures import figures_of
from trimtab.runtime.gateway import Gateway
from trimtab.runtime.handover_build import hand_over
from trimtab.runtime.hardware import Hardware, memory_available, read_hardware
from trimtab.runtime.kv_events import KvListener
from trimtab.runtime.launcher import LlamaCppLauncher
from trimtab.runtime.ledger import SqliteLedger
from trimtab.runtime.metrics import ReplicaFigures
from trimtab.runtime.model import baseline_revision
from trimtab.runtime.probes import Probes
from trimtab.runtime.recent import Recent
from trimtab.runtime.routing_setup import Affinity
from trimtab.runtime.secret import load_secret
from trimtab.runtime.serving_tls import shown_url
from trimtab.runtime.situation import ProcessSample
from trimtab.runtime.system_facts import facts_of, flat_settings, sample_of, topology_of
from trimtab.runtime.system_guard import build_guard
from trimtab.runtime.system_roles import build_roles, start_fleet
from trimtab.runtime.telemetry import Telemetry

VIEW_EVERY_S = 0.5
DRAIN_S = 20.0


class System(Recent):
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
        super().__init__()
        self.config = config
        self.clock = clock
        self.hardware: Hardware = read_hardware()
        is_attached = config.fleet.is_attached
        self.baseline: Revision = unseen() if is_attached else baseline_revision(config.engine)
        """What replicas run at first; of attached servers, what the first that is ready says."""
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
        self._affinity = Affinity()
        try:
            self._build(seed, extra_routes, log_folder, secret_path, admin_token)
        except BaseException:
            self.ledger.close()
            raise
        self._states: dict[str, ReplicaState] = {}
        self.listen(self.hand_overs.costs.learn)
        self.listen(self.roles.on_record)
        self._tasks: list[asyncio.Task[None]] = []
        self._cost = START_COST
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
        self.secret = load_secret(secret_path)
        self.index = PrefixIndex(config.routing.index_blocks_max, config.routing.block_bytes)
        self.router = self._made_router(seed)
        self._kv_events = KvListener(config.routing.kv_events, self.router.heard)
        hears = Hears(
            on_change=self._on_change,
            on_load=takes_load(self.load),
            on_gone=self.forget,
            in_flight=self.in_flight,
        )
        backing = backing_of(config, self.ledger, self.clock, hears, log_folder=log_folder)
        self.fleet, self.probes, self.processes = backing.fleet, backing.probes, backing.processes
        self.attached, self._launcher = backing.attached, backing.launcher
        self.telemetry = Telemetry(
            config.telemetry,
            lambda: (self.baseline.model.name, self.baseline.engine),
            self.clock,
            self.run_id,
        )
        self._build_gateway(backing, extra_routes, secret_path, admin_token)
        self.gateway.metrics.show_fleet(self.figures)
        self.telemetry.hear(self.ledger, self.gateway.metrics.rollouts)
        self._build_roles()

    def _build_gateway(
        self,
        backing: Backing,
        extra_routes: Callable[["System"], Iterable[web.AbstractRouteDef]],
        secret_path: Path | None,
        admin_token: str | None,
    ) -> None:
        config, secret = self.config, self.secret
        self.gateway = Gateway(
            config.gateway,
            self.router,
            self.engine,
            self.ledger,
            self.clock,
            hasher=BlockHasher(secret.derive("prefix blocks"), config.routing.block_bytes),
            secret=secret,
            model=self.baseline.model.name,
            on_record=self.keep_record,
            extra_routes=extra_routes(self),
            admin_token=admin_token,
            hardware="" if self.attached else self.hardware.label,
            topology=topology_of(config.fleet.replicas, attached=self.attached is not None),
            models=lambda: backing.models(self.baseline.model.name),
            access=backing.access,
            watch=self.telemetry.watch,
            guard=build_guard(
                config,
                self.load,
                secret,
                self.ledger,
                lambda: self.started_event,
                secret_path=secret_path,
            ),
        )

    def _build_roles(self) -> None:
        gateway, router, engine = self.gateway, self.router, self.engine
        self.hand_overs = hand_over(
            gateway, self.config, router, engine, self.ledger, self.clock, self._launcher
        )
        self.roles = build_roles(
            self.config,
            self.fleet,
            self.router,
            self.ledger,
            self.clock,
            self.baseline,
            cost=lambda: self._cost,
            hand_overs=self.hand_overs,
            cause=lambda: self.started_event,
        )
        self.hand_overs.books.listen(self.roles.on_hand_over)

    def figures(self) -> Iterable[ReplicaFigures]:
        """Return every replica as /metrics shows it."""
        return figures_of(
            self.fleet.infos(), self.probes, ready=self.load.ready(), in_flight=self.in_flight
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
        prefill: int = 0,
    ) -> None:
        """Start replicas (`prefill` of them for a lever that is on), probes and gateway.

        Raises what could not be had, with everything stopped again.
        """
        started = RunStarted(
            run_id=self.run_id,
            command=self._command,
            version=__version__,
            settings={
                "machine": self.hardware.label,
                "revision": self.baseline.id,
                **flat_settings(self.config),
                **(settings or {}),
            },
        )
        self.telemetry.verdicts.start()
        self.started_event = self.ledger.append(started, cause_id=None, durable=True)
        if plan is not None:
            self.router.plan = plan
        names = [f"r{index}" for index in range(self.config.fleet.replicas)]
        try:
            await self.gateway.check_address()
            if isinstance(self.fleet, Fleet):
                given = revisions or dict.fromkeys(names, self.baseline)
                await start_fleet(
                    self.config, self.fleet, self.roles, given, prefill, self.started_event
                )
            elif self.attached is not None:
                await self.attached.start(cause_id=self.started_event)
                self.baseline = self.fleet.revision
            self.gateway.topology = topology_of(
                len(self.fleet.replica_ids()), attached=self.attached is not None
            )
            self._kv_events.open()
            self.port = await self.gateway.start()
        except BaseException as error:
            cancelled = isinstance(error, asyncio.CancelledError)
            await self.stop(
                "interrupted at the start" if cancelled else f"could not start: {error}"
            )
            raise
        self._tasks = [
            asyncio.create_task(self._sample_views()),
            asyncio.create_task(self._kv_events.run()),
        ]
        if isinstance(self.probes, Probes):
            self._tasks.append(asyncio.create_task(self.probes.run()))
        self._tasks.append(asyncio.create_task(self.roles.run()))

    async def stop(self, reason: str) -> None:
        """Drain, stop the gateway and the replicas, close the ledger. No process is left behind."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        self._kv_events.close()
        try:
            if self.port:
                await self.gateway.drain(min(DRAIN_S, self.config.fleet.stop_grace_s))
            await self.gateway.stop()
        finally:
            try:
                await (self.attached or self.fleet).stop()
            finally:
                self.ledger.append(
                    RunEnded(run_id=self.run_id, reason=reason), cause_id=self.started_event
                )
                self.ledger.close()
                await self.telemetry.close()

    @property
    def launcher(self) -> LlamaCppLauncher:
        """What starts replicas; raises `LaunchError` where the fleet is attached."""
        if self._launcher is None:
            raise LaunchError("attached servers are started by others: trimtab cannot restart them")
        return self._launcher

    @property
    def url(self) -> str:
        """Where the gateway listens."""
        return shown_url(self.config.gateway, self.port)

    def use_cost(self, cost: CostModel) -> None:
        """Route by measured costs from now on."""
        self._cost = cost
        self.router.set_policies(self._affinity.policies(self.config.routing, cost))
        if cost is not START_COST:
            self.hand_overs.costs.use(cost)

    def use_config(self, config: Config) -> None:
        """Serve by another configuration from the next request on; what needs a new start is as it was."""
        self.config = config
        self.gateway.use_config(config.gateway)
        self.gateway.guard.renew(
            config.gateway.streams_max, config.tenants, config.guard, self.clock.mono_s()
        )
        self.telemetry.reopen()
        if isinstance(self.probes, Probes):
            self.probes.every_s = config.fleet.probe_every_s
        self.roles.use_config(config.roles)
        self.use_cost(self._cost)

    def in_flight(self, replica: str) -> int:
        """Requests that the gateway has on a replica, and prompts that it keeps there for others to fetch."""
        return self.load.own_in_flight(replica) + self.hand_overs.awaiting(replica)

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
        at_s, replicas = self.clock.wall_s(), self.fleet.replica_ids()
        return sample_of(replicas, self.processes, self.probes.readings, at_s=at_s)

    def fleet_facts(self) -> FleetFacts:
        """What is known of the fleet without measuring it."""
        free = None if self.attached else memory_available()
        infos = self.fleet.infos()
        return facts_of(infos, self.baseline, self.processes, self.config, free_bytes=free)

    def _made_router(self, seed: int) -> Router:
        return Router(
            self.load,
            self.index,
            self._affinity.policies(self.config.routing, START_COST),
            random.Random(seed),
            plan=TrafficPlan(policy=self.config.routing.policy),
            places=places_of(self.config.levers.slices),
        )

    def lower_affinity(self, lowered: bool) -> None:
        """Halve what the load bound leaves to affinity, or give it back."""
        self._affinity.lowered = lowered
        self.router.set_policies(self._affinity.policies(self.config.routing, self._cost))

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
            kv_key=info.kv_key or ("" if self.attached else info.revision.kv_key.id),
            labels=info.labels,
        )
        is_new = info.state is ReplicaState.READY and not info.kv_kept
        if before is None or (is_new and before is not ReplicaState.DRAINING):
            self.router.forget(info.id)
            if before is not None:
                self.gateway.guard.forget(info.id, self.clock.mono_s())
        self._set_slots(info)
        if self.attached is not None:
            self.attached.changed(info)

    def _set_slots(self, info: ReplicaInfo) -> None:
        """Say how a replica keeps its cache: llama.cpp by slots, other engines by blocks, which is not said."""
        if info.revision.engine == LLAMACPP:
            # Where prompts are prefilled for others, what passes has a slot that keeps nothing.
            passes = info.role is Role.PREFILL and info.revision.slots > 1
            self.index.set_slots(info.id, info.revision.slots - passes)

    def forget(self, replica: str) -> None:
        """Drop what is known of a replica that has left the fleet."""
        self._states.pop(replica, None)
        self.load.remove_replica(replica)
        self.gateway.metrics.forget(replica)
        self.router.leave(replica)
        self.hand_overs.forget(replica)
        self.gateway.guard.forget(replica, self.clock.mono_s())

    async def _sample_views(self) -> None:
        while True:
            # A slot that holds a finished prompt is cache, not load, so the engine's KV share stays out of views.
            self.keep_view(self.load.view(self.clock.wall_s()))
            await asyncio.sleep(VIEW_EVERY_S)
