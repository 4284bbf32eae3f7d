"""A long run: streams, random aborts, a replica killed every minute; nothing may be lost, doubled or left half.

    python -m bench.soak --minutes 30 --streams 256 --out out/soak.json

Fake engines number their events, so that what is missing or doubled is seen. Each is a process; one after the other is
killed with SIGKILL and comes back on its port after some seconds. Every answer must be whole, or end in exactly one
error event behind an unbroken beginning, or be refused with a JSON error before any content. Memory of the gateway is
read every few seconds: the last third of the run against the first, after the stores that are bounded have filled.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp
import uvloop

from bench.proxy.peers import start_of
from bench.proxy.processes import Process
from trimtab.runtime.launcher import free_ports

ABORT_SHARE: Final = 0.1
WHOLE_SHARE: Final = 0.1
EVENTS_MIN, EVENTS_MAX = 8, 96
READY_S: Final = 60.0
SAMPLE_S: Final = 5.0
AWAY_S: Final = 5.0
GROWTH_MAX: Final = 0.05
PROMPT_WORDS: Final = 600
BREATH_S: Final = 0.2


@dataclass
class Seen:
    """What became of the requests, and what was wrong with any of them."""

    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    events: int = 0
    resident: list[tuple[float, int]] = field(default_factory=list)
    kills: int = 0

    def note(self, outcome: str, fault: str | None) -> None:
        """Count an outcome; a fault is kept with its words."""
        self.outcomes[outcome if fault is None else "wrong"] += 1
        if fault is not None and len(self.wrong) < 50:
            self.wrong.append(fault)


def judged(name: str, events: int, body: bytes) -> tuple[str, str | None]:
    """Return what a stream's bytes are, and what is wrong with them."""
    if not body.endswith(b"\n\n"):
        return "stream", f"{name}: ends within an event: {body[-80:]!r}"
    parts = [part.removeprefix(b"data: ") for part in body[:-2].split(b"\n\n")]
    ends = [part for part in parts if part == b"[DONE]"]
    values = [json.loads(part) for part in parts if part != b"[DONE]"]
    errors = [value for value in values if "error" in value]
    texts = [
        choice["delta"]["content"]
        for value in values
        for choice in value.get("choices", ())
        if choice["delta"].get("content")
    ]
    if texts != [f"{name} {number}" for number in range(len(texts))]:
        return "stream", f"{name}: events lost or doubled: {texts[-3:]}"
    if errors:
        is_last = values[-1] is errors[0] and not ends
        fault = (
            None if len(errors) == 1 and is_last else f"{name}: {len(errors)} errors, or not last"
        )
        return "ended in an error event", fault
    if len(ends) != 1 or parts[-1] != b"[DONE]" or len(texts) != events:
        return "stream", f"{name}: {len(ends)} ends, {len(texts)} of {events} events"
    return "stream whole", None


class Client:
    """One of the streams: asks, reads, sometimes leaves; begins again until told to stop."""

    def __init__(self, number: int, url: str, gap_ms: float, seen: Seen) -> None:
        self._rng = random.Random(number)
        self._number = number
        self._url = url
        self._gap_ms = gap_ms
        self._seen = seen
        self._asked = 0

    async def run(self, http: aiohttp.ClientSession, stop: asyncio.Event) -> None:
        """Ask until `stop` is set."""
        while not stop.is_set():
            try:
                await self._one(http)
            except (aiohttp.ClientError, OSError) as error:
                self._seen.note("connection", f"the gateway broke a connection: {error!r}")
                await asyncio.sleep(BREATH_S)

    async def _one(self, http: aiohttp.ClientSession) -> None:
        rng, self._asked = self._rng, self._asked + 1
        name = f"c{self._number}.{self._asked}"
        events = rng.randint(EVENTS_MIN, EVENTS_MAX)
        words = " ".join(f"{rng.getrandbits(24):x}" for _ in range(PROMPT_WORDS))
        stream = rng.random() >= WHOLE_SHARE
        body = {
            "model": "fake",
            "stream": stream,
            "messages": [
                {"role": "user", "content": f"numbered {events} {self._gap_ms:g} {name} {words}"}
            ],
        }
        leaves_after = rng.randint(0, events) if rng.random() < ABORT_SHARE else None
        async with http.post(self._url, json=body) as response:
            if response.status != 200:
                await self._refused(response)
            elif stream:
                await self._read(response, name, events, leaves_after)
            else:
                said = json.loads(await response.read())["choices"][0]["message"]["content"]
                self._seen.note("answer whole", None if said == name else f"{name}: got {said}")

    async def _refused(self, response: aiohttp.ClientResponse) -> None:
        said = await response.read()
        is_error = response.status >= 500 and "error" in json.loads(said)
        fault = None if is_error else f"status {response.status}: {said[:200]!r}"
        self._seen.note(f"refused with {response.status}", fault)
        await asyncio.sleep(BREATH_S)

    async def _read(
        self, response: aiohttp.ClientResponse, name: str, events: int, leaves_after: int | None
    ) -> None:
        body = b""
        async for data in response.content.iter_any():
            body += data
            self._seen.events += data.count(b"\n\n")
            if leaves_after is not None and body.count(b"\n\n") >= leaves_after:
                response.close()
                self._seen.note("left by the client", None)
                return
        self._seen.note(*judged(name, events, body))


