"""The gateway's informing pages, and what reaches the ledger: figures and hashes, never text."""

import asyncio
import re

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from fake_engine import FakeEngine
from harness import Harness, as_body, chat, until

from trimtab.core.events import encode_event
from trimtab.core.types import ReplicaState
from trimtab.runtime.wire import ApiError

WORD = "Zwiebelkuchen"


async def test_models_names_the_model_of_the_fleet() -> None:
    """GET /v1/models lists the one model that the fleet serves."""
    async with Harness() as fleet:
        reply = await fleet.get("/v1/models")
    assert (reply.status, reply.json["object"], [m["id"] for m in reply.json["data"]]) == (
        200,
        "list",
        ["fake-model"],
    )


async def test_health_follows_the_replicas() -> None:
    """200 as long as one replica is ready, else 503 with the reason."""
    engine = FakeEngine()
    async with Harness(engine) as fleet:
        well = await fleet.get("/healthz")
        fleet.set_replica("r0", engine.url, ReplicaState.RESTARTING)
        ill = await fleet.get("/healthz")
    assert (well.status, well.json) == (200, {"status": "ok", "ready": 1})
    assert (ill.status, ill.json) == (503, {"status": "no replica is ready", "ready": 0})


async def test_fleet_page_shows_load_and_plan() -> None:
    """/debug/fleet has every replica with url, role, revision, state and load while requests run."""
    engines = (FakeEngine(pause_s=0.1), FakeEngine(pause_s=0.1))
    async with Harness(*engines) as fleet:
        fleet.set_replica("r1", engines[1].url, ReplicaState.DRAINING)
        running = asyncio.create_task(fleet.post({"max_tokens": 40}))
        await until(lambda: engines[0].requests)
        waiting = (await fleet.get("/debug/fleet")).json
        await until(lambda: fleet.load.view(0.0).replicas[0].running == 1)
        decoding = (await fleet.get("/debug/fleet")).json
        await running
    first, second = waiting["replicas"]
    assert {"url", "role", "revision", "state", "load"} <= set(first)
    assert (first["url"], first["role"], first["revision"], first["state"]) == (
        engines[0].url,
        "mixed",
        "fake-1",
        "ready",
    )
    assert (second["state"], second["load"]["running"], second["load"]["waiting"]) == (
        "draining",
        0,
        0,
    )
    load = first["load"]
    assert (load["running"], load["waiting"], load["decode_tokens_outstanding"]) == (0, 1, 40)
    assert load["prefill_tokens_outstanding"] > 0
    after = decoding["replicas"][0]["load"]
    assert (after["running"], after["waiting"], after["prefill_tokens_outstanding"]) == (1, 0, 0)
    assert after["decode_tokens_outstanding"] == 39
    assert waiting["plan"]["policy"] == "round_robin"


async def test_metrics_count_requests_without_a_word_of_theirs() -> None:
    """/metrics has counts, tokens and latencies, and nothing that a client wrote."""
    async with Harness(FakeEngine(words=(WORD, "!"), cached_tokens=2)) as fleet:
        await fleet.post(chat(WORD), X_Trimtab_Label=WORD, X_Trimtab_Session=WORD)
        await fleet.post(b"{")
        page = (await fleet.get("/metrics")).body.decode()
    assert (
        'trimtab_requests_total{endpoint="/v1/chat/completions",error="none",replica="r0",status="200"} 1.0'
        in page
    )
    assert 'error="bad_request",replica="",status="400"} 1.0' in page
    assert 'trimtab_prompt_tokens_cached_total{replica="r0"} 2.0' in page
    assert 'trimtab_generation_tokens_total{replica="r0"} 2.0' in page
    assert 'trimtab_time_to_first_token_seconds_count{arm="baseline",replica="r0"} 1.0' in page
    assert "trimtab_requests_in_flight 0.0" in page
    assert "trimtab_prefix_index_blocks_max " in page
    assert WORD not in page


async def test_no_text_of_prompt_or_output_is_in_any_event() -> None:
    """Events carry keyed hashes and counts; neither words nor the session's name nor plain hashes of them."""
    async with Harness(FakeEngine(words=(WORD, " and ", WORD))) as fleet:
        await fleet.post(chat(f"Tell me of {WORD}", user=WORD), X_Trimtab_Session=f"s-{WORD}")
        await fleet.post(chat(f"Tell me of {WORD}", user=f"u-{WORD}", stream=False))
        await fleet.post(f'{{"prompt": "{WORD}", "stream": 1'.encode())
        await fleet.record(of=3)
        written = b"\n".join(encode_event(event) for event in fleet.sink.events)
    assert (len(fleet.sink.events), len(fleet.records)) == (3, 3)
    assert WORD.encode() not in written
    assert re.search(rb'"prompt_hash":"[0-9a-f]{32}"', written) is not None


