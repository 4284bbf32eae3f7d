"""The self-test of the isolation between tenants: asks every replica what its cache does with two salts.

For each replica a prompt of random words, never asked before, goes there three times: for one tenant, for the same
again, for another one. The engine's own count of cached tokens says whether the same tenant hits and the other does
not (`core.tenants.judge_isolation`). Two tenants are made up for it, with salts made like all others and sent by the
edit that all requests get. Where a cache is off, or not reported, nothing is proven, and that is what is said.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import msgspec

from trimtab.core.ports import EngineFormat, EngineFormatError
from trimtab.core.tenants import (
    IsolationProbe,
    IsolationVerdict,
    judge_isolation,
    salt_of,
    worst,
)
from trimtab.policies.loadstate import LoadState
from trimtab.runtime.secret import Secret
from trimtab.runtime.upstream import Upstream

ROUTE: Final = "/debug/isolation"
PATH: Final = "/v1/chat/completions"
SALT_PURPOSE: Final = "tenant salts"
WORDS: Final = 96
"""About 500 tokens: longer than a block of the usual engines (16 to 64 tokens), shorter than a small context."""

ANSWER_S_MAX: Final = 120.0

Ask = Callable[[str, str, bytes], Awaitable[tuple[int, bytes]]]
"""Sends a body to a replica's base URL and path; returns status and body. May raise RuntimeError with the reason."""


class ReplicaIsolation(msgspec.Struct, frozen=True, kw_only=True):
    """What the self-test saw on one replica."""

    replica: str
    verdict: IsolationVerdict
    because: str
    probe: IsolationProbe | None = None


class IsolationReport(msgspec.Struct, frozen=True, kw_only=True):
    """What the self-test saw on all of them. `n`: replicas that were asked."""

    verdict: IsolationVerdict
    n: int
    replicas: tuple[ReplicaIsolation, ...]


class _AskError(RuntimeError):
    """A replica did not answer as it must."""


async def check_isolation(
    replicas: Mapping[str, str], model: str, engine: EngineFormat, salt_key: bytes, ask: Ask
) -> IsolationReport:
    """Ask every replica (id to base URL), one after another; an error of one is its own verdict."""
    found = [
        await _one(replica, url, model, engine, salt_key, ask)
        for replica, url in sorted(replicas.items())
    ]
    return IsolationReport(
        verdict=worst(one.verdict for one in found), n=len(found), replicas=tuple(found)
    )


async def _one(
    replica: str, url: str, model: str, engine: EngineFormat, salt_key: bytes, ask: Ask
) -> ReplicaIsolation:
    run = os.urandom(8).hex()
    salts = [salt_of(f"selftest-{who}-{run}", salt_key) for who in ("one", "other")]
    body = _body(model)
    try:
        async with asyncio.timeout(ANSWER_S_MAX):
            first, tokens = await _cached(url, body, salts[0], engine, ask)
            same, _ = await _cached(url, body, salts[0], engine, ask)
            other, _ = await _cached(url, body, salts[1], engine, ask)
    except TimeoutError:
        because = f"it did not answer three requests within {ANSWER_S_MAX:g} s"
        return ReplicaIsolation(replica=replica, verdict=IsolationVerdict.ERROR, because=because)
    except RuntimeError as error:
        return ReplicaIsolation(replica=replica, verdict=IsolationVerdict.ERROR, because=str(error))
    probe = IsolationProbe(prompt_tokens=tokens, first=first, same=same, other=other)
    verdict, because = judge_isolation(probe)
    return ReplicaIsolation(replica=replica, verdict=verdict, because=because, probe=probe)


def _body(model: str) -> bytes:
    words = " ".join(os.urandom(3).hex() for _ in range(WORDS))
    return msgspec.json.encode(
        {
            "model": model,
            "messages": [{"role": "user", "content": words}],
            "max_tokens": 1,
            "temperature": 0,
        }
    )


async def _cached(
    url: str, body: bytes, salt: str, engine: EngineFormat, ask: Ask
) -> tuple[int | None, int | None]:
    """Return the cached and the prompt tokens that a replica reports for a body under a salt."""
    salted = engine.edit_request(body, include_usage=False, id_slot=None, cache_salt=salt)
    status, answer = await ask(url, PATH, salted)
    if status != 200:
        raise _AskError(f"it answered with status {status}")
    try:
        report = engine.read_response(answer).report
    except EngineFormatError as error:
        raise _AskError(str(error)) from error
    return (None, None) if report is None else (report.cached_tokens, report.prompt_tokens)


def tested_through(
    load: LoadState,
    model: Callable[[], str],
    engine: EngineFormat,
    secret: Secret,
    upstream: Upstream,
) -> Callable[[], Awaitable[IsolationReport]]:
    """Return what tests the replicas that are ready when it is called, with the salts' own key."""

    async def test() -> IsolationReport:
        ready = load.ready()
        urls = {one.id: one.url for one in load.view(0.0).replicas if one.id in ready}
        key = secret.derive(SALT_PURPOSE)
        return await check_isolation(urls, model(), engine, key, ask_through(upstream))

    return test


def ask_through(upstream: Upstream) -> Ask:
    """Return a way to ask replicas as the gateway asks them, with its connections, limits and keys."""

    async def ask(url: str, path: str, body: bytes) -> tuple[int, bytes]:
        headers = [(b"Content-Type", b"application/json"), (b"Accept-Encoding", b"identity")]
        async with upstream.send(url, path.encode(), body, headers, stream=False) as answer:
            return answer.status, await answer.read()

    return ask
