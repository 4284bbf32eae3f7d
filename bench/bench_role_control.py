"""Role control against the best fixed ratio chosen with hindsight for each hour, in the simulator.

    python bench/bench_role_control.py TRACES [--workers 4,16,64] [--seconds 3600] [--seeds 1] [--only azure,mooncake]
        [--grid 0,0.125,0.25,0.375,0.5,0.625]

TRACES is a folder with `AzureLLMInferenceTrace_code.csv`, `AzureLLMInferenceTrace_conv.csv`,
`mooncake_conversation_trace.jsonl` and `mooncake_synthetic_trace.jsonl`. Four runs of arrivals for each size of fleet:
an hour of code and then one of conversation as Azure published them, an hour of Mooncake's conversations, one of its
synthetic arrivals, and a constant load. Each is run with roles
that follow the traffic, from an eighth of the replicas that prefill, and with every fixed number of prefill replicas of
a grid. For each hour the best fixed one is taken, whichever it is; the control must get 0.95 of the sum.

A seed moves where a trace and its copies begin, and draws what is drawn; the first minute is not counted.
"""

import argparse
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from trimtab.interfaces.trace_inputs import read_arrivals
from trimtab.sim.arrivals import Arrival
from trimtab.sim.compare import half_width
from trimtab.sim.run import SimResult, simulate
from trimtab.sim.scenario import parse_scenario
from trimtab.sim.sections import Scenario

sys.path.append(str(Path(__file__).resolve().parents[1]))
from bench.asked import explained

GRID: Final = (0.0, 0.125, 0.25, 0.375, 0.5, 0.625)
POLICY: Final = "prefix_affine"
WARM_S: Final = 60.0
TURN: Final = 0.382
"""Part of a trace by which each seed begins later than the one before: a few seeds are spread evenly."""

TEXT: Final = """
name = "role control"
seed = 1

# Of the order of a 70B model on a node; so that an hour of a hundred requests a second is not a million requests.
[replica]
kv_tokens = 400_000
block_tokens = {block}
budget_tokens = 1024
streams_max = 64

[replica.cost]
overhead_ms = 4.0
weights_ms = 22.0
token_ms = 0.16
stream_ms = 0.12
context_ms = 6e-5
pair_ms = 2e-6
source = "made up, of the order of a 70B model on one node"

[fleet]
replicas = {workers}

[objective]
ttft_ms = {ttft}
tpot_ms = {tpot}

[roles]
prefill = {prefill}
kv_bytes_per_token = 327680
link_bytes_per_s = 12.5e9
setup_ms = 2
{control}
[local_prefill]
chunk_tokens = 1024
stall_weight = {stall_weight}

[workload]
duration_s = {seconds}
copies = {copies}
format = "{format}"
"""

CONTROL: Final = "[roles.control]\n"


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What arrives: the trace's files, how many of its copies a replica gets, and the targets in milliseconds."""

    name: str
    files: tuple[str, ...]
    format: str
    copies: float
    ttft_ms: float
    tpot_ms: float
    block_tokens: int = 128
    constant: bool = False


LOADS: Final = (
    Load(
        name="azure",
        files=("AzureLLMInferenceTrace_code.csv", "AzureLLMInferenceTrace_conv.csv"),
        format="azure",
        copies=0.25,
        ttft_ms=4000.0,
        tpot_ms=100.0,
    ),
    Load(
        name="mooncake",
        files=("mooncake_conversation_trace.jsonl",),
        format="mooncake",
        copies=0.0625,
        ttft_ms=8000.0,
        tpot_ms=100.0,
        block_tokens=512,
    ),
    Load(
        name="synthetic",
        files=("mooncake_synthetic_trace.jsonl",),
        format="mooncake",
        copies=0.0625,
        ttft_ms=8000.0,
        tpot_ms=100.0,
        block_tokens=512,
    ),
    Load(
        name="constant",
        files=("AzureLLMInferenceTrace_code.csv",),
        format="azure",
        copies=0.375,
        ttft_ms=4000.0,
        tpot_ms=100.0,
        constant=True,
    ),
)


def scenario_of(
    load: Load, workers: int, prefill: int, seconds: float, *, follow: bool
) -> Scenario:
    """Return the scenario of one run."""
    stall_weight = load.ttft_ms / (150 * load.tpot_ms)
    text = TEXT.format(
        block=load.block_tokens,
        workers=workers,
        prefill=prefill,
        ttft=load.ttft_ms,
        tpot=load.tpot_ms,
        control=CONTROL if follow else "",
        seconds=seconds,
        copies=load.copies * workers,
        format=load.format,
        stall_weight=round(stall_weight, 3),
    )
    return parse_scenario(text, source=f"{load.name} on {workers}")


