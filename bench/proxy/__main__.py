"""What proxies cost per streamed event.

    python -m bench.proxy --out out/proxy.json [--rounds 2] [--streams 64,256,1024] [--proxies trimtab,nginx,...]
    python -m bench.proxy --out out/proxy.json --report    table and figure of what is in the file

Rounds are added to those that the file has, so that a long measurement can be made in short pieces. Proxies run on
core 0, engine and client on core 1. With 1,024 streams events are further apart, so that as many are offered as with
256: what changes is the number of streams. `--events 320` makes streams ten times as long, so that what a request costs
is borne by ten times as many events; such rounds belong in a file of their own.
"""

import argparse
import asyncio
import json
import platform
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.peer_envs import NGINX, REQUIREMENTS, version
from bench.proxy.client import Shape
from bench.proxy.figure import draw
from bench.proxy.results import Row, cost_ratio, table, tail_difference
from bench.proxy.rounds import DIRECT, measure, running

PROXIES = ("trimtab", "vllm-router", "sglang-router", NGINX, "litellm", "bare", DIRECT)
EVENTS = 32
GAPS_MS = {64: 20.0, 256: 20.0, 1024: 80.0}
GAP_MS = 20.0


def main() -> None:
    """Measure, or say what was measured."""
    given = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to end"))
    kept = json.loads(given.out.read_text()) if given.out.exists() else {"rows": []}
    rows = [Row(**row) for row in kept["rows"]]
    if not given.report:
        if rows and (events := kept.get("events", EVENTS)) != given.events:
            sys.exit(
                f"{given.out} has rounds of {events} events a stream, not of {given.events}:"
                " give --out another file"
            )
        done = max((row.round for row in rows), default=-1) + 1
        shapes = [shape(int(streams), given.events) for streams in given.streams.split(",")]
        with (
            tempfile.TemporaryDirectory(prefix="trimtab-proxy-") as folder,
            running(given.proxies.split(","), Path(folder)) as targets,
        ):
            rounds = range(done, done + given.rounds)
            rows += asyncio.run(measure(targets, shapes, rounds, given.window_s))
        save(given.out, rows, given.events)
    say(rows, given.figure)


def arguments() -> Any:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, default=Path("out/proxy.json"))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--streams", default="64,256,1024")
    parser.add_argument("--proxies", default=",".join(PROXIES))
    parser.add_argument("--events", type=int, default=EVENTS, help="events of a stream")
    parser.add_argument("--window-s", type=float, default=3.0)
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--figure", type=Path, default=None)
    return parser.parse_args()


def shape(streams: int, events: int) -> Shape:
    """Return what is asked for with so many streams."""
    return Shape(streams=streams, events=events, gap_ms=GAPS_MS.get(streams, GAP_MS))


def save(path: Path, rows: list[Row], events: int) -> None:
    """Keep everything that was measured."""
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = {
        "command": "python -m bench.proxy",
        "events": events,
        "python": platform.python_version(),
        "versions": {peer: version(peer) for peer in (*REQUIREMENTS, NGINX)},
        "rows": [row.as_json() for row in rows],
    }
    path.write_text(json.dumps(kept, indent=1) + "\n")


def say(rows: list[Row], figure: Path | None) -> None:
    """Print table and intervals, and draw."""
    print(table(rows, PROXIES))
    for streams in sorted({row.streams for row in rows}):
        for other in ("vllm-router", NGINX):
            ratio, tail = cost_ratio(rows, other, streams), tail_difference(rows, other, streams)
            if ratio is not None and tail is not None:
                print(
                    f"{streams} streams, against {other}: CPU per event {ratio.text()} times,"
                    f" added TTFT p99 {tail.text()} ms more; median and 95% bootstrap interval"
                    f" over {ratio.n} rounds"
                )
    if figure is not None:
        figure.write_text(draw(rows, PROXIES))


if __name__ == "__main__":
    main()
