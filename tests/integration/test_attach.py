"""Servers that somebody else runs: who they are, how they are, how loaded, over real sockets."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from fake_served import FakeServer, Rank
from harness import ListSink, RealClock, until

from trimtab.core.config import AttachedServer, Config, FleetConfig
from trimtab.core.events import ReplicaChanged
from trimtab.core.evidence import Unknown
from trimtab.core.ports import LaunchError
from trimtab.core.served import EngineKind
from trimtab.core.types import ReplicaState
from trimtab.engines.served_load import EngineLoad
from trimtab.runtime.attach import AttachedFleet
from trimtab.runtime.fleet import ReplicaInfo

EVERY_S = 0.03


@dataclass
class Attached:
    """A fleet of fake servers with everything that it told."""

    fleet: AttachedFleet
    sink: ListSink
    changes: list[ReplicaInfo] = field(default_factory=list)
    loads: dict[str, EngineLoad] = field(default_factory=dict)
    gone: list[str] = field(default_factory=list)
    in_flight: dict[str, int] = field(default_factory=dict)

    def state(self, replica: str) -> ReplicaState:
        return self.fleet.info(replica).state

    def reason(self, replica: str) -> str:
        return self.fleet.info(replica).reason


@asynccontextmanager
async def attached(
    *servers: FakeServer,
    names: Sequence[str] = "abcdef",
    api_key: str = "",
    model: str = "",
    start_timeout_s: float = 5.0,
) -> AsyncIterator[Attached]:
    """Start fake servers and attach them by the names a, b, c."""
    found = [
        AttachedServer(url=await server.start(), name=name)
        for server, name in zip(servers, names, strict=False)
    ]
    config = Config(
        fleet=FleetConfig(
            attached=tuple(found),
            probe_every_s=EVERY_S,
            check_timeout_s=0.5,
            start_timeout_s=start_timeout_s,
            api_key=api_key,
            model=model,
        )
    )
    sink, told = ListSink(), []
    fleet = AttachedFleet(
        config,
        sink,
        RealClock(),
        lambda info: told[0].changes.append(info),
        on_load=lambda replica, load, _: told[0].loads.__setitem__(replica, load),
        on_gone=lambda replica: told[0].gone.append(replica),
        in_flight=lambda replica: told[0].in_flight.get(replica, 0),
    )
    told.append(Attached(fleet, sink))
    try:
        await fleet.start(found)
        yield told[0]
    finally:
        await fleet.stop()
        for server in servers:
            await server.stop()


@pytest.mark.parametrize(
    ("engine", "version", "slots", "context"),
    [
        (EngineKind.VLLM, "0.32.0", 256, 16384),
        (EngineKind.SGLANG, "0.5.9", 48, 32768),
        (EngineKind.LLAMACPP, "b11549-abc", 3, 4096),
        (EngineKind.TGI, "3.3.4", 96, 8192),
    ],
)
async def test_engine_is_found_by_its_own_pages(
    engine: EngineKind, version: str, slots: int, context: int
) -> None:
    """Kind, version, model, context and slots are those that the server tells; vLLM's slots are its default."""
    async with attached(FakeServer(engine=engine)) as found:
        identity = found.fleet.identity("a")
        assert identity is not None
        assert (identity.engine, identity.version) == (engine, version)
        assert (identity.slots, identity.context_tokens) == (slots, context)
        assert identity.slots_told == (engine is not EngineKind.VLLM)
        assert found.fleet.models() == ("org/model-8b",)
        assert found.fleet.revision_of("a").engine == engine.value


async def test_any_openai_server_can_be_attached_without_metrics() -> None:
    """Its engine and load are unknown, and that is said; it serves all the same."""
    server = FakeServer(engine=EngineKind.UNKNOWN, lost_pages={"/metrics"})
    async with attached(server) as found:
        assert found.state("a") is ReplicaState.READY
        assert "an unknown engine" in found.reason("a")
        assert "load unknown: /metrics: status 404" in found.reason("a")
        assert found.fleet.load("a") == (EngineLoad(), None)