def arrivals_of(load: Load, folder: Path, seconds: float, seed: int) -> list[Arrival]:
    """Return the trace once, its parts one after the other, each for `seconds`; a constant load has even gaps."""
    found: list[Arrival] = []
    for part, name in enumerate(load.files):
        read = read_arrivals(
            [folder / name], load.format, block_tokens=load.block_tokens, seed=seed, gap_s=0.0
        )
        kept = [one for one in turned(read, seed) if one.at_s < seconds]
        if load.constant:
            gap_s = seconds / len(kept)
            kept = [msgspec.structs.replace(one, at_s=at * gap_s) for at, one in enumerate(kept)]
        found += [msgspec.structs.replace(one, at_s=one.at_s + part * seconds) for one in kept]
    return found


def turned(arrivals: Sequence[Arrival], seed: int) -> list[Arrival]:
    """Return a trace that begins elsewhere, what was before that at its end; seed 1 leaves it as it is."""
    span_s = max(one.at_s for one in arrivals)
    begin_s = span_s * ((seed - 1) * TURN % 1.0)
    moved = [
        msgspec.structs.replace(one, at_s=(one.at_s - begin_s) % (span_s + 1e-3))
        for one in arrivals
    ]
    return sorted(moved, key=lambda one: one.at_s)


def good_by_hour(run: SimResult, hours: int) -> list[int]:
    """Return how many good requests arrived in each hour."""
    good = run.course.good
    each = len(good) // hours
    return [sum(good[at * each : (at + 1) * each]) for at in range(hours)]


def measure(
    load: Load, folder: Path, workers: int, seconds: float, seed: int, grid: Sequence[float] = GRID
) -> list[float]:
    """Run one load with the control and with each fixed ratio; returns what the table says of it."""
    trace = arrivals_of(load, folder, seconds, seed)
    hours = len(load.files)
    whole_s = seconds * hours
    start = max(1, workers // 8)

    def run(prefill: int, *, follow: bool) -> SimResult:
        scenario = scenario_of(load, workers, prefill, whole_s, follow=follow)
        return simulate(scenario, POLICY, trace=trace, seed=seed)

    fixed: dict[int, list[int]] = {}
    for share in grid:
        prefill = round(share * workers)
        if prefill not in fixed:
            fixed[prefill] = good_by_hour(run(prefill, follow=False), hours)
            print(f"  {workers} workers, {prefill} prefill: {fixed[prefill]}", file=sys.stderr)
    followed = run(start, follow=True)
    mine = good_by_hour(followed, hours)
    best = [max(each[hour] for each in fixed.values()) for hour in range(hours)]
    roles = followed.roles
    assert roles is not None
    print(
        f"  {workers} workers, follow: {mine}, prefill {roles.prefill[::6]}, holds {roles.holds}, "
        f"moves {[f'{m.at_s:.0f} {m.action} {m.reason}' for m in roles.moves]}",
        file=sys.stderr,
    )
    arrived = sum(followed.course.arrived)
    return [
        arrived,
        100.0 * sum(mine) / arrived,
        100.0 * sum(best) / arrived,
        sum(mine) / max(1, sum(best)),
        100.0 * max(sum(each) for each in fixed.values()) / arrived,
        roles.changes_per_replica_hour,
    ]


def said(values: Sequence[float], digits: int) -> str:
    """Return a mean with half of its 95% interval, where there are seeds enough for one."""
    half = half_width(list(values))
    text = f"{statistics.fmean(values):,.{digits}f}"
    return text if half is None else f"{text} ±{half:.{digits}f}"


def main() -> None:
    """Print a line of a table for each load and size of fleet."""
    if explained(__doc__):
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("traces", type=Path)
    parser.add_argument("--workers", default="4,16,64")
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--only", default=",".join(load.name for load in LOADS))
    parser.add_argument("--grid", default=",".join(f"{share:g}" for share in GRID))
    asked = parser.parse_args()
    grid = [float(each) for each in asked.grid.split(",")]
    print(
        "| arrivals | workers | requests | follow, good | best fixed by hour | of it | one fixed | changes |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for load in (one for one in LOADS if one.name in asked.only.split(",")):
        for workers in (int(each) for each in asked.workers.split(",")):
            rows = [
                measure(load, asked.traces, workers, asked.seconds, seed, grid)
                for seed in range(1, asked.seeds + 1)
            ]
            columns = list(zip(*rows, strict=True))
            cells = [
                said(column, digits)
                for column, digits in zip(columns, (0, 1, 1, 3, 1, 2), strict=True)
            ]
            print(f"| {load.name} | {workers} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
