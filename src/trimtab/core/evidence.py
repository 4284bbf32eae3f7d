"""Evidence: a value with unit, source, window and sample count, or an explicit unknown.

Absent is unknown, never zero: a reader that cannot find a metric returns `Unknown` with the reason, and every
decision that needs it says so instead of taking a default.
"""

import msgspec

from trimtab.core.stats import Interval


class Window(msgspec.Struct, frozen=True):
    """The stretch of time a value speaks about, in seconds of the caller's clock."""

    start_s: float
    end_s: float

    @property
    def length_s(self) -> float:
        """Length in seconds, never negative."""
        return max(0.0, self.end_s - self.start_s)


class Unknown(msgspec.Struct, frozen=True, tag_field="is", tag="unknown"):
    """A value that cannot be told, and why."""

    name: str
    reason: str


class Evidence(msgspec.Struct, frozen=True, kw_only=True, tag_field="is", tag="evidence"):
    """One measured value. `id` is what diagnoses, lever records and events cite.

    `disputed`: what another source says of the same figure, where both differ by more than their uncertainty.
    """

    id: str
    name: str
    value: float
    unit: str
    source: str
    window: Window
    samples: int | None = None
    interval: Interval | None = None
    note: str = ""
    disputed: str = ""


Reading = Evidence | Unknown


class Readings(msgspec.Struct, frozen=True):
    """An immutable set of readings by name.

    Lookups of a name that nobody measured give `Unknown`, so that callers never meet a missing key.
    """

    items: tuple[Reading, ...] = ()

    def get(self, name: str) -> Reading:
        """Return the reading of that name, or `Unknown` if there is none."""
        for item in self.items:
            if item.name == name:
                return item
        return Unknown(name, "not measured")

    def value(self, name: str) -> float | None:
        """Return the number of that name, or None when it is unknown."""
        reading = self.get(name)
        return reading.value if isinstance(reading, Evidence) else None

    def ids(self, *names: str) -> tuple[str, ...]:
        """Return the evidence ids behind the named readings, leaving out the unknown ones."""
        found = (self.get(name) for name in names)
        return tuple(reading.id for reading in found if isinstance(reading, Evidence))