async def test_server_that_names_no_model_is_not_taken() -> None:
    """A page that answers is no model server yet; the start fails with the address and the reason."""
    server = FakeServer(engine=EngineKind.UNKNOWN, lost_pages={"/v1/models", "/metrics"})
    with pytest.raises(LaunchError, match=r"http://127\.0\.0\.1:\d+: not well: it names no model"):
        async with attached(server, start_timeout_s=0.2):
            pass


async def test_load_is_the_sum_of_ranks_and_the_fullest_kv() -> None:
    """One saturated rank is seen, not averaged away."""
    server = FakeServer(ranks=[Rank(0, 0, 0.10), Rank(40, 12, 0.97)])
    async with attached(server) as found:
        load, age_s = found.fleet.load("a")
        assert (load.running, load.waiting, load.kv_used_share) == (40, 12, 0.97)
        assert load.kv_used_share_mean == pytest.approx(0.535)
        assert load.saturated == ("1",)
        assert age_s is not None
        assert found.loads["a"] == load


async def test_rank_that_vanished_makes_the_load_unknown() -> None:
    """The other rank's numbers would read as a fall in load."""
    server = FakeServer(ranks=[Rank(2, 0, 0.10), Rank(40, 12, 0.97)])
    async with attached(server) as found:
        server.ranks = server.ranks[:1]
        await until(lambda: found.loads["a"].lost == ("1",))
        assert (found.loads["a"].running, found.loads["a"].kv_used_share) == (None, None)


async def test_reading_that_grew_old_is_stale_and_not_idle() -> None:
    """The server answers its health check and not its metrics: it serves on, and its load is unknown."""
    server = FakeServer(ranks=[Rank(7, 1, 0.4)])
    async with attached(server) as found:
        assert found.fleet.readings("a").value("requests_processing") == 7.0
        server.lost_pages.add("/metrics")
        await until(lambda: found.fleet.load("a")[0] == EngineLoad())
        reading = found.fleet.readings("a").get("requests_processing")
        assert isinstance(reading, Unknown)
        assert reading.reason.startswith("stale: last read ")
        assert found.state("a") is ReplicaState.READY


async def test_failing_server_is_left_out_and_comes_back() -> None:
    """One missed check is not enough, two are; the reason is said; it is ready again once it answers."""
    one, other = FakeServer(), FakeServer()
    async with attached(one, other) as found:
        one.health = 503
        await until(lambda: found.state("a") is ReplicaState.FAILED)
        assert found.reason("a") == "not well: /health: status 503"
        assert found.state("b") is ReplicaState.READY
        one.health = 200
        await until(lambda: found.state("a") is ReplicaState.READY)
        back = found.changes[-1]
        assert (back.id, back.kv_kept) == ("a", True)


async def test_server_that_restarted_is_told_to_have_an_empty_cache() -> None:
    """Its counters fell: whoever believes that it holds prefixes must forget them."""
    server = FakeServer()
    async with attached(server) as found:
        server.prompt_tokens_total = 3.0
        await until(lambda: any(c.state is ReplicaState.RESTARTING for c in found.changes))
        await until(lambda: found.state("a") is ReplicaState.READY)
        ready = [c for c in found.changes if c.state is ReplicaState.READY][-1]
        assert (ready.kv_kept, ready.crashes) == (False, 1)


async def test_start_time_tells_a_restart_too() -> None:
    """Counters may have grown past the old ones before they were read again."""
    server = FakeServer()
    async with attached(server) as found:
        server.started_at_s += 100.0
        server.prompt_tokens_total += 50.0
        await until(lambda: found.fleet.info("a").crashes == 1)
        await until(lambda: found.state("a") is ReplicaState.READY)
        assert found.fleet.info("a").started_at_s == server.started_at_s


async def test_server_of_another_model_is_not_taken() -> None:
    """The first in order names the fleet's model; the other waits with the reason, and requests never meet it."""
    async with attached(FakeServer(), FakeServer(model="org/other")) as found:
        assert found.fleet.model == "org/model-8b"
        assert (found.state("a"), found.state("b")) == (ReplicaState.READY, ReplicaState.FAILED)
        assert "it serves org/other, and this fleet serves org/model-8b" in found.reason("b")


async def test_model_of_the_configuration_decides() -> None:
    """Whatever the first server serves."""
    servers = (FakeServer(), FakeServer(model="org/other"))
    async with attached(*servers, model="org/other") as found:
        assert (found.state("a"), found.state("b")) == (ReplicaState.FAILED, ReplicaState.READY)


