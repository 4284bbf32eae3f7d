"""Finds the servers of an attached fleet: those named in the configuration, and those that DNS or a file names.

What cannot be found out is unknown, not empty: while a name does not resolve or a file cannot be read, the servers
that it named last stay.
"""

import asyncio
import ipaddress
import socket
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from trimtab.core.config import AttachedServer, ConfigError, FleetConfig
from trimtab.core.ports import LaunchError

LIST_BYTES_MAX: Final = 1024 * 1024
SERVERS_MAX: Final = 1024


class DiscoveryError(RuntimeError):
    """The servers could not be found out; the message says where and why."""


class _List(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    attached: tuple[AttachedServer, ...] = ()


async def discovered(place: str) -> tuple[AttachedServer, ...]:
    """Return the servers that `fleet.discover` names now; raises `DiscoveryError`."""
    kind, _, rest = place.partition(":")
    match kind:
        case "":
            return ()
        case "dns":
            return await _resolved(rest.removeprefix("//"))
        case _:
            return await asyncio.to_thread(_listed, Path(rest))


async def _resolved(place: str) -> tuple[AttachedServer, ...]:
    """Return one server for each address of HOST:PORT."""
    host, _, port = place.rpartition(":")
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise DiscoveryError(f"dns://{place} does not resolve: {error}") from error
    addresses = sorted({str(info[4][0]) for info in found})[:SERVERS_MAX]
    return tuple(AttachedServer(url=f"http://{_in_url(each)}:{port}") for each in addresses)


def _in_url(address: str) -> str:
    return f"[{address}]" if ipaddress.ip_address(address).version == 6 else address


def _listed(path: Path) -> tuple[AttachedServer, ...]:
    """Read a TOML file of `[[attached]]` tables."""
    try:
        with path.open("rb") as file:
            data = file.read(LIST_BYTES_MAX + 1)
        if len(data) > LIST_BYTES_MAX:
            raise DiscoveryError(f"{path} is longer than {LIST_BYTES_MAX:,} bytes")
        return msgspec.convert(tomllib.loads(data.decode()), _List).attached
    except OSError as error:
        raise DiscoveryError(f"{path} cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise DiscoveryError(f"{path} is not valid TOML: {error}") from error
    except msgspec.ValidationError as error:
        raise DiscoveryError(f"{path}: {error}") from error


class Discovery:
    """Follows who is to be in an attached fleet.

    `want` is given every server once at the start and again whenever that changed; `say` is told what could not be
    found out, once as long as it stays the same.
    """

    def __init__(
        self,
        fleet: FleetConfig,
        want: Callable[[Sequence[AttachedServer]], None],
        say: Callable[[str], None],
    ) -> None:
        self._fleet = fleet
        self._want = want
        self._say = say
        self._found: tuple[AttachedServer, ...] = ()
        self._told: tuple[AttachedServer, ...] | None = None
        self._trouble = ""
        self._again = asyncio.Event()

    async def first(self) -> tuple[AttachedServer, ...]:
        """Return who is to be in the fleet at the start; raises `ConfigError` if that is nobody that can be told."""
        try:
            self._found = await discovered(self._fleet.discover)
        except DiscoveryError as error:
            if not self._fleet.attached:
                raise ConfigError(f"fleet.discover: {error}") from error
            self._trouble = str(error)
            self._say(f"discovery   {error}")
        self._told = self._all()
        return self._told

    def use_config(self, fleet: FleetConfig) -> None:
        """Follow another configuration from now on; raises `LaunchError`, with nothing changed, if it cannot be."""
        before, found = self._fleet, self._found
        self._fleet = fleet
        if not fleet.discover:
            self._found = ()
        try:
            # Told even if the list is the same: keys may have changed where they lie.
            self._told = None
            self._tell()
        except LaunchError:
            self._fleet, self._found = before, found
            raise
        self._again.set()

    async def run(self) -> None:
        """Look every `fleet.discover_every_s` until cancelled."""
        while True:
            self._again.clear()
            try:
                async with asyncio.timeout(self._fleet.discover_every_s):
                    await self._again.wait()
            except TimeoutError:
                pass
            await self._look()

    async def _look(self) -> None:
        if not self._fleet.discover:
            return
        try:
            self._found = await discovered(self._fleet.discover)
            self._tell()
            trouble = ""
        except (DiscoveryError, LaunchError) as error:
            trouble = str(error)
        if trouble and trouble != self._trouble:
            self._say(f"discovery   {trouble}; the servers stay as they were")
        self._trouble = trouble

    def _all(self) -> tuple[AttachedServer, ...]:
        """Return the servers of the configuration and those found beside them."""
        named = {server.url.rstrip("/") for server in self._fleet.attached}
        others = (server for server in self._found if server.url.rstrip("/") not in named)
        return (*self._fleet.attached, *others)

    def _tell(self) -> None:
        wanted = self._all()
        if wanted == self._told:
            return
        self._want(wanted)
        self._told = wanted
