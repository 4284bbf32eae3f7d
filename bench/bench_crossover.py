"""The load below which mixed replicas beat a split of the same replicas, in the simulator.

    python bench/bench_crossover.py [--rates 1 2 3 4 5 6 7] [--prefill 0 2 3 4] [--seconds 300] [--seeds 3]

The scenario is examples/roles.toml at a constant rate: eight replicas, prompts of 8,000 tokens (mean) that share
nothing, answers of 200. For each rate every split is run over the same arrivals; 0 is eight mixed replicas. The share
of good requests (first token and time per token within the scenario's targets) is a mean over seeds; of the best split
less mixed the difference is paired by seed, with its 95% t interval.
"""

import argparse
import re
import statistics
from collections.abc import Sequence
from pathlib import Path

from trimtab.sim.compare import half_width
from trimtab.sim.run import SimResult, simulate
from trimtab.sim.scenario import parse_scenario
from trimtab.sim.sections import Scenario

ROLES = Path(__file__).resolve().parents[1] / "examples" / "roles.toml"
POLICY = "prefix_affine"


def scenario_of(rate: float, prefill: int, seconds: float) -> Scenario:
    """Return the scenario at a constant rate, with roles that stay; 0 prefill: all replicas are mixed."""
    text = ROLES.read_text()
    text = re.sub(r"\[roles\.control\].*?\n\n", "", text, flags=re.DOTALL)
    text = re.sub(r"diurnal_\w+ = .*\n", "", text)
    for key, value in (("rate_per_s", rate), ("duration_s", seconds), ("prefill", prefill)):
        text, found = re.subn(rf"^{key} = .*$", f"{key} = {value:g}", text, flags=re.MULTILINE)
        assert found == 1, f"{ROLES} has no key {key}"
    return parse_scenario(text, source=f"{prefill} of 8 prefill at {rate:g}/s")


def row(rate: float, splits: Sequence[int], seconds: float, seeds: int) -> str:
    """Run one rate and return its line of the table."""
    runs: dict[int, list[SimResult]] = {
        prefill: [
            simulate(scenario_of(rate, prefill, seconds), POLICY, seed=seed)
            for seed in range(1, seeds + 1)
        ]
        for prefill in splits
    }
    good = {prefill: [share(one) for one in found] for prefill, found in runs.items()}
    means = {prefill: statistics.fmean(found) for prefill, found in good.items()}
    best = max((one for one in splits if one), key=lambda one: means[one])
    differences = [a - b for a, b in zip(good[best], good[0], strict=True)]
    half = half_width(differences)
    paired = f"{statistics.fmean(differences):+.1f} ±{half:.1f}" if half is not None else "-"
    cells = [f"{means[prefill]:.1f}%" for prefill in splits]
    return f"| {rate:g} | {' | '.join(cells)} | {best}: {paired} |"


def share(run: SimResult) -> float:
    """Return the share of good requests in per cent."""
    return 100.0 * (run.summary.good_share or 0.0)


def main() -> None:
    """Print the table, a line for each rate."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rates", type=float, nargs="+", default=[1, 2, 3, 4, 5, 6, 7])
    parser.add_argument("--prefill", type=int, nargs="+", default=[0, 2, 3, 4])
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    print(f"| requests/s | {' | '.join(f'{one} prefill' for one in args.prefill)} | best less 0 |")
    for rate in args.rates:
        print(row(rate, args.prefill, args.seconds, args.seeds), flush=True)


if __name__ == "__main__":
    main()
