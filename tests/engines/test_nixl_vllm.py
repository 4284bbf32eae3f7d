"""Two real vLLM servers on this machine's CPUs, one prefilling for the other by NIXL, driven by the gateway.

They are started once for all tests here; the last one kills the prefill server.
"""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest
import pytest_asyncio
from nixl_pair import DECODE, NOTHING, PREFILL, NixlPair, text_of

from trimtab.core.config import GatewayConfig
from trimtab.core.decision import ReplicaView
from trimtab.core.handover import HandOverCause, HandOverOutcome, Parcel
from trimtab.core.ports import Prefill
from trimtab.core.served import Counter, Gauge
from trimtab.core.types import ReplicaState, Role
from trimtab.engines.openai import edit_request
from trimtab.engines.served import read_sample
from trimtab.engines.vllm import KvRole, VllmLaunch
from trimtab.runtime.clock import SystemClock
from trimtab.runtime.nixl import NixlTransfer
from trimtab.runtime.upstream import Upstream
from trimtab.runtime.vllm_env import SMOLLM2, find_environment
from trimtab.runtime.vllm_launcher import Running, VllmLauncher

pytestmark = [
    pytest.mark.engine_vllm,
    pytest.mark.alone,
    pytest.mark.timeout(900),
    pytest.mark.asyncio(loop_scope="module"),
]

PATH = "/v1/completions"
LEASE_S = 30
SENTENCE = (
    "The tide rose over the flats and the keeper of the light wrote down what he saw that night. "
)
SENTENCES = 66
"""They make 1,324 tokens or a few more."""

PROMPT_TOKENS_MIN = 1300
SOME_SENTENCES, SOME_TOKENS_MIN = 26, 500
"""Where the length is not the point: one core prefills a few hundred tokens a second."""

DTYPE = "float32"
"""Not the checkpoint's bfloat16: a CPU without instructions for that prefills 66 tokens a second in it, and 220 so."""

KV_BYTES_PER_TOKEN = 46_080
"""30 layers of 3 KV heads of 64, keys and values in four bytes each."""

BLOCK_TOKENS = 128
PATIENCE_S = 240
PATIENT = {"prefill_timeout_s": PATIENCE_S, "transfer_timeout_s": PATIENCE_S / 2}
"""Of the gateway's hand-overs: by default a prefill that takes this long is given up, and the prompt stays local."""


class Servers(NamedTuple):
    """The launcher and what it started."""

    launcher: VllmLauncher
    prefill: Running
    decode: Running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def servers() -> AsyncIterator[Servers]:
    """Both servers, each warmed up: the first request after a start is slow."""
    cpus = sorted(os.sched_getaffinity(0))

    def launch(number: int) -> VllmLaunch:
        return VllmLaunch(
            model=SMOLLM2,
            served_name="m",
            port=0,
            dtype=DTYPE,
            context_tokens=2048,
            kv_cache_bytes=2**28,
            kv_role=KvRole.BOTH,
            kv_lease_s=LEASE_S,
            threads=str(cpus[number % len(cpus)]),
        )

    async with VllmLauncher(
        clock=SystemClock(), environment=find_environment(), start_timeout_s=300
    ) as launcher:
        prefill, decode = await asyncio.gather(
            launcher.start(launch(0), name=PREFILL), launcher.start(launch(1), name=DECODE)
        )
        for one in (prefill, decode):
            await asked(one.url, body("warm", sentences=1))
        yield Servers(launcher, prefill, decode)


def body(tag: str, *, sentences: int = SENTENCES, **fields: Any) -> dict[str, Any]:
    """Return a request whose answer is certain: its prompt says one sentence again and again."""
    prompt = f"Log {tag}. " + SENTENCE * sentences
    # So few that the answer ends within a sentence: what follows one is a close call for the model.
    more = {"max_tokens": 16, "temperature": 0, "seed": 7, **fields}
    return {"model": "m", "prompt": prompt, **more}


async def asked(url: str, what: dict[str, Any] | bytes) -> tuple[int, bytes]:
    """Ask a server itself."""
    data = what if isinstance(what, bytes) else None
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PATIENCE_S)) as client,
        client.post(
            url + PATH,
            json=None if data else what,
            data=data,
            headers={"content-type": "application/json"},
        ) as answer,
    ):
        return answer.status, await answer.read()


async def counted(url: str, what: Counter) -> float:
    """Return one of a server's counters."""
    return (await page(url)).counter_sum(what) or 0.0


async def page(url: str) -> Any:
    async with aiohttp.ClientSession() as client, client.get(f"{url}/metrics") as answer:
        return read_sample(await answer.read(), source="test", at_s=1.0)


def view(one: Running, role: Role) -> ReplicaView:
    return ReplicaView(
        id=one.name, url=one.url, role=role, revision="vllm-1", state=ReplicaState.READY, slots=8
    )


