"""What long prompts do to running streams: mixed replicas by chunk size against one that prefills for the other.

    python bench/bench_interference.py run FILE [--seed 1] [--load 0.5] [--longs 3] [--words 1000] [--arms ARM...]
    python bench/bench_interference.py score FILE...

`run` is one round: every arm in an order of its own, each on a fresh fleet of two replicas (one thread each) with the
same requests at the same times; a line of JSON for each arm is added to FILE. Rounds with other seeds go to the same
file; the arms are so interleaved. Chats are short prompts with 60 tokens to answer, long prompts have about 1.4 tokens
a word that no replica holds. Both come at an even pace, by what is measured at the start of the round: chats keep one
replica's decode busy for `--load` of its time, long prompts one replica's prefill.

The longest gap of a stream is between two pieces of its answer, as the gateway saw it; its p99 is over the chats of an
arm. Arms: `mixed N`: two mixed replicas of chunk N; `conditional`, `always remote`, `always local`: one replica decodes
(chunk 128), the other prefills (chunk 512), and the prompt is prefilled where predicted, there, or here.

`score` compares arms within each round: the ratio's geometric mean over rounds with a 95% t interval of its logarithm.
"""

import argparse
import asyncio
import json
import math
import random
import statistics
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from scipy import stats

from trimtab.core.config import (
    Config,
    EngineConfig,
    FleetConfig,
    GatewayConfig,
    LedgerConfig,
    RoutingConfig,
)
from trimtab.core.config_handover import HandOverConfig, PlaceRule
from trimtab.core.config_roles import RolesConfig
from trimtab.core.cost import CostModel
from trimtab.core.events import HandedOver, RequestServed
from trimtab.core.stats import percentile
from trimtab.runtime.clock import SystemClock
from trimtab.runtime.load import run_load
from trimtab.runtime.measure import measure_cost
from trimtab.runtime.supervisor import System
from trimtab.workloads.base import (
    CHAT_ENDPOINT,
    Message,
    PeakShape,
    PlannedRequest,
    Workload,
    chat_body,
)
from trimtab.workloads.words import WORDS

CHAT, LONG = "chat", "long"
CHAT_TOKENS, LONG_TOKENS = 60, 16
TOKENS_A_WORD: Final = 1.4
FIRST_LONG_S: Final = 2.0
MIXED: Final = {"mixed 2048": 2048, "mixed 512": 512, "mixed 128": 128}
ROLES: Final = {
    "conditional": PlaceRule.PREDICTED,
    "always remote": PlaceRule.REMOTE,
    "always local": PlaceRule.LOCAL,
}
ARMS: Final = (*MIXED, *ROLES)
DECODE_CHUNK, PREFILL_CHUNK = 128, 512
MEASURE_S: Final = 3.0

Row = dict[str, Any]


def config_of(arm: str, folder: Path) -> Config:
    """Return an arm's configuration; all arms have two replicas and one routing policy."""
    is_mixed = arm in MIXED
    return Config(
        engine=EngineConfig(
            slots=4, context_tokens=2048, chunk_tokens=MIXED.get(arm, DECODE_CHUNK)
        ),
        fleet=FleetConfig(replicas=2, stop_grace_s=2),
        gateway=GatewayConfig(port=0),
        routing=RoutingConfig(policy="prefix_affine"),
        ledger=LedgerConfig(path=str(folder / "ledger.sqlite")),
        roles=RolesConfig(prefill=0 if is_mixed else 1, prefill_chunk_tokens=PREFILL_CHUNK),
        handover=HandOverConfig(place=ROLES.get(arm, PlaceRule.PREDICTED)),
    )


class Pace(NamedTuple):
    """How many of what come how often."""

    chat_every_s: float
    long_every_s: float
    longs: int
    words: int


def pace_of(cost: CostModel, share: float, longs: int, words: int) -> Pace:
    """Return the pace that keeps one replica's decode, and one's prefill, busy for a share of the time."""
    chat_s = CHAT_TOKENS * cost.step_ms(2) / 2.0 / 1000.0
    long_s = cost.prefill_ms(TOKENS_A_WORD * words) / 1000.0
    return Pace(chat_s / share, long_s / share, longs, words)


def load_of(seed: int, share: float, pace: Pace) -> Workload:
    """Return the arrivals of a round: chats and long prompts, each at its own even pace, prompts never the same."""
    rng = random.Random(seed)
    seconds = FIRST_LONG_S + pace.longs * pace.long_every_s
    times = [(at * pace.chat_every_s, CHAT) for at in range(int(seconds / pace.chat_every_s))]
    times += [(FIRST_LONG_S + at * pace.long_every_s, LONG) for at in range(pace.longs)]
    planned = []
    for index, (at_s, label) in enumerate(sorted(times)):
        words = rng.choices(WORDS, k=40 if label == CHAT else pace.words)
        text = f"Write a long story with these words: {' '.join(words)}"
        tokens = CHAT_TOKENS if label == CHAT else LONG_TOKENS
        body = chat_body([Message("user", text)], max_tokens=tokens, temperature=0.0, seed=seed)
        planned.append(
            PlannedRequest(
                index=index,
                session=f"{label}-{index}",
                turn=0,
                send_at_s=at_s,
                endpoint=CHAT_ENDPOINT,
                body=body,
                label=label,
            )
        )
    return Workload(
        name="interference",
        seed=seed,
        requests=tuple(planned),
        description=f"load {share:g}, {pace.words} words",
        scale={"input_factor": 1.0},
        peak=PeakShape(low=1.0, high=1.0),
    )


async def measured(arm: str) -> CostModel:
    """Return what a prefill and a step cost now, on a fleet that is started for it."""
    async with started(arm) as system:
        return await measure_cost(system, MEASURE_S)


