"""How far the simulator is off the embedded fleet: a coding workload at three loads, fitted at one of them.

    python bench/bench_embedded_fleet.py record FOLDER [--rates 0.4 0.6 0.8] [--seconds 110] [--users 16]
    python bench/bench_embedded_fleet.py score FOLDER [--fit 0.6] [--tries 200]

`record` runs the real fleet once for each rate, gateway and clients on the same cores, and leaves for each a ledger and
a file of recorded requests: what shares which beginning comes from the engine's own tokens, no text is kept. It times
an idle replica before and after, and says how long replicas were ready to run and had no core: a run that others
disturbed says nothing of the model.

`score` is the three commands in a row: `trimtab calibrate` on the one load (each replica's requests, reuse as told),
`trimtab simulate` of the same arrivals at all three (routing, slots and reuse are simulated), and the table of errors.
"""

import argparse
import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import numpy as np
from click.testing import CliRunner

from trimtab.core.config import Config, EngineConfig, GatewayConfig, LedgerConfig, RoutingConfig
from trimtab.core.record import RequestRecord
from trimtab.interfaces.cli import main as command
from trimtab.runtime.clock import SystemClock
from trimtab.runtime.load import run_load
from trimtab.runtime.measure import measure_cost
from trimtab.runtime.sources import standard_library
from trimtab.runtime.supervisor import System
from trimtab.runtime.tune_plan import TunePlan, make_workload
from trimtab.workloads.base import Workload
from trimtab.workloads.recorded import Recorded, read_recorded

CALIBRATE_S = 6.0
SLOTS, CHUNK_TOKENS = 4, 256
CALIBRATE = (
    *(
        "--engine",
        "slots",
        "--streams",
        SLOTS,
        "--kv-tokens",
        SLOTS * 2048,
        "--budget-tokens",
        CHUNK_TOKENS,
    ),
    # Cores, threads of a replica, replicas; chains are compared by four tokens.
    *("--host", 2, 1, 2, "--block-tokens", 4, "--fit-share", 1.0),
)


def config_of(folder: Path, rate_per_s: float) -> Config:
    """Return the fleet's configuration: everything at its default but the routing."""
    return Config(
        gateway=GatewayConfig(port=0),
        ledger=LedgerConfig(path=str(folder / f"load-{rate_per_s:g}.sqlite")),
        engine=EngineConfig(slots=SLOTS, chunk_tokens=CHUNK_TOKENS),
        routing=RoutingConfig(policy="prefix_affine"),
    )


async def tokens_of(url: str, workload: Workload) -> list[list[int]]:
    """Return each prompt's tokens as the engine makes them."""
    made: list[list[int]] = []
    async with aiohttp.ClientSession() as session:

        async def ask(path: str, body: object) -> dict[str, object]:
            async with session.post(url + path, json=body) as response:
                response.raise_for_status()
                return dict(await response.json())

        for planned in workload.requests:
            messages = json.loads(planned.body)["messages"]
            text = (await ask("/apply-template", {"messages": messages}))["prompt"]
            body = {"content": text, "add_special": True, "parse_special": True}
            found = (await ask("/tokenize", body))["tokens"]
            assert isinstance(found, list)
            made.append([int(token) for token in found])
    return made


