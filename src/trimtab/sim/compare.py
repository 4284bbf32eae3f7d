"""Policies against each other on the same arrivals: same seeds, paired, with intervals.

Each seed gives one pair of runs that meet the same requests at the same times and the same faults, so what differs is
the policy. The difference of a metric is taken per seed, relative to the reference; its interval is Student's over the
seeds. With one seed there is a difference and no interval, and the answer says so.

Seeds are a sample only where something is drawn. Runs that are equal in everything but their seed are one run, seen
again: they have no interval, and no verdict comes from them. Where all are, the first seed's alone are kept.

Source: paired comparison with common random numbers, Law, "Simulation Modeling and Analysis", chapter 10.
"""

import math
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from trimtab.core.stats_summary import t_quantile
from trimtab.sim.arrivals import Arrival
from trimtab.sim.run import SimResult, simulate
from trimtab.sim.sections import Scenario

METRICS: Final[dict[str, tuple[Callable[[SimResult], float | None], bool]]] = {
    "ttft_ms_mean": (lambda run: run.summary.ttft_ms.mean, False),
    "ttft_ms_p95": (lambda run: run.summary.ttft_ms.p95, False),
    "tpot_ms_mean": (lambda run: run.summary.tpot_ms.mean, False),
    "e2e_ms_p95": (lambda run: run.summary.e2e_ms.p95, False),
    "good_share": (lambda run: run.summary.good_share, True),
    "hit_share": (lambda run: run.summary.hit_share, True),
    "lost_share": (lambda run: run.summary.lost_share, False),
    "spread": (lambda run: run.summary.spread, False),
    "goodput_per_s": (lambda run: run.summary.goodput_per_s, True),
    "output_tokens_per_s": (lambda run: run.summary.output_tokens_per_s, True),
    "cost_per_million_output_tokens": (lambda run: run.cost_per_million_output_tokens, False),
    "cost_per_thousand_good": (lambda run: run.cost_per_thousand_good, False),
}
"""What is compared: how it is read off a run, and whether more is better."""

NOTHING_DRAWN: Final = "unknown: nothing is drawn, so there is no interval"
"""The verdict on runs that no seed changes."""


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """A metric under a policy against the reference. `low`, `high`: 95% interval of the mean difference over seeds.

    Values are means over seeds, differences in the metric's own unit; None bounds: one seed only, or nothing drawn.
    `verdict`: better, worse or "no difference shown"; unknown without an interval.
    """

    metric: str
    policy: str
    reference: float
    value: float
    difference: float
    low: float | None
    high: float | None
    seeds: int
    verdict: str


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """All runs, by policy and seed, the differences from the first policy, and what a reader must know of them.

    `drawn`: False where several seeds were simulated and each gave the same run, of which the first is kept.
    """

    reference: str
    policies: tuple[str, ...]
    seeds: tuple[int, ...]
    runs: tuple[SimResult, ...]
    differences: tuple[Difference, ...]
    notes: tuple[str, ...] = ()
    drawn: bool = True

    def of(self, policy: str) -> list[SimResult]:
        """Return the runs of a policy."""
        return [run for run in self.runs if run.policy == policy]


def compare(
    scenario: Scenario,
    policies: Sequence[str],
    seeds: Sequence[int],
    *,
    trace: Sequence[Arrival] | None = None,
    on_run: Callable[[str, int], None] = lambda *_: None,
) -> Comparison:
    """Simulate every policy under every seed; the first policy is the reference. Raises `ScenarioError`."""
    runs = []
    for seed in seeds:
        for policy in policies:
            on_run(policy, seed)
            runs.append(simulate(scenario, policy, trace=trace, seed=seed))
    return compared(runs)


def compared(runs: Sequence[SimResult]) -> Comparison:
    """Return runs of one or more policies under the same seeds as a comparison with the policy of the first run."""
    policies = tuple(dict.fromkeys(run.policy for run in runs))
    seeds = tuple(dict.fromkeys(run.seed for run in runs))
    drawn = len(seeds) == 1 or not all(
        are_repeats([run for run in runs if run.policy == policy]) for policy in policies
    )
    if not drawn:
        runs, seeds = [run for run in runs if run.seed == seeds[0]], seeds[:1]
    return Comparison(
        reference=policies[0],
        policies=policies,
        seeds=seeds,
        runs=tuple(runs),
        differences=tuple(differences_of(runs, policies[0], drawn=drawn)),
        drawn=drawn,
    )


def are_repeats(runs: Sequence[SimResult]) -> bool:
    """Say whether two or more runs of a policy are equal in everything but their seed."""
    return len(runs) > 1 and all(
        msgspec.structs.replace(run, seed=runs[0].seed) == runs[0] for run in runs[1:]
    )


def differences_of(
    runs: Sequence[SimResult], reference: str, *, drawn: bool = True
) -> list[Difference]:
    """Return the paired differences of every metric between each other policy and the reference.

    `drawn`: whether another seed could give another run.
    """
    by_key = {(run.policy, run.seed): run for run in runs}
    others = list(dict.fromkeys(run.policy for run in runs if run.policy != reference))
    seeds = list(dict.fromkeys(run.seed for run in runs))
    made = []
    for policy in others:
        one_run = not drawn or all(
            are_repeats([run for run in runs if run.policy == name]) for name in (reference, policy)
        )
        for metric, (read, more_is_better) in METRICS.items():
            pairs = [
                (read(by_key[reference, seed]), read(by_key[policy, seed]))
                for seed in seeds
                if (policy, seed) in by_key and (reference, seed) in by_key
            ]
            known = [(a, b) for a, b in pairs if a is not None and b is not None]
            if known:
                made.append(_difference(metric, policy, known, more_is_better, drawn=not one_run))
    return made


def _difference(
    metric: str,
    policy: str,
    pairs: Sequence[tuple[float, float]],
    more_is_better: bool,
    *,
    drawn: bool,
) -> Difference:
    deltas = [b - a for a, b in pairs]
    mean = sum(deltas) / len(deltas)
    half = half_width(deltas) if drawn else None
    low, high = (None, None) if half is None else (mean - half, mean + half)
    return Difference(
        metric=metric,
        policy=policy,
        reference=sum(a for a, _ in pairs) / len(pairs),
        value=sum(b for _, b in pairs) / len(pairs),
        difference=mean,
        low=low,
        high=high,
        seeds=len(pairs),
        verdict=_verdict(low, high, more_is_better) if drawn else NOTHING_DRAWN,
    )


def half_of(runs: Sequence[SimResult], values: Sequence[float]) -> float | None:
    """Return half of the 95% interval of a policy's mean over its runs; None where they are one run, seen again."""
    return None if are_repeats(runs) else half_width(values)


def half_width(values: Sequence[float]) -> float | None:
    """Return half of the 95% interval of a mean, None with fewer than two values."""
    count = len(values)
    if count < 2:
        return None
    mean = sum(values) / count
    spread = math.sqrt(sum((value - mean) ** 2 for value in values) / (count - 1))
    return t_quantile(0.975, count - 1) * spread / math.sqrt(count)


def _verdict(low: float | None, high: float | None, more_is_better: bool) -> str:
    if low is None or high is None:
        return "unknown: one seed gives no interval"
    if low <= 0.0 <= high:
        return "no difference shown"
    return "better" if (low > 0.0) == more_is_better else "worse"
