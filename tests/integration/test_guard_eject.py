"""A replica that fails is left out, tried again with care, and comes back; never are all of them out."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable

import pytest
from fake_engine import FakeEngine, Script, Seen, answer_of, die, stream_of, whole
from harness import SECRET, Harness, until

from trimtab.core.config import GuardConfig
from trimtab.core.types import Health, ReplicaState
from trimtab.policies.loadstate import LoadState
from trimtab.policies.outliers import HealthChange
from trimtab.runtime.guard import Guard

BROKEN = answer_of(whole(500, b'{"error": {"message": "out of memory"}}'))
CUT = stream_of([b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'], ends=False)


def guard(
    heard: list[HealthChange] | None = None, *, ejection_s: float = 60.0
) -> Callable[[LoadState], Guard]:
    """Return what makes a guard that tells its changes, without retries: failures stay to be seen."""
    config = GuardConfig(ejection_s=ejection_s, eject_after=3, trials_to_pass=2, retries_max=0)
    on_change = (heard if heard is not None else []).append
    return lambda load: Guard(
        places=100, load=load, secret=SECRET, guard=config, on_change=on_change
    )


async def ask(fleet: Harness, times: int) -> list[int]:
    """Return the statuses of requests, one after another."""
    return [(await fleet.post({"stream": True})).status for _ in range(times)]


@pytest.mark.parametrize("script", [BROKEN, die, CUT])
async def test_a_failing_replica_is_left_out_and_the_others_serve(script: Script) -> None:
    """Errors, dropped connections and cut streams: after three in a row it gets nothing, and the page says so."""
    bad, good = FakeEngine(script=script), FakeEngine()
    async with Harness(bad, good, guard=guard()) as fleet:
        await ask(fleet, 6)
        before = len(bad.requests)
        assert await ask(fleet, 10) == [200] * 10
        page = (await fleet.get("/debug/fleet")).json
        health = await fleet.get("/healthz")
    assert (before, len(bad.requests)) == (3, 3)
    assert [replica["state"] for replica in page["replicas"]] == ["ejected", "ready"]
    assert health.json == {"status": "ok", "ready": 1}


async def test_an_ejected_replica_comes_back_when_its_trials_end_well() -> None:
    """After its time it is tried, one request at a time; two good ones and it is ready."""
    heard: list[HealthChange] = []
    bad, good = FakeEngine(script=BROKEN), FakeEngine()
    async with Harness(bad, good, guard=guard(heard, ejection_s=0.2)) as fleet:
        await ask(fleet, 6)
        assert fleet.load.ready() == ("r1",)
        bad.script = None
        await asyncio.sleep(0.25)
        assert set(await ask(fleet, 8)) == {200}
        assert fleet.load.ready() == ("r0", "r1")
    assert [change.health for change in heard] == [Health.EJECTED, Health.HALF_OPEN, Health.HEALTHY]


async def test_a_failed_trial_sends_it_out_again_for_longer() -> None:
    """The trial costs one request; then nothing goes there for twice the time."""
    heard: list[HealthChange] = []
    bad, good = FakeEngine(script=BROKEN), FakeEngine()
    async with Harness(bad, good, guard=guard(heard, ejection_s=0.2)) as fleet:
        await ask(fleet, 6)
        await asyncio.sleep(0.25)
        statuses = await ask(fleet, 6)
    assert statuses.count(500) == 1
    lengths = [change.until_s - change.at_s for change in heard if change.until_s is not None]
    assert lengths == pytest.approx([0.2, 0.4])


async def test_while_a_trial_runs_no_other_request_goes_there() -> None:
    """Ten at once meet a half-open replica: one of them is the trial."""
    bad, good = FakeEngine(script=BROKEN), FakeEngine()
    async with Harness(bad, good, guard=guard(ejection_s=0.2)) as fleet:
        await ask(fleet, 6)
        bad.script, bad.pause_s = None, 0.1
        before = len(bad.requests)
        await asyncio.sleep(0.25)
        waiting = [asyncio.create_task(fleet.post()) for _ in range(10)]
        await until(lambda: len(bad.requests) + len(good.requests) - before >= 10)
        trials = len(bad.requests) - before
        assert {reply.status for reply in await asyncio.gather(*waiting)} == {200}
    assert trials == 1


async def test_where_all_fail_somebody_is_still_asked() -> None:
    """Three broken replicas: one may be left out, the request is tried and its error told."""
    engines = [FakeEngine(script=BROKEN) for _ in range(3)]
    async with Harness(*engines, guard=guard()) as fleet:
        assert await ask(fleet, 30) == [500] * 30
        assert len(fleet.load.ready()) == 2


async def test_the_last_ready_replica_serves_though_it_is_ejected() -> None:
    """The healthy one goes away for another reason: a replica in doubt is better than none."""
    bad, good = FakeEngine(script=BROKEN), FakeEngine()
    async with Harness(bad, good, guard=guard()) as fleet:
        await ask(fleet, 6)
        bad.script = None
        fleet.set_replica("r1", good.url, ReplicaState.RESTARTING)
        assert await ask(fleet, 3) == [200] * 3


async def test_clients_that_leave_do_not_eject_a_replica() -> None:
    """Twenty aborted streams say nothing about who served them."""
    engine = FakeEngine(pause_s=0.05)
    async with Harness(engine, FakeEngine(), guard=guard()) as fleet:
        for number in range(20):
            async with fleet.client.post(
                fleet.url + "/v1/chat/completions",
                data=json.dumps({"messages": [], "stream": True}).encode(),
            ) as response:
                await response.content.readany()
            await fleet.record(of=number + 1)
        assert fleet.load.ready() == ("r0", "r1")


async def test_a_wrong_request_does_not_eject_a_replica() -> None:
    """A client that asks nonsense a hundred times takes no replica from the others."""
    refuses = answer_of(whole(400, b'{"error": {"message": "no"}}'))
    engines = FakeEngine(script=refuses), FakeEngine(script=refuses)
    async with Harness(*engines, guard=guard()) as fleet:
        await ask(fleet, 20)
        assert fleet.load.ready() == ("r0", "r1")


async def test_a_stream_that_fails_midway_counts_once() -> None:
    """One failure for each dispatch: two cut streams do not make three."""

    async def cut(seen: Seen) -> AsyncIterator[bytes]:
        async for part in CUT(seen):
            yield part

    async with Harness(FakeEngine(script=cut), FakeEngine(), guard=guard()) as fleet:
        await ask(fleet, 4)
        assert fleet.load.ready() == ("r0", "r1")
        await ask(fleet, 2)
        assert fleet.load.ready() == ("r1",)
