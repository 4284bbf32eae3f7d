"""Of how many transfers a statement is, over which time, and how uncertain it is: in words, unknown where untold."""

import math
from typing import Final

from trimtab.core.evidence import Evidence, Readings
from trimtab.diagnosis.served_facts import HandOffFacts
from trimtab.diagnosis.served_names import ServedName, high_of, low_of

Z_95: Final = 1.959963984540054


def transfers_seen(readings: Readings) -> str:
    """Say of how many transfers the figures are, over which time, and how far they spread as far as that is told."""
    mean = readings.get(ServedName.TRANSFER_MS_MEAN)
    if not isinstance(mean, Evidence):
        mean = readings.get(ServedName.TRANSFER_BYTES_PER_S)
    if not isinstance(mean, Evidence):
        return "how many transfers, and over which time, is unknown"
    low, high = (readings.value(name(ServedName.TRANSFER_MS_P50)) for name in (low_of, high_of))
    if low is None:
        spread = "how they spread is not told"
    else:
        to = "no edge above it" if high is None else f"{high:,.3g} ms"
        spread = f"their median lies between {low:,.3g} ms and {to}"
    return f"means of {_how_many(mean)}; {spread}"


def _how_many(reading: Evidence) -> str:
    n = "n unknown" if reading.samples is None else f"n={reading.samples:,}"
    length_s = reading.window.length_s
    return f"{n} over {f'{length_s:,.0f} s' if length_s > 0.0 else 'a time that is not told'}"


def failures_counted(hand: HandOffFacts, readings: Readings) -> str:
    """Say how many failed hand-offs a rate is of, with its 95% interval; "" where the rate was told as it is.

    The score interval of a Poisson count n is n + z^2 / 2 -/+ z * sqrt(n + z^2 / 4).
    """
    if hand.failed_per_min is not None:
        return ""
    for name in (ServedName.TRANSFERS_EXPIRED_PER_S, ServedName.TRANSFER_FAILURES_PER_S):
        rate = readings.get(name)
        if isinstance(rate, Evidence):
            break
    else:
        return ""
    length_s = rate.window.length_s
    if length_s <= 0.0:
        return f" ({60.0 * rate.value:.3g} hand-offs a minute, over a time that is not told)"
    n, square = rate.value * length_s, Z_95 * Z_95
    middle, half = n + square / 2.0, Z_95 * math.sqrt(n + square / 4.0)
    low, high = (60.0 * max(0.0, edge) / length_s for edge in (middle - half, middle + half))
    return f" ({n:,.0f} hand-offs failed in {length_s:,.0f} s: {low:.2g} to {high:.2g} a minute at 95%)"
