"""What long prompts do to running streams: mixed replicas by chunk size against one that prefills for the other.

    python bench/bench_interference.py run FILE [--seed 1] [--load 0.25] [--longs 2] [--words 1000] [--chat-words 160]
        [--arms ARM...]
    python bench/bench_interference.py score FILE...

`run` is one round: every arm in an order of its own, each on a fresh fleet of two replicas (one thread each) with the
same requests at the same times, after a few that are not counted; a line of JSON for each arm is added to FILE. Arms
that FILE has of this load and seed are left out, so that a round may be run in parts; the pace is the one in FILE.
Rounds with other seeds go to the same file; the arms are so interleaved. Chats have about a token a word and 60 tokens
to answer, long prompts about a token a word that no replica holds. Both come at an even pace, by what is measured at
the start of the first round: chats keep one replica's decode busy for `--load` of its time, long prompts one replica's
prefill. Answers have a fixed length (`ignore_eos`), so that every arm does the same work.

The longest gap of a stream is between two pieces of its answer, as the gateway saw it; its p99 is over the chats of an
arm. Arms: `mixed N`: two mixed replicas of chunk N; `conditional`, `always remote`, `always local`: one replica
decodes, the other prefills (chunk 64 both), and the prompt is prefilled where predicted, there, or here.

Without arguments: a short round of two arms with one long prompt, in a file that is not kept, and its score.

`score` compares arms within each round: the ratio's geometric mean over rounds with a 95% t interval of its logarithm;
then the aims: met, not met, or inside the interval, which tells neither.
"""

import argparse
import asyncio
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from trimtab.core.config import (
    Config,
    EngineConfig,
    FleetConfig,
    GatewayConfig,
    LedgerConfig,
    RoutingConfig,
)
from trimtab.core.config_handover import HandOverConfig, PlaceRule
from trimtab.core.config_roles import PrefillEngineConfig, RolesConfig
from trimtab.core.cost import CostModel
from trimtab.core.events import HandedOver, RequestServed
from trimtab.core.record import RequestRecord
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

sys.path.append(str(Path(__file__).resolve().parents[1]))
from bench.interference_score import CHAT, CONDITIONAL, DEFAULT, LONG, Row, p99, rows_of, score

WARM: Final = "warm"
CHAT_TOKENS, LONG_TOKENS = 60, 16
WARM_TOKENS: Final = 8
FIRST_LONG_S: Final = 2.0
MIXED: Final = {"mixed 2048": 2048, "mixed 512": 512, "mixed 128": 128, "mixed 64": 64}
ROLES: Final = {
    CONDITIONAL: PlaceRule.PREDICTED,
    "always remote": PlaceRule.REMOTE,
    "always local": PlaceRule.LOCAL,
}
ARMS: Final = (*MIXED, *ROLES)
DECODE_CHUNK, PREFILL_CHUNK = 64, 64
MEASURE_S: Final = 3.0


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
        roles=RolesConfig(
            prefill=0 if is_mixed else 1,
            prefill_engine=PrefillEngineConfig(chunk_tokens=PREFILL_CHUNK),
        ),
        handover=HandOverConfig(place=ROLES.get(arm, PlaceRule.PREDICTED)),
    )


class Request(NamedTuple):
    """A request and when it is sent."""

    at_s: float
    label: str
    body: bytes


class Pace(NamedTuple):
    """How many of what come how often."""

    chat_every_s: float
    long_every_s: float
    longs: int
    words: int
    chat_words: int


def pace_of(cost: CostModel, args: argparse.Namespace) -> Pace:
    """Return the pace that keeps one replica's decode, and one's prefill, busy for a share of the time."""
    chat_s = CHAT_TOKENS * cost.step_ms(2) / 2.0 / 1000.0
    long_s = cost.prefill_ms(args.words) / 1000.0
    return Pace(chat_s / args.load, long_s / args.load, args.longs, args.words, args.chat_words)


def request_of(rng: random.Random, at_s: float, label: str, words: int, tokens: int) -> Request:
    """Return a request before it has its number; its prompt is never the same as another's."""
    text = f"Write a long story with these words: {' '.join(rng.choices(WORDS, k=words))}"
    body = chat_body([Message("user", text)], max_tokens=tokens, temperature=0.0, seed=1)
    # Every arm is to do the same work: answers end where they were told to.
    return Request(at_s, label, body.removesuffix(b"}") + b',"ignore_eos":true}')


def workload(seed: int, requests: Sequence[Request], description: str) -> Workload:
    """Return requests as the load generator takes them."""
    planned = tuple(
        PlannedRequest(
            index=index,
            session=f"{one.label}-{index}",
            turn=0,
            send_at_s=one.at_s,
            endpoint=CHAT_ENDPOINT,
            body=one.body,
            label=one.label,
        )
        for index, one in enumerate(sorted(requests, key=lambda one: (one.at_s, one.label)))
    )
    return Workload(
        name="interference",
        seed=seed,
        requests=planned,
        description=description,
        scale={"input_factor": 1.0},
        peak=PeakShape(low=1.0, high=1.0),
    )


def warm_load(seed: int, pace: Pace) -> Workload:
    """Return what is sent before anything counts: what is done for the first time takes longer."""
    rng = random.Random(f"warm {seed}")
    return workload(
        seed,
        [
            request_of(rng, 0.5 * at, WARM, pace.words if at < 2 else pace.chat_words, WARM_TOKENS)
            for at in range(6)
        ],
        "warm",
    )


