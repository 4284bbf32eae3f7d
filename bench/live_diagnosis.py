"""Whether `trimtab diagnose` names what binds a real fleet, under four loads that are made to bind differently.

    python bench/live_diagnosis.py [--runs N] [--window SECONDS] [--load NAME] [--rows FILE] [--keep FOLDER]

| load | made so | expected |
|---|---|---|
| long prompts | no two share a beginning, few tokens come out | prefill, compute |
| short decodes | prompts mostly cached, every slot decodes | decode, by what the step was seen to grow with |
| evicted context | more sessions than slots, each resends its context | prefill, memory capacity |
| more arrivals | open loop, at 2.5 times what the fleet can serve | queue, admission |

Fleet, command and facts are the same for all loads; only the traffic differs. The facts are what whoever runs a fleet
can know: its slots, what prefill and decode cost on it when it was idle, that a session stays on its replica, and the
reuse that the prompts allow, which `trimtab prompts` says of the very requests that were sent.

What a decode step should be bound by is measured apart from the cost model: the time per token of one stream alone and
of as many as there are slots. Law: of the step of b streams, (b * t(1) - t(b)) / (b - 1) does not grow with them. If
that is less than half of it, what is done for each stream binds: compute; else what is read once for all of them does.
"""

import argparse
import asyncio
import itertools
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import msgspec

from trimtab.core.config import Config, EngineConfig, FleetConfig, GatewayConfig, LedgerConfig
from trimtab.core.cost import CostModel
from trimtab.engines.openai import CHAT_PATH
from trimtab.runtime.calibrate import calibrate_cost
from trimtab.runtime.clock import SystemClock
from trimtab.runtime.supervisor import System
from trimtab.workloads.words import block_words

SLOTS = 4
CONTEXT_TOKENS = 1024
REPLICAS = 2
SCRAPES = 9

LONG_WORDS, LONG_OUTPUT = 560, 8
DECODE_OUTPUT = 56
SESSIONS, CONTEXT_WORDS, CONTEXT_CLIENTS = 6, 380, 2
ARRIVAL_WORDS, ARRIVAL_OUTPUT = 12, 24
OVERLOAD = 2.5
WAITING_MAX = 40
"""Requests of a replica in flight at once: each holds a thread of its server, of which there are 64."""

GROWTH_OUTPUT, GROWTH_ROUNDS = 40, 3
WAIT_TIMEOUT_S = 90.0
"""The longest wait for a warm fleet, an idle one, or a command."""


class Row(NamedTuple):
    """One answer beside what was expected."""

    load: str
    run: int
    expected: str
    answered: str
    confidence: float
    right: bool
    because: str


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


