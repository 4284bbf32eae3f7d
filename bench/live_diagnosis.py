"""Whether `trimtab diagnose` names what binds a real fleet, under loads that are made to bind differently.

    python bench/live_diagnosis.py [--engine embedded|vllm] [--runs N] [--window SECONDS] [--load NAME ...]

| load | made so | expected |
|---|---|---|
| long prompts | no two share a beginning, few tokens come out | prefill, compute |
| short decodes | prompts mostly cached, every slot decodes | decode, by what the step was seen to grow with |
| evicted context | more sessions than fit, each resends its context | prefill, memory capacity |
| filled context (vLLM) | answers grow until they do not fit together | queue, memory capacity |
| more arrivals | open loop, at 2.5 times what the fleet can serve | queue, admission |

Fleet, command and facts are the same for all loads; only the traffic differs. The facts are what whoever runs a fleet
can know: its slots, what prefill and decode cost on it when it was idle, that a session stays on its replica, and the
reuse that the prompts allow, which `trimtab prompts` says of the very requests that were sent.

What a decode step should be bound by is measured apart from the cost model, by the clients: the time per token of one
stream alone and of as many as there are slots. Law: of the step of b streams, (b * t(1) - t(b)) / (b - 1) does not grow
with them. If that is less than half of it, what is done for each stream binds: compute; else what is read once for all
of them does.
"""

import argparse
import asyncio
import itertools
import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import msgspec
from click.testing import CliRunner
from live_fleets import Fleet, embedded, vllm
from live_loads import WAIT_TIMEOUT_S, Load, measured_growth

from trimtab.core.cost import CostModel
from trimtab.interfaces.cli import main as main_command

SCRAPES = 9
PAGES = 3
"""Scrapes of a recorded window."""

LEFT_OUT = (b"# HELP", b"python_", b"# TYPE python_", b"http_", b"# TYPE http_")
FLEETS = {"embedded": embedded, "vllm": vllm}
BIN_EDGES = (0.0, 0.5, 0.7, 0.8, 0.9, 1.0)


class Row(NamedTuple):
    """One answer beside what was expected."""

    load: str
    run: int
    expected: str
    answered: str
    confidence: float
    right: bool
    because: str
    late: bool = False
    """No answer came in time: a machine too slow for this load, which says nothing of the diagnosis."""


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


class Bench(NamedTuple):
    """A fleet with what is known of it. `folder`: for whatever its commands write."""

    fleet: Fleet
    folder: Path
    cost: CostModel
    window_s: float
    record: Path | None

    async def answer(self, load: Load, run: int) -> Any:
        """Put a load on the fleet and ask what binds it."""
        await self.fleet.clear()
        traffic = self.fleet.traffic()
        clients = [
            asyncio.create_task(load.client(traffic, url, f"{load.name} {run} {at} {number}"))
            for at, url in enumerate(self.fleet.urls)
            for number in range(load.clients)
        ]
        try:
            await traffic.until(load.warm_requests)
            # What the prompts allow is known of those sent so far; they do not change their kind.
            facts = await self.facts(traffic.sent)
            if self.record is not None and run == 1:
                folder = self.record / load.name.replace(" ", "-")
                write_case(folder, load, facts, await self.recorded(), self.window_s)
            return await trimtab(
                self.folder,
                *("diagnose", *self.fleet.urls, "--model", self.fleet.model),
                *("--facts", str(facts), "--window", str(self.window_s)),
                *("--scrapes", str(SCRAPES), "--json"),
            )
        finally:
            for client in clients:
                client.cancel()
            ended = await asyncio.gather(*clients, return_exceptions=True)
            await self.fleet.idle()
            for error in ended:
                if isinstance(error, Exception):
                    raise error

    async def recorded(self) -> list[list[bytes]]:
        """Return pages of another window of the same load: one of each server at each scrape."""
        pages = [await self.fleet.pages()]
        while len(pages) < PAGES:
            await asyncio.sleep(self.window_s / (PAGES - 1))
            pages.append(await self.fleet.pages())
        return pages

    async def facts(self, sent: list[dict[str, Any]]) -> Path:
        """Write what is known of the fleet, with what `trimtab prompts` says of the requests that were sent."""
        lines, facts = self.folder / "sent.jsonl", self.folder / "facts.json"
        lines.write_text("".join(json.dumps(body) + "\n" for body in sent))
        # In this process: starting another one beside busy engines takes longer than the command.
        arguments = ["prompts", str(lines), "--json"]
        told = json.loads(
            (await asyncio.to_thread(CliRunner().invoke, main_command, arguments)).stdout
        )
        cache = {"reuse_ceiling_share": told["share_now"], "sessions_stay": True}
        cost = msgspec.to_builtins(self.cost)
        facts.write_text(
            json.dumps({"slots": self.fleet.sizes.slots, "cost": cost, "cache": cache})
        )
        return facts


