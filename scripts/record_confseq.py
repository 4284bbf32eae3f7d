"""Record what the library confseq makes of coin flips and counts, for `tests/contract/test_confidence_sequences.py`.

    python scripts/record_confseq.py FOLDER_WITH_ITS_SOURCE/src > tests/data/confseq.json

Needs numpy and scipy; what the library imports to draw is not needed, and stands empty here.
"""

import json
import math
import random
import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np

from trimtab.core.stats_betting import bets

SOURCE = "confseq, github.com/gostevehoward/confseq at 70b1ef30aef08ad459815ea87fc25248f8b15178"
HOW = (
    "confseq.betting.betting_mart. flips: the capital of fixed bets against a mean of 1/2, averaged with the weights "
    "of the mixture. shares: the capital of bets placed by the running estimates (bad + a) / (n + a + b), averaged "
    "over the priors"
)
PRIORS = ((0.5, 0.5), (0.05, 1.0))
FLIPS = ((1.0, 8), (0.9, 30), (0.7, 80), (0.6, 200), (0.5, 200), (0.3, 60))
SHARES = ((0.0, 40), (0.01, 400), (0.2, 50), (0.5, 100), (0.97, 60))
AGAINST = (0.002, 0.05, 0.2, 0.5, 0.8, 0.99)


def library(folder: str) -> Callable[..., Any]:
    """Return the library's martingale, imported from its source."""
    for name in ("matplotlib", "matplotlib.pyplot", "multiprocess"):
        sys.modules[name] = types.ModuleType(name)
    np.float_ = np.float64  # type: ignore[attr-defined]  # the name that it was written for
    sys.path.insert(0, folder)
    from confseq.betting import betting_mart  # type: ignore[import-not-found]

    return betting_mart  # type: ignore[no-any-return]


def by_estimate(a: float, b: float) -> Callable[[Any, float], Any]:
    """Return the bets of a bettor who believes the running estimate of a prior."""

    def placed(x: Any, m: float) -> Any:
        before = np.append(0, np.cumsum(x)[:-1])
        share = (before + a) / (np.arange(len(x)) + a + b)
        return (share - m) / (m * (1 - m))

    return placed


def main() -> None:
    """Print the table."""
    mart = library(sys.argv[1])
    rng = random.Random(20261130)

    def drawn(p: float, n: int) -> list[int]:
        return [int(rng.random() < p) for _ in range(n)]

    flips, shares = [], []
    for p, n in FLIPS:
        x = drawn(p, n)
        capital = np.zeros(n)
        for weight, bet in bets():
            fixed = np.repeat(2.0 * bet, n)
            capital += weight * mart(
                np.array(x, float),
                0.5,
                lambdas_fn_positive=lambda _, __, f=fixed: f,
                theta=1,
                trunc_scale=1,
            )
        at = sorted({0, 5, n // 4, n // 2, n - 1} & set(range(n)))
        told = {str(i + 1): float(capital[i]) for i in at}
        flips.append({"flips": "".join(map(str, x)), "capital": told})
    for p, n in SHARES:
        x = np.array(drawn(p, n), float)
        evidence = {}
        for m in AGAINST:
            made = [
                mart(x, m, lambdas_fn_positive=by_estimate(a, b), theta=1, trunc_scale=1)[-1]
                for a, b in PRIORS
            ]
            if math.isfinite(sum(made)):
                evidence[str(m)] = float(sum(made) / len(made))
        shares.append({"bad": int(x.sum()), "n": n, "evidence": evidence})
    table = {"source": SOURCE, "how": HOW, "flips": flips, "shares": shares}
    print(json.dumps(table, indent=1))


if __name__ == "__main__":
    main()
