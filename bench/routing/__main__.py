"""What routing is worth: time to first token, computed tokens and wall time of the same sessions behind each router.

    python -m bench.routing --out out/routing.json --replicas 2 --sessions own --repeats 1
    python -m bench.routing --out out/routing.json --report

Embedded llama.cpp replicas, one thread each, are started anew for every run: no router finds the cache of another.
`pinned` is the limit: sessions are dealt to the replicas by hand, evenly, those of one repository together. Runs are
added to those that the file has.
"""

import argparse
import asyncio
import json
import random
import re
import shutil
import signal
import statistics
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Any, Final

import uvloop

from bench.peer_envs import REQUIREMENTS, version
from bench.proxy.peers import start_of
from bench.proxy.processes import Process
from bench.routing.sessions import SHARED, USERS_A_REPOSITORY, sessions, split
from trimtab.core.config import EngineConfig
from trimtab.runtime.clock import SystemClock
from trimtab.runtime.launcher import LlamaCppLauncher, free_ports
from trimtab.runtime.load import run_load
from trimtab.runtime.load_result import SentRequest, summarise
from trimtab.runtime.model import baseline_revision
from trimtab.workloads.base import Workload

PINNED: Final = "pinned"
ROUTERS: Final = (
    "trimtab",
    "sglang-router:cache_aware",
    "sglang-router:round_robin",
    "vllm-router:cache_aware",
    PINNED,
)
USERS, TURNS, REPOSITORY_TOKENS = 8, 4, 300
READY_S: Final = 60.0
GRACE_S: Final = 2.0
COMPUTED: Final = re.compile(r"^llamacpp:prompt_tokens_total (\S+)", re.MULTILINE)


def main() -> None:
    """Run, or say what was seen."""
    given = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to end"))
    kept = json.loads(given.out.read_text()) if given.out.exists() else {"runs": []}
    runs: list[dict[str, Any]] = kept["runs"]
    for repeat in range(0 if given.report else given.repeats):
        order = given.routers.split(",")
        seed = given.seed + repeat
        random.Random(seed).shuffle(order)
        for router in order:
            with tempfile.TemporaryDirectory(prefix="trimtab-routing-") as folder:
                run = uvloop.run(one(router, given, seed, Path(folder)))
                keep_ledger(Path(folder), given, run)
            runs.append(run)
            print(json.dumps(run), flush=True)
            save(given.out, runs)
    print(table(runs))


def arguments() -> Any:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="What routing is worth.")
    parser.add_argument("--out", type=Path, default=Path("out/routing.json"))
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--sessions", choices=sorted(USERS_A_REPOSITORY), default=SHARED)
    parser.add_argument("--routers", default=",".join(ROUTERS))
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ledgers", type=Path, help="keep trimtab's ledgers in this folder")
    parser.add_argument("--report", action="store_true")
    return parser.parse_args()


async def one(router: str, given: Any, seed: int, folder: Path) -> dict[str, Any]:
    """Run the sessions once behind a router over fresh replicas, and return the figures."""
    workload = sessions(
        given.sessions,
        users=USERS,
        turns=given.turns,
        repository_tokens=REPOSITORY_TOKENS,
        seed=seed,
    )
    launcher = LlamaCppLauncher(clock=SystemClock(), start_timeout_s=READY_S, threads=1)
    revision = baseline_revision(EngineConfig())
    names = [f"r{number}" for number in range(given.replicas)]
    try:
        urls = [await launcher.start(revision, placed) for placed in launcher.place(names)]
        rows = await behind(router, urls, workload, folder)
        computed = [computed_tokens(url) for url in urls]
    finally:
        for name in names:
            await launcher.stop(name, grace_s=GRACE_S)
        await launcher.close()
    summary = summarise(rows, unsent=0)
    ttft = summary.ttft_ms
    assert ttft is not None, f"no answer came behind {router}: {summary.errors}"
    return {
        "router": router,
        "replicas": given.replicas,
        "sessions": given.sessions,
        "turns": given.turns,
        "seed": seed,
        "requests": summary.n,
        "errors": summary.errors,
        "wall_s": summary.makespan_s,
        "ttft_ms_mean": ttft.mean,
        "ttft_ms_p50": ttft.p50,
        "ttft_ms_p95": ttft.p95,
        "computed_tokens": sum(computed),
        "computed_share_max": max(computed) / max(1, sum(computed)),
    }


async def behind(
    router: str, urls: list[str], workload: Workload, folder: Path
) -> list[SentRequest]:
    """Send the sessions through a router, or each to the replica that it was dealt to."""
    if router == PINNED:
        parts = split(workload, len(urls))
        results = await asyncio.gather(
            *(run_load(url, part) for url, part in zip(urls, parts, strict=True))
        )
        return [row for result in results for row in result.requests]
    port, spare = free_ports(2)
    start = start_of(router, urls, port, spare, folder / "router")
    log = folder / "router.log"
    process = Process(router, start.command, core=None, log=log, environment=start.environment)
    try:
        await asyncio.to_thread(
            process.wait_ready, f"http://127.0.0.1:{port}{start.ready}", READY_S
        )
        result = await run_load(f"http://127.0.0.1:{port}", workload)
    finally:
        process.end()
    return list(result.requests)


def computed_tokens(url: str) -> int:
    """Return the prompt tokens that a replica has computed since it started."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=10.0) as page:
        found = COMPUTED.search(page.read().decode())
    assert found is not None, f"{url} does not tell its prompt tokens"
    return int(float(found[1]))


def keep_ledger(folder: Path, given: Any, run: dict[str, Any]) -> None:
    """Copy the ledger of trimtab's run to where it was asked for: every decision is in it, with its terms."""
    ledger = folder / "router" / "ledger.sqlite"
    if given.ledgers is None or not ledger.exists():
        return
    given.ledgers.mkdir(parents=True, exist_ok=True)
    name = f"{run['replicas']}-{run['sessions']}-{run['turns']}-{run['seed']}"
    for part in folder.glob("router/ledger.sqlite*"):
        shutil.copy(part, given.ledgers / part.name.replace("ledger", name))


def save(path: Path, runs: list[dict[str, Any]]) -> None:
    """Keep everything that was measured."""
    path.parent.mkdir(parents=True, exist_ok=True)
    versions = {peer: version(peer) for peer in REQUIREMENTS}
    kept = {"command": "python -m bench.routing", "versions": versions, "runs": runs}
    path.write_text(json.dumps(kept, indent=1) + "\n")


def table(runs: list[dict[str, Any]]) -> str:
    """Return the medians over repeats as a Markdown table."""
    names = ("wall_s", "ttft_ms_mean", "ttft_ms_p50", "ttft_ms_p95", "computed_tokens")
    lines = [
        "| replicas | sessions | router | n | wall s | TTFT mean ms | p50 | p95 | computed tokens"
        " | largest share | errors |",
        "|---:|---|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    groups = sorted({(run["replicas"], run["sessions"], run["turns"]) for run in runs})
    for group in groups:
        for router in ROUTERS:
            mine = [
                run
                for run in runs
                if (run["replicas"], run["sessions"], run["turns"]) == group
                and run["router"] == router
            ]
            if not mine:
                continue
            cells = [f"{statistics.median(run[name] for run in mine):,.0f}" for name in names]
            share = statistics.median(run["computed_share_max"] for run in mine)
            errors = sum(sum(run["errors"].values()) for run in mine)
            head = f"| {group[0]} | {group[1]}, {group[2]} turns | {router} | {len(mine)} | "
            lines.append(head + " | ".join(cells) + f" | {share:.0%} | {errors} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