def write_case(
    folder: Path, load: Load, facts: Path, scrapes: list[list[bytes]], window_s: float
) -> None:
    """Keep a recorded window with what is known of the fleet and what is expected."""
    folder.mkdir(parents=True, exist_ok=True)
    for scrape, pages in enumerate(scrapes):
        for server, page in enumerate(pages):
            (folder / f"{server}-{scrape}.prom").write_bytes(compact(page))
    known = json.loads(facts.read_text())
    # Where it was measured is of no use to a reader, and differs each time.
    known["cost"]["source"] = "measured on the idle fleet"
    between_s = window_s / (len(scrapes) - 1)
    case = {"expected": load.expected, "between_s": between_s, "facts": known}
    (folder / "case.json").write_text(json.dumps(case, indent=1) + "\n")


def compact(page: bytes) -> bytes:
    """Return a page of metrics without its help, and without what speaks of the process alone."""
    lines = page.splitlines(keepends=True)
    return b"".join(
        line for line in lines if not line.startswith(LEFT_OUT) and b"_created" not in line
    )


def row_of(load: Load, run: int, answer: Any) -> Row:
    """Judge one answer."""
    binding = answer["binding"]
    told = f"{binding['phase']} {binding['resource']}" if binding else "cannot tell"
    because = binding["because"] if binding else answer["unknown"][0]["text"]
    right = told == load.expected
    return Row(load.name, run, load.expected, told, answer["confidence"], right, because)


def line_of(row: Row) -> str:
    """One line of the table."""
    return (
        f"{row.load:16} {row.run:3}  {row.expected:24} {row.answered:24} {row.confidence:9.0%}  "
        f"{'right' if row.right else 'WRONG'}: {row.because}"
    )


def summary(rows: list[Row]) -> str:
    """How many were right, and how often among answers of like confidence."""
    late = sum(row.late for row in rows)
    lines = [f"{sum(row.right for row in rows)} of {len(rows)} right, {late} out of time"]
    for low, high in itertools.pairwise(BIN_EDGES):
        held = [row.right for row in rows if low <= row.confidence < high]
        if held:
            lines.append(f"  confidence {low:.0%} to {high:.0%}: {sum(held)} of {len(held)} right")
    return "\n".join(lines)


@asynccontextmanager
async def fleet_of(options: argparse.Namespace, folder: Path) -> AsyncIterator[Fleet]:
    """Start the fleet that was asked for."""
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        FLEETS[options.engine](folder, session, options.calibrate) as fleet,
    ):
        yield fleet


async def run_all(options: argparse.Namespace, folder: Path) -> list[Row]:
    """Measure the idle fleet, then put every load on it in turn, `runs` times."""
    rows: list[Row] = []
    async with fleet_of(options, folder) as fleet:
        cost = await fleet.cost()
        print(
            f"a prompt token costs {cost.prefill_ms_per_token:.2f} ms, a step of b streams "
            f"{cost.step_base_ms:.1f} + {cost.step_ms_per_stream:.1f} b ms"
        )
        growth = await measured_growth(fleet.traffic(), fleet.urls, fleet.sizes.slots)
        print(growth)
        print(f"{'load':16} run  {'expected':24} {'answered':24} confidence", flush=True)
        bench = Bench(fleet, folder, cost, options.window, options.record)
        wanted = options.load
        loads = [each for each in fleet.loads(cost, growth) if not wanted or each.name in wanted]
        for run, load in itertools.product(range(1, options.runs + 1), loads):
            row, answer = await judged(bench, load, run)
            for _ in range(options.again):
                if row.right or row.late:
                    break
                print(f"{line_of(row)} (once more)", flush=True)
                row, answer = await judged(bench, load, run)
            rows.append(row)
            print(line_of(row), flush=True)
            if options.keep is not None:
                name = f"{load.name.replace(' ', '-')}-{run}.json"
                (options.keep / name).write_text(json.dumps(answer, indent=1))
    return rows


async def judged(bench: Bench, load: Load, run: int) -> tuple[Row, Any]:
    """Put a load on the fleet and judge the answer; without one in time the row is late."""
    try:
        answer = await bench.answer(load, run)
    except TimeoutError:
        late = f"no answer within {WAIT_TIMEOUT_S:g} s"
        return Row(load.name, run, load.expected, "out of time", 0.0, False, late, late=True), None
    return row_of(load, run, answer), answer


def main() -> None:
    """Run and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--engine", choices=FLEETS, default="embedded", help="what serves")
    parser.add_argument("--runs", type=int, default=3, help="how often each load is put on")
    parser.add_argument("--window", type=float, default=10.0, help="seconds that are diagnosed")
    parser.add_argument("--calibrate", type=float, default=8.0, help="seconds for the cost model")
    parser.add_argument("--load", action="append", help="only loads of this name; may be repeated")
    parser.add_argument(
        "--again", type=int, default=0, help="how often a load is put on again that was not told"
    )
    parser.add_argument("--rows", type=Path, help="write the rows as JSON to this file")
    parser.add_argument("--keep", type=Path, help="keep every answer in this folder")
    parser.add_argument("--record", type=Path, help="keep pages of each load's first run here")
    options = parser.parse_args()
    if options.keep is not None:
        options.keep.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="trimtab-live-") as folder:
        rows = asyncio.run(run_all(options, Path(folder)))
    print(summary(rows))
    if options.rows is not None:
        options.rows.write_text(json.dumps([row._asdict() for row in rows]))


if __name__ == "__main__":
    main()