def common(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many leading tokens are equal."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))


def recorded_of(records: Sequence[tuple[RequestRecord, Sequence[int]]]) -> list[Recorded]:
    """Return what was served as a file keeps it: shared beginnings told by reference to an earlier request."""
    ordered = sorted(records, key=lambda pair: pair[0].arrived_at_s)
    start_s = ordered[0][0].arrived_at_s
    sessions: dict[str, str] = {}
    made: list[Recorded] = []
    for at, (record, tokens) in enumerate(ordered):
        assert record.ttft_ms is not None
        shares = [common(tokens, ordered[other][1]) for other in range(at)]
        most = max(range(at), key=shares.__getitem__, default=None)
        first_s = record.arrived_at_s + record.ttft_ms / 1000.0
        made.append(
            Recorded(
                at_s=round(record.arrived_at_s - start_s, 5),
                input_tokens=record.tokens.prompt or len(tokens),
                output_tokens=record.tokens.output or 1,
                like=most,
                shared_tokens=0 if most is None else shares[most],
                session=sessions.setdefault(record.session or "", f"s{len(sessions)}"),
                label=record.label or "",
                replica=record.replica or "",
                cached_tokens=record.tokens.delivered,
                first_token_s=round(first_s - start_s, 5),
                last_token_s=round(record.finished_at_s - start_s, 5),
            )
        )
    return made


def waits_s(pids: Sequence[int]) -> tuple[float, float]:
    """Return (seconds on a core, seconds ready to run and kept waiting) of all threads of these processes."""
    ran = waited = 0
    for pid in pids:
        for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            on, off, _ = path.read_text().split()
            ran, waited = ran + int(on), waited + int(off)
    return ran / 1e9, waited / 1e9


async def record(folder: Path, rate_per_s: float, seconds: float, users: int) -> None:
    """Run one load on a fresh fleet; leaves `load-RATE.sqlite` and `load-RATE.jsonl`."""
    config = config_of(folder, rate_per_s)
    plan = TunePlan(workload="coding", users=users)
    workload = make_workload(
        plan,
        standard_library(),
        rate_per_s=rate_per_s,
        seed=plan.seed,
        duration_s=seconds,
        context_tokens=config.engine.context_tokens,
    )
    clock = SystemClock()
    system = System(config, clock, command="up", seed=plan.seed)
    async with system:
        ids = system.fleet.replica_ids()
        tokens = await tokens_of(system.ready_url(ids[0]), workload)
        cost = await measure_cost(system, CALIBRATE_S)
        for replica in ids:
            await system.launcher.erase_kv(replica)
            system.router.forget(replica)
        pids = [pid for one in ids if (pid := system.launcher.pid(one))]
        before = waits_s(pids)
        result = await run_load(system.url, workload, clock=clock)
        ran_s, waited_s = (now - then for now, then in zip(waits_s(pids), before, strict=True))
        records = {one.request_id: one for one in system.records}
        after = await measure_cost(system, CALIBRATE_S)
    joined = [
        (records[row.request_id], tokens[row.index])
        for row in result.requests
        if row.request_id is not None and row.error is None
    ]
    lines = [msgspec.json.encode(one).decode() for one in recorded_of(joined)]
    (folder / f"load-{rate_per_s:g}.jsonl").write_text("\n".join(lines) + "\n")
    print(
        f"{rate_per_s:g} a second: {result.summary.ok} of {result.summary.n} answered in "
        f"{result.summary.makespan_s:.0f} s; replicas ran {ran_s:.0f} s and waited for a core "
        f"{waited_s:.1f} s; idle prefill "
        f"{cost.prefill_ms_per_token:.2f} then {after.prefill_ms_per_token:.2f} ms a token, step of 4 streams "
        f"{cost.step_ms(4):.1f} then {after.step_ms(4):.1f} ms",
        flush=True,
    )


def calibrate(folder: Path, fit_on: float, tries: int) -> Path:
    """Fit on one load by `trimtab calibrate`; returns the file with the replica."""
    out = folder / "replica.toml"
    words = [
        "calibrate",
        folder / f"load-{fit_on:g}.jsonl",
        *CALIBRATE,
        "--tries",
        tries,
        "--out",
        out,
    ]
    print(_told(words))
    return out


def simulate(folder: Path, rate_per_s: float, replica: Path) -> list[tuple[str, str, float, float]]:
    """Simulate one load by `trimtab simulate`; returns (metric, statistic, measured, simulated)."""
    trace = folder / f"load-{rate_per_s:g}.jsonl"
    served = read_recorded(trace.read_text().splitlines(), file=str(trace))
    last_s = served[-1].at_s
    # The longer run lets every request end; the shorter one ends with the arrivals, for the throughput.
    whole, cut = (_summary(folder, replica, trace, last_s + more) for more in (300.0, 0.001))
    done = sum(one.output_tokens for one in served if (one.last_token_s or 0.0) <= last_s)
    rows = [("output_tokens_per_s", "", done / last_s, float(cut["output_tokens_per_s"]))]
    for metric, values in _times(served).items():
        for statistic, found in (
            ("mean", float(np.mean(values))),
            ("p50", float(np.median(values))),
            ("p95", float(np.percentile(values, 95))),
        ):
            rows.append((metric, statistic, found, float(whole[metric][statistic])))
    return rows


def _times(served: Sequence[Recorded]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {"ttft_ms": [], "tpot_ms": [], "e2e_ms": []}
    for one in served:
        first_s, last_s = one.first_token_s or 0.0, one.last_token_s or 0.0
        found["ttft_ms"].append((first_s - one.at_s) * 1000.0)
        found["e2e_ms"].append((last_s - one.at_s) * 1000.0)
        if one.output_tokens > 1:
            found["tpot_ms"].append((last_s - first_s) * 1000.0 / (one.output_tokens - 1))
    return found


def _summary(folder: Path, replica: Path, trace: Path, duration_s: float) -> dict[str, Any]:
    scenario = folder / "scenario.toml"
    rest = f"[fleet]\nreplicas = 2\n[workload]\nduration_s = {duration_s}\n"
    scenario.write_text(f'name = "embedded fleet"\n{replica.read_text()}\n{rest}')
    words = ["simulate", scenario, "--trace", trace, "--format", "recorded", "--json"]
    found: dict[str, Any] = json.loads(_told(words))["runs"][0]["summary"]
    return found


def _told(words: Sequence[object]) -> str:
    ended = CliRunner().invoke(command, [str(word) for word in words])
    if ended.exit_code != 0:
        raise SystemExit(ended.output)
    return ended.stdout


def score(folder: Path, rates: Sequence[float], fit_on: float, tries: int) -> None:
    """Print how far the simulator is off at each load."""
    replica = calibrate(folder, fit_on, tries)
    for rate in rates:
        print(f"{rate:g} a second{' (fitted)' if rate == fit_on else ''}")
        for metric, statistic, real, made in simulate(folder, rate, replica):
            print(f"  {metric:20} {statistic:5} {real:9.1f} {made:9.1f} {made / real - 1.0:+7.1%}")


def main() -> None:
    """Do the step that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("step", choices=["record", "score"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rates", type=float, nargs="+", default=[0.4, 0.6, 0.8])
    parser.add_argument("--seconds", type=float, default=110.0)
    parser.add_argument("--users", type=int, default=16)
    parser.add_argument("--fit", type=float, default=0.6)
    parser.add_argument("--tries", type=int, default=400)
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    if asked.step == "score":
        score(asked.folder, asked.rates, asked.fit, asked.tries)
        return
    for rate in asked.rates:
        asyncio.run(record(asked.folder, rate, asked.seconds, asked.users))


if __name__ == "__main__":
    main()
