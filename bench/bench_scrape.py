"""What reading a large page of metrics costs, against the bare parser of prometheus-client in the same run.

    python bench/bench_scrape.py PAGE [--megabytes 5] [--rounds 7]

PAGE is one scrape of a vLLM server; its series are repeated under other `engine` labels until the page has the size,
which is what a server of very many data-parallel ranks shows. Ours resolves every series to what it means per rank;
the bare parser only makes samples of the text. Interleaved, in processor time of this process; medians and all values.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from trimtab.engines.served import read_sample

sys.path.append(str(Path(__file__).resolve().parents[1]))
from bench.asked import explained


def grown(text: str, size: int) -> str:
    """Return the page's series under as many `engine` labels as make `size` bytes."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    one = "\n".join(lines) + "\n"
    if 'engine="0"' not in one:
        raise SystemExit(
            'PAGE: no series with the label engine="0"; give a scrape of a vLLM server'
        )
    return "".join(one.replace('engine="0"', f'engine="{n}"') for n in range(size // len(one) + 1))


def spent_s(work: Callable[[], object]) -> float:
    """Return the processor seconds that the work takes."""
    started = time.process_time()
    work()
    return time.process_time() - started


def parse(text: str) -> int:
    """Return the number of samples that the bare parser makes of the page."""
    return sum(len(family.samples) for family in text_string_to_metric_families(text))


def main() -> None:
    """Read, time and print."""
    if explained(__doc__):
        return
    asked = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    asked.add_argument("page", type=Path)
    asked.add_argument("--megabytes", type=float, default=5.0)
    asked.add_argument("--rounds", type=int, default=7)
    args = asked.parse_args()
    text = grown(args.page.read_text(), int(args.megabytes * 1e6))
    body = text.encode()
    ours, bare = [], []
    for _ in range(args.rounds):
        bare.append(spent_s(lambda: parse(text)))
        ours.append(spent_s(lambda: read_sample(body, source="bench", at_s=1.0)))
    told = " ".join
    print(f"{len(body) / 1e6:.1f} MB, {parse(text)} samples, n={args.rounds} rounds, CPU seconds")
    print(
        f"read_sample: median {statistics.median(ours):.2f} ({told(f'{one:.2f}' for one in ours)})"
    )
    print(
        f"bare parser: median {statistics.median(bare):.2f} ({told(f'{one:.2f}' for one in bare)})"
    )
    print(f"ratio of medians {statistics.median(ours) / statistics.median(bare):.2f}")


if __name__ == "__main__":
    main()
