"""Betting on coin flips: how much evidence a count of wins is that wins are likelier than losses.

Law: a bettor who stakes the share b of the capital on "win" holds (1 + b)^wins (1 - b)^losses. If
every win has probability <= 1/2 given the past, the expected capital never grows, for each b and
for every mixture over b; the capital exceeds 1/alpha at any time, ever, with probability <= alpha
(Ville). It may be looked at after every flip, and only past flips may decide when to stop.

Regimes: six tenths of the mixture lie on large bets, so that six wins in a row (or nine of ten)
suffice at alpha = 0.05; the rest lies on small bets, so that 60% wins are found within some
hundreds of flips. No test of signs can do with 6 wins of 7 in any order: the best fixed bet reaches
7.3, the exact binomial p is 0.0625.

Failure modes: flips that can be foreseen from the past (a fixed order of arms on a load that
returns to its mean) break the law; order arms at random within each pair. Win probabilities below
about 0.515 are not found.

Source: Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting", 2024;
Howard and Ramdas, "Sequential estimation of quantiles", 2022.
"""

import math
from collections.abc import Iterator
from functools import lru_cache

from trimtab.core.stats_types import StatsError, check_alpha

# A mixture of finitely many bets is exactly fair, so nothing is integrated and nothing is approximated.
# The large ones are the middles of five equal parts of [0.5, 1]; the small ones halve in two steps.
_LARGE_BETS = (0.55, 0.65, 0.75, 0.85, 0.95)
_SMALL_BETS = (0.40, 0.28, 0.20, 0.14, 0.10, 0.07)
_LARGE_SHARE = 0.6
_TERMS = tuple(
    (math.log(share / len(bets)), math.log1p(bet), math.log1p(-bet))
    for share, bets in ((_LARGE_SHARE, _LARGE_BETS), (1.0 - _LARGE_SHARE, _SMALL_BETS))
    for bet in bets
)

UNITS_MAX = 10_000
_NEGLIGIBLE = 1e-18
_ROUNDING = 1e-9


def bets() -> tuple[tuple[float, float], ...]:
    """Return the mixture: the weight of each bet, and the share of the capital that it stakes."""
    return tuple((math.exp(weight), math.expm1(up)) for weight, up, _ in _TERMS)


def log_wealth(wins: int, losses: int) -> float:
    """Return the natural logarithm of the capital after `wins` and `losses`, from a capital of 1."""
    terms = [share + wins * up + losses * down for share, up, down in _TERMS]
    top = max(terms)
    return top + math.log(math.fsum(math.exp(term - top) for term in terms))


def win_boundary(n: int, alpha: float) -> tuple[int, ...]:
    """Return, for each number of flips 1..n, the wins with which the capital is at least 1/alpha.

    An entry above its own number of flips says that no result suffices yet. Entries never fall and
    rise by at most one: another loss never makes capital, another win always does. Raises
    `StatsError` on a bad alpha.
    """
    length = max(64, 1 << max(0, n - 1).bit_length())
    return _boundary(length, check_alpha(alpha))[:n]


def wins_needed(n: int, alpha: float) -> int:
    """Return the wins of `n` flips (at least one) with which the capital is at least 1/alpha; above `n`: none suffice.

    The alpha is not checked: this is asked once a unit.
    """
    return _boundary(max(64, 1 << (n - 1).bit_length()), alpha)[n - 1]


@lru_cache(maxsize=64)
def units_that_show(alpha: float) -> int:
    """Return the fewest units that can show anything at `alpha`, if all of them agree. Raises `StatsError`."""
    boundary = win_boundary(1024, alpha)
    return next((n for n, wins in enumerate(boundary, start=1) if wins <= n), UNITS_MAX)


@lru_cache(maxsize=256)
def _boundary(length: int, alpha: float) -> tuple[int, ...]:
    # The tolerance only forgives rounding: a mixture that makes exactly 1/alpha counts as enough.
    target = -math.log(alpha) - _ROUNDING
    boundary: list[int] = []
    wins = 0
    for n in range(1, length + 1):
        while wins <= n and log_wealth(wins, n - wins) < target:
            wins += 1
        boundary.append(wins)
    return tuple(boundary)


def crossing_probabilities(
    win_probability: float, alpha: float, *, n_max: int = UNITS_MAX
) -> Iterator[float]:
    """Yield the exact probability that 1, 2, ... `n_max` flips have made a capital of 1/alpha.

    Flips are independent here. Raises `StatsError` when a probability or alpha is out of range.
    """
    if not 0.0 <= win_probability <= 1.0:
        raise StatsError(f"win_probability must be between 0 and 1, got {win_probability}")
    alive = [1.0]  # alive[i]: probability of first + i wins without having crossed
    first = 0
    crossed = 0.0
    for needed in win_boundary(n_max, alpha):
        lost = [mass * (1.0 - win_probability) for mass in alive] + [0.0]
        won = [0.0] + [mass * win_probability for mass in alive]
        after = [a + b for a, b in zip(lost, won, strict=True)]
        keep = max(0, needed - first)
        crossed += math.fsum(after[keep:])
        alive = after[:keep]
        skip = next((i for i, mass in enumerate(alive) if mass > _NEGLIGIBLE), 0)
        alive = alive[skip:]
        first += skip
        yield min(1.0, crossed)


def units_needed(win_probability: float, alpha: float, power: float = 0.9) -> int:
    """Return how many units it takes to reach 1/alpha with probability `power`.

    `win_probability` is the chance that one unit's ratio lies on the side that is to be shown.
    Exact, for independent units looked at one by one. Raises `StatsError` when alpha or a
    probability is out of range, and when more than `UNITS_MAX` units would be needed, as for every
    probability up to one half.
    """
    if not 0.0 < power < 1.0:
        raise StatsError(f"power must be between 0 and 1, got {power}")
    for n, crossed in enumerate(crossing_probabilities(win_probability, alpha), start=1):
        if crossed >= power:
            return n
        if win_probability <= 0.5:
            break
    raise StatsError(
        f"a win probability of {win_probability} does not show within {UNITS_MAX} units (power {power})"
    )
