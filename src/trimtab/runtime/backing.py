"""What stands behind a gateway: replicas that trimtab starts on this machine, or servers that somebody else runs."""

from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from trimtab.core.config import Config
from trimtab.core.ports import Clock, LedgerSink
from trimtab.core.types import ReplicaState
from trimtab.engines.served_load import EngineLoad
from trimtab.policies.loadstate import LoadState
from trimtab.runtime.access import OPEN, Access
from trimtab.runtime.attach import AttachedFleet
from trimtab.runtime.attached_system import Attached, NoProcesses
from trimtab.runtime.fleet import Fleet, ReplicaInfo
from trimtab.runtime.launcher import LlamaCppLauncher
from trimtab.runtime.probes import Probes, ProcessReader, Target


class Backing(msgspec.Struct, frozen=True, kw_only=True):
    """The fleet with what reads it. `launcher` and `attached`: one of them is there.

    `processes` knows nothing of servers of others; `probes` has their readings all the same.
    """

    fleet: Fleet | AttachedFleet
    probes: Probes | AttachedFleet
    processes: ProcessReader
    launcher: LlamaCppLauncher | None = None
    attached: Attached | None = None

    def models(self, own: str) -> tuple[str, ...]:
        """Return the names of the models served; `own`: that of replicas that trimtab starts."""
        return (own,) if self.attached is None else self.attached.fleet.models()

    def access(self, url: str) -> Access:
        """Return how a replica is reached, by its base address."""
        return OPEN if self.attached is None else self.attached.fleet.access(url)


class Hears(msgspec.Struct, frozen=True, kw_only=True):
    """Whom a fleet tells, and whom it asks for the requests in flight on a replica."""

    on_change: Callable[[ReplicaInfo], None]
    on_load: Callable[[str, EngineLoad, float], None]
    on_gone: Callable[[str], None]
    in_flight: Callable[[str], int]


def backing_of(
    config: Config, ledger: LedgerSink, clock: Clock, hears: Hears, *, log_folder: Path | None
) -> Backing:
    """Make what a configuration asks for; nothing is started or asked yet."""
    if config.fleet.is_attached:
        return _attached(config, ledger, clock, hears)
    launcher = LlamaCppLauncher(
        clock=clock,
        start_timeout_s=config.fleet.start_timeout_s,
        threads=config.engine.threads,
        log_folder=log_folder,
    )
    fleet = Fleet(config, launcher, ledger, clock, hears.on_change, in_flight=hears.in_flight)
    probes = Probes(lambda: _targets(fleet), launcher, clock, every_s=config.fleet.probe_every_s)
    return Backing(fleet=fleet, probes=probes, processes=launcher, launcher=launcher)


def _attached(config: Config, ledger: LedgerSink, clock: Clock, hears: Hears) -> Backing:
    attached = Attached(
        config,
        ledger,
        clock,
        on_change=hears.on_change,
        on_load=hears.on_load,
        on_gone=hears.on_gone,
        in_flight=hears.in_flight,
        pool_idle_s=config.gateway.upstream_keepalive_s,
    )
    fleet = attached.fleet
    return Backing(fleet=fleet, probes=fleet, processes=NoProcesses(), attached=attached)


def _targets(fleet: Fleet) -> Mapping[str, Target]:
    ready = (
        info for info in fleet.infos() if info.state in (ReplicaState.READY, ReplicaState.DRAINING)
    )
    return {info.id: Target(url=info.url, threads=info.threads) for info in ready}


def takes_load(state: LoadState) -> Callable[[str, EngineLoad, float], None]:
    """Return what takes in what an attached server says of its load."""

    def take(replica: str, load: EngineLoad, at_mono_s: float) -> None:
        state.seen(
            replica,
            now_s=at_mono_s,
            kv_used_share=load.kv_used_share,
            running=load.running,
            waiting=load.waiting,
        )

    return take