async def until_kv_is_free(url: str) -> float:
    """Return the share of KV in use once it is none, or after a while."""
    used = 1.0
    for _ in range(4 * LEASE_S):
        used = (await page(url)).gauge_sum(Gauge.KV_USED_SHARE) or 0.0
        if not used:
            break
        # The engine looks for leases that are over when it works.
        await asked(url, body("short", sentences=1, max_tokens=1))
        await asyncio.sleep(0.5)
    return used


@pytest.mark.parametrize("stream", [True, False])
async def test_prompt_prefilled_on_one_server_gives_the_same_text_on_another(
    servers: Servers, tmp_path: Path, stream: bool
) -> None:
    """All of the prompt is fetched, none computed twice; bytes and times are told; a second time it is a local hit.

    Both prompts are as long: a gateway's first look tells the mean fetch since the server's start.
    """
    url = servers.decode.url
    what = body(f"same {stream}")
    # Computed there under a salt of its own: nothing of it is found by the request that is handed over.
    _, local = await asked(url, {**what, "cache_salt": "apart"})
    before = await counted(url, Counter.EXTERNAL_HITS)
    options = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    async with NixlPair(
        tmp_path,
        servers.prefill.url,
        url,
        every_s=0.5,
        settings={**PATIENT, "parcel_lease_s": PATIENCE_S},
    ) as pair:
        status, answer = await pair.post(PATH, {**what, **options})
        (record,) = await pair.records()
        told, left = pair.told, pair.left_over
        again, _ = await asked(url, what)
    hits = await counted(url, Counter.EXTERNAL_HITS) - before
    assert (status, text_of(answer)) == (200, text_of(local))
    assert len(text_of(answer)) > 40
    tokens = record.tokens.prompt
    assert tokens is not None
    assert tokens >= PROMPT_TOKENS_MIN
    assert hits == tokens, told
    one = told[0]
    assert (one.outcome, one.cause, one.source, one.target) == (
        HandOverOutcome.DELIVERED,
        None,
        PREFILL,
        DECODE,
    )
    assert (one.tokens_sent, one.tokens_delivered) == (tokens, tokens)
    blocks = -(-tokens // BLOCK_TOKENS)
    assert one.bytes == blocks * BLOCK_TOKENS * KV_BYTES_PER_TOKEN
    assert one.transfer_ms is not None
    assert one.transfer_ms > 0
    assert one.descriptors == 30
    assert (left, again) == (NOTHING, 200)
    # The second request asked for nothing from elsewhere.
    assert await counted(url, Counter.EXTERNAL_HITS) - before == hits


async def test_second_request_through_the_gateway_is_a_local_hit(
    servers: Servers, tmp_path: Path
) -> None:
    """By prediction, what the decode server holds does not travel: it answers from its own cache."""
    what = body("twice", stream=True)
    async with NixlPair(
        tmp_path, servers.prefill.url, servers.decode.url, every_s=0.5, settings=PATIENT
    ) as pair:
        first = await pair.post(PATH, what)
        pool = pair.system.hand_overs.pool
        pool.rules = type(pool.rules)(chunk_tokens=512)
        second = await pair.post(PATH, what)
        records = await pair.records(2)
        told = pair.told
    assert text_of(first[1]) == text_of(second[1])
    assert [record.prefill_replica for record in records] == [PREFILL, None]
    cached, tokens = records[1].tokens.delivered, records[1].tokens.prompt
    assert cached is not None
    assert tokens is not None
    assert cached >= tokens - BLOCK_TOKENS
    assert len(told) == 1


async def test_parcel_that_nobody_fetches_comes_back_with_its_lease(servers: Servers) -> None:
    """Blocks are kept for the lease and no longer; after it the parcel is not delivered any more."""
    clock, url = SystemClock(), servers.prefill.url
    expired = await counted(url, Counter.TRANSFERS_EXPIRED)
    upstream = Upstream(GatewayConfig())
    await upstream.start()
    try:
        transfer = NixlTransfer(upstream, clock, lease_s=LEASE_S)
        what = body("lease", sentences=SOME_SENTENCES)
        parcel = await prefilled(transfer, servers.prefill, what)
        assert transfer.unfetched(PREFILL) == 1
        assert await until_kv_is_free(url) == 0.0
        assert await counted(url, Counter.TRANSFERS_EXPIRED) == expired + 1
        # The server counts from the end of its prefill, the gateway from when it heard of that.
        await asyncio.sleep(max(0.0, parcel.expires_s - clock.mono_s()))
        assert transfer.unfetched(PREFILL) == 0
    finally:
        await upstream.close()


async def prefilled(transfer: NixlTransfer, source: Running, what: dict[str, Any]) -> Parcel:
    return await transfer.prefill(
        Prefill(
            request_id=f"r-{what.get('stream', False)}",
            path=PATH,
            body=json.dumps(what).encode(),
            headers=((b"Content-Type", b"application/json"),),
            blocks=(),
            prompt_tokens=SOME_TOKENS_MIN,
        ),
        view(source, Role.PREFILL),
        holds=lambda: None,
    )


async def fetched(
    transfer: NixlTransfer, target: Running, parcel: Parcel, what: dict[str, Any]
) -> tuple[int, bytes]:
    """Have a parcel fetched by the request it is for."""
    delivery = await transfer.deliver(parcel, view(target, Role.DECODE), deadline_s=0.0)
    plain = json.dumps(what).encode()
    handed = edit_request(plain, include_usage=False, id_slot=None, fields=delivery.fields)
    return await asked(target.url, handed)


STOPPED_S = 1.0
"""How long a fetch waits for a prefill server that stands still before that is killed: a fetch takes milliseconds."""

FETCH_S = 30.0
"""How long an answer to a fetch is waited for. vLLM 0.32 may never notice that the server it fetches from has died.

Then the request stays where it is, with its blocks, until the decode server starts anew; others are served. The gateway
asks again without KV after `handover.transfer_timeout_s` (tests/integration/test_handover_nixl.py).
"""

UNANSWERED = (0, b"")


async def fetched_in_time(
    transfer: NixlTransfer, target: Running, parcel: Parcel, what: dict[str, Any]
) -> tuple[int, bytes]:
    """Have a parcel fetched; `UNANSWERED` where nothing comes of it."""
    try:
        async with asyncio.timeout(FETCH_S):
            return await fetched(transfer, target, parcel, what)
    except TimeoutError:
        return UNANSWERED


async def killed_while_fetched(
    transfer: NixlTransfer, servers: Servers, parcels: list[Parcel], what: dict[str, Any]
) -> list[tuple[int, bytes]]:
    """Stop the prefill server, have its parcels fetched, kill it while they are; return what the requests got."""
    assert servers.prefill.pid is not None
    os.killpg(servers.prefill.pid, signal.SIGSTOP)
    fetches = [
        asyncio.create_task(
            fetched_in_time(transfer, servers.decode, parcel, {**what, "stream": stream})
        )
        for parcel, stream in zip(parcels, (False, True), strict=True)
    ]
    await asyncio.sleep(STOPPED_S)
    os.killpg(servers.prefill.pid, signal.SIGKILL)
    return await asyncio.gather(*fetches)


async def test_killed_prefill_server_costs_time_and_no_answer(
    servers: Servers, tmp_path: Path
) -> None:
    """Killed while parcels are fetched: the right text, one clean error or nothing, and never another text.

    After that, where the engine noticed, one is fetched: it is refused.

    Killed before: nothing is sent ahead, and the text is the same.
    """
    url, what = servers.decode.url, body("kill", sentences=SOME_SENTENCES)
    _, local = await asked(url, {**what, "cache_salt": "apart"})
    upstream = Upstream(GatewayConfig())
    await upstream.start()
    try:
        # Longer than the server's: what is asked for here is the refusal of a dead one, not of a lease that ended.
        transfer = NixlTransfer(upstream, SystemClock(), lease_s=PATIENCE_S)
        async with NixlPair(tmp_path, servers.prefill.url, url, every_s=0.5) as pair:
            during = body("during", sentences=SOME_SENTENCES)
            _, right = await asked(url, {**during, "cache_salt": "apart"})
            parcels = [
                await prefilled(transfer, servers.prefill, {**each, "stream": stream})
                for each in (what, during)
                for stream in (False, True)
            ]
            broken = await killed_while_fetched(transfer, servers, parcels[2:], during)
            hangs = UNANSWERED in broken
            refused = [
                await fetched(transfer, servers.decode, parcel, {**what, "stream": stream})
                for parcel, stream in zip(parcels[:2], (False, True), strict=True)
                if not hangs
            ]
            through = await pair.post(PATH, what)
            await pair.records()
            told, left = pair.told, pair.left_over
    finally:
        await upstream.close()
    kv_used = 1.0 if hangs else await until_kv_is_free(url)
    for status, answer in broken:
        is_right = (status, text_of(answer)) == (200, text_of(right))
        is_error = (status >= 500 or b'"error"' in answer) and text_of(answer) == ""
        assert is_right or is_error or (status, answer) == UNANSWERED, (status, answer[:400])
    if not hangs:
        # In a stream the refusal comes as an event, after a status of 200.
        assert refused[0][0] >= 500
        assert b'"error"' in refused[1][1]
        assert text_of(refused[1][1]) == ""
        assert kv_used == 0.0
    assert (through[0], text_of(through[1])) == (200, text_of(local))
    assert {(one.outcome, one.cause) for one in told} <= {
        (HandOverOutcome.FAILED, HandOverCause.PREFILL_UNREACHABLE)
    }
    assert left == NOTHING
