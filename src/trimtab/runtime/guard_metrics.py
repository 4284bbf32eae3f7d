"""What the guard met, as /metrics shows it."""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from trimtab.policies.fair_limits import Refusal

REFUSED: Final = "refused:"
EJECTED: Final = "ejected:"
UNAUTHENTICATED: Final = "unauthenticated"
RETRIED: Final = "retried"
RETRY_REFUSED: Final = "retry_refused"
SALT_IGNORED: Final = "salt_ignored"

_PLAIN: Final = (
    (RETRIED, "retries", "Requests sent to another replica, nothing having reached the client."),
    (
        RETRY_REFUSED,
        "retries_refused",
        "Retries that the budget or the request's own bound refused.",
    ),
    (SALT_IGNORED, "cache_salts_ignored", "Salts in bodies that gave way to their tenant's."),
)


class GuardCollector(Collector):
    """Makes counters of a guard's counts at each scrape; every reason has a series from the start."""

    def __init__(self) -> None:
        self.counts: Callable[[], Mapping[str, int]] = dict

    def collect(self) -> Iterator[Metric]:
        """Yield the counters."""
        counts = self.counts()
        refused = CounterMetricFamily(
            "trimtab_requests_refused",
            "Requests refused before they were read.",
            labels=("reason",),
        )
        for reason in (*map(str, Refusal), UNAUTHENTICATED):
            refused.add_metric((reason,), counts.get(REFUSED + reason, 0))
        yield refused
        for key, name, what in _PLAIN:
            family = CounterMetricFamily(f"trimtab_{name}", what)
            family.add_metric((), counts.get(key, 0))
            yield family
        ejected = CounterMetricFamily(
            "trimtab_replica_ejections",
            "Times a replica was left out for failing.",
            labels=("replica",),
        )
        for key, count in sorted(counts.items()):
            if key.startswith(EJECTED):
                ejected.add_metric((key.removeprefix(EJECTED),), count)
        yield ejected