class Soak:
    """The whole run: engines, gateway, clients, killer, and who watches memory."""

    def __init__(self, given: Any, folder: Path) -> None:
        self._given = given
        self._folder = folder
        self._seen = Seen()
        self._stop = asyncio.Event()
        ports = free_ports(given.replicas + 2)
        self._ports, self._port, self._spare = ports[:-2], ports[-2], ports[-1]
        self._engines = [self._engine(port) for port in self._ports]
        urls = [f"http://127.0.0.1:{port}" for port in self._ports]
        start = start_of("trimtab", urls, self._port, self._spare, folder / "trimtab")
        for engine, url in zip(self._engines, urls, strict=True):
            engine.wait_ready(url, READY_S)
        self._gateway = Process(
            "trimtab",
            start.command,
            core=None,
            log=folder / "gateway.log",
            environment=start.environment,
        )
        self._url = f"http://127.0.0.1:{self._port}"

    def _engine(self, port: int) -> Process:
        command = (sys.executable, "-m", "bench.proxy.engine", str(port))
        return Process("engine", command, core=None, log=self._folder / f"engine-{port}.log")

    def end(self) -> None:
        """End every process."""
        for process in (self._gateway, *self._engines):
            process.end()

    async def run(self) -> dict[str, Any]:
        """Run for the time that was asked for and return what was seen."""
        self._gateway.wait_ready(f"{self._url}/healthz", READY_S)
        before = len(os.listdir(f"/proc/{self._gateway.pid}/fd"))
        timeout = aiohttp.ClientTimeout(total=120)
        connector = aiohttp.TCPConnector(limit=0)
        began_s = time.monotonic()
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as http:
            clients = [
                Client(number, f"{self._url}/v1/chat/completions", self._given.gap_ms, self._seen)
                for number in range(self._given.streams)
            ]
            async with asyncio.TaskGroup() as group:
                for client in clients:
                    group.create_task(client.run(http, self._stop))
                watching = group.create_task(self._watch(began_s))
                killing = group.create_task(self._kill())
                await asyncio.sleep(self._given.minutes * 60.0)
                self._stop.set()
                killing.cancel()
                watching.cancel()
        await asyncio.sleep(10.0)
        return self._result(before, await self._in_flight())

    async def _in_flight(self) -> float:
        async with aiohttp.ClientSession() as http, http.get(f"{self._url}/metrics") as page:
            text = await page.text()
        [line] = [
            line for line in text.splitlines() if line.startswith("trimtab_requests_in_flight ")
        ]
        return float(line.split()[1])

    async def _watch(self, began_s: float) -> None:
        while True:
            self._seen.resident.append((time.monotonic() - began_s, self._gateway.resident_bytes()))
            await asyncio.sleep(SAMPLE_S)

    async def _kill(self) -> None:
        rng = random.Random(1)
        while True:
            await asyncio.sleep(self._given.kill_every_s - AWAY_S)
            at = rng.randrange(len(self._engines))
            os.killpg(self._engines[at].pid, signal.SIGKILL)
            self._engines[at].end()
            self._seen.kills += 1
            await asyncio.sleep(AWAY_S)
            self._engines[at] = self._engine(self._ports[at])

    def _result(self, descriptors_before: int, in_flight: float) -> dict[str, Any]:
        seen, given = self._seen, self._given
        minutes = given.minutes
        kept = [size for at_s, size in seen.resident if at_s >= given.warm_minutes * 60.0]
        third = max(1, len(kept) // 3)
        first, last = statistics.mean(kept[:third]), statistics.mean(kept[-third:])
        return {
            "command": f"python -m bench.soak --minutes {minutes:g} --streams {given.streams}"
            f" --replicas {given.replicas} --gap-ms {given.gap_ms:g} --kill-every-s {given.kill_every_s:g}"
            f" --warm-minutes {given.warm_minutes:g}",
            "requests": sum(seen.outcomes.values()),
            "events": seen.events,
            "outcomes": dict(seen.outcomes),
            "wrong": seen.wrong,
            "replicas_killed": seen.kills,
            "resident_mib_first_third": first / 2**20,
            "resident_mib_last_third": last / 2**20,
            "resident_growth": last / first - 1.0,
            "resident_growth_max": GROWTH_MAX,
            "resident_mib": [[round(at_s), round(size / 2**20, 1)] for at_s, size in seen.resident],
            "requests_in_flight_after": in_flight,
            "descriptors_before": descriptors_before,
            "descriptors_after": len(os.listdir(f"/proc/{self._gateway.pid}/fd")),
            "cpu_s_of_the_gateway": self._gateway.cpu_ns() / 1e9,
        }


def main() -> int:
    """Run, write the result, and say whether everything held."""
    parser = argparse.ArgumentParser(description="A long run with aborts and killed replicas.")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--gap-ms", type=float, default=100.0)
    parser.add_argument("--kill-every-s", type=float, default=60.0)
    parser.add_argument(
        "--warm-minutes",
        type=float,
        default=8.0,
        help="Left out of the thirds: until 20,000 records and the index of prompts are full.",
    )
    parser.add_argument("--out", type=Path, default=Path("out/soak.json"))
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to end"))
    with tempfile.TemporaryDirectory(prefix="trimtab-soak-") as folder:
        soak = Soak(given, Path(folder))
        try:
            result = uvloop.run(soak.run())
        finally:
            soak.end()
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(result, indent=1) + "\n")
    shown = {name: value for name, value in result.items() if name != "resident_mib"}
    print(json.dumps(shown, indent=1))
    held = not result["wrong"] and result["requests_in_flight_after"] == 0
    return 0 if held and result["resident_growth"] <= GROWTH_MAX else 1


if __name__ == "__main__":
    sys.exit(main())
