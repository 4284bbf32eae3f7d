"""Shares of bad requests (errors, tail values, outputs that differ), looked at all the time.

Law: the likelihood of the counts averaged over a prior, divided by their likelihood under a
hypothesis, has expectation 1 under that hypothesis at every time, so it ever reaches 1/alpha with
probability <= alpha. For a hypothesis that is a region (p_candidate <= p_baseline + margin) the
largest likelihood in the region divides instead, which only lowers the evidence. Both depend on
counts alone, so arms may interleave in any way.

Regimes: the prior is half Beta(1/2, 1/2), which costs about half a logarithm of n whatever the
share, and half Beta(1/20, 1), which costs almost nothing while no bad request has been seen. No end
is corrected or rounded: 0 of n and n of n are ordinary counts.

Assumed: given the past, each request of an arm is bad with one probability, the arm's. Failure
mode: bad requests that come in bursts with one cause count many times; then count the blocks that
had any instead of the requests.

Source: Robbins, "Statistical methods related to the law of the iterated logarithm", 1970
(mixtures); Wasserman, Ramdas and Balakrishnan, "Universal inference", 2020 (regions).
"""

import math
from collections.abc import Callable

from trimtab.core.stats_types import Interval, StatsError, check_alpha, check_counts, exp_clamped

_PRIORS = ((0.5, 0.5), (0.05, 1.0))
# Halvings of an interval of length at most 2: the result is exact to the last digit of a float near 1e-12.
_BISECTIONS = 90
_EDGE, _NEARLY = 1.0 - 1e-12, 1.0 - 1e-9
# Newton's steps after which the bracket is halved all the same.
_PATIENCE = 6
# How near a root's two ends come, how flat an excess of log evidence counts as none, how small a step ends Newton's.
_NEAR, _FLAT, _TINY = 1e-13, 1e-8, 1e-9


def proportion_bounds(bad: int, n: int, *, alpha: float) -> Interval:
    """Bound the share of bad requests, at every number of requests at once, with level 1 - `alpha`.

    Two-sided: `alpha` is the chance that the share ever lies outside. Without requests it is 0 to
    1. Raises `StatsError` on a bad alpha and on counts that are none.
    """
    check_counts(bad, n, name="requests")
    limit = _log_marginal(bad, n) + math.log(check_alpha(alpha))

    def excluded(share: float) -> bool:
        return _log_likelihood(bad, n, share) < limit

    # The likelihood rises to its top at bad / n and falls after it, so each side has one crossing.
    top = bad / n if n else 0.5
    low = _crossing(top, 0.0, excluded) if excluded(0.0) else 0.0
    high = _crossing(top, 1.0, excluded) if excluded(1.0) else 1.0
    return Interval(low=low, high=high, level=1.0 - alpha)


def difference_e_value(bad_b: int, n_b: int, bad_c: int, n_c: int, *, margin: float) -> float:
    """Return the evidence that p_candidate, the share of bad requests, exceeds p_baseline + margin.

    Under "it does not" the expectation is at most 1 at every look, and 1/alpha is ever reached with
    probability at most alpha. `margin` is absolute, above -1 and below 1; a negative margin and
    exchanged arms ask for the absence of harm (`exact_no_harm`). An arm without requests can give
    no evidence. Raises `StatsError` on a bad margin and on counts that are none.
    """
    check_counts(bad_b, n_b, name="baseline")
    check_counts(bad_c, n_c, name="candidate")
    if not -1.0 < margin < 1.0:
        raise StatsError(f"margin must be above -1 and below 1, got {margin}")
    seen = _log_marginal(bad_b, n_b) + _log_marginal(bad_c, n_c)
    return exp_clamped(seen - _null_top(bad_b, n_b, bad_c, n_c, margin)[0])


def discordance_e_value(
    differ_candidate: int, n_candidate: int, differ_floor: int, n_floor: int, *, margin: float
) -> float:
    """Return the evidence that outputs differ more often than the noise floor plus `margin`.

    The floor is baseline against baseline: `differ_floor` of `n_floor` repeated prompts gave
    another output. Counts are prompts. Assumptions and errors are those of `difference_e_value`.
    """
    return difference_e_value(differ_floor, n_floor, differ_candidate, n_candidate, margin=margin)


