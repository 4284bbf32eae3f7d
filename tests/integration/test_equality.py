"""Finished requests are asked again on the side: differences are counted, texts are not kept."""

from collections.abc import AsyncIterator, Callable

import aiohttp
import msgspec
import pytest
import pytest_asyncio
from aiohttp import web
from aiohttp.test_utils import TestServer
from rollout_kit import served

from trimtab.core.record import RequestRecord, Tokens
from trimtab.core.types import Arm, ErrorClass
from trimtab.engines.llamacpp import LlamaCppFormat
from trimtab.runtime.equality import WAITING_MAX, EqualityCounts, EqualityProbe

PATH = "/v1/chat/completions"
Answer = Callable[[int], str]


class Replica:
    """Answers the n-th request with what `answer` says, and keeps what it was asked."""

    def __init__(self) -> None:
        self.answer: Answer = lambda _: "the same"
        self.status = 200
        self.is_garbled = False
        self.asked: list[dict[str, object]] = []

    async def handle(self, request: web.Request) -> web.Response:
        """Answer as a chat completion."""
        body = await request.json()
        self.asked.append(body)
        if self.is_garbled:
            return web.Response(text="no JSON")
        text = self.answer(len(self.asked))
        choice = {"index": 0, "message": {"role": "assistant", "content": text}}
        answer = {"choices": [{**choice, "finish_reason": "stop"}], "object": "chat.completion"}
        return web.json_response(answer, status=self.status)


class Bench:
    """A probe between a baseline replica and a candidate replica on loopback."""

    def __init__(self, probe: EqualityProbe, urls: tuple[str, str]) -> None:
        self.baseline, self.candidate = Replica(), Replica()
        self.probe = probe
        self.urls = urls

    def offer(self, question: str = "q", **changes: object) -> None:
        """Offer a finished request of the baseline at temperature 0."""
        body = {
            "messages": [{"role": "user", "content": question}],
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": 400,
        }
        record = msgspec.structs.replace(plain(), **changes)
        self.probe.offer(record, PATH, msgspec.json.encode(body))

    async def once(self) -> bool:
        """Probe once."""
        return await self.probe.run_once(lambda _: self.urls[1], lambda _: self.urls[0])


def digest(text: bytes) -> str:
    return f"digest of {len(text)} bytes ending {text[-1:].hex()}"


def plain() -> RequestRecord:
    """A request that the baseline answered with "the same"."""
    return msgspec.structs.replace(
        served(None, Arm.BASELINE, prompt=500), output_hash=digest(b"the same")
    )


@pytest_asyncio.fixture
async def bench() -> AsyncIterator[Bench]:
    """Two servers and a session, all closed afterwards."""
    servers: list[TestServer] = []
    made: list[Bench] = []

    def app_of(which: int) -> web.Application:
        async def handle(request: web.Request) -> web.Response:
            return await (made[0].baseline, made[0].candidate)[which].handle(request)

        app = web.Application()
        app.router.add_post(PATH, handle)
        return app

    for which in range(2):
        server = TestServer(app_of(which))
        await server.start_server()
        servers.append(server)
    async with aiohttp.ClientSession() as session:
        probe = EqualityProbe(session, LlamaCppFormat(), digest)
        first, second = (str(server.make_url("")).rstrip("/") for server in servers)
        made.append(Bench(probe, (first, second)))
        yield made[0]
    for server in servers:
        await server.close()


async def test_equal_outputs_are_counted_as_such(bench: Bench) -> None:
    """One probe, nothing differs; each arm is asked once."""
    bench.offer()
    assert await bench.once()
    assert bench.probe.counts == EqualityCounts(n=1)
    assert (len(bench.baseline.asked), len(bench.candidate.asked)) == (1, 1)


async def test_candidate_that_answers_otherwise_differs(bench: Bench) -> None:
    """The noise floor stays at zero."""
    bench.candidate.answer = lambda _: "another"
    bench.offer()
    await bench.once()
    assert bench.probe.counts == EqualityCounts(n=1, candidate_differs=1)


