"""What rounds of `bench_interference` say: figures by arm, ratios of `conditional` to every other arm, and the aims.

Arms are compared within each round: the ratio's geometric mean over rounds with a 95% t interval of its logarithm. An
aim is met, not met, or inside the interval, which tells neither.
"""

import json
import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from scipy import stats

from trimtab.core.stats import percentile

CHAT, LONG = "chat", "long"
DEFAULT: Final = "mixed 2048"
CONDITIONAL: Final = "conditional"
TOLD: Final = ("always remote", "always local")
GOOD_TTFT_MS, GOOD_TPOT_MS = 2_000.0, 60.0
"""About three times the first token and twice the token of an idle replica: what a good chat stays within."""

Row = dict[str, Any]


def rows_of(files: Sequence[Path]) -> list[Row]:
    """Return the rows of files; one that is not there yet has none."""
    return [json.loads(line) for file in files if file.exists() for line in file.open()]


def p99(values: Sequence[float]) -> float:
    """Return the 99th percentile, of few values their greatest."""
    return percentile(values, 0.99)


Figure = Callable[[Row], float]
METRICS: Final[dict[str, Figure]] = {
    "longest gap p99, chat": lambda row: p99(row["gap_ms"][CHAT]),
    "longest gap p50, chat": lambda row: statistics.median(row["gap_ms"][CHAT]),
    "TTFT p50, chat": lambda row: statistics.median(row["ttft_ms"][CHAT]),
    "TTFT p95, chat": lambda row: percentile(row["ttft_ms"][CHAT], 0.95),
    "TPOT p95, chat": lambda row: percentile(row["tpot_ms"][CHAT], 0.95),
    "longest gap p99, long": lambda row: p99(row["gap_ms"][LONG]),
    "TTFT p50, long": lambda row: statistics.median(row["ttft_ms"][LONG]),
    "good chats %": lambda row: good_share(row),
    "tokens/s": lambda row: float(row["tokens_per_s"]),
}
GAP, TTFT, SPEED = "longest gap p99, chat", "TTFT p50, chat", "tokens/s"
GOOD: Final = "good chats %"
MORE_IS_BETTER: Final = frozenset({SPEED, GOOD})
LEAST: Final = 0.1
"""Nothing good at all is taken for a tenth of a per cent, so that there is a ratio."""

Rounds = Sequence[dict[str, Row]]


class Ratio(NamedTuple):
    """The geometric mean of a figure's ratio over rounds, with its 95% interval; None with one round."""

    mean: float
    low: float | None
    high: float | None

    def __str__(self) -> str:
        interval = "" if self.low is None else f" [{self.low:.3f}, {self.high:.3f}]"
        return f"{self.mean:.3f}{interval}"


def good_share(row: Row) -> float:
    """Return the share of chats, in per cent, that are within both targets."""
    pairs = list(zip(row["ttft_ms"][CHAT], row["tpot_ms"][CHAT], strict=True))
    good = sum(ttft <= GOOD_TTFT_MS and tpot <= GOOD_TPOT_MS for ttft, tpot in pairs)
    return 100.0 * good / len(pairs)


def score(files: Sequence[Path]) -> None:
    """Print every arm's figures, the ratios of `conditional` to every other arm, and the aims."""
    loads: dict[str, dict[int, dict[str, Row]]] = {}
    for row in rows_of(files):
        loads.setdefault(row["load"], {}).setdefault(row["seed"], {})[row["arm"]] = row
    for load, seeds in loads.items():
        print(f"\n{load}: rounds {', '.join(map(str, seeds))}; medians over rounds")
        score_load(list(seeds.values()))


def score_load(rounds: Rounds) -> None:
    """Print the tables of one load."""
    arms = sorted({arm for one in rounds for arm in one})
    print(f"| arm | rounds | {' | '.join(METRICS)} |")
    for arm in arms:
        mine = [one[arm] for one in rounds if arm in one]
        values = [f"{statistics.median(of(row) for row in mine):.1f}" for of in METRICS.values()]
        print(f"| {arm} | {len(mine)} | {' | '.join(values)} |")
    print(f"\n| conditional over | {' | '.join(METRICS)} |")
    for arm in (one for one in arms if one != CONDITIONAL):
        cells = [str(ratio(rounds, arm, of)) for of in METRICS.values()]
        print(f"| {arm} | {' | '.join(cells)} |")
    print("\n| aim | conditional over | ratio | at most | |\n|---|---|---|---|---|")
    for name, arm, bound in aims(rounds, arms):
        one = ratio(rounds, arm, METRICS[name], inverse=name in MORE_IS_BETTER)
        print(f"| {name} | {arm} | {one} | {bound:g} | {verdict(one, bound)} |")


def aims(rounds: Rounds, arms: Sequence[str]) -> list[tuple[str, str, float]]:
    """Return (figure, arm to compare with, largest ratio); of speed the ratio is the other way round."""

    def typical(arm: str, name: str) -> float:
        found = [METRICS[name](one[arm]) for one in rounds if arm in one]
        return statistics.geometric_mean([max(one, LEAST) for one in found])

    mixed = [arm for arm in arms if arm.startswith("mixed")]
    told = [arm for arm in arms if arm in TOLD]
    if not mixed or not told or CONDITIONAL not in arms:
        return []
    best = min(mixed, key=lambda arm: typical(arm, GAP))
    found = [(GAP, DEFAULT, 0.2), (GAP, best, 0.5)]
    found += [(TTFT, arm, 1.1) for arm in (DEFAULT, best)]
    found += [(SPEED, arm, 1.0 / 0.9) for arm in (DEFAULT, best)]
    for name in METRICS:
        sign = -1.0 if name in MORE_IS_BETTER else 1.0
        found.append((name, min(told, key=lambda arm: sign * typical(arm, name)), 1.05))
    return found


def verdict(one: Ratio, bound: float) -> str:
    """Say whether an aim is met."""
    if one.mean <= bound:
        return "met"
    return "not met" if one.low is None or one.low > bound else "inside the interval"


def ratio(rounds: Rounds, arm: str, of: Figure, *, inverse: bool = False) -> Ratio:
    """Return the ratio of `conditional` to an arm over the rounds that have both."""
    pairs = [
        (of(one[CONDITIONAL]), of(one[arm])) for one in rounds if arm in one and CONDITIONAL in one
    ]
    if not pairs:
        return Ratio(math.nan, None, None)
    sign = -1.0 if inverse else 1.0
    logs = [sign * math.log(max(a, LEAST) / max(b, LEAST)) for a, b in pairs]
    mean = statistics.fmean(logs)
    if len(logs) < 2:
        return Ratio(math.exp(mean), None, None)
    half = stats.t.ppf(0.975, len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    return Ratio(math.exp(mean), math.exp(mean - half), math.exp(mean + half))