def exact_no_harm(
    bad_b: int, n_b: int, bad_c: int, n_c: int, *, margin: float, alpha: float
) -> bool | None:
    """Say whether harm beyond `margin` is excluded (True), shown (False) or neither yet (None).

    Harm is p_candidate > p_baseline + margin. Each answer is wrong at any look with probability at
    most `alpha`. Ask until the first answer. Raises `StatsError` as `difference_e_value` does, and
    on a bad alpha.
    """
    target = 1.0 / check_alpha(alpha)
    if difference_e_value(bad_b, n_b, bad_c, n_c, margin=margin) >= target:
        return False
    if difference_e_value(bad_c, n_c, bad_b, n_b, margin=-margin) >= target:
        return True
    return None


def difference_bounds(bad_b: int, n_b: int, bad_c: int, n_c: int, *, alpha: float) -> Interval:
    """Bound p_candidate - p_baseline, at every look at once: two one-sided bounds, each at `alpha`.

    The level is 1 - 2 * `alpha`; the ends agree with `exact_no_harm` at every margin. Raises
    `StatsError` as `difference_e_value` does, and on a bad alpha.
    """
    check_counts(bad_b, n_b, name="baseline")
    check_counts(bad_c, n_c, name="candidate")
    seen = _log_marginal(bad_b, n_b) + _log_marginal(bad_c, n_c) + math.log(check_alpha(alpha))

    def above(margin: float) -> tuple[float, float]:
        top, slope = _null_top(bad_b, n_b, bad_c, n_c, margin)
        return seen - top, -slope

    def below(margin: float) -> tuple[float, float]:
        top, slope = _null_top(bad_c, n_c, bad_b, n_b, -margin)
        return seen - top, slope

    top = (bad_c / n_c if n_c else 0.0) - (bad_b / n_b if n_b else 0.0)
    top = min(_EDGE, max(-_EDGE, top))
    width = math.sqrt(_variance(bad_b, n_b) + _variance(bad_c, n_c))
    low, high = _root(top, -_EDGE, above, width), _root(top, _EDGE, below, width)
    # Counts too few to exclude anything leave the end open; only there the search ends at the edge.
    if low <= -_NEARLY and above(-_EDGE)[0] < 0.0:
        low = -1.0
    if high >= _NEARLY and below(_EDGE)[0] < 0.0:
        high = 1.0
    return Interval(low=low, high=high, level=1.0 - 2.0 * alpha)


def _variance(bad: int, n: int) -> float:
    share = (bad + 0.5) / (n + 1.0)
    return share * (1.0 - share) / (n + 1.0)


def _root(
    inside: float, outside: float, excess: Callable[[float], tuple[float, float]], width: float
) -> float:
    """Return the point nearest to `inside` at which `excess` (value and slope) is not negative; `outside` if none is.

    Newton's steps on the square root of what log evidence has gained since `inside`, as it grows about like the square
    of the distance. They begin where a normal of deviation `width` has the root; one that leaves the bracket halves it.
    """
    base = excess(inside)[0]
    if base >= 0.0:
        return inside
    goal = math.sqrt(-base)
    reach = outside - inside
    at = inside + math.copysign(min(goal * math.sqrt(2.0) * width, 0.5 * abs(reach)), reach)
    for tried in range(1, _BISECTIONS):
        value, slope = excess(at)
        if abs(value) <= _FLAT:
            # Just inside the root: as far beyond it as it was short of it.
            short = max(0.0, -value) / abs(slope) if slope else 0.0
            return at + math.copysign(2.0 * short, reach)
        inside, outside = (at, outside) if value < 0.0 else (inside, at)
        if abs(outside - inside) <= _NEAR:
            break
        gained = math.sqrt(max(0.0, value - base))
        step = 2.0 * gained * (gained - goal) / slope if slope and gained < math.inf else math.inf
        at -= step
        if tried % _PATIENCE == 0 or not min(inside, outside) < at < max(inside, outside):
            at = 0.5 * (inside + outside)
    return outside


