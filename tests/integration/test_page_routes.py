"""The page's routes on loopback: what they say, to whom, for how long, and what they cost while nobody looks."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
import pytest_asyncio
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from events_kit import LEVER, OTHER, SteppingClock, assessed, moved, story
from harness import until
from page_kit import STORY_EVENTS, PageSystem, all_verdicts, fill

from trimtab.core.config import LedgerConfig
from trimtab.core.state import EMPTY
from trimtab.core.types import ReplicaState, RolloutState
from trimtab.interfaces.web import routes
from trimtab.interfaces.web.history import HAPPENED_MAX, STEPS_MAX
from trimtab.interfaces.web.levers import ENDED_SHOWN_MAX, LIVE_SHOWN_MAX
from trimtab.interfaces.web.routes import LISTENERS_MAX
from trimtab.runtime.gateway import STOP_WAIT_S
from trimtab.runtime.ledger import SqliteLedger
from trimtab.runtime.ledger_reader import SqliteReader
from trimtab.runtime.wire import ApiError

VENDORED = "https://github.com/leeoniya/uPlot"
"""The one address in the page's files: a comment of the plotting library."""


@pytest_asyncio.fixture
async def system(tmp_path: Path) -> AsyncIterator[PageSystem]:
    async with PageSystem(tmp_path) as system:
        await fill(system)
        yield system


@pytest_asyncio.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    # no keep-alive, so that a test sees every connection end
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(connector=connector) as client:
        yield client


async def get(client: aiohttp.ClientSession, url: str) -> tuple[int, Any]:
    async with client.get(url) as response:
        return response.status, await response.json()


async def one_event(response: aiohttp.ClientResponse) -> tuple[str, Any]:
    name = (await response.content.readline()).decode().strip().removeprefix("event: ")
    data = (await response.content.readline()).decode().removeprefix("data: ")
    assert await response.content.readline() == b"\n"
    return name, msgspec.json.decode(data)


async def test_state_joins_the_live_fleet_with_the_ledger(
    system: PageSystem, client: aiohttp.ClientSession
) -> None:
    """Load and plan come from the running process, levers and diagnosis from the fold of its ledger."""
    status, state = await get(client, f"{system.url}/page/state")
    assert status == 200
    fleet = [(each["id"], each["state"], each["speculation"], each["running"], each["waiting"])
             for each in state["fleet"]]  # fmt: skip
    assert fleet == [
        ("r0", "ready", "off", 1, 2),
        ("r1", "ready", "ngram_simple", 0, 2),
        ("r2", "failed", "off", 0, 0),
    ]
    assert (state["traffic"]["proving"]["lever"], state["traffic"]["proving"]["share"]) == (
        OTHER,
        0.10,
    )
    assert [each["lever"] for each in state["traffic"]["adopted"]] == [LEVER]
    found = state["diagnosis"]
    assert (found["dominant_phase"], found["n"], found["window_s"]) == ("prefill", 120, 60.0)
    verdicts = {each["name"]: [gate["verdict"] for gate in each["results"]]
                for each in state["levers"]}  # fmt: skip
    assert verdicts == {OTHER: ["pass", "fail", "hold", "error"], LEVER: ["pass", "hold"]}
    assert (state["ledger"]["events"], state["ledger"]["healthy"]) == (STORY_EVENTS, True)


async def test_unknown_stays_unknown(tmp_path: Path, client: aiohttp.ClientSession) -> None:
    """Of a fleet that has only begun nothing is claimed: no diagnosis, no levers, no latency."""
    async with PageSystem(tmp_path) as empty:
        _, state = await get(client, f"{empty.url}/page/state")
    assert (state["diagnosis"], state["levers"], state["fleet"]) == (None, [], [])
    assert {each["ttft_ms"]["p95"] for each in state["requests"]["windows"]} == {None}


async def test_replica_that_the_gateway_does_not_know_has_no_load(
    system: PageSystem, client: aiohttp.ClientSession
) -> None:
    """A load that nobody counts is null, not 0."""
    system.load.remove_replica("r2")
    _, state = await get(client, f"{system.url}/page/state")
    assert [each["running"] for each in state["fleet"]] == [1, 0, None]


