"""How often rollouts are wrong and how soon they are right, looked at every minute: rates with their intervals.

    python bench/bench_peeking.py                     a few streams of each scenario, to see that it runs
    python bench/bench_peeking.py --whole --out DIR   all of them, on every core; goes on where DIR stops

The scenarios and their traffic are in `bench/peeking.py`; nothing is judged but by the live gates and machine.
    aa       the lever changes nothing: nobody may adopt it, nobody may stop it for harm
    gain     time to first token is 20% less for everybody: how many find it, and with how much evidence
    cut      20% less for 96% of the sessions, 30% more for the other 4%, which no gate was declared for
"""

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import NormalDist, quantiles

import msgspec

sys.path.append(str(Path(__file__).resolve().parents[1]))
from bench.peeking import Course, Scenario, Stream

SCENARIOS = {
    "aa": (Scenario(name="aa", per_minute=4.0), 2000),
    "gain": (Scenario(name="gain", ratio=0.8, per_minute=45.0, window_s=3600.0), 200),
    # A peak cycle of a day, as records have it unless they say otherwise.
    "cut": (
        Scenario(
            name="cut",
            ratio=0.8,
            rare_ratio=1.3,
            windows=120,
            window_s=3600.0,
            per_minute=100.0,
            cycle_windows=24.0,
        ),
        40,
    ),
}
FEW = {"aa": 4, "gain": 2, "cut": 0}


def wilson(hits: int, n: int, level: float = 0.95) -> tuple[float, float]:
    """Return the Wilson interval of a share."""
    if not n:
        return 0.0, 1.0
    z = NormalDist().inv_cdf(0.5 + 0.5 * level)
    centre = (hits + 0.5 * z * z) / (n + z * z)
    half = z * (hits * (n - hits) / n + 0.25 * z * z) ** 0.5 / (n + z * z)
    return centre - half, centre + half


def share(name: str, hits: int, n: int) -> str:
    """Return a rate in words, with its interval."""
    low, high = wilson(hits, n)
    return f"{name}: {hits} of {n} = {hits / n if n else 0.0:.2%} (95% interval {low:.2%} to {high:.2%})"


def run(task: tuple[Scenario, int]) -> Course:
    """Run one stream; for the pool."""
    scenario, seed = task
    return Stream(scenario, seed).run()


def known(path: Path) -> list[Course]:
    """Return the courses that an earlier run wrote."""
    if not path.exists():
        return []
    lines = path.read_bytes().splitlines()
    return [msgspec.json.decode(line, type=Course) for line in lines if line.endswith(b"}")]


def all_courses(name: str, streams: int, out: Path | None, jobs: int) -> Iterator[Course]:
    """Yield every stream of a scenario, those that are known first."""
    scenario = SCENARIOS[name][0]
    path = None if out is None else out / f"{name}.jsonl"
    before = [] if path is None else known(path)
    yield from before
    have = {one.seed for one in before}
    tasks = [(scenario, seed) for seed in range(streams) if seed not in have]
    with multiprocessing.Pool(jobs) as pool:
        for course in pool.imap_unordered(run, tasks, chunksize=1):
            if path is not None:
                with path.open("ab") as file:
                    file.write(msgspec.json.encode(course) + b"\n")
            yield course


def report(name: str, found: list[Course]) -> list[str]:
    """Return what the streams of a scenario say."""
    n = len(found)
    adopted = [one for one in found if one.state == "adopted"]
    stopped = [one for one in found if one.stopped_by]
    gained = [one for one in found if one.gained_at_window is not None]
    looks = sum(one.looks for one in found)
    lines = [f"{name}: {n} streams, {looks:,} looks"]
    match name:
        case "aa":
            lines += [
                share("ever promoted to adoption", len(adopted), n),
                share("gain ever shown", len(gained), n),
                share("stopped for harm", len(stopped), n),
            ]
        case "gain":
            lines += [share("gain shown", len(gained), n), share("adopted", len(adopted), n)]
            lines += [share("stopped for harm", len(stopped), n), *_needed(gained, n)]
        case _:
            caught = [one for one in stopped if "rare" in one.stopped_by]
            lines += [
                share("stopped for the cut", len(caught), n),
                share("adopted all the same", len(adopted), n),
            ]
            if len(caught) > 1:
                lines.append(
                    _quantile("requests of the cut", [one.rare_requests for one in caught])
                )
    by = sorted({one.stopped_by for one in stopped})
    lines += [f"  {sum(one.stopped_by == gate for one in stopped)} by {gate}" for gate in by]
    return lines


def _needed(gained: list[Course], n: int) -> list[str]:
    """Say how much evidence nine of ten streams needed, those that found nothing counted as needing more."""
    if len(gained) < 2:
        return []
    return [
        _quantile("units of evidence", [one.gain_units for one in gained]),
        _quantile("requests compared", [one.gain_requests for one in gained]),
        _quantile("windows of an hour", [one.gained_at_window or 0.0 for one in gained]),
        f"  of {n} streams, {n - len(gained)} needed more",
    ]


def _quantile(what: str, values: list[float] | list[int]) -> str:
    cuts = quantiles(values, n=10, method="inclusive")
    return f"  {what}: median {cuts[4]:,.0f}, nine of ten {cuts[8]:,.0f}"


def main() -> None:
    """Run the scenarios and print their rates."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--whole", action="store_true", help="all streams, not a few")
    parser.add_argument("--only", choices=sorted(SCENARIOS), help="one scenario")
    parser.add_argument("--streams", type=int, help="another number of streams")
    parser.add_argument("--out", type=Path, help="folder to keep the streams in")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    asked = parser.parse_args()
    if asked.out is not None:
        asked.out.mkdir(parents=True, exist_ok=True)
    for name, (_, whole) in SCENARIOS.items():
        if asked.only not in (None, name):
            continue
        streams = asked.streams or (whole if asked.whole else FEW[name])
        if not streams:
            continue
        began = time.perf_counter()
        found = list(all_courses(name, streams, asked.out, asked.jobs))
        for line in report(name, found):
            print(line)
        print(f"  {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