def _crossing(inside: float, outside: float, excluded: Callable[[float], bool]) -> float:
    """Return the point nearest to `inside` that is excluded; `outside` is."""
    for _ in range(_BISECTIONS):
        middle = 0.5 * (inside + outside)
        if excluded(middle):
            outside = middle
        else:
            inside = middle
    return outside


def _log_marginal(bad: int, n: int) -> float:
    """Return the logarithm of the probability of one sequence with these counts, over the prior."""
    terms = [_log_beta(a + bad, b + n - bad) - _log_beta(a, b) for a, b in _PRIORS]
    top = max(terms)
    return top + math.log(sum(math.exp(term - top) for term in terms) / len(terms))


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


def _log_likelihood(bad: int, n: int, share: float) -> float:
    return _times_log(bad, share) + _times_log(n - bad, 1.0 - share)


def _times_log(count: int, share: float) -> float:
    """Return count * log(share); 0 * log(0) is 0: what cannot happen and did not is free."""
    if count == 0:
        return 0.0
    return count * math.log(share) if share > 0.0 else -math.inf


def _null_top(bad_b: int, n_b: int, bad_c: int, n_c: int, margin: float) -> tuple[float, float]:
    """Return the largest log likelihood with p_candidate <= p_baseline + margin, and how fast it grows with the margin.

    It is concave, so either its free top lies in the region, or the maximum is on the edge
    p_candidate = p_baseline + margin; there its growth is the slope of the one that moves.
    """
    best_b = bad_b / n_b if n_b else 1.0
    best_c = bad_c / n_c if n_c else 0.0
    if best_c <= best_b + margin:
        return _log_likelihood(bad_b, n_b, best_b) + _log_likelihood(bad_c, n_c, best_c), 0.0
    p = _edge_top(bad_b, n_b, bad_c, n_c, margin)
    other = min(1.0, max(0.0, p + margin))
    top = _log_likelihood(bad_b, n_b, p) + _log_likelihood(bad_c, n_c, other)
    # Where p_candidate cannot move any further, all of the margin is p_baseline's.
    stuck = not 0.0 < other < 1.0
    return top, -_slope(bad_b, n_b, p) if stuck else _slope(bad_c, n_c, other)


def _edge_top(bad_b: int, n_b: int, bad_c: int, n_c: int, margin: float) -> float:
    """Return p_baseline at the top of the edge: Newton's steps on the slope, halving where one leaves the bracket."""
    low, high = max(0.0, -margin), min(1.0, 1.0 - margin)
    if _slope(bad_b, n_b, low) + _slope(bad_c, n_c, low + margin) <= 0.0:
        return low
    if _slope(bad_b, n_b, high) + _slope(bad_c, n_c, high + margin) >= 0.0:
        return high
    good_b, good_c = n_b - bad_b, n_c - bad_c
    p = (bad_b + bad_c - n_c * margin) / (n_b + n_c)
    for _ in range(_BISECTIONS):
        if not low < p < high:
            p = 0.5 * (low + high)
        q = p + margin
        up_b, up_c = (bad_b / p if bad_b else 0.0), (bad_c / q if bad_c else 0.0)
        down_b, down_c = good_b / (1.0 - p), good_c / (1.0 - q)
        slope = up_b + up_c - down_b - down_c
        if slope == 0.0:
            return p
        if slope > 0.0:
            low = p
        else:
            high = p
        curve = up_b / p + down_b / (1.0 - p) + up_c / q + down_c / (1.0 - q)
        step = slope / curve
        if high - low <= _NEAR * high or abs(step) <= _TINY * min(p, q, 1.0 - p, 1.0 - q):
            break
        p += step
    return min(high, max(low, p))


def _slope(bad: int, n: int, share: float) -> float:
    """Return the log likelihood's slope, infinite where a seen outcome becomes impossible."""
    rising = bad / share if share > 0.0 else math.inf * bad if bad else 0.0
    falling = (n - bad) / (1.0 - share) if share < 1.0 else math.inf if n > bad else 0.0
    return rising - falling
