"""How far the simulator is off the embedded fleet: a coding workload at three loads, fitted at one of them.

    python bench/bench_embedded_fleet.py record FOLDER [--rates 0.3 0.5 0.7] [--rounds 3] [--seconds 36] [--users 16]
    python bench/bench_embedded_fleet.py score FOLDER [--fit 0.5] [--tries 800] [--seeds 16]

`record` runs the real fleet, gateway and clients on the same cores, and leaves for each load a file of recorded
requests and the ledgers. What shares which beginning comes from the engine's own tokens; no text is kept. A machine
that others use too changes its speed within minutes, so each load is run in rounds, the loads in turn, each round on a
fresh fleet and with other sessions. Printed and kept with each is how long replicas were ready to run and had no core:
gateway and clients alone make that 1 to 3% of the time they ran, so a round with more than `--waited-max` of it was
disturbed by others and is left out.

`score` is the commands in a row: `trimtab calibrate` on the one load (each replica's requests, reuse as told),
`trimtab simulate` of the same arrivals at all three (routing, slots and reuse are simulated; the mean of `--seeds`
simulations, as the machine's unrest is chance), and the table of errors.
The figure after +- is half of the 95% interval of an error, from how it differs between rounds: what the machine and
the few requests of a round leave open.
"""

import argparse
import asyncio
import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import numpy as np
from click.testing import CliRunner

from trimtab.core.config import Config, EngineConfig, GatewayConfig, LedgerConfig, RoutingConfig
from trimtab.core.record import RequestRecord
from trimtab.core.stats_summary import t_quantile
from trimtab.interfaces.cli import main as command
from trimtab.runtime.clock import SystemClock
from trimtab.runtime.load import run_load
from trimtab.runtime.measure import measure_cost
from trimtab.runtime.sources import standard_library
from trimtab.runtime.supervisor import System
from trimtab.runtime.tune_plan import TunePlan, make_workload
from trimtab.workloads.base import PlannedRequest, Workload
from trimtab.workloads.recorded import Recorded, read_recorded

sys.path.append(str(Path(__file__).resolve().parents[1]))
from bench.asked import explained

CALIBRATE_S = 4.0
GAP_S = 30.0
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


class Cores(msgspec.Struct, frozen=True, kw_only=True):
    """Of all threads of the replicas in a round: seconds on a core, and ready to run without one."""

    ran_s: float
    waited_s: float


def config_of(ledger: Path, policy: str) -> Config:
    """Return the fleet's configuration: everything at its default but the routing where asked."""
    return Config(
        gateway=GatewayConfig(port=0),
        ledger=LedgerConfig(path=str(ledger)),
        engine=EngineConfig(slots=SLOTS, chunk_tokens=CHUNK_TOKENS),
        routing=RoutingConfig(policy=policy),
    )


async def tokens_of(
    url: str, workload: Workload, answers: Mapping[int, str]
) -> list[tuple[list[int], list[int]]]:
    """Return each prompt's tokens as the engine makes them, and those of prompt and answer together."""
    made: list[tuple[list[int], list[int]]] = []
    async with aiohttp.ClientSession() as session:

        async def ask(path: str, body: object) -> Any:
            async with session.post(url + path, json=body) as response:
                response.raise_for_status()
                return await response.json()

        async def tokens(text: str) -> list[int]:
            body = {"content": text, "add_special": True, "parse_special": True}
            return [int(token) for token in (await ask("/tokenize", body))["tokens"]]

        for planned in workload.requests:
            messages = json.loads(planned.body)["messages"]
            prompt = str((await ask("/apply-template", {"messages": messages}))["prompt"])
            whole = prompt + answers.get(planned.index, "")
            made.append((await tokens(prompt), await tokens(whole)))
    return made


