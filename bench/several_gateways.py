"""What is lost with several gateways that share nothing, in the simulator, with the policies that route live.

    python bench/several_gateways.py [--replicas N] [--gateways 1,4,16] [--policies NAME,NAME] [--seeds N]

The fleet is `examples/fleet.toml`. As live, a gateway's probe of an engine tells its share of KV in use and how many
requests it runs and has waiting, of all gateways; that is all that gateways know of each other. Requests come in at the
gateways in turn, whatever their session. The figure after +- is half of the 95% interval of the mean over seeds.
"""

import argparse
import statistics
from pathlib import Path

import msgspec
import numpy as np

from trimtab.interfaces.simulate_inputs import read_scenario
from trimtab.sim import run
from trimtab.sim.compare import half_width
from trimtab.sim.fleet import Fleet

FLEET = Path(__file__).parents[1] / "examples" / "fleet.toml"


class ProbedFleet(Fleet):
    """A fleet whose probes tell what a live engine's metrics tell: KV in use, requests running and waiting."""

    def _probe(self, now_s: float, _: object) -> None:
        for replica in self.replicas.values():
            replica.tell_steps(now_s)
        all_ = self.replicas.values()
        shares = np.array([replica.pool.used_share for replica in all_])
        counts = [(replica.running, len(replica.waiting)) for replica in all_]
        for gateway in self._gateways:
            gateway.load.seen_all(shares, now_s=now_s, counts=counts)
        if self._in_flight or self.kernel.pending:
            self.kernel.at(now_s + self.spec.probe_s, self._probe)


def mean(values: list[float], unit: str, scale: float = 1.0, digits: int = 1) -> str:
    """Return a mean with half of its interval."""
    half = half_width(values)
    said = f"{statistics.fmean(values) * scale:,.{digits}f}{unit}"
    return said if half is None else f"{said} +-{half * scale:,.{digits}f}"


def main() -> None:
    """Print a line for each number of gateways and policy."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replicas", type=int, default=100)
    parser.add_argument("--gateways", default="1,4,16")
    parser.add_argument("--policies", default="prefix_home,prefix_affine")
    parser.add_argument("--seeds", type=int, default=3)
    asked = parser.parse_args()
    run.Fleet = ProbedFleet  # type: ignore[attr-defined]
    for gateways in (int(each) for each in asked.gateways.split(",")):
        scenario = read_scenario(FLEET, replicas=asked.replicas, gateways=gateways)
        for policy in asked.policies.split(","):
            found = [
                run.simulate(scenario, policy, seed=seed).summary
                for seed in range(1, asked.seeds + 1)
            ]
            p95 = [float(one.ttft_ms.p95 or 0.0) for one in found]
            tpot = [float(one.tpot_ms.p95 or 0.0) for one in found]
            cut = {
                name: [float(msgspec.to_builtins(one)[name] or 0.0) for one in found]
                for name in ("good_share", "hit_share", "lost_share", "spread")
            }
            print(
                f"| {gateways} | `{policy}` | {mean(p95, ' ms', digits=0)} | {mean(tpot, ' ms')} "
                f"| {mean(cut['good_share'], '%', 100)} | {mean(cut['hit_share'], '%', 100)} "
                f"| {mean(cut['lost_share'], '%', 100)} | {mean(cut['spread'], '', digits=2)} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