def load_of(seed: int, share: float, pace: Pace) -> Workload:
    """Return the arrivals of a round: chats and long prompts, each at its own even pace, prompts never the same."""
    rng = random.Random(seed)
    seconds = FIRST_LONG_S + pace.longs * pace.long_every_s
    chats = range(int(seconds / pace.chat_every_s))
    requests = [
        request_of(rng, at * pace.chat_every_s, CHAT, pace.chat_words, CHAT_TOKENS) for at in chats
    ]
    requests += [
        request_of(rng, FIRST_LONG_S + at * pace.long_every_s, LONG, pace.words, LONG_TOKENS)
        for at in range(pace.longs)
    ]
    return workload(seed, requests, f"load {share:g}, {pace.words} and {pace.chat_words} words")


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


async def arm_row(arm: str, load: Workload, cost: CostModel | None, pace: Pace) -> Row:
    """Run one arm and return its figures; `cost` None: it is measured there, as where hand-overs are decided."""
    async with started(arm) as system:
        if cost is None:
            cost = await measure_cost(system, MEASURE_S)
        system.use_cost(cost)
        await run_load(system.url, warm_load(load.seed, pace))
        result = await run_load(system.url, load)
        await system.ledger.flush()
        row = figures(arm, load, system)
        row["tokens_per_s"] = result.summary.output_tokens_per_s
        row["errors"] = result.summary.errors
        row["pace"] = pace._asdict()
        row["cost"] = msgspec.to_builtins(cost)
        return row


def figures(arm: str, load: Workload, system: System) -> Row:
    """Return what an arm's records and ledger say, by label."""
    events = [one.event for one in system.ledger.read()]
    served = [one for one in events if isinstance(one, RequestServed) and one.record.label != WARM]
    counted = {one.record.request_id for one in served}
    told = [one.hand_over for one in events if isinstance(one, HandedOver)]
    good = [one.record for one in served if one.record.ok]
    decided = [(one.record.label, one.prefill) for one in served if one.prefill]
    return {
        "arm": arm,
        "seed": load.seed,
        "load": load.description,
        "gap_ms": by_label(good, lambda one: one.chunk_gap_ms_max),
        "ttft_ms": by_label(good, lambda one: one.ttft_ms),
        "tpot_ms": by_label(good, lambda one: one.tpot_ms),
        "second_gap_ms": by_label(good, lambda one: one.second_gap_ms),
        "reasons": Counter(f"{label} {one.decision.reason.value}" for label, one in decided),
        "decisions": [
            (
                label,
                one.decision.reason.value,
                one.decision.local and rounded(one.decision.local.terms),
                one.decision.remote and rounded(one.decision.remote.terms),
                one.waited_ms,
            )
            for label, one in decided
        ],
        "hand_overs": [
            (one.outcome.value, one.bytes, one.export_ms, one.setup_ms, one.transfer_ms)
            for one in told
            if one.request_id in counted
        ],
    }


def by_label(
    records: Sequence[RequestRecord], of: Callable[[RequestRecord], float | None]
) -> dict[str, list[float]]:
    """Return a figure of each record that has it."""
    return {
        label: [
            round(value, 2)
            for one in records
            if one.label == label and (value := of(one)) is not None
        ]
        for label in (CHAT, LONG)
    }


def rounded(terms: dict[str, float]) -> dict[str, int]:
    """Return a prediction's terms in whole milliseconds."""
    return {name: round(ms) for name, ms in terms.items()}


async def run(args: argparse.Namespace) -> None:
    """Run one round, or what is left of it, and add its rows to the file."""
    before = rows_of([args.file])
    order = list(args.arms or ARMS)
    random.Random(args.seed).shuffle(order)
    paces = [
        Pace(**row["pace"]) for row in before if row["load"].startswith(f"load {args.load:g},")
    ]
    costs = [msgspec.convert(row["cost"], CostModel) for row in before if row["arm"] in MIXED]
    cost = costs[0] if costs else await measured(DEFAULT)
    pace = paces[0] if paces else pace_of(cost, args)
    load = load_of(args.seed, args.load, pace)
    done = {
        row["arm"] for row in before if (row["load"], row["seed"]) == (load.description, load.seed)
    }
    print(pace, f"step {cost.step_ms(2):.1f} ms", file=sys.stderr)
    for arm in (one for one in order if one not in done):
        row = await arm_row(arm, load, cost if arm in MIXED else None, pace)
        with args.file.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(arm, f"gap p99 {p99(row['gap_ms'][CHAT]):.0f} ms", file=sys.stderr)


def short_round() -> None:
    """Run the least that shows a difference, about a minute and a half, and score it."""
    with tempfile.TemporaryDirectory() as name:
        file = str(Path(name) / "round.jsonl")
        asked("run", file, "--longs", "1", "--arms", DEFAULT, CONDITIONAL)
        asked("score", file)


def asked(*words: str) -> None:
    """Run one of the two commands."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(required=True)
    running = commands.add_parser("run")
    running.add_argument("file", type=Path)
    running.add_argument("--seed", type=int, default=1)
    running.add_argument("--load", type=float, default=0.25)
    running.add_argument("--longs", type=int, default=2)
    running.add_argument("--words", type=int, default=1_000)
    running.add_argument("--chat-words", type=int, default=160)
    running.add_argument("--arms", nargs="*", choices=ARMS)
    running.set_defaults(run=lambda args: asyncio.run(run(args)))
    scoring = commands.add_parser("score")
    scoring.add_argument("file", type=Path, nargs="+")
    scoring.set_defaults(run=lambda args: score(args.file))
    args = parser.parse_args(words)
    args.run(args)


def main() -> None:
    """Do what is asked for, else the short round."""
    if len(sys.argv) > 1:
        asked(*sys.argv[1:])
    else:
        short_round()


if __name__ == "__main__":
    main()