async def test_key_is_sent_and_never_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every page is asked for with the key; neither events nor reasons hold it."""
    monkeypatch.setenv("FAKE_KEY", "sk-secret-1")
    server = FakeServer(key="Bearer sk-secret-1")
    async with attached(server, api_key="env:FAKE_KEY") as found:
        assert found.state("a") is ReplicaState.READY
        assert {seen.headers.get("authorization") for seen in server.requests} == {
            "Bearer sk-secret-1"
        }
        assert "sk-secret-1" not in repr(found.sink.events)
        assert "sk-secret-1" not in repr(found.fleet.access(server.url))


async def test_refused_key_names_the_setting() -> None:
    """A server that wants a key and gets none is left out with the fix."""
    with pytest.raises(LaunchError, match="it wants another key than api_key names"):
        async with attached(FakeServer(key="Bearer sk-1"), start_timeout_s=0.2):
            pass


async def test_key_that_is_not_there_ends_the_start() -> None:
    """The reference is named with the fix."""
    with pytest.raises(LaunchError, match=r"env:NOT_SET_ANYWHERE: the variable .* is not set"):
        async with attached(FakeServer(), api_key="env:NOT_SET_ANYWHERE"):
            pass


async def test_server_that_leaves_ends_its_requests_first() -> None:
    """It gets no new ones meanwhile; then it is forgotten, and it runs on."""
    one, other = FakeServer(), FakeServer()
    async with attached(one, other) as found:
        found.in_flight["b"] = 1
        found.fleet.want([AttachedServer(url=one.url, name="a")])
        assert found.state("b") is ReplicaState.DRAINING
        assert found.gone == []
        found.in_flight["b"] = 0
        await until(lambda: found.gone == ["b"])
        assert found.fleet.replica_ids() == ("a",)


async def test_server_that_comes_back_while_it_leaves_stays() -> None:
    """The second word counts, and nothing that it had in flight is lost."""
    one, other = FakeServer(), FakeServer()
    async with attached(one, other) as found:
        both = [AttachedServer(url=one.url, name="a"), AttachedServer(url=other.url, name="b")]
        found.in_flight["b"] = 1
        found.fleet.want(both[:1])
        found.fleet.want(both)
        await until(lambda: found.state("b") is ReplicaState.READY)
        found.in_flight["b"] = 0
        assert found.gone == []


async def test_start_waits_for_the_first_server_only() -> None:
    """One that hangs is looked at as long as a check may take, and the fleet serves without it."""
    slow = FakeServer(hanging_pages={"/v1/models"})
    async with attached(FakeServer(), slow) as found:
        assert found.state("a") is ReplicaState.READY
        assert found.reason("b") == "not well: /v1/models: no whole answer within 0.5 s"


async def test_start_tells_why_no_server_is_ready() -> None:
    """Each address with its reason."""
    with pytest.raises(
        LaunchError, match=r"no attached server was ready within 0\.2 s: http://.*503"
    ):
        async with attached(FakeServer(health=503), start_timeout_s=0.2):
            pass


async def test_levers_that_restart_are_refused_with_the_reason() -> None:
    """Nobody but its owner restarts a server."""
    async with attached(FakeServer()) as found:
        revision = found.fleet.revision_of("a")
        with pytest.raises(LaunchError, match="did not start this server and cannot restart it"):
            await found.fleet.restart_into("a", revision, drain_timeout_s=1.0)
        with pytest.raises(LaunchError, match="trimtab reload"):
            await found.fleet.add("c", revision)
        with pytest.raises(LaunchError, match="trimtab reload"):
            await found.fleet.remove("a", drain_timeout_s=1.0)
        assert found.state("a") is ReplicaState.READY


async def test_every_change_is_an_event_and_the_end_says_that_servers_run_on() -> None:
    """The ledger tells the life of each server."""
    async with attached(FakeServer()) as found:
        pass
    told = [event for event in found.sink.events if isinstance(event, ReplicaChanged)]
    assert [event.state for event in told] == [
        ReplicaState.STARTING,
        ReplicaState.READY,
        ReplicaState.STOPPED,
    ]
    assert told[-1].reason == "let go of; it runs on"
