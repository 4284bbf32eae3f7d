"""Traffic for the live diagnosis: clients that make different resources bind, and how they are timed.

Every text belongs to a key, so that two clients, loads or runs never share a beginning unless a load wants them to.
"""

import asyncio
import itertools
import json
import statistics
import time
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

import aiohttp

from trimtab.core.cost import CostModel
from trimtab.diagnosis.calibration import PrefillTiming, StepTiming, fit_cost
from trimtab.engines.openai import CHAT_PATH
from trimtab.workloads.words import block_words

OVERLOAD = 2.5
"""Arrivals over what the fleet can serve."""

ARRIVALS_QUICKEN = 1.02
"""Growth of the rate of arrivals with each of them while no queue has formed."""

GROWTH_OUTPUT, GROWTH_ROUNDS = 32, 3
COST_OUTPUT = 24
COST_WORDS = (45, 190, 400)
WAIT_TIMEOUT_S = 150.0
"""The longest wait for a warm fleet, an idle one, or a command."""


class Sizes(NamedTuple):
    """How large a fleet's loads are. Words are about a token each; `in_flight_max` is of a replica's open loop."""

    slots: int
    long_words: int
    decode_output: int
    sessions: int
    context_words: int
    context_output: int
    context_clients: int
    in_flight_max: int
    short_output: int = 8
    arrival_words: int = 12
    arrival_output: int = 24


class Growth(NamedTuple):
    """Milliseconds per token of a stream alone and of `streams` at once."""

    alone_ms: float
    together_ms: float
    streams: int

    @property
    def fixed_share(self) -> float:
        """Part of the step of all streams that does not grow with them."""
        fixed_ms = (self.streams * self.alone_ms - self.together_ms) / (self.streams - 1)
        return max(0.0, fixed_ms) / self.together_ms

    @property
    def resource(self) -> str:
        """What binds a step of all streams."""
        return "memory_bandwidth" if self.fixed_share > 0.5 else "compute"

    def __str__(self) -> str:
        return (
            f"a token takes {self.alone_ms:.1f} ms alone and {self.together_ms:.1f} ms among {self.streams} streams: "
            f"{self.fixed_share:.0%} of the step does not grow, so {self.resource} binds it"
        )


class Timed(NamedTuple):
    """One answer as its client saw it. Milliseconds, tokens."""

    prompt_tokens: int
    first_ms: float
    token_ms: float


class Traffic:
    """Sends requests straight to replicas and remembers them in order; `asked` counts those that ended."""

    def __init__(self, session: aiohttp.ClientSession, model: str) -> None:
        self.sent: list[dict[str, Any]] = []
        self.asked = 0
        self._session = session
        self._model = model

    async def ask(self, url: str, turns: list[str], output_tokens: int) -> None:
        """Send the turns of a conversation, its own first, and read the whole answer."""
        body = self._body(turns, output_tokens)
        self.sent.append(body)
        async with self._session.post(url + CHAT_PATH, json=body) as response:
            answer = await response.read()
            assert response.status == 200, answer
        self.asked += 1

    async def timed(self, url: str, asked: str, output_tokens: int) -> Timed:
        """Send one turn and time its stream."""
        options = {"stream": True, "stream_options": {"include_usage": True}}
        begun, first, prompt_tokens = time.perf_counter(), 0.0, 0
        body = {**self._body([asked], output_tokens), **options}
        async with self._session.post(url + CHAT_PATH, json=body) as response:
            assert response.status == 200, await response.read()
            async for line in response.content:
                if line.startswith(b"data: {"):
                    first = first or time.perf_counter()
                    prompt_tokens = _prompt_tokens(line) or prompt_tokens
        ended = time.perf_counter()
        token_ms = 1000.0 * (ended - first) / max(1, output_tokens - 1)
        return Timed(prompt_tokens, 1000.0 * (first - begun), token_ms)

    async def until(self, asked: int) -> None:
        """Wait until so many requests have ended."""
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            while self.asked < asked:  # noqa: ASYNC110 - a count sets no event
                await asyncio.sleep(0.1)

    def _body(self, turns: list[str], output_tokens: int) -> dict[str, Any]:
        roles = itertools.cycle(("user", "assistant"))
        return {
            "model": self._model,
            "messages": [
                {"role": role, "content": words} for role, words in zip(roles, turns, strict=False)
            ],
            "max_tokens": output_tokens,
            "temperature": 0,
            "ignore_eos": True,
        }


def _prompt_tokens(line: bytes) -> int:
    usage = json.loads(line[6:]).get("usage")
    return int(usage["prompt_tokens"]) if usage else 0


def text(key: str, words: int) -> str:
    """Words that belong to a key alone."""
    return " ".join(block_words(key, words))