async def test_page_tells_nothing_of_a_single_request(
    system: PageSystem, client: aiohttp.ClientSession
) -> None:
    """What the page gets of requests are counts and quantiles: no id, session, label or hash of any one."""
    told = {"request_id": "id-7f3", "session": "session-7f3", "label": "label-7f3"}
    hashes = {"prompt_hash": "prompt-7f3", "output_hash": "output-7f3"}
    newest = msgspec.structs.replace(system.records[-1], **told, **hashes)
    system.records = (*system.records, newest)
    async with client.get(f"{system.url}/page/state") as response:
        text = await response.text()
    assert ("7f3" in text, '"n":241' in text) == (False, True)


async def test_unreadable_ledger_is_said_and_the_rest_is_served(
    system: PageSystem, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    """Without the file the fleet is still shown; what only the ledger knows is unknown, with the reason."""
    system.config = msgspec.structs.replace(
        system.config, ledger=LedgerConfig(path=str(tmp_path / "gone.sqlite"))
    )
    status, state = await get(client, f"{system.url}/page/state")
    assert (status, len(state["fleet"]), state["ledger"]["events"]) == (200, 3, None)
    assert "gone.sqlite does not exist" in state["ledger"]["read_error"]
    assert (await get(client, f"{system.url}/page/chain/{LEVER}"))[0] == 503


async def test_events_follow_the_fleet(system: PageSystem, client: aiohttp.ClientSession) -> None:
    """A listener hears the state at once, and about a second later what changed since."""
    async with client.get(f"{system.url}/page/events") as response:
        assert response.content_type == "text/event-stream"
        first = await one_event(response)
        system.set_replica("r2", ReplicaState.READY)
        begun_s = time.monotonic()
        second = await one_event(response)
    assert 0.5 < time.monotonic() - begun_s < 3.0
    told = [(name, state["fleet"][2]["state"]) for name, state in (first, second)]
    assert told == [("state", "failed"), ("state", "ready")]


async def test_listeners_end_by_themselves_when_the_gateway_stops(
    system: PageSystem, client: aiohttp.ClientSession
) -> None:
    """Open pages do not hold up a stop: each hears the end, and stopping takes no grace time."""
    responses = [await client.get(f"{system.url}/page/events") for _ in range(3)]
    for response in responses:
        await one_event(response)
    begun_s = time.monotonic()
    await system.gateway.stop()
    assert time.monotonic() - begun_s < STOP_WAIT_S
    assert [(await one_event(response))[0] for response in responses] == ["end"] * 3


async def test_listeners_are_bounded_and_leave_their_places(
    system: PageSystem, client: aiohttp.ClientSession
) -> None:
    """One listener too many is told to come back; when one leaves, there is a place again."""
    url = f"{system.url}/page/events"
    responses = [await client.get(url) for _ in range(LISTENERS_MAX)]
    assert [response.status for response in responses] == [200] * LISTENERS_MAX
    status, body = await get(client, url)
    assert (status, body["error"]["code"]) == (503, "overloaded")
    responses.pop().close()

    await until(lambda: open_connections(port_of(system)) < LISTENERS_MAX)
    responses.append(await client.get(url))
    assert responses[-1].status == 200
    for response in responses:
        response.close()


async def test_listener_that_does_not_read_is_let_go(
    system: PageSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page that accepts no more holds its place only for a bounded time."""

    async def much(_: object) -> bytes:
        return b"0" * 4_000_000

    monkeypatch.setattr(routes._Page, "_current", much)
    monkeypatch.setattr(routes, "SEND_S_MAX", 0.2)
    monkeypatch.setattr(routes, "EVERY_S", 0.0)
    port = port_of(system)
    _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
    try:
        writer.write(b"GET /page/events HTTP/1.1\r\nHost: h\r\n\r\n")
        await until(lambda: open_connections(port) == 1)
        # The limit stops the reading; the kernel's buffers fill, then the gateway cannot write any more.
        await until(lambda: open_connections(port) == 0, timeout_s=10.0)
        assert not writer.is_closing()
    finally:
        writer.close()


def port_of(system: PageSystem) -> int:
    return int(system.url.rsplit(":", 1)[1])


def open_connections(port: int) -> int:
    """How many connections to a port are open at the gateway's side."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(row[1].endswith(f":{port:04X}") and row[3] == "01" for row in rows)


async def test_nothing_is_made_while_nobody_looks(
    system: PageSystem, client: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a listener the ledger is not read; several at once share one state a second."""
    opened: list[float] = []

    class Counting(SqliteReader):
        def __init__(self, path: Path | str) -> None:
            opened.append(time.monotonic())
            super().__init__(path)

    monkeypatch.setattr(routes, "SqliteReader", Counting)
    await asyncio.sleep(1.2)
    assert opened == []
    urls = [f"{system.url}/page/state"] * 8
    states = await asyncio.gather(*(get(client, url) for url in urls))
    assert (len(opened), len({state["at_s"] for _, state in states})) == (1, 1)


async def test_chain_is_told_in_sentences(
    system: PageSystem, client: aiohttp.ClientSession
) -> None:
    """A lever's chain is a list of texts in order, from its bottleneck to what it did."""
    status, answer = await get(client, f"{system.url}/page/chain/{LEVER}")
    told = answer["steps"]
    assert (status, {type(each) for each in told}) == (200, {str})
    assert (answer["first"], answer["total"]) == (0, len(told))
    starts = ("Diagnosis (baseline): prefill", f"Proposed {LEVER}", "Look 3", "Effect on ttft_ms")
    at = [next(i for i, each in enumerate(told) if each.startswith(start)) for start in starts]
    assert at == sorted(at)


async def test_chain_of_no_lever_is_not_found(
    system: PageSystem, client: aiohttp.ClientSession
) -> None:
    """A name that no lever has is an error that says so."""
    status, body = await get(client, f"{system.url}/page/chain/no_such_lever")
    assert (status, body["error"]["message"]) == (404, "no lever 'no_such_lever' was proposed")


async def test_long_chain_comes_in_parts_that_join(
    system: PageSystem, client: aiohttp.ClientSession
) -> None:
    """A chain of hundreds of looks arrives newest part first; the parts before it join without a gap."""
    look = all_verdicts(LEVER)
    await system.tell([(msgspec.structs.replace(look, look=n), None) for n in range(450)])
    url, before, parts = f"{system.url}/page/chain/{LEVER}", None, []
    while before != 0:
        _, part = await get(client, url if before is None else f"{url}?before={before}")
        assert len(part["steps"]) <= STEPS_MAX
        parts.insert(0, part)
        before = part["first"]
    assert [part["first"] for part in parts] == [
        sum(len(each["steps"]) for each in parts[:at]) for at in range(len(parts))
    ]
    assert sum(len(part["steps"]) for part in parts) == parts[0]["total"] > 450
    assert [part["total"] for part in parts] == [parts[0]["total"]] * len(parts)


async def test_state_stays_small_however_many_rollouts_there_were(
    system: PageSystem, client: aiohttp.ClientSession
) -> None:
    """A thousand rollouts that ended are counted; a bounded number of levers is sent each second."""
    moves = [
        (moved(RolloutState.ROLLED_BACK, 0.0, name=f"lever-{n:04}"), None) for n in range(1000)
    ]
    await system.tell(moves)
    _, state = await get(client, f"{system.url}/page/state")
    assert state["lever_counts"]["rolled_back"] == 1000
    shown = [lever["name"] for lever in state["levers"]]
    assert {LEVER, OTHER} < set(shown)
    assert len(shown) <= LIVE_SHOWN_MAX + ENDED_SHOWN_MAX + len(LEVERS_ASSESSED)


LEVERS_ASSESSED = assessed(OTHER).assessments


async def test_all_rollouts_are_found_by_state_and_name(
    system: PageSystem, client: aiohttp.ClientSession
) -> None:
    """Pages of the list join without a gap, the latest move first; a filter counts what it leaves."""
    moves = [(moved(RolloutState.ROLLED_BACK, 0.0, name=f"lever-{n:04}"), None) for n in range(250)]
    await system.tell(moves)
    await asyncio.sleep(1.0)
    url, names = f"{system.url}/page/levers?state=rolled_back", []
    for offset in (0, 100, 200):
        _, found = await get(client, f"{url}&offset={offset}")
        assert found["total"] == 250
        names += [row["name"] for row in found["rows"]]
    assert sorted(names) == [f"lever-{n:04}" for n in range(250)]
    _, found = await get(client, f"{url}&name=lever-001")
    assert (found["total"], len(found["rows"])) == (10, 10)
    assert (await get(client, f"{system.url}/page/levers?state=nonsense"))[0] == 400
    assert (await get(client, f"{system.url}/page/levers?offset=-1"))[0] == 400


async def test_what_happened_is_told_newest_first(
    system: PageSystem, client: aiohttp.ClientSession
) -> None:
    """Decisions in words, without requests and looks; earlier ones follow where the first part ended."""
    await system.tell([(moved(RolloutState.CANARY, 0.1, name=f"l{n}"), None) for n in range(60)])
    _, first = await get(client, f"{system.url}/page/happened")
    _, second = await get(client, f"{system.url}/page/happened?before={first[-1]['seq']}")
    seqs = [each["seq"] for each in (*first, *second)]
    assert seqs == sorted(set(seqs), reverse=True)
    assert (len(first), {each["kind"] for each in first}) == (HAPPENED_MAX, {"rollout_moved"})
    assert "lever_proposed" in {each["kind"] for each in second}
    assert not {"request_served", "gates_evaluated"} & {each["kind"] for each in second}
    assert all(each["text"] for each in first)


async def test_cache_of_a_replica_is_what_its_engine_reported(
    system: PageSystem, client: aiohttp.ClientSession
) -> None:
    """Reused tokens by replica with their n, KV in use where the engine says it; else unknown, never 0."""
    system.kv_used["r0"] = 0.25
    _, state = await get(client, f"{system.url}/page/state")
    fleet = {each["id"]: each for each in state["fleet"]}
    assert (fleet["r0"]["kv_used_share"], fleet["r1"]["kv_used_share"]) == (0.25, None)
    assert fleet["r0"]["reused"]["share"] == pytest.approx(288 / 400)
    assert (fleet["r0"]["reused"]["n"], fleet["r2"]["reused"]) == (
        120,
        {"n": 0, "share": None, "window_s": 300.0},
    )


async def test_files_are_open_and_may_load_nothing_from_elsewhere(
    system: PageSystem, client: aiohttp.ClientSession
) -> None:
    """The page and each of its files is served, under a policy that allows this origin only."""
    for path in ("/", *(f"/static/{name}" for name in routes.STATIC)):
        async with client.get(system.url + path) as response:
            policy = response.headers["Content-Security-Policy"]
            text = await response.text()
        assert (response.status, policy.split(";")[0]) == (200, "default-src 'none'")
        own = text.replace("http://www.w3.org/2000/svg", "").replace(VENDORED, "")
        assert "://" not in own
    assert (await get(client, f"{system.url}/static/routes.py"))[0] == 404


@pytest.mark.parametrize(
    "path",
    ["/page/state", "/page/events", f"/page/chain/{LEVER}", "/page/levers", "/page/happened"],
)
@pytest.mark.parametrize(
    ("remote", "said", "passes"),
    [
        ("127.0.0.1", None, True),
        ("10.0.0.7", None, False),
        ("10.0.0.7", "Bearer wrong", False),
        ("10.0.0.7", "Bearer secret", True),
    ],
)
async def test_page_needs_the_token_off_loopback(
    tmp_path: Path, path: str, remote: str, said: str | None, passes: bool
) -> None:
    """Whoever is not on loopback reads nothing of the fleet without the admin token."""
    async with PageSystem(tmp_path, token="secret") as system:
        await system.tell(story())
        found = next(
            each
            for each in routes.page_routes(system)  # type: ignore[arg-type]
            if isinstance(each, web.RouteDef)
            and each.path.split("{")[0] == path.removesuffix(LEVER)
        )
        request = make_mocked_request(
            "GET",
            path,
            headers={"Authorization": said} if said else {},
            match_info={"lever": LEVER},
        ).clone(remote=remote)
        system.gateway.stopped.set()
        try:
            await found.handler(request)  # type: ignore[misc,arg-type]
            outcome = True
        except ApiError as error:
            outcome = error.status != 403
    assert outcome == passes


@pytest.mark.parametrize("keep_events", [None, 10])
async def test_catching_up_in_steps_is_the_fold_over_everything(
    tmp_path: Path, keep_events: int | None
) -> None:
    """However far a reader was, and whether or not retention ran since, it arrives at the same state."""
    path = tmp_path / "ledger.sqlite"
    ledger = SqliteLedger(path, clock=SteppingClock())
    steps = []
    try:
        for _ in range(3):
            for event, _cause in story():
                ledger.append(event, cause_id=None)
            await ledger.flush()
            with SqliteReader(path) as reader:
                steps.append(reader.catch_up(steps[-1] if steps else EMPTY))
        if keep_events is not None:
            await ledger.compact(keep_events=keep_events)
        with SqliteReader(path) as reader:
            caught_up = [reader.catch_up(state) for state in (EMPTY, *steps)]
            whole = reader.state()
    finally:
        ledger.close()
    assert caught_up == [whole] * 4