class Traffic:
    """Sends requests straight to replicas and remembers them in order; `asked` counts those that ended."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self.sent: list[dict[str, Any]] = []
        self.asked = 0
        self._session = session

    async def ask(self, url: str, turns: list[str], output_tokens: int) -> dict[str, Any]:
        """Send the turns of a conversation, its own first, and return the answer."""
        roles = itertools.cycle(("user", "assistant"))
        body = {
            "messages": [
                {"role": role, "content": text} for role, text in zip(roles, turns, strict=False)
            ],
            "max_tokens": output_tokens,
            "temperature": 0,
            "ignore_eos": True,
        }
        self.sent.append(body)
        async with self._session.post(url + CHAT_PATH, json=body) as response:
            answer: dict[str, Any] = await response.json()
            assert response.status == 200, answer
        self.asked += 1
        return answer

    async def until(self, asked: int) -> None:
        """Wait until so many requests have ended."""
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            while self.asked < asked:  # noqa: ASYNC110 - a count sets no event
                await asyncio.sleep(0.1)


def text(key: str, words: int) -> str:
    """Words that belong to a key alone."""
    return " ".join(block_words(key, words))


Client = Callable[[Traffic, str, str], Coroutine[Any, Any, None]]
"""(traffic, URL of the replica, a name of its own); asks until it is cancelled."""


async def long_prompts(traffic: Traffic, url: str, name: str) -> None:
    """Prompts that share nothing, one after the other."""
    for number in itertools.count():
        await traffic.ask(url, [text(f"{name} {number}", LONG_WORDS)], LONG_OUTPUT)


async def short_decodes(traffic: Traffic, url: str, name: str) -> None:
    """The same instruction with a few words of its own each time."""
    for number in itertools.count():
        asked = f"Tell a short story with these words: {text(f'{name} {number}', 4)}"
        await traffic.ask(url, [asked], DECODE_OUTPUT)


async def evicted_context(traffic: Traffic, url: str, name: str) -> None:
    """Sessions in turn, each with its own context before another question."""
    for number in itertools.count():
        turn, session = divmod(number, SESSIONS // CONTEXT_CLIENTS)
        turns = [text(f"{name} {session}", CONTEXT_WORDS), "Read.", text(f"ask {turn}", 8)]
        await traffic.ask(url, turns, LONG_OUTPUT)


def arrivals(per_s: float) -> Client:
    """Requests at a steady rate, whether or not those before them have ended."""

    async def client(traffic: Traffic, url: str, name: str) -> None:
        async with asyncio.TaskGroup() as group:
            flying: set[asyncio.Task[Any]] = set()
            for number in itertools.count():
                if len(flying) < WAITING_MAX:
                    asked = [text(f"{name} {number}", ARRIVAL_WORDS)]
                    task = group.create_task(traffic.ask(url, asked, ARRIVAL_OUTPUT))
                    flying.add(task)
                    task.add_done_callback(flying.discard)
                await asyncio.sleep(1.0 / per_s)

    return client


class Load(NamedTuple):
    """A way to use the fleet: what each client of a replica does, and what must be found.

    `warm_requests`: so many requests of the fleet end before the window begins.
    """

    name: str
    clients: int
    client: Client
    warm_requests: int
    expected: str


def loads_of(cost: CostModel, growth: Growth) -> tuple[Load, ...]:
    """The four loads for a fleet of that speed."""
    served_ms = cost.prefill_ms(2.0 * ARRIVAL_WORDS) + cost.decode_ms(ARRIVAL_OUTPUT, SLOTS) / SLOTS
    rate = OVERLOAD * 1000.0 / served_ms
    return (
        Load("long prompts", 2, long_prompts, 2 * REPLICAS, "prefill compute"),
        Load("short decodes", SLOTS, short_decodes, SLOTS * REPLICAS, f"decode {growth.resource}"),
        Load(
            "evicted context",
            CONTEXT_CLIENTS,
            evicted_context,
            # Every session once: what is asked in the window was computed before it.
            (SESSIONS + CONTEXT_CLIENTS) * REPLICAS,
            "prefill memory_capacity",
        ),
        Load("more arrivals", 1, arrivals(rate), 2 * SLOTS * REPLICAS, "queue admission"),
    )


def system_of(folder: Path) -> System:
    """The fleet."""
    return System(
        Config(
            engine=EngineConfig(slots=SLOTS, context_tokens=CONTEXT_TOKENS),
            fleet=FleetConfig(replicas=REPLICAS, stop_grace_s=2.0),
            gateway=GatewayConfig(port=0),
            ledger=LedgerConfig(path=str(folder / "ledger.sqlite")),
        ),
        SystemClock(),
        command="live-diagnosis",
        log_folder=folder / "logs",
        secret_path=folder / "secret",
    )


async def measured_growth(session: aiohttp.ClientSession, urls: tuple[str, ...]) -> Growth:
    """Time one stream and then one per slot, on all replicas at once, in turn; medians."""
    traffic = Traffic(session)
    found: dict[int, list[float]] = {1: [], SLOTS: []}
    # The first round computes the prompts, so that no stream's prompt stands in the way of another's steps.
    for turn in range(GROWTH_ROUNDS + 1):
        for streams in found:
            asked = [
                traffic.ask(url, [f"Count from {at}."], GROWTH_OUTPUT)
                for url in urls
                for at in range(streams)
            ]
            answers = await asyncio.gather(*asked)
            if turn:
                found[streams] += [
                    answer["timings"]["predicted_per_token_ms"] for answer in answers
                ]
    return Growth(statistics.median(found[1]), statistics.median(found[SLOTS]), SLOTS)


async def trimtab(folder: Path, *arguments: str) -> Any:
    """Run the public command and return what it prints as JSON; exit codes of findings are no errors."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "trimtab.interfaces.cli", *arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "XDG_STATE_HOME": str(folder)},
    )
    try:
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    if process.returncode not in (0, 1, 4):
        raise SystemExit(f"trimtab {arguments[0]} ended with {process.returncode}: {err.decode()}")
    return json.loads(out)


async def facts_file(folder: Path, cost: CostModel, sent: list[dict[str, Any]]) -> Path:
    """Write what is known of the fleet, with what `trimtab prompts` says of the requests that were sent."""
    lines, facts = folder / "sent.jsonl", folder / "facts.json"
    lines.write_text("".join(json.dumps(body) + "\n" for body in sent))
    told = await trimtab(folder, "prompts", str(lines), "--json")
    cache = {"reuse_ceiling_share": told["share_now"], "sessions_stay": True}
    known = {"slots": SLOTS, "cost": msgspec.to_builtins(cost), "cache": cache}
    facts.write_text(json.dumps(known))
    return facts