def common(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many leading tokens are equal."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))


Joined = tuple[RequestRecord, tuple[list[int], list[int]]]


def recorded_of(records: Sequence[Joined], names: str) -> list[Recorded]:
    """Return what was served as a file keeps it, times from the first arrival; `names` begins every session's name."""
    ordered = sorted(records, key=lambda pair: pair[0].arrived_at_s)
    start_s = ordered[0][0].arrived_at_s
    sessions: dict[str, str] = {}
    made: list[Recorded] = []
    for at, (record, (prompt, _)) in enumerate(ordered):
        assert record.ttft_ms is not None
        input_tokens, output_tokens = record.tokens.prompt or 0, record.tokens.output or 1
        shares = [common(prompt, ordered[other][1][1]) for other in range(at)]
        most = max(range(at), key=shares.__getitem__, default=None)
        first_s = record.arrived_at_s + record.ttft_ms / 1000.0
        made.append(
            Recorded(
                at_s=round(record.arrived_at_s - start_s, 5),
                input_tokens=input_tokens,
                output_tokens=output_tokens,
                like=most,
                shared_tokens=0 if most is None else _possible(shares[most], made[most]),
                session=sessions.setdefault(record.session or "", f"{names}{len(sessions)}"),
                label=record.label or "",
                replica=record.replica or "",
                cached_tokens=record.tokens.delivered,
                first_token_s=round(first_s - start_s, 5),
                last_token_s=round(record.finished_at_s - start_s, 5),
            )
        )
    return made


def _possible(shared: int, other: Recorded) -> int:
    """The last token of an answer is never computed, so no later prompt finds it in a slot."""
    return min(shared, other.input_tokens + other.output_tokens - 1)


def appended(rounds: Sequence[Sequence[Recorded]]) -> list[Recorded]:
    """Return the rounds one after the other; none is like a request of another round, as its slots were empty."""
    made: list[Recorded] = []
    for recorded in rounds:
        number = len(made)
        after_s = max((one.last_token_s or 0.0 for one in made), default=-GAP_S) + GAP_S
        for one in recorded:
            assert one.first_token_s is not None
            assert one.last_token_s is not None
            made.append(
                msgspec.structs.replace(
                    one,
                    at_s=round(one.at_s + after_s, 5),
                    like=None if one.like is None else one.like + number,
                    first_token_s=round(one.first_token_s + after_s, 5),
                    last_token_s=round(one.last_token_s + after_s, 5),
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


async def run_round(
    folder: Path, rate_per_s: float, number: int, seconds: float, users: int, policy: str
) -> list[Recorded]:
    """Run one load once on a fresh fleet and return what was served."""
    ledger = folder / f"load-{rate_per_s:g}-{number}.sqlite"
    config = config_of(ledger, policy)
    workload = make_workload(
        TunePlan(workload="coding", users=users),
        standard_library(),
        rate_per_s=rate_per_s,
        seed=number,
        duration_s=seconds,
        context_tokens=config.engine.context_tokens,
    )
    clock = SystemClock()
    answers: dict[int, str] = {}

    def told(planned: PlannedRequest, text: str) -> None:
        answers[planned.index] = answers.get(planned.index, "") + text

    async with System(config, clock, command="up", seed=number) as system:
        ids = system.fleet.replica_ids()
        cost = await measure_cost(system, CALIBRATE_S)
        for replica in ids:
            await system.launcher.erase_kv(replica)
            system.router.forget(replica)
        pids = [pid for one in ids if (pid := system.launcher.pid(one))]
        before = waits_s(pids)
        result = await run_load(system.url, workload, clock=clock, on_text=told)
        ran_s, waited_s = (now - then for now, then in zip(waits_s(pids), before, strict=True))
        cores = msgspec.json.encode(Cores(ran_s=ran_s, waited_s=waited_s))
        ledger.with_suffix(".cores.json").write_bytes(cores)
        records = {one.request_id: one for one in system.records}
        tokens = await tokens_of(system.ready_url(ids[0]), workload, answers)
    joined = [
        (records[row.request_id], tokens[row.index])
        for row in result.requests
        if row.request_id is not None and row.error is None
    ]
    print(
        f"{rate_per_s:g} a second, round {number}: {result.summary.ok} of {result.summary.n} answered in "
        f"{result.summary.makespan_s:.0f} s; replicas ran {ran_s:.1f} s and waited for a core {waited_s:.1f} s; "
        f"idle: {cost.prefill_ms_per_token:.2f} ms a prompt token, step of 4 streams {cost.step_ms(4):.1f} ms",
        flush=True,
    )
    return recorded_of(joined, f"{number}.")


def record(folder: Path, asked: argparse.Namespace) -> None:
    """Run rounds of all loads in turn; the file of each load is written anew after each of its rounds."""
    for number in range(asked.first_round, asked.first_round + asked.rounds):
        for rate in asked.rates:
            made = run_round(folder, rate, number, asked.seconds, asked.users, asked.policy)
            write(folder / f"load-{rate:g}-{number}.jsonl", asyncio.run(made))


def rounds_of(folder: Path, rate_per_s: float, waited_max: float) -> list[list[Recorded]]:
    """Return what each round of a load served, those left out in which replicas waited longer for a core."""
    found = []
    for path in sorted(folder.glob(f"load-{rate_per_s:g}-*.jsonl")):
        cores = msgspec.json.decode(path.with_suffix(".cores.json").read_bytes(), type=Cores)
        if cores.waited_s <= waited_max * cores.ran_s:
            found.append(read_recorded(path.read_text().splitlines(), file=str(path)))
    return found


def write(path: Path, recorded: Sequence[Recorded]) -> Path:
    """Write recorded requests, one a line."""
    path.write_text("\n".join(msgspec.json.encode(one).decode() for one in recorded) + "\n")
    return path


def gather(folder: Path, asked: argparse.Namespace) -> None:
    """Put the rounds of each load into one file."""
    for rate in asked.rates:
        rounds = rounds_of(folder, rate, asked.waited_max)
        print(f"{rate:g} a second: {len(rounds)} rounds of {sum(map(len, rounds))} requests")
        write(folder / f"load-{rate:g}.jsonl", appended(rounds))


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


def simulate(
    folder: Path, trace: Path, replica: Path, policy: str, seeds: int
) -> dict[tuple[str, str], tuple[float, float]]:
    """Simulate recorded requests by `trimtab simulate`; returns (measured, simulated) by metric and statistic."""
    served = read_recorded(trace.read_text().splitlines(), file=str(trace))
    last_s = served[-1].at_s
    # The longer run lets every request end; the shorter one ends with the arrivals, for the throughput.
    whole, cut = (
        _summaries(folder, replica, trace, (policy, last_s + more, seeds))
        for more in (300.0, 0.001)
    )
    done = sum(one.output_tokens for one in served if (one.last_token_s or 0.0) <= last_s)
    rate = _mean([one["output_tokens_per_s"] for one in cut])
    found = {("output_tokens_per_s", ""): (done / last_s, rate)}
    for metric, values in _times(served).items():
        for statistic, real in (
            ("mean", float(np.mean(values))),
            ("p50", float(np.median(values))),
            ("p95", float(np.percentile(values, 95))),
        ):
            found[metric, statistic] = real, _mean([one[metric][statistic] for one in whole])
    return found


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _times(served: Sequence[Recorded]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {"ttft_ms": [], "tpot_ms": [], "e2e_ms": []}
    for one in served:
        first_s, last_s = one.first_token_s or 0.0, one.last_token_s or 0.0
        found["ttft_ms"].append((first_s - one.at_s) * 1000.0)
        found["e2e_ms"].append((last_s - one.at_s) * 1000.0)
        if one.output_tokens > 1:
            found["tpot_ms"].append((last_s - first_s) * 1000.0 / (one.output_tokens - 1))
    return found


def _summaries(
    folder: Path, replica: Path, trace: Path, asked: tuple[str, float, int]
) -> list[dict[str, Any]]:
    """Return what `trimtab simulate` says of each seed."""
    policy, duration_s, seeds = asked
    scenario = folder / "scenario.toml"
    workload = f"[workload]\nturns_wait = true\nduration_s = {duration_s}\n"
    rest = f'[fleet]\nreplicas = 2\n[routing]\npolicy = "{policy}"\n{workload}'
    scenario.write_text(f'name = "embedded fleet"\n{replica.read_text()}\n{rest}')
    words = ["simulate", scenario, "--trace", trace, "--format", "recorded", "--seeds", seeds]
    return [run["summary"] for run in json.loads(_told([*words, "--json"]))["runs"]]


def _told(words: Sequence[object]) -> str:
    ended = CliRunner().invoke(command, [str(word) for word in words])
    if ended.exit_code != 0:
        raise SystemExit(ended.output)
    return ended.stdout


def score(folder: Path, asked: argparse.Namespace) -> None:
    """Print how far the simulator is off at each load, with what the rounds say of the chance in it."""
    gather(folder, asked)
    replica = calibrate(folder, asked.fit, asked.tries)
    for rate in asked.rates:
        print(f"{rate:g} a second{' (fitted)' if rate == asked.fit else ''}")
        rounds = rounds_of(folder, rate, asked.waited_max)
        parts = [rounds, *(rounds[:at] + rounds[at + 1 :] for at in range(len(rounds)))]
        found = []
        for part in parts:
            trace = write(folder / "scored.jsonl", appended(part))
            found.append(simulate(folder, trace, replica, asked.policy, asked.seeds))
        for key, (real, made) in found[0].items():
            half = half_of([one[key][1] / one[key][0] for one in found[1:]])
            said = "unknown" if half is None else f"+-{half:.1%}"
            print(
                f"  {key[0]:20} {key[1]:5} {real:9.1f} {made:9.1f} {made / real - 1.0:+7.1%} {said}"
            )


def half_of(without: Sequence[float]) -> float | None:
    """Return half of the 95% interval of a value, from what it is without each of the rounds in turn.

    Source: the jackknife; Efron, Stein, "The jackknife estimate of variance", 1981.
    """
    count = len(without)
    if count < 3:
        return None
    spread = sum((one - sum(without) / count) ** 2 for one in without) * (count - 1) / count
    return t_quantile(0.975, count - 1) * math.sqrt(spread)


def main() -> None:
    """Do the step that is asked for."""
    if explained(__doc__):
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("step", choices=["record", "gather", "score"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rates", type=float, nargs="+", default=[0.3, 0.5, 0.7])
    parser.add_argument("--policy", default="round_robin")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--first-round", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=36.0)
    parser.add_argument("--users", type=int, default=16)
    parser.add_argument("--waited-max", type=float, default=0.04)
    parser.add_argument("--fit", type=float, default=0.5)
    parser.add_argument("--tries", type=int, default=800)
    parser.add_argument("--seeds", type=int, default=16)
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    match asked.step:
        case "record":
            record(asked.folder, asked)
            gather(asked.folder, asked)
        case "gather":
            gather(asked.folder, asked)
        case _:
            score(asked.folder, asked)


if __name__ == "__main__":
    main()