async def measured_growth(traffic: Traffic, urls: tuple[str, ...], slots: int) -> Growth:
    """Time one stream and then one per slot, on all replicas at once, in turn; medians."""
    found: dict[int, list[float]] = {1: [], slots: []}
    # The first round computes the prompts, so that no stream's prompt stands in the way of another's steps.
    for turn in range(GROWTH_ROUNDS + 1):
        for streams in found:
            asked = [
                traffic.timed(url, f"Count from {at}.", GROWTH_OUTPUT)
                for url in urls
                for at in range(streams)
            ]
            answers = await asyncio.gather(*asked)
            if turn:
                found[streams] += [answer.token_ms for answer in answers]
    return Growth(statistics.median(found[1]), statistics.median(found[slots]), slots)


async def measured_cost(traffic: Traffic, url: str, slots: int, rounds: int) -> CostModel:
    """Time prefills of three lengths and steps of few and many streams on an idle replica, as its clients see them."""
    prefills: list[PrefillTiming] = []
    steps: list[StepTiming] = []
    for turn in range(rounds + 1):
        for words in COST_WORDS:
            found = await traffic.timed(url, text(f"cost {turn} {words}", words), 1)
            # The first round is slower than all others: the engine allocates.
            prefills += [PrefillTiming(found.prompt_tokens, found.first_ms)] if turn else []
        for batch in {1, slots // 2, slots}:
            asked = [traffic.timed(url, f"Count to {at}.", COST_OUTPUT) for at in range(batch)]
            answers = await asyncio.gather(*asked)
            token_ms = statistics.median(answer.token_ms for answer in answers)
            steps += [StepTiming(batch, token_ms)] if turn else []
    return fit_cost(prefills, steps, source=f"measured on {url} by its clients")


class Load(NamedTuple):
    """A way to use the fleet: what each client of a replica does, and what must be found.

    `warm_requests`: so many requests of the fleet end before the window begins.
    """

    name: str
    clients: int
    client: "Client"
    warm_requests: int
    expected: str


Client = Callable[[Traffic, str, str], Coroutine[Any, Any, None]]
"""(traffic, URL of the replica, a name of its own); asks until it is cancelled."""


def long_prompts(sizes: Sizes) -> Client:
    """Prompts that share nothing, one after the other."""

    async def client(traffic: Traffic, url: str, name: str) -> None:
        for number in itertools.count():
            asked = text(f"{name} {number}", sizes.long_words)
            await traffic.ask(url, [asked], sizes.short_output)

    return client


def short_decodes(sizes: Sizes) -> Client:
    """The same instruction with a few words of its own each time."""

    async def client(traffic: Traffic, url: str, name: str) -> None:
        for number in itertools.count():
            asked = f"Tell a short story with these words: {text(f'{name} {number}', 4)}"
            await traffic.ask(url, [asked], sizes.decode_output)

    return client


def evicted_context(sizes: Sizes) -> Client:
    """Sessions in turn, each with its own context before another question."""

    async def client(traffic: Traffic, url: str, name: str) -> None:
        for number in itertools.count():
            turn, session = divmod(number, sizes.sessions // sizes.context_clients)
            context = text(f"{name} {session}", sizes.context_words)
            turns = [context, "Read.", text(f"ask {turn}", 8)]
            await traffic.ask(url, turns, sizes.short_output)

    return client


def growing_context(sizes: Sizes) -> Client:
    """Answers that grow until the contexts that run at once do not fit together; lengths differ by a quarter."""

    async def client(traffic: Traffic, url: str, name: str) -> None:
        for number in itertools.count():
            asked = text(f"{name} {number}", sizes.context_words)
            part = 1.0 - 0.25 * (sum(map(ord, f"{name} {number}")) % 5) / 4
            await traffic.ask(url, [asked], int(part * sizes.context_output))

    return client


def arrivals(sizes: Sizes, per_s: float) -> Client:
    """Requests at a steady rate, whether or not those before them have ended.

    Up to the first queue of half of what may be in flight the rate rises, for a fleet may be faster than it was timed.
    """

    async def client(traffic: Traffic, url: str, name: str) -> None:
        rate, queued = per_s, False
        async with asyncio.TaskGroup() as group:
            flying: set[asyncio.Task[Any]] = set()
            for number in itertools.count():
                queued = queued or len(flying) >= sizes.in_flight_max // 2
                rate *= 1.0 if queued else ARRIVALS_QUICKEN
                if len(flying) < sizes.in_flight_max:
                    asked = [text(f"{name} {number}", sizes.arrival_words)]
                    task = group.create_task(traffic.ask(url, asked, sizes.arrival_output))
                    flying.add(task)
                    task.add_done_callback(flying.discard)
                await asyncio.sleep(1.0 / rate)

    return client


def arrivals_per_s(sizes: Sizes, cost: CostModel) -> float:
    """What a replica of that speed cannot serve."""
    served_ms = cost.prefill_ms(2.0 * sizes.arrival_words)
    served_ms += cost.decode_ms(sizes.arrival_output, sizes.slots) / sizes.slots
    return OVERLOAD * 1000.0 / served_ms
