"""The whole gateway in front of servers that somebody else runs, over real sockets."""

import asyncio
import contextlib
import json
import re
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web
from fake_served import FakeServer, Rank
from harness import CHAT, RealClock, chat, until

from trimtab.core.config import (
    AttachedServer,
    Config,
    ConfigError,
    FleetConfig,
    GatewayConfig,
    LedgerConfig,
    RoutingConfig,
    TelemetryConfig,
)
from trimtab.core.events import ConfigReloaded
from trimtab.core.ports import LaunchError
from trimtab.core.types import ReplicaState
from trimtab.interfaces.web.fleet import fleet_routes
from trimtab.interfaces.web.reload import PATH, reload_routes
from trimtab.runtime.ledger_reader import SqliteReader
from trimtab.runtime.reload import Reloader
from trimtab.runtime.supervisor import System

EVERY_S = 0.03
TLS = Path(__file__).parent.parent / "data" / "tls"


class Serving:
    """A system in front of fake servers and what it said."""

    def __init__(self, config: Config, folder: Path) -> None:
        self.wanted: Config | str = config
        self.said: list[str] = []
        self.config = config
        self.system = System(
            config,
            RealClock(),
            command="up",
            secret_path=folder / "secret",
            extra_routes=self._routes,
        )

    def _routes(self, system: System) -> list[web.AbstractRouteDef]:
        self.reloader = Reloader(system, self._read, self.said.append)
        return [*fleet_routes(system), *reload_routes(system, self.reloader)]

    def _read(self) -> Config:
        if isinstance(self.wanted, str):
            raise ConfigError(self.wanted)
        return self.wanted

    def want(self, **sections: Any) -> None:
        self.wanted = msgspec.structs.replace(self.config, **sections)

    async def post(self, path: str, body: Any) -> tuple[int, Any]:
        async with self.client.post(self.system.url + path, json=body) as response:
            return response.status, json.loads(await response.read())

    async def get(self, path: str) -> bytes:
        async with self.client.get(self.system.url + path) as response:
            return await response.read()

    async def ask(self, text: str = "hello", **headers: str) -> tuple[str | None, bytes]:
        """Ask for a stream and return the replica and the answer."""
        async with self.client.post(
            self.system.url + CHAT, json=chat(text), headers=headers
        ) as response:
            return response.headers.get("x-trimtab-replica"), await response.read()

    def state(self, replica: str) -> ReplicaState | None:
        view = self.system.load.replica(replica)
        return None if view is None else view.state


def server(fake: FakeServer, name: str = "", **fields: Any) -> AttachedServer:
    return AttachedServer(url=fake.url, name=name, **fields)


@asynccontextmanager
async def serving(
    folder: Path, *fakes: FakeServer, names: str = "abcd", **sections: Any
) -> AsyncIterator[Serving]:
    """Serve in front of fake servers a, b, c; sections of the configuration go over its defaults."""
    for fake in fakes:
        await fake.start()
    found = tuple(server(fake, name) for fake, name in zip(fakes, names, strict=False))
    fleet = FleetConfig(attached=found, probe_every_s=EVERY_S, check_timeout_s=0.5)
    if "fleet" in sections:
        fleet = sections.pop("fleet")(fleet)
    config = Config(
        **{
            "fleet": fleet,
            "gateway": GatewayConfig(port=0),
            "routing": RoutingConfig(policy="least_loaded"),
            "ledger": LedgerConfig(path=str(folder / "ledger.sqlite")),
            **sections,
        }
    )
    try:
        found_one = Serving(config, folder)
        async with (
            found_one.system,
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20)) as client,
        ):
            found_one.client = client
            if found_one.system.attached is not None:
                found_one.system.attached.say = found_one.said.append
            yield found_one
    finally:
        for fake in fakes:
            await fake.stop()


async def test_client_of_an_attached_fleet_changes_nothing(tmp_path: Path) -> None:
    """Models, chat and health answer as one server would; the model's name is the servers' own."""
    async with serving(tmp_path, FakeServer(), FakeServer()) as found:
        assert json.loads(await found.get("/v1/models"))["data"][0]["id"] == "org/model-8b"
        replica, answer = await found.ask()
        assert replica in {"a", "b"}
        assert answer.endswith(b"data: [DONE]\n\n")
        assert json.loads(await found.get("/healthz"))["ready"] == 2


