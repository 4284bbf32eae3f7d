"""What can happen to a fleet and its replicas, as values; `core.events` has all events together."""

import msgspec

from trimtab.core.revision import Revision
from trimtab.core.roles import RolesDecision, RolesSeen
from trimtab.core.types import FleetAction, Health, HealthReason, ReplicaState, Role


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind"):
    """Base of all events."""


class ReplicaChanged(Event, frozen=True, kw_only=True, tag="replica_changed"):
    """A replica moved to another state; `pid`, `url` and `threads` as far as known."""

    replica: str
    state: ReplicaState
    revision: Revision
    url: str | None = None
    pid: int | None = None
    reason: str = ""
    role: Role = Role.MIXED
    threads: int | None = None


class RolesDecided(Event, frozen=True, kw_only=True, tag="roles_decided"):
    """The role control, or a person, changes a replica's role; or the reason why nothing changes is another one.

    `seen` None: a person asked, `because` says so; `replica` and `role`: what changes, None where nothing does.
    """

    decision: RolesDecision | None = None
    seen: RolesSeen | None = None
    replica: str | None = None
    role: Role | None = None
    because: str = ""


class ReplicaCrashed(Event, frozen=True, kw_only=True, tag="replica_crashed"):
    """A replica's process ended though nobody asked it to; it restarts after `backoff_s`."""

    replica: str
    exit_code: int | None
    crashes: int
    backoff_s: float
    last_words: str = ""


class HealthChanged(Event, frozen=True, kw_only=True, tag="health_changed"):
    """The gateway leaves a replica out because its requests failed, tries it again, or sends it requests as before.

    Nobody restarted it. `out_for_s`: how long it gets none, where it is left out; `ejections`: how often in a row.
    """

    replica: str
    health: Health
    reason: HealthReason
    ejections: int = 0
    out_for_s: float | None = None


class FleetSized(Event, frozen=True, kw_only=True, tag="fleet_sized"):
    """One replica more or less was asked for while the fleet serves; `allowed` says whether it was carried out.

    `action`: add or remove; `replicas`: how many there were; `forced`: it was to be done whatever the check says.
    """

    action: FleetAction
    replica: str
    replicas: int
    allowed: bool
    forced: bool
    because: str


class ConfigReloaded(Event, frozen=True, kw_only=True, tag="config_reloaded"):
    """Configuration was read again while serving: keys that changed, as before -> after.

    `needs_restart`: keys that changed in the file and wait for the next start; `refused`: why nothing was taken,
    empty if it was.
    """

    changed: dict[str, str] = {}
    needs_restart: tuple[str, ...] = ()
    refused: str = ""


class KVMoved(Event, frozen=True, kw_only=True, tag="kv_moved"):
    """Slot KV was saved or restored around a restart."""

    replica: str
    action: str
    slots: int
    tokens: int
    bytes: int
    took_ms: float