class Bench(NamedTuple):
    """The fleet with what is known of it. `folder`: for whatever its commands write."""

    system: System
    session: aiohttp.ClientSession
    urls: tuple[str, ...]
    folder: Path
    cost: CostModel
    window_s: float

    async def answer(self, load: Load, run: int) -> Any:
        """Put a load on the fleet and ask what binds it."""
        for replica in self.system.fleet.replica_ids():
            await self.system.launcher.erase_kv(replica)
        traffic = Traffic(self.session)
        clients = [
            asyncio.create_task(load.client(traffic, url, f"{load.name} {run} {at} {number}"))
            for at, url in enumerate(self.urls)
            for number in range(load.clients)
        ]
        try:
            await traffic.until(load.warm_requests)
            # What the prompts allow is known of those sent so far; they do not change their kind.
            facts = await facts_file(self.folder, self.cost, traffic.sent)
            return await trimtab(
                self.folder,
                *("diagnose", *self.urls, "--model", self.system.baseline.model.path),
                *("--facts", str(facts), "--window", str(self.window_s)),
                *("--scrapes", str(SCRAPES), "--json"),
            )
        finally:
            for client in clients:
                client.cancel()
            ended = await asyncio.gather(*clients, return_exceptions=True)
            await self._idle()
            for error in ended:
                if isinstance(error, Exception):
                    raise error

    async def _idle(self) -> None:
        """Wait until the replicas have dropped what was cancelled."""
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            while await self._is_busy():  # noqa: ASYNC110 - asked over HTTP
                await asyncio.sleep(0.2)

    async def _is_busy(self) -> bool:
        launcher, replicas = self.system.launcher, self.system.fleet.replica_ids()
        slots = [slot for replica in replicas for slot in await launcher.slots(replica)]
        return any(slot.is_processing for slot in slots)


def row_of(load: Load, run: int, answer: Any) -> Row:
    """Judge one answer."""
    binding = answer["binding"]
    told = f"{binding['phase']} {binding['resource']}" if binding else "cannot tell"
    because = binding["because"] if binding else answer["unknown"][0]["text"]
    right = told == load.expected
    return Row(load.name, run, load.expected, told, answer["confidence"], right, because)


def table(rows: list[Row]) -> str:
    """The answers and how many were right."""
    lines = [f"{'load':16} run  {'expected':24} {'answered':24} confidence"]
    lines += [
        f"{row.load:16} {row.run:3}  {row.expected:24} {row.answered:24} {row.confidence:9.0%}  "
        f"{'right' if row.right else 'WRONG'}: {row.because}"
        for row in rows
    ]
    return "\n".join([*lines, f"{sum(row.right for row in rows)} of {len(rows)} right"])


async def run_all(options: argparse.Namespace, folder: Path) -> list[Row]:
    """Measure the idle fleet, then put every load on it in turn, `runs` times."""
    rows: list[Row] = []
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with (
        system_of(folder) as system,
        aiohttp.ClientSession(connector=connector) as session,
    ):
        urls = tuple(system.ready_url(replica) for replica in system.fleet.replica_ids())
        clock, budget_s = system.clock, options.calibrate
        cost = await calibrate_cost(
            urls[0], system.engine, session=session, clock=clock, budget_s=budget_s
        )
        print(
            f"a prompt token costs {cost.prefill_ms_per_token:.2f} ms, a step of b streams "
            f"{cost.step_base_ms:.1f} + {cost.step_ms_per_stream:.1f} b ms"
        )
        growth = await measured_growth(session, urls)
        print(growth, flush=True)
        bench = Bench(system, session, urls, folder, cost, options.window)
        loads = [load for load in loads_of(cost, growth) if options.load in (None, load.name)]
        for run, load in itertools.product(range(1, options.runs + 1), loads):
            answer = await bench.answer(load, run)
            rows.append(row_of(load, run, answer))
            print(table(rows[-1:]).splitlines()[1], flush=True)
            if options.keep is not None:
                name = f"{load.name.replace(' ', '-')}-{run}.json"
                (options.keep / name).write_text(json.dumps(answer, indent=1))
    return rows


def main() -> None:
    """Run and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=3, help="how often each load is put on")
    parser.add_argument("--window", type=float, default=10.0, help="seconds that are diagnosed")
    parser.add_argument("--calibrate", type=float, default=12.0, help="seconds for the cost model")
    parser.add_argument("--load", help="only the load of this name")
    parser.add_argument("--rows", type=Path, help="write the rows as JSON to this file")
    parser.add_argument("--keep", type=Path, help="keep every answer in this folder")
    options = parser.parse_args()
    if options.keep is not None:
        options.keep.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="trimtab-live-") as folder:
        rows = asyncio.run(run_all(options, Path(folder)))
    print(f"\n{table(rows)}")
    if options.rows is not None:
        options.rows.write_text(json.dumps([row._asdict() for row in rows]))


if __name__ == "__main__":
    main()
