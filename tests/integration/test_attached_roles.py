"""Roles of attached servers: by routing alone, drained first, and only where the server can hand KV over."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from fake_nixl import FakeNixl
from harness import CHAT, until
from nixl_pair import DECODE, NOTHING, PREFILL, NixlPair, text_of
from test_handover_nixl import long_body, state

from trimtab.core.events import ReplicaChanged, RolesDecided
from trimtab.core.ports import LaunchError
from trimtab.core.served import Counter, EngineKind, RankSample, ServerSample
from trimtab.core.types import ReplicaState, Role
from trimtab.runtime.role_keeper import RoleRefusedError


@asynccontextmanager
async def pair_of(
    folder: Path, *, has_connector: bool = True
) -> AsyncIterator[tuple[NixlPair, FakeNixl, FakeNixl]]:
    """Two fake servers, one of which prefills for the other."""
    prefill, decode = FakeNixl(has_connector=has_connector), FakeNixl()
    decode.peers, prefill.peers = [prefill], [decode]
    await prefill.start()
    await decode.start()
    try:
        async with NixlPair(folder, prefill.url, decode.url) as pair:
            await until(lambda: all(state(pair, one) for one in (PREFILL, DECODE)))
            yield pair, prefill, decode
    finally:
        await prefill.stop()
        await decode.stop()


def roles(pair: NixlPair) -> dict[str, Role]:
    """The role of each server now."""
    return {info.id: info.role for info in pair.system.fleet.infos()}


async def test_server_takes_another_role_by_routing_and_what_is_asked_then_is_whole(
    tmp_path: Path,
) -> None:
    """Once it serves whole requests nothing is sent ahead any more; given back, prompts travel to it again."""
    async with pair_of(tmp_path) as (pair, _, decode):
        await pair.post(CHAT, long_body("before"))
        done = await pair.system.roles.set_role(PREFILL, Role.MIXED)
        status, answer = await pair.post(CHAT, long_body("mixed"))
        ahead = len(pair.told)
        await pair.system.roles.set_role(PREFILL, Role.PREFILL)
        await pair.post(CHAT, long_body("again"))
        await pair.records(3)
        assert done.roles == {PREFILL: Role.MIXED, DECODE: Role.DECODE}
        assert (status, text_of(answer)) == (200, "".join(("mixed0", *decode.words)))
        assert (ahead, len(pair.told), pair.left_over) == (1, 2, NOTHING)
        assert roles(pair)[PREFILL] is Role.PREFILL
        events = [one.event for one in pair.system.ledger.read()]
    asked = [one for one in events if isinstance(one, RolesDecided)]
    changed = [one for one in events if isinstance(one, ReplicaChanged) and one.replica == PREFILL]
    assert [one.role for one in asked] == [Role.MIXED, Role.PREFILL]
    assert [(one.state, one.role) for one in changed if "serves as" in one.reason] == [
        (ReplicaState.READY, Role.MIXED),
        (ReplicaState.READY, Role.PREFILL),
    ]


async def test_last_server_that_takes_whole_requests_keeps_its_role(tmp_path: Path) -> None:
    """Nobody would answer otherwise; the refusal says so and both serve on."""
    async with pair_of(tmp_path) as (pair, _, _):
        with pytest.raises(LaunchError, match="no other takes whole requests"):
            await pair.system.roles.set_role(DECODE, Role.PREFILL)
        with pytest.raises(RoleRefusedError, match="prefills already"):
            await pair.system.roles.set_role(PREFILL, Role.PREFILL)
        assert roles(pair) == {PREFILL: Role.PREFILL, DECODE: Role.DECODE}
        assert (await pair.post(CHAT, long_body("on")))[0] == 200


async def test_checks_of_a_server_that_drains_do_not_end_its_draining(tmp_path: Path) -> None:
    """It is looked at again and again meanwhile, and gets no new request before it has its new role."""
    async with pair_of(tmp_path) as (pair, _, _):
        fleet = pair.system.fleet
        busy = [1]
        fleet._in_flight = lambda replica: busy[0] if replica == PREFILL else 0
        changing = asyncio.create_task(pair.system.roles.set_role(PREFILL, Role.MIXED))
        await until(lambda: fleet.info(PREFILL).state is ReplicaState.DRAINING)
        # Several checks long.
        await asyncio.sleep(0.2)
        assert fleet.info(PREFILL).state is ReplicaState.DRAINING
        busy[0] = 0
        await changing
        assert (fleet.info(PREFILL).state, roles(pair)[PREFILL]) == (
            ReplicaState.READY,
            Role.MIXED,
        )


async def test_server_that_does_not_drain_in_time_serves_on_in_its_role(tmp_path: Path) -> None:
    """The error says so."""
    async with pair_of(tmp_path) as (pair, _, _):
        fleet = pair.system.fleet
        fleet._in_flight = lambda _: 1
        with pytest.raises(LaunchError, match="did not drain"):
            await fleet.take_role(PREFILL, Role.MIXED, fleet.revision, drain_timeout_s=0.05)
        assert (fleet.info(PREFILL).state, roles(pair)[PREFILL]) == (
            ReplicaState.READY,
            Role.PREFILL,
        )


async def test_server_without_a_connector_takes_no_role(tmp_path: Path) -> None:
    """Its page shows no means to hand KV over, and the refusal says what it would need."""
    async with pair_of(tmp_path, has_connector=False) as (pair, _, _):
        with pytest.raises(LaunchError, match="without a KV connector"):
            await pair.system.roles.set_role(PREFILL, Role.MIXED)
        assert roles(pair)[PREFILL] is Role.PREFILL


@pytest.mark.parametrize(
    ("counters", "known"),
    [
        ({}, False),
        ({Counter.OUTPUT_TOKENS: 100.0}, True),
        ({Counter.OUTPUT_TOKENS: 100.0, Counter.ACCEPTED_TOKENS: 40.0}, False),
    ],
)
async def test_answers_of_a_server_are_steps_of_one_token_only_where_its_page_shows_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    counters: dict[Counter, float],
    known: bool,
) -> None:
    """vLLM counts no drafts in its answers, and has counters of them on its page wherever it drafts."""
    async with pair_of(tmp_path) as (pair, _, _):
        await pair.post(CHAT, long_body("once"))
        [record] = await pair.records(1)
        rank = RankSample(rank="0", counters=counters)
        page = ServerSample(source="d", at_s=1.0, engine=EngineKind.VLLM, ranks=(rank,))
        monkeypatch.setattr(pair.system.fleet, "sample", lambda _: page)
        assert record.replica == DECODE
        assert pair.system.roles.tokens_per_step(record) == (1.0 if known else None)
        gone = msgspec.structs.replace(record, replica="gone")
        assert pair.system.roles.tokens_per_step(gone) is None


async def test_what_a_page_told_of_drafts_holds_until_another_tells_or_the_process_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page that is missing for a moment, or lacks the count, makes no answer one of unknown steps."""

    def page_of(counters: dict[Counter, float]) -> ServerSample:
        rank = RankSample(rank="0", counters=counters)
        return ServerSample(source="d", at_s=1.0, engine=EngineKind.VLLM, ranks=(rank,))

    plain = page_of({Counter.OUTPUT_TOKENS: 100.0})
    drafting = page_of({Counter.OUTPUT_TOKENS: 100.0, Counter.ACCEPTED_TOKENS: 40.0})
    async with pair_of(tmp_path) as (pair, _, _):
        await pair.post(CHAT, long_body("once"))
        [record] = await pair.records(1)
        fleet, found = pair.system.fleet, []
        for page in (None, plain, None, page_of({}), drafting, None, plain):
            monkeypatch.setattr(fleet, "sample", lambda _, page=page: page)
            found.append(pair.system.roles.tokens_per_step(record))
        info = msgspec.structs.replace(fleet.info(DECODE), crashes=1)
        monkeypatch.setattr(fleet, "sample", lambda _: None)
        found.append(pair.system.roles.tokens_per_step(record))
        monkeypatch.setattr(fleet, "info", lambda _: info)
        found.append(pair.system.roles.tokens_per_step(record))
        monkeypatch.undo()
    assert found == [None, 1.0, 1.0, 1.0, None, None, 1.0, 1.0, None]