@asynccontextmanager
async def started(arm: str) -> AsyncIterator[System]:
    """Start an arm's fleet in a folder of its own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        system = System(
            config_of(arm, folder),
            SystemClock(),
            command="bench",
            log_folder=folder / "logs",
            secret_path=folder / "secret",
        )
        async with system:
            yield system


async def arm_row(arm: str, load: Workload, cost: CostModel, pace: Pace) -> Row:
    """Run one arm and return its figures."""
    async with started(arm) as system:
        system.use_cost(cost)
        result = await run_load(system.url, load)
        await system.ledger.flush()
        row = figures(arm, load, system)
        row["tokens_per_s"] = result.summary.output_tokens_per_s
        row["errors"] = result.summary.errors
        row["pace"] = pace._asdict()
        row["step_ms"] = cost.step_ms(2)
        return row


def figures(arm: str, load: Workload, system: System) -> Row:
    """Return what an arm's records and ledger say, by label."""
    events = [one.event for one in system.ledger.read()]
    told = [one.hand_over for one in events if isinstance(one, HandedOver)]
    served = [one.prefill for one in events if isinstance(one, RequestServed) and one.prefill]
    good = [one for one in system.records if one.ok]
    reasons: dict[str, int] = {}
    for one in served:
        reasons[one.decision.reason.value] = reasons.get(one.decision.reason.value, 0) + 1
    return {
        "arm": arm,
        "seed": load.seed,
        "load": load.description,
        "gap_ms": [round(one.chunk_gap_ms_max or 0.0, 1) for one in good if one.label == CHAT],
        "ttft_ms": {
            label: [round(one.ttft_ms or 0.0, 1) for one in good if one.label == label]
            for label in (CHAT, LONG)
        },
        "tpot_ms": [round(one.tpot_ms or 0.0, 2) for one in good if one.label == CHAT],
        "second_gap_ms": [round(one.second_gap_ms or 0.0, 1) for one in good],
        "reasons": reasons,
        "hand_overs": [
            (one.outcome.value, one.bytes, one.export_ms, one.setup_ms, one.transfer_ms)
            for one in told
        ],
    }


async def run(args: argparse.Namespace) -> None:
    """Run one round and add its rows to the file."""
    order = list(args.arms or ARMS)
    random.Random(args.seed).shuffle(order)
    cost = await measured(order[0])
    pace = pace_of(cost, args.load, args.longs, args.words)
    load = load_of(args.seed, args.load, pace)
    print(pace, f"step {cost.step_ms(2):.1f} ms", file=sys.stderr)
    for arm in order:
        row = await arm_row(arm, load, cost, pace)
        with args.file.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(arm, f"gap p99 {p99(row['gap_ms']):.0f} ms", file=sys.stderr)


def p99(values: Sequence[float]) -> float:
    """Return the 99th percentile, of few values their greatest."""
    return percentile(values, 0.99)


METRICS: Final[dict[str, Callable[[Row], float]]] = {
    "longest gap p99": lambda row: p99(row["gap_ms"]),
    "TTFT p50, chat": lambda row: statistics.median(row["ttft_ms"][CHAT]),
    "TTFT p95, chat": lambda row: percentile(row["ttft_ms"][CHAT], 0.95),
    "TTFT p50, long": lambda row: statistics.median(row["ttft_ms"][LONG]),
    "TPOT p95, chat": lambda row: percentile(row["tpot_ms"], 0.95),
    "tokens/s": lambda row: float(row["tokens_per_s"]),
}


def score(files: Sequence[Path]) -> None:
    """Print every arm's figures, and the ratios of `conditional` to every other arm."""
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    rounds: dict[tuple[str, int], dict[str, Row]] = {}
    for row in rows:
        rounds.setdefault((row["load"], row["seed"]), {})[row["arm"]] = row
    print(f"{len(rounds)} rounds; medians over rounds")
    arms = [arm for arm in ARMS if any(arm in one for one in rounds.values())]
    print(f"| arm | {' | '.join(METRICS)} |")
    for arm in arms:
        mine = [one[arm] for one in rounds.values() if arm in one]
        values = [f"{statistics.median(of(row) for row in mine):.1f}" for of in METRICS.values()]
        print(f"| {arm} | {' | '.join(values)} |")
    print(f"\n| conditional over | {' | '.join(METRICS)} |")
    for arm in arms:
        pairs = [(one["conditional"], one[arm]) for one in rounds.values() if arm in one]
        cells = [ratio([(of(a), of(b)) for a, b in pairs]) for of in METRICS.values()]
        if arm != "conditional":
            print(f"| {arm} | {' | '.join(cells)} |")


def ratio(pairs: Sequence[tuple[float, float]]) -> str:
    """Return the geometric mean of a / b with its 95% interval."""
    logs = [math.log(a / b) for a, b in pairs]
    mean = statistics.fmean(logs)
    if len(logs) < 2:
        return f"{math.exp(mean):.3f}"
    half = stats.t.ppf(0.975, len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    return f"{math.exp(mean):.3f} [{math.exp(mean - half):.3f}, {math.exp(mean + half):.3f}]"


def main() -> None:
    """Run one of the two commands."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(required=True)
    running = commands.add_parser("run")
    running.add_argument("file", type=Path)
    running.add_argument("--seed", type=int, default=1)
    running.add_argument("--load", type=float, default=0.5)
    running.add_argument("--longs", type=int, default=3)
    running.add_argument("--words", type=int, default=1_000)
    running.add_argument("--arms", nargs="*", choices=ARMS)
    running.set_defaults(run=lambda args: asyncio.run(run(args)))
    scoring = commands.add_parser("score")
    scoring.add_argument("file", type=Path, nargs="+")
    scoring.set_defaults(run=lambda args: score(args.file))
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
