"""What a simulation costs: events of an empty kernel, and an hour of a trace on fleets of growing size.

    python bench/bench_simulation.py SCENARIO.toml TRACE [REPLICAS ...] [PICTURE.svg]

The traffic must grow with the fleet (`per_replica`), else the sizes say nothing about each other. Every size runs in a
process of its own, so that its peak memory is its own. CPU seconds are those of the one thread that simulates; wall
time is longer where the machine is shared. Reading the trace is not counted.
"""

import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from trimtab.interfaces.simulate_inputs import read_scenario, read_trace
from trimtab.interfaces.svg import Drawing, log_ticks, logarithmic
from trimtab.sim.kernel import Kernel
from trimtab.sim.run import simulate

EVENTS = 1_000_000
SIZES = (10, 100, 1000)
STYLE = (
    "text{font:12px sans-serif;fill:#555}.grid{stroke:#bbb;stroke-width:.5}"
    ".curve,.even{fill:none;stroke:#2a6fb0;stroke-width:2}.even{stroke:#999;stroke-dasharray:4 4}"
    ".dot{fill:#2a6fb0}"
)


def kernel_rate() -> float:
    """Return the events per second of a handler that does nothing but schedule the next one."""
    kernel = Kernel()
    left = [EVENTS]

    def handle(now_s: float, _: Any) -> None:
        left[0] -= 1
        if left[0] > 0:
            kernel.at(now_s + 1.0, handle)

    kernel.at(0.0, handle)
    started_s = time.process_time()
    kernel.run()
    return kernel.events / (time.process_time() - started_s)


def one(scenario: Path, trace: Path, replicas: int) -> dict[str, float]:
    """Simulate one size and return what it cost."""
    made = read_scenario(scenario, replicas=replicas, gateways=None)
    arrivals = read_trace(made, scenario.parent, trace, None)
    cpu_s, wall_s = time.process_time(), time.perf_counter()
    result = simulate(made, made.routing.policy, trace=arrivals)
    return {
        "replicas": replicas,
        "requests": result.summary.arrived,
        "events": result.events,
        "cpu_s": time.process_time() - cpu_s,
        "wall_s": time.perf_counter() - wall_s,
        "mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0,
        "ttft_ms_p95": result.summary.ttft_ms.p95 or 0.0,
        "hit_share": result.summary.hit_share,
    }


def picture(points: list[tuple[float, float]]) -> str:
    """Return a drawing of CPU seconds over replicas, both logarithmic, with what strict proportion would be."""
    sizes, seconds = [size for size, _ in points], [cost for _, cost in points]
    even = [seconds[0] * size / sizes[0] for size in sizes]
    drawing = Drawing(
        420,
        260,
        title="CPU seconds of a simulation over the replicas",
        description="; ".join(f"{size:g} replicas: {cost:.1f} s" for size, cost in points),
    )
    low, high = min(*seconds, *even), max(*seconds, *even)
    across = logarithmic(sizes[0], sizes[-1], 60, 400)
    up = logarithmic(low, high, 215, 20)
    for value in log_ticks(low, high):
        drawing.line(60, up(value), 400, up(value), "grid")
        drawing.text(54, up(value) + 4, f"{value:g} s", anchor="end")
    for size, cost in points:
        drawing.circle(across(size), up(cost), 4, "dot")
        drawing.text(across(size), 234, f"{size:,g}", anchor="middle")
    drawing.polyline([(across(size), up(cost)) for size, cost in points], "curve")
    drawing.polyline(
        [(across(size), up(cost)) for size, cost in zip(sizes, even, strict=True)], "even"
    )
    drawing.text(230, 254, "replicas; dashed: in proportion to the first", anchor="middle")
    return drawing.render().replace("<title>", f"<style>{STYLE}</style><title>", 1)


def main() -> None:
    """Print a line for the kernel and one for each size."""
    arguments = [each for each in sys.argv[1:] if not each.endswith(".svg")]
    points: list[tuple[float, float]] = []
    if arguments[:1] == ["--one"]:
        print(json.dumps(one(Path(arguments[1]), Path(arguments[2]), int(arguments[3]))))
        return
    rates = sorted(kernel_rate() for _ in range(5))
    print(f"kernel: {rates[2]:,.0f} events per second, median of 5", flush=True)
    if not arguments:
        print("No fleet is simulated without SCENARIO.toml and TRACE.")
        return
    for replicas in [int(each) for each in arguments[2:]] or SIZES:
        command = [sys.executable, __file__, "--one", *arguments[:2], str(replicas)]
        found = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
        points.append((replicas, found["cpu_s"]))
        each_us = found["cpu_s"] / found["requests"] * 1e6
        print(
            f"{replicas} replicas: {found['requests']:,} requests, {found['events']:,} events, "
            f"{found['cpu_s']:.1f} CPU s, {found['wall_s']:.1f} s, {found['mib']:.0f} MiB, "
            f"{each_us:.0f} us a request, TTFT p95 {found['ttft_ms_p95']:.0f} ms, "
            f"hits {found['hit_share']:.1%}",
            flush=True,
        )
    if sys.argv[-1].endswith(".svg"):
        Path(sys.argv[-1]).write_text(picture(points) + "\n")


if __name__ == "__main__":
    main()