async def test_event_has_the_view_and_the_decision_it_was_made_from() -> None:
    """A day can be replayed: the fleet as the decision saw it, before this request was counted."""
    engine = FakeEngine(pause_s=0.05)
    async with Harness(engine) as fleet:
        first = asyncio.create_task(fleet.post())
        await until(lambda: engine.requests)
        await asyncio.gather(first, fleet.post())
        await fleet.record(of=2)
    seen = [event.view.replicas[0].in_flight for event in fleet.served if event.view]
    sequences = [event.decision.sequence for event in fleet.served if event.decision]
    assert (seen, sequences) == ([0, 1], [1, 2])
    assert [event.record for event in fleet.served] == fleet.records


async def test_session_is_the_header_else_the_user_else_the_first_message() -> None:
    """Turns of one conversation are one session without any help of the client."""
    async with Harness(FakeEngine()) as fleet:
        later = chat()["messages"] + [{"role": "assistant", "content": "It is."}]
        bodies = [
            chat(),
            chat(messages=[*later, {"role": "user", "content": "And then?"}]),
            chat("another"),
            chat("another", user="u1"),
            chat(user="u1"),
        ]
        for body in bodies:
            await fleet.post(body)
        await fleet.post(chat(), X_Trimtab_Session="s1")
        await fleet.post(chat("other", user="u1"), X_Trimtab_Session="s1")
        await fleet.record(of=7)
    first, second, third, fourth, fifth, sixth, seventh = [r.session for r in fleet.records]
    assert (first, fourth, sixth) == (second, fifth, seventh)
    assert len({first, third, fourth, sixth}) == 4


async def test_prefix_goes_where_it_is_held_and_the_record_says_so() -> None:
    """Prefix-affine routing sends a later turn where the first one went; predicted and captured tokens agree."""
    engines = (FakeEngine(), FakeEngine())
    text = "A trim tab is a small surface. " * 40
    async with Harness(*engines) as fleet:
        fleet.router.plan = msgspec.structs.replace(fleet.router.plan, policy="prefix_affine")
        await fleet.post(chat(text))
        home = (await fleet.record()).replica
        later = [*chat(text)["messages"], {"role": "assistant", "content": "Yes."}]
        for number in range(4):
            await fleet.post(chat(messages=[*later, {"role": "user", "content": f"{number}?"}]))
        await fleet.record(of=5)
    turns = fleet.records[1:]
    assert {record.replica for record in turns} == {home}
    for record in turns:
        tokens = record.tokens
        assert tokens.predicted == tokens.captured == tokens.held_best
        assert (tokens.predicted or 0) > 200
    assert (fleet.records[0].tokens.predicted, fleet.records[0].tokens.captured) == (0, 0)


async def test_routes_can_be_added() -> None:
    """The page adds its routes to the gateway's server."""

    async def hello(request: web.Request) -> web.Response:
        return web.Response(text="hello")

    async with Harness(extra_routes=[web.get("/", hello)]) as fleet:
        reply = await fleet.get("/")
    assert reply.body == b"hello"


@pytest.mark.parametrize(
    ("remote", "token", "said", "passes"),
    [
        ("127.0.0.1", None, None, True),
        ("::1", None, None, True),
        ("10.0.0.7", None, None, False),
        ("10.0.0.7", None, "Bearer ", False),
        ("10.0.0.7", "secret", None, False),
        ("10.0.0.7", "secret", "Bearer wrong", False),
        ("10.0.0.7", "secret", "Bearer secret", True),
    ],
)
async def test_debug_and_metrics_need_the_token_off_loopback(
    remote: str, token: str | None, said: str | None, passes: bool
) -> None:
    """Whoever is not on loopback needs the admin token; without one configured, nobody passes."""
    harness = Harness(admin_token=token)
    headers = {} if said is None else {"Authorization": said}
    request = make_mocked_request("GET", "/debug/fleet", headers=headers).clone(remote=remote)
    for page in (harness.gateway.pages.fleet, harness.gateway.pages.metrics_page):
        try:
            status = (await page(request)).status
        except ApiError as error:
            status = error.status
        assert status == (200 if passes else 403)


async def test_speculating_replica_that_drafted_nothing_counts_as_nought() -> None:
    """The engine leaves draft counts out where nothing was drafted: known to be 0 where the revision speculates."""
    engine = FakeEngine()
    async with Harness(engine) as fleet:
        fleet.set_replica("r0", engine.url, speculating=True)
        await fleet.post()
        record = await fleet.record()
    drafting = record.drafting
    assert (drafting.drafted, drafting.accepted, drafting.accepted_per_step) == (0, 0, 1.0)


async def test_looping_output_is_noticed() -> None:
    """An output caught in a loop is marked; a plain one is not."""
    engine = FakeEngine(words=("again and again ",) * 40)
    async with Harness(engine) as fleet:
        await fleet.post()
        engine.words = ("A plain sentence", " with an end.")
        await fleet.post(as_body({"stream": False}))
        await fleet.record(of=2)
    assert [record.looping for record in fleet.records] == [True, False]
