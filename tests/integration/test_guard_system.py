"""The guard in a whole system: keys that come while it serves, its events and metrics, limits taken in live."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from fake_engine import Seen, whole
from fake_served import FakeServer
from guard_kit import ALICE, BOB, bearer
from harness import CHAT, RealClock, chat, until

from trimtab.core.config import (
    AttachedServer,
    Config,
    FleetConfig,
    GatewayConfig,
    LedgerConfig,
    RoutingConfig,
    TenantsConfig,
)
from trimtab.core.config_guard import GuardConfig
from trimtab.core.events import ConfigReloaded, HealthChanged, RequestServed
from trimtab.core.tenants import new_key
from trimtab.core.types import Health, HealthReason
from trimtab.runtime.keys import change_keys
from trimtab.runtime.ledger_reader import SqliteReader
from trimtab.runtime.reload import Reloader
from trimtab.runtime.supervisor import System


@dataclass
class BreakableServer(FakeServer):
    """Answers completions with 500 while it is broken; its checks go on being good."""

    broken: bool = False

    async def completion(self, seen: Seen) -> AsyncIterator[bytes]:
        """Serve, or fail as an engine out of memory does."""
        if self.broken:
            yield whole(500, b'{"error": {"message": "out of memory"}}')
            return
        async for piece in super().completion(seen):
            yield piece


@dataclass
class Running:
    """A system that serves, with a client."""

    system: System
    client: aiohttp.ClientSession
    folder: Path

    async def ask(self, **headers: str) -> int:
        """Return the status of a request."""
        async with self.client.post(
            self.system.url + CHAT, json=chat(stream=False), headers=headers
        ) as response:
            await response.read()
            return response.status

    async def page(self, path: str) -> str:
        """Return a page of the operator."""
        async with self.client.get(self.system.url + path) as response:
            return await response.text()

    async def events(self, kind: type) -> list[Any]:
        """Return the events of one kind that are on disk."""
        await self.system.ledger.flush()
        with SqliteReader(self.folder / "ledger.sqlite") as reader:
            return [each.event for each in reader.read() if isinstance(each.event, kind)]

    def add_key(self, key: str, tenant: str) -> None:
        """Add a key where the system looks for keys."""
        made = new_key(key, tenant, at_s=0.0)
        change_keys(self.folder / "keys.json", lambda book: book.with_key(made))


@asynccontextmanager
async def running(folder: Path, *fakes: FakeServer, **sections: Any) -> AsyncIterator[Running]:
    """Serve in front of servers a and b."""
    for fake in fakes:
        await fake.start()
    attached = tuple(
        AttachedServer(url=fake.url, name=name) for fake, name in zip(fakes, "ab", strict=False)
    )
    config = Config(
        fleet=FleetConfig(attached=attached, probe_every_s=0.05),
        gateway=GatewayConfig(port=0),
        routing=RoutingConfig(policy="round_robin"),
        ledger=LedgerConfig(path=str(folder / "ledger.sqlite")),
        **sections,
    )
    system = System(config, RealClock(), command="up", secret_path=folder / "secret")
    try:
        async with system, aiohttp.ClientSession() as client:
            yield Running(system, client, folder)
    finally:
        for fake in fakes:
            await fake.stop()


async def test_the_first_key_closes_a_gateway_that_serves_and_revoking_it_opens_nothing(
    tmp_path: Path,
) -> None:
    """Open at first; within a second of the first key only keys open; the records name the tenants."""
    async with running(tmp_path, BreakableServer()) as found:
        assert await found.ask() == 200
        found.add_key(ALICE, "alice")
        found.add_key(BOB, "bob")
        await until(lambda: found.system.gateway.guard.needs_key or _look(found))
        assert [await found.ask(), await found.ask(**bearer(ALICE))] == [401, 200]
        change_keys(tmp_path / "keys.json", lambda book: book.without_key("01010101", at_s=1.0))
        guard = found.system.gateway.guard
        await until(lambda: _revoked(guard.check_key))
        assert [await found.ask(**bearer(ALICE)), await found.ask(**bearer(BOB))] == [401, 200]
        served = await found.events(RequestServed)
    assert [event.record.tenant for event in served] == ["anonymous", "alice", "bob"]
    assert ALICE.encode() not in (tmp_path / "ledger.sqlite").read_bytes()


def _look(found: Running) -> bool:
    """Let the ring look at its file, as a request does."""
    guard = found.system.gateway.guard
    try:
        guard.check_key({}, found.system.clock.mono_s())
    except Exception:  # noqa: BLE001 - refused is what is waited for
        return True
    return False


def _revoked(check: Any) -> bool:
    try:
        check(bearer(ALICE), RealClock().mono_s())
    except Exception:  # noqa: BLE001 - refused is what is waited for
        return True
    return False


async def test_a_file_of_keys_that_breaks_is_told_in_the_ledger_and_keys_go_on(
    tmp_path: Path,
) -> None:
    """The keys that were read last open; an event says why the file was not taken."""
    path = tmp_path / "keys.json"
    made = new_key(ALICE, "alice", at_s=0.0)
    change_keys(path, lambda book: book.with_key(made))
    async with running(tmp_path, BreakableServer()) as found:
        path.write_text("broken")
        clock = found.system.clock
        before_s = clock.mono_s()
        await until(lambda: clock.mono_s() - before_s > 1.1)
        assert await found.ask(**bearer(ALICE)) == 200
        told = await found.events(ConfigReloaded)
    assert [event.refused.split(":")[0] for event in told] == ["the keys stay as they were"]


async def test_a_replica_that_is_left_out_is_an_event_and_a_metric(tmp_path: Path) -> None:
    """Its health checks are good, its requests fail: ejected, not ready, and back after its trials."""
    bad, good = BreakableServer(broken=True), BreakableServer()
    rules = GuardConfig(eject_after=3, ejection_s=0.3, trials_to_pass=1)
    async with running(tmp_path, bad, good, guard=rules) as found:
        statuses = [await found.ask() for _ in range(8)]
        metrics = await found.page("/metrics")
        bad.broken = False
        await until(lambda: not _is_out(found))
        assert [await found.ask() for _ in range(4)] == [200] * 4
        told = await found.events(HealthChanged)
    assert statuses.count(500) == 3
    assert 'trimtab_replica_ejections_total{replica="a"} 1.0' in metrics
    assert 'trimtab_replica_ready{replica="a"} 0.0' in metrics
    assert [(event.health, event.reason) for event in told] == [
        (Health.EJECTED, HealthReason.CONSECUTIVE_FAILURES),
        (Health.HALF_OPEN, HealthReason.TIME_IS_OVER),
        (Health.HEALTHY, HealthReason.TRIALS_PASSED),
    ]


def _is_out(found: Running) -> bool:
    guard = found.system.gateway.guard
    guard.before_route(found.system.clock.mono_s())
    return guard.outliers.health("a") is Health.EJECTED


async def test_limits_are_taken_in_while_it_serves(tmp_path: Path) -> None:
    """A reload bounds a tenant's rate; where keys lie waits for the next start."""
    async with running(tmp_path, BreakableServer()) as found:
        before = found.system.config
        wanted = msgspec.structs.replace(
            before, tenants=TenantsConfig(requests_per_minute=1.0, keys="elsewhere.json")
        )
        assert await found.ask() == 200
        done = Reloader(found.system, lambda: wanted, lambda _: None).reload()
        statuses = [await found.ask() for _ in range(2)]
    assert done.changed == {"tenants.requests_per_minute": "0.0 -> 1.0"}
    assert done.needs_restart == ("tenants.keys",)
    assert statuses == [200, 429]
