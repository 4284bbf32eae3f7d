"""The guard of a system: made from its configuration, told of its replicas, heard by its ledger."""

from collections.abc import Callable
from pathlib import Path

from trimtab.core.config import Config
from trimtab.core.events import ConfigReloaded, HealthChanged
from trimtab.core.ports import LedgerSink
from trimtab.policies.loadstate import LoadState
from trimtab.policies.outliers import HealthChange
from trimtab.runtime.guard import Guard, open_ring
from trimtab.runtime.keys import default_keys_path
from trimtab.runtime.secret import Secret


def build_guard(
    config: Config,
    load: LoadState,
    secret: Secret,
    sink: LedgerSink,
    cause_id: Callable[[], str | None],
    *,
    secret_path: Path | None = None,
) -> Guard:
    """Return the guard that a configuration describes; raises `TenantError` for keys that cannot be used.

    Keys lie beside the secret unless the configuration names another file.
    Every change of a replica's standing is an event; so is a file of keys that changed and was not taken.
    """

    def changed(change: HealthChange) -> None:
        sink.append(health_event(change), cause_id=cause_id())

    def refused(text: str) -> None:
        sink.append(ConfigReloaded(refused=text), cause_id=cause_id())

    return Guard(
        places=config.gateway.streams_max,
        load=load,
        secret=secret,
        tenants=config.tenants,
        guard=config.guard,
        ring=open_ring(config.tenants, default_keys_path(secret_path), refused),
        on_change=changed,
    )


def health_event(change: HealthChange) -> HealthChanged:
    """Return a change of a replica's standing as the ledger keeps it."""
    return HealthChanged(
        replica=change.replica,
        health=change.health,
        reason=change.reason,
        ejections=change.ejections,
        out_for_s=None if change.until_s is None else change.until_s - change.at_s,
    )
