"""Takes in a changed configuration while serving. Streams go on; what was refused changes nothing.

Some keys need a new start (where to listen, the ledger, the engine that trimtab starts); they are named and wait.
Servers and their keys are taken in first: only that can fail, and then everything stays as it was.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from trimtab.core.config import Config, ConfigError
from trimtab.core.events import ConfigReloaded
from trimtab.core.ports import LaunchError
from trimtab.runtime.supervisor import System

_GATEWAY_START: Final = frozenset({"host", "port", "tls_cert", "tls_key"})
_FLEET_LIVE: Final = frozenset(
    {
        "attached",
        "discover",
        "discover_every_s",
        "probe_every_s",
        "unhealthy_after",
        "api_key",
        "ca_file",
        "verify",
    }
)
_TENANTS_START: Final = frozenset({"auth", "keys"})
_ROUTING_LIVE: Final = frozenset({"load_bound", "min_match_tokens"})
_SECTIONS: Final[Mapping[str, Callable[[str], bool]]] = {
    "gateway": lambda key: key not in _GATEWAY_START,
    "fleet": lambda key: key in _FLEET_LIVE,
    "routing": lambda key: key in _ROUTING_LIVE,
    "levers": lambda _: True,
    "tenants": lambda key: key not in _TENANTS_START,
    "guard": lambda _: True,
}
"""Which keys are taken in while serving; those of other sections wait for a start."""


class Reloaded(msgspec.Struct, frozen=True, kw_only=True):
    """What a reload did: keys with their values before and after, and keys that wait for the next start."""

    changed: dict[str, str]
    needs_restart: tuple[str, ...]


class Reloader:
    """Reads the configuration of one system again. `read` raises `ConfigError` where it cannot be used."""

    def __init__(
        self, system: System, read: Callable[[], Config], say: Callable[[str], None]
    ) -> None:
        self._system = system
        self._read = read
        self._say = say

    def reload(self) -> Reloaded:
        """Take in what changed; raises `ConfigError` or `LaunchError`, with everything as it was before.

        Keys by reference are read anew, so that one that was rotated in its file is taken in too.
        """
        try:
            wanted = self._read()
            done = self._apply(wanted)
        except (ConfigError, LaunchError) as error:
            self._record(ConfigReloaded(refused=str(error)))
            self._say(f"reload      refused, everything stays as it was: {error}")
            raise
        self._record(ConfigReloaded(changed=done.changed, needs_restart=done.needs_restart))
        self._say(f"reload      {words(done)}")
        return done

    def _apply(self, wanted: Config) -> Reloaded:
        system, now = self._system, self._system.config
        if wanted.fleet.is_attached != now.fleet.is_attached:
            raise ConfigError(
                "a fleet is either attached or started by trimtab: the change needs a new start"
            )
        live, done = merged(now, wanted)
        if system.attached is not None:
            idle_s = live.gateway.upstream_keepalive_s
            system.attached.use_config(live.fleet, pool_idle_s=idle_s)
        system.use_config(live)
        return done

    def _record(self, event: ConfigReloaded) -> None:
        self._system.ledger.append(event, cause_id=self._system.started_event, durable=True)


def merged(now: Config, wanted: Config) -> tuple[Config, Reloaded]:
    """Return the configuration to serve with: what may change is as wanted, the rest as it is now."""
    changed: dict[str, str] = {}
    later: list[str] = []
    sections: dict[str, Any] = {}
    for section in now.__struct_fields__:
        before, after = getattr(now, section), getattr(wanted, section)
        taken: dict[str, Any] = {}
        for key in before.__struct_fields__:
            old, new = getattr(before, key), getattr(after, key)
            if old == new:
                continue
            if section in _SECTIONS and _SECTIONS[section](key):
                taken[key] = new
                changed[f"{section}.{key}"] = f"{_shown(old)} -> {_shown(new)}"
            else:
                later.append(f"{section}.{key}")
        sections[section] = msgspec.structs.replace(before, **taken)
    live = msgspec.structs.replace(now, **sections)
    return live, Reloaded(changed=changed, needs_restart=tuple(later))


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(getattr(each, "name", "") or getattr(each, "url", "?") for each in value)
    return str(msgspec.to_builtins(value))


def words(done: Reloaded) -> str:
    """Say in one line what a reload did."""
    said = "; ".join(f"{key} {values}" for key, values in done.changed.items())
    if done.needs_restart:
        said = f"{said}; " if said else ""
        said += f"needs a new start: {', '.join(done.needs_restart)}"
    return said or "nothing changed"
