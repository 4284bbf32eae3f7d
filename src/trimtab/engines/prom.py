"""Prometheus text, read with the ecosystem's own parser into sums and labelled samples.

A page can hold one series per rank; counts and counters are summed, and a reader that must not sum asks for the
samples. The `_created` twins of counters are times, not values, and are left out.
"""

import math
from collections.abc import Mapping

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from trimtab.core.ports import EngineFormatError


class Sample(msgspec.Struct, frozen=True):
    """One series: its labels and its value."""

    labels: Mapping[str, str]
    value: float


class Page(msgspec.Struct, frozen=True):
    """A parsed page: samples by metric name."""

    samples: Mapping[str, tuple[Sample, ...]]

    def get(self, name: str) -> tuple[Sample, ...]:
        """Return the series of a metric, none if it is absent."""
        # The parser gives every counter the ending `_total`, also where the page has none.
        return self.samples.get(name) or self.samples.get(f"{name}_total", ())

    def total(self, name: str) -> float | None:
        """Return the sum over a metric's series; None if it is absent or one of them is not a number."""
        values = [sample.value for sample in self.get(name)]
        if not values or any(math.isnan(value) for value in values):
            return None
        return math.fsum(values)


def parse_page(text: str) -> Page:
    """Parse a page of metrics; raises `EngineFormatError` if it is not one."""
    try:
        families = list(text_string_to_metric_families(text))
    except (ValueError, KeyError, IndexError) as error:
        raise EngineFormatError("not a page of Prometheus metrics") from error
    found: dict[str, list[Sample]] = {}
    for sample in (sample for family in families for sample in family.samples):
        if not sample.name.endswith("_created"):
            found.setdefault(sample.name, []).append(Sample(sample.labels, sample.value))
    return Page({name: tuple(samples) for name, samples in found.items()})