async def test_path_prefix_of_a_server_is_kept(tmp_path: Path) -> None:
    """A server may live under a path of a host; a /v1 at the end of its address is the clients'."""
    fake = FakeServer()
    fake.prefix = "/models/a"
    await fake.start()
    url = f"{fake.url}/models/a/v1/"

    def fleet(plain: FleetConfig) -> FleetConfig:
        return msgspec.structs.replace(plain, attached=(AttachedServer(url=url, name="a"),))

    try:
        async with serving(tmp_path, fleet=fleet) as found:
            _, answer = await found.ask()
            assert answer.endswith(b"data: [DONE]\n\n")
            assert {seen.path.removesuffix(seen.path[9:]) for seen in fake.requests} == {
                "/models/a"
            }
    finally:
        await fake.stop()


async def test_key_goes_to_its_server_and_the_client_s_own_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each server gets the key that is named for it, in place of what the client showed."""
    monkeypatch.setenv("KEY_A", "sk-a")
    monkeypatch.setenv("KEY_ALL", "sk-all")
    one, other = FakeServer(key="Bearer sk-a"), FakeServer(key="Bearer sk-all")

    def fleet(plain: FleetConfig) -> FleetConfig:
        first, second = plain.attached
        own = msgspec.structs.replace(first, api_key="env:KEY_A")
        return msgspec.structs.replace(plain, attached=(own, second), api_key="env:KEY_ALL")

    async with serving(tmp_path, one, other, fleet=fleet) as found:
        for number in range(4):
            _, answer = await found.ask(f"question {number}", Authorization="Bearer sk-client")
            assert answer.endswith(b"data: [DONE]\n\n")
    posts = {
        seen.headers["authorization"]
        for fake in (one, other)
        for seen in fake.requests
        if seen.method == "POST"
    }
    assert posts <= {"Bearer sk-a", "Bearer sk-all"}
    assert b"sk-a" not in (tmp_path / "ledger.sqlite").read_bytes()


async def test_dead_server_is_left_out_and_the_other_serves(tmp_path: Path) -> None:
    """From the checks alone, before a request meets it."""
    one, other = FakeServer(), FakeServer()
    async with serving(tmp_path, one, other) as found:
        one.health = 0
        await until(lambda: found.state("a") is ReplicaState.FAILED)
        asked = len([seen for seen in one.requests if seen.method == "POST"])
        replicas = {(await found.ask(f"q{n}"))[0] for n in range(6)}
        assert replicas == {"b"}
        assert asked == len([seen for seen in one.requests if seen.method == "POST"])


async def test_engine_s_own_load_is_seen_in_views_and_metrics(tmp_path: Path) -> None:
    """Requests of other gateways fill it too; what is unknown has no series."""
    fakes = FakeServer(ranks=[Rank(3, 2, 0.75)]), FakeServer(lost_pages={"/metrics"})
    async with serving(tmp_path, *fakes) as found:
        page = await _page_with(found, 'trimtab_replica_num_requests_running{replica="a"} 3.0')
        await until(lambda: _kv(found, "a") == 0.75)
        assert _kv(found, "b") is None
        assert 'trimtab_replica_num_requests_waiting{replica="a"} 2.0' in page
        assert 'trimtab_replica_kv_cache_usage_ratio{replica="a"} 0.75' in page
        assert 'trimtab_replica_ready{replica="b"} 1.0' in page
        assert 'trimtab_replica_num_requests_running{replica="b"}' not in page


async def _page_with(found: Serving, series: str) -> str:
    """Return the first page that has the series: what was read a moment ago goes stale on a busy machine."""
    async with asyncio.timeout(20):
        while series not in (page := (await found.get("/metrics")).decode()):
            pass
    return page


def _kv(found: Serving, replica: str) -> float | None:
    view = found.system.load.replica(replica)
    return None if view is None else view.kv_used_share


class Impatient(FakeServer):
    """Closes a connection that was idle for a fifth of a second."""

    async def _connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int
    ) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.2):
                await super()._connection(reader, writer, number)


async def test_server_that_closes_earlier_than_the_pool_is_told_of(tmp_path: Path) -> None:
    """With both numbers, at the start, before a request meets a reset."""
    async with serving(tmp_path, Impatient(), FakeServer()) as found:
        attached = found.system.attached
        assert attached is not None
        await until(lambda: "a" in attached.warnings)
        assert re.match(
            r"a closes idle connections after 0\.\d s \(seen\), and the gateway keeps them for 3\.0 s",
            attached.warnings["a"],
        )
        assert "b" not in attached.warnings
        shorter = msgspec.structs.replace(found.config.gateway, upstream_keepalive_s=0.0)
        found.want(gateway=shorter)
        found.reloader.reload()
        assert attached.warnings == {}


async def test_reload_adds_a_server_without_dropping_a_stream(tmp_path: Path) -> None:
    """A stream that runs while the fleet grows ends as it would have; the new server serves."""
    slow, more = FakeServer(pause_s=0.15, words=tuple("abcdef")), FakeServer()
    await more.start()
    async with serving(tmp_path, slow) as found:
        running = asyncio.create_task(found.ask())
        await until(lambda: found.system.in_flight("a") == 1)
        found.want(
            fleet=msgspec.structs.replace(
                found.config.fleet, attached=(server(slow, "a"), server(more, "b"))
            )
        )
        status, done = await found.post(PATH, {})
        assert (status, done["changed"]) == (200, {"fleet.attached": "a -> a, b"})
        await until(lambda: found.state("b") is ReplicaState.READY)
        assert (await found.ask("another"))[0] == "b"
        replica, answer = await running
        assert (replica, answer.count(b"data: ")) == ("a", 9)
        assert answer.endswith(b"data: [DONE]\n\n")
        await more.stop()


async def test_reload_removes_a_server_after_its_streams(tmp_path: Path) -> None:
    """Its stream runs to its end; no new request meets it; then it is gone."""
    slow, other = FakeServer(pause_s=0.15, words=tuple("abcdef")), FakeServer()
    async with serving(tmp_path, slow, other) as found:
        running = asyncio.create_task(found.ask())
        await until(lambda: found.system.in_flight("a") + found.system.in_flight("b") == 1)
        leaves = "a" if found.system.in_flight("a") else "b"
        stays = [each for each in found.config.fleet.attached if each.name != leaves]
        found.want(fleet=msgspec.structs.replace(found.config.fleet, attached=tuple(stays)))
        found.reloader.reload()
        assert found.state(leaves) is ReplicaState.DRAINING
        assert {(await found.ask(f"q{n}"))[0] for n in range(3)} == {stays[0].name}
        _, answer = await running
        assert answer.endswith(b"data: [DONE]\n\n")
        await until(lambda: found.state(leaves) is None)


async def test_invalid_configuration_keeps_the_old_one_and_says_why(tmp_path: Path) -> None:
    """The answer, the console and the ledger carry the file and the key; everything serves on."""
    async with serving(tmp_path, FakeServer()) as found:
        found.wanted = "x.toml: Expected `int` >= 1 - at `$.gateway.streams_max`"
        status, said = await found.post(PATH, {})
        assert status == 409
        assert "$.gateway.streams_max" in said["error"]["message"]
        assert "everything stays as it was" in found.said[-1]
        assert (await found.ask())[0] == "a"
    with SqliteReader(tmp_path / "ledger.sqlite") as reader:
        events = [e.event for e in reader.read() if isinstance(e.event, ConfigReloaded)]
    assert [event.refused for event in events] == [
        "x.toml: Expected `int` >= 1 - at `$.gateway.streams_max`"
    ]


async def test_key_that_is_missing_refuses_the_whole_reload(tmp_path: Path) -> None:
    """Not the half of it: limits stay too."""
    async with serving(tmp_path, FakeServer()) as found:
        found.want(
            fleet=msgspec.structs.replace(found.config.fleet, api_key="env:NOT_SET_ANYWHERE"),
            gateway=msgspec.structs.replace(found.config.gateway, streams_max=1),
        )
        status, said = await found.post(PATH, {})
        assert (status, "NOT_SET_ANYWHERE" in said["error"]["message"]) == (409, True)
        assert found.system.config == found.config
        assert (await found.ask())[0] == "a"


async def test_limits_are_taken_in_and_what_needs_a_start_is_named(tmp_path: Path) -> None:
    """The next request meets the new limit."""
    slow = FakeServer(pause_s=0.2)
    async with serving(tmp_path, slow) as found:
        gateway = msgspec.structs.replace(found.config.gateway, streams_max=1, port=1)
        found.want(gateway=gateway)
        _, done = await found.post(PATH, {})
        assert done == {
            "changed": {"gateway.streams_max": "1024 -> 1"},
            "needs_restart": ["gateway.port"],
        }
        running = asyncio.create_task(found.ask())
        await until(lambda: found.system.in_flight("a") == 1)
        async with found.client.post(found.system.url + CHAT, json=chat()) as response:
            assert response.status == 503
        await running


async def test_rotated_key_is_taken_in(tmp_path: Path) -> None:
    """The reference is the same; what it refers to has changed."""
    key = tmp_path / "key"
    key.write_text("sk-old\n")
    fake = FakeServer(key="Bearer sk-old")

    def fleet(plain: FleetConfig) -> FleetConfig:
        return msgspec.structs.replace(plain, api_key=f"file:{key}")

    async with serving(tmp_path, fake, fleet=fleet) as found:
        key.write_text("sk-new\n")
        fake.key = "Bearer sk-new"
        await found.post(PATH, {})
        assert (await found.ask())[1].endswith(b"data: [DONE]\n\n")


async def test_fleet_of_others_keeps_its_size(tmp_path: Path) -> None:
    """`trimtab fleet add` says how a server is attached."""
    async with serving(tmp_path, FakeServer(), FakeServer()) as found:
        status, said = await found.post("/fleet/replicas", {"action": "add"})
        assert status == 503
        assert "trimtab reload" in said["error"]["message"]
        assert len(found.system.fleet.replica_ids()) == 2


async def test_access_log_has_a_line_for_each_request(tmp_path: Path) -> None:
    """JSON, no word of the prompt; a log that was moved away is opened anew at a reload."""
    log = tmp_path / "access.log"
    async with serving(
        tmp_path, FakeServer(), telemetry=TelemetryConfig(access_log=str(log))
    ) as found:
        await found.ask("tell me about the purple submarine")
        await until(lambda: log.read_bytes().count(b"\n") == 1)
        log.rename(tmp_path / "access.1")
        await found.post(PATH, {})
        await found.ask("and another one")
        await until(lambda: log.exists() and log.read_bytes().count(b"\n") == 1)
    said = json.loads((tmp_path / "access.1").read_bytes())
    assert (said["endpoint"], said["status"], said["replica"]) == (CHAT, 200, "a")
    assert said["output_tokens"] == 4
    assert b"submarine" not in (tmp_path / "access.1").read_bytes()
    assert log.stat().st_mode & 0o777 == 0o600


async def test_log_that_cannot_be_written_ends_the_start(tmp_path: Path) -> None:
    """With the key and the fix."""
    with pytest.raises(ConfigError, match=r"telemetry\.access_log .* cannot be written"):
        async with serving(
            tmp_path,
            FakeServer(),
            telemetry=TelemetryConfig(access_log=str(tmp_path / "none" / "x")),
        ):
            pass


@asynccontextmanager
async def collector(received: list[bytes]) -> AsyncIterator[str]:
    """Take what a collector of traces would take."""

    async def take(request: web.Request) -> web.Response:
        received.append(await request.read())
        return web.Response(body=b"", content_type="application/x-protobuf")

    app = web.Application()
    app.add_routes([web.post("/v1/traces", take)])
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def test_trace_continues_the_caller_s_and_reaches_the_engine(tmp_path: Path) -> None:
    """The engine gets the span's own traceparent of the same trace; the collector gets the span, without text."""
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="otel: not installed")
    trace = "0af7651916cd43dd8448eb211c80319c"
    fake, received = FakeServer(), list[bytes]()
    async with (
        collector(received) as endpoint,
        serving(tmp_path, fake, telemetry=TelemetryConfig(otlp_endpoint=endpoint)) as found,
    ):
        await found.ask("the purple submarine", traceparent=f"00-{trace}-b7ad6b7169203331-01")
        await asyncio.to_thread(_flush, found)
    [seen] = [each for each in fake.requests if each.method == "POST"]
    version, sent_trace, span, flags = seen.headers["traceparent"].split("-")
    assert (version, sent_trace, flags) == ("00", trace, "01")
    assert span != "b7ad6b7169203331"
    body = b"".join(received)
    for word in (bytes.fromhex(trace), bytes.fromhex(span), b"gen_ai.usage.input_tokens", b"vllm"):
        assert word in body
    assert b"submarine" not in body


def _flush(found: Serving) -> None:
    tracing = found.system.telemetry.tracing
    assert tracing is not None
    tracing.flush()


async def test_server_is_reached_by_tls_and_its_certificate_checked(tmp_path: Path) -> None:
    """A certificate of an unknown maker is refused; with `fleet.ca_file` it is taken."""
    cert = TLS / "localhost.pem"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, TLS / "localhost.key")
    fake = FakeServer(tls=context)
    await fake.start()
    url = fake.url.replace("http://127.0.0.1", "https://localhost")

    def fleet(ca_file: str) -> Callable[[FleetConfig], FleetConfig]:
        return lambda plain: msgspec.structs.replace(
            plain,
            attached=(AttachedServer(url=url, name="a"),),
            ca_file=ca_file,
            # Long enough for the first check to have failed on a busy machine.
            start_timeout_s=3.0,
        )

    try:
        with pytest.raises(LaunchError, match="not well: no connection"):
            async with serving(tmp_path, fleet=fleet("")):
                pass
        async with serving(tmp_path, fleet=fleet(str(cert))) as found:
            assert (await found.ask())[1].endswith(b"data: [DONE]\n\n")
    finally:
        await fake.stop()
