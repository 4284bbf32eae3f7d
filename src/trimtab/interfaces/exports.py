"""What other systems load: names and meanings of the gateway's metrics, for rules and dashboards.

Everything is made of the families that /metrics has (`runtime.metrics`), so that no rule and no panel can name a
series that does not exist, and a metric without a place is found by a test.
"""

from collections.abc import Mapping
from functools import cache
from typing import Final

import msgspec

from trimtab.runtime.metrics import GatewayMetrics

PREFIX: Final = "trimtab_"
_SUFFIX: Final = {"counter": "_total", "histogram": "_bucket"}


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """One metric: its family's name, its kind (counter, gauge, histogram) and what it is."""

    family: str
    kind: str
    what: str

    @property
    def name(self) -> str:
        """The series that an expression reads."""
        return self.family + _SUFFIX.get(self.kind, "")


@cache
def definitions() -> Mapping[str, Series]:
    """Return every metric by its name without the prefix."""
    families = GatewayMetrics(lambda: 0.0).families()
    return {
        family.name.removeprefix(PREFIX): Series(
            family=family.name, kind=family.type, what=family.documentation
        )
        for family in families
    }


def series(name: str) -> str:
    """Return the series of a metric, as an expression names it; raises `KeyError` for one that is not defined."""
    return definitions()[name].name


def rate(name: str, by: str = "", *, over: str = "$__rate_interval", where: str = "") -> str:
    """Return the growth per second of a counter, summed by labels."""
    return _summed(f"rate({series(name)}{where}[{over}])", by)


def gauge(name: str, by: str = "", *, where: str = "") -> str:
    """Return a gauge, summed by labels where they are named."""
    inside = f"{series(name)}{where}"
    return _summed(inside, by) if by else inside


def quantile(name: str, q: float, by: str = "", *, over: str = "$__rate_interval") -> str:
    """Return a quantile of a histogram by labels, from its growth."""
    labels = ", ".join(["le", *([by] if by else [])])
    return f"histogram_quantile({q:g}, sum by ({labels}) (rate({series(name)}[{over}])))"


def ratio(part: str, whole: str) -> str:
    """Return part / whole, without a value where the whole is zero."""
    return f"{part} / ({whole} > 0)"


def _summed(inside: str, by: str) -> str:
    return f"sum by ({by}) ({inside})" if by else f"sum({inside})"