async def test_baseline_that_differs_from_itself_raises_the_floor(bench: Bench) -> None:
    """Both arms are compared with the answer that was given in traffic."""
    bench.baseline.answer = lambda _: "noise"
    bench.offer()
    await bench.once()
    assert bench.probe.counts == EqualityCounts(n=1, floor_differs=1)


@pytest.mark.parametrize("broken", ["status", "garbage"])
async def test_answer_that_cannot_be_had_is_a_failure_and_no_difference(
    bench: Bench, broken: str
) -> None:
    """An overloaded replica says nothing about outputs."""
    if broken == "status":
        bench.candidate.status = 503
    else:
        bench.candidate.is_garbled = True
    bench.offer()
    assert await bench.once()
    assert bench.probe.counts == EqualityCounts(failed=1)


async def test_replica_that_is_gone_is_a_failure(bench: Bench) -> None:
    """Nothing listens there; the probe does not raise."""
    bench.urls = (bench.urls[0], "http://127.0.0.1:1")
    bench.offer()
    assert await bench.once()
    assert bench.probe.counts == EqualityCounts(failed=1)


async def test_probe_asks_for_the_whole_answer_in_one_piece(bench: Bench) -> None:
    """Nothing else of the request is changed, so that the answer can be the one given in traffic."""
    bench.offer("what is this?")
    await bench.once()
    expected = {
        "messages": [{"role": "user", "content": "what is this?"}],
        "temperature": 0,
        "stream": False,
        "max_tokens": 400,
    }
    assert bench.candidate.asked == [expected]
    assert bench.baseline.asked == [expected]


async def test_shortest_prompt_is_asked_and_the_others_are_let_go(bench: Bench) -> None:
    """It costs real traffic the least; a second probe has nothing to ask."""
    for question, prompt in (("long", 900), ("short", 20), ("middle", 300)):
        bench.offer(question, tokens=Tokens(prompt=prompt, output=9))
    assert await bench.once()
    (asked,) = bench.candidate.asked
    assert asked["messages"] == [{"role": "user", "content": "short"}]
    assert not await bench.once()


async def test_only_complete_answers_of_the_baseline_at_temperature_0_are_asked_again(
    bench: Bench,
) -> None:
    """Sampled ones differ by themselves, and the candidate's are not the measure."""
    bench.offer(temperature=0.7)
    bench.offer(temperature=None)
    bench.offer(arm=Arm.CANDIDATE)
    bench.offer(replica=None)
    bench.offer(output_hash=None)
    bench.offer(error=ErrorClass.STREAM_TRUNCATED)
    assert not await bench.once()
    assert bench.baseline.asked == []


async def test_without_a_free_replica_nothing_is_counted(bench: Bench) -> None:
    """Neither as a probe nor as a failure."""
    bench.offer()
    assert not await bench.probe.run_once(lambda _: None, lambda _: bench.urls[0])
    assert bench.probe.counts == EqualityCounts()


async def test_waiting_requests_are_bounded_and_the_newest_stay(bench: Bench) -> None:
    """The oldest, though the cheapest, has fallen out."""
    for number in range(WAITING_MAX + 1):
        bench.offer(str(number), tokens=Tokens(prompt=10 + number, output=9))
    await bench.once()
    assert bench.candidate.asked[0]["messages"] == [{"role": "user", "content": "1"}]


async def test_neither_bodies_nor_texts_are_kept(bench: Bench) -> None:
    """After a probe nothing that the probe holds contains the prompt or the answer."""
    bench.baseline.answer = bench.candidate.answer = lambda _: "SECRET ANSWER"
    bench.offer("SECRET QUESTION")
    await bench.once()
    held = repr({name: value for name, value in vars(bench.probe).items() if name != "_session"})
    assert "SECRET" not in held


async def test_next_lever_starts_at_zero(bench: Bench) -> None:
    """Counts and waiting requests of the last one are gone."""
    bench.offer()
    await bench.once()
    bench.offer()
    bench.probe.reset()
    assert bench.probe.counts == EqualityCounts()
    assert not await bench.once()
