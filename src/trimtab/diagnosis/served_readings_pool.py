"""The windows of several sources as one: sums over ranks and sources, each with where it came from.

Law: what an engine tells counts before what a front end tells of the same requests, so that no request is counted
twice; a front end fills in what engines do not tell. A sum of which a part has vanished, or which a part does not tell,
is unknown, while what the others measured of their own requests stays known and says whom it leaves out.
"""

import math
from collections.abc import Callable, Sequence

import msgspec

from trimtab.core.evidence import Evidence, Reading, Unknown, Window
from trimtab.core.served import Buckets, Counter, Distribution, Gauge, ServerWindow
from trimtab.core.stats import Interval
from trimtab.diagnosis.served_quantiles import edges_differ, merged_buckets
from trimtab.diagnosis.served_readings_absent import reason_for
from trimtab.diagnosis.served_window_tells import (
    FRONT_ENDS,
    PHASES,
    Key,
    asked,
    has_requests,
    needs_none,
    ranks_telling,
    silent_ranks,
    tells,
    untimed_ranks,
)


class Origin(msgspec.Struct, frozen=True):
    """The windows that tell a value, and the metrics they read it from."""

    windows: tuple[ServerWindow, ...]
    metrics: tuple[str, ...]

    @property
    def source(self) -> str:
        """Sources and their metric names in words."""
        sources = ", ".join(dict.fromkeys(window.source for window in self.windows))
        return f"{sources} ({', '.join(self.metrics)})" if self.metrics else sources

    @property
    def window(self) -> Window:
        """From the first start to the last end."""
        return Window(
            min(window.start_s for window in self.windows),
            max(window.end_s for window in self.windows),
        )

    @property
    def moments(self) -> Window:
        """The stretch in which gauges were read: that of the window, or the end of a life."""
        starts = [window.end_s if window.lifetime else window.start_s for window in self.windows]
        return Window(min(starts), self.window.end_s)

    @property
    def scrapes(self) -> int:
        """Scrapes of all sources."""
        return sum(window.scrapes for window in self.windows)

    @property
    def lost(self) -> tuple[str, ...]:
        """Ranks that vanished, in words."""
        several = len(self.windows) > 1
        return tuple(
            f"{rank or 'the only rank'} of {window.source}" if several else rank or "the only rank"
            for window in self.windows
            for rank in window.lost_ranks
        )

    @property
    def lifetime(self) -> bool:
        """Whether counters of any source speak of its whole life."""
        return any(window.lifetime for window in self.windows)

    @property
    def growth(self) -> str:
        """What stretch counters and histograms speak of."""
        lives = [window for window in self.windows if window.lifetime]
        if not lives:
            told = sorted({window.length_s for window in self.windows if window.length_s})
            lengths = " and ".join(f"{length_s:.4g} s" for length_s in told) or "unknown length"
            return f"window of {lengths}, {self.scrapes} scrapes"
        length_s = lives[0].length_s
        life = "since start" if length_s is None else f"since start {_age(length_s)} ago"
        return life if len(lives) == len(self.windows) else f"{life} at {len(lives)} sources"

    @property
    def moment(self) -> str:
        """What stretch gauges speak of."""
        return "one scrape" if self.scrapes == 1 else f"mean of {self.scrapes} scrapes"


class Told(msgspec.Struct, frozen=True):
    """A pooled number with its origin."""

    value: float
    origin: Origin


class Pool(msgspec.Struct, frozen=True):
    """Windows to be read as one server. All lookups give None where no source tells."""

    windows: tuple[ServerWindow, ...]
    id_prefix: str

    def origin(self, *keys: Key) -> Origin | None:
        """Return the windows that tell all of `keys`, engines before front ends; see `asked`."""
        telling = [
            window
            for window in self.windows
            if all(tells(window, key) and window in asked(self.windows, key) for key in keys)
        ]
        engines = [window for window in telling if window.engine not in FRONT_ENDS]
        chosen = tuple(engines or telling)
        metrics = dict.fromkeys(
            window.names[key.value]
            for window in chosen
            for key in keys
            if key.value in window.names
        )
        return Origin(chosen, tuple(metrics)) if chosen else None

    def of_front_ends(self) -> "Pool | None":
        """Return the front ends alone, None if there are none."""
        front = tuple(window for window in self.windows if window.engine in FRONT_ENDS)
        return Pool(front, self.id_prefix) if front else None

    def gauges(
        self, gauge: Gauge, *, peak: bool = False
    ) -> tuple[tuple[float, ...], Origin] | None:
        """Return a gauge at each rank (mean over the scrapes, or its peak) with its origin."""
        origin = self.origin(gauge)
        if origin is None:
            return None
        told = [
            ranks[gauge]
            for window in origin.windows
            for ranks in (window.gauges_max if peak else [rank.gauges for rank in window.ranks])
            if gauge in ranks
        ]
        return (tuple(told), origin) if told else None

    def grown(self, counter: Counter, *beside: Key) -> Told | None:
        """Return the growth of a counter over all ranks, at the sources and ranks that tell `beside` too."""
        origin = self.origin(counter, *beside)
        if origin is None:
            return None
        keys = (counter, *(key for key in beside if isinstance(key, Counter)))
        return Told(
            math.fsum(
                rank.counters[counter]
                for window in origin.windows
                for rank in ranks_telling(window, keys)
                if counter in rank.counters
            ),
            origin,
        )

    def rate(self, counter: Counter) -> Told | str:
        """Return the growth of a counter per second, or why it cannot be told."""
        origin = self.origin(counter)
        if origin is None:
            return self.absent(counter)
        if origin.lost:
            return f"rank {', '.join(origin.lost)} vanished: what the others do is not all"
        if untold := self.untold(counter):
            return untold
        for window in origin.windows:
            if not window.length_s and window.lifetime:
                return "one scrape has no length of time: a second scrape tells the rate"
            if not window.length_s:
                return "how much time lies between the scrapes is not known"
        per_s = [
            rank.counters[counter] / window.length_s
            for window in origin.windows
            for rank in window.ranks
            if counter in rank.counters and window.length_s
        ]
        return Told(math.fsum(per_s), origin)

    def untold(self, key: Gauge | Counter) -> str:
        """Say which serving ranks do not tell what others do, so that a sum is not all; "" if each of them tells."""
        origin = self.origin(key)
        if origin is None or any(window.engine in FRONT_ENDS for window in origin.windows):
            return ""
        several = len(self.windows) > 1
        silent = [
            f"{rank} of {window.source}" if several else rank
            for window in self.windows
            if window.engine not in FRONT_ENDS and not needs_none(window, key)
            for rank in silent_ranks(window, key)
        ]
        if not silent:
            return ""
        return f"{', '.join(silent)} does not tell {key.value}: what the others say is not all"

    def buckets(self, key: Distribution) -> tuple[Buckets, Origin, bool] | None:
        """Return a histogram merged over ranks and sources, its origin, and whether edges differed.

        None also where a rank or source times its requests and not this: means of some requests and of others do not
        compare.
        """
        origin = self.origin(key)
        if origin is None or self._untimed(key, origin):
            return None
        parts = [
            rank.distributions[key]
            for window in origin.windows
            for rank in window.ranks
            if key in rank.distributions
        ]
        merged = merged_buckets(parts)
        return None if merged is None else (merged, origin, edges_differ(parts))

    def _untimed(self, key: Distribution, origin: Origin) -> Sequence[str]:
        """Return the ranks and sources that time their requests and not this, beside those that do, in words."""
        ranks = [rank for window in origin.windows for rank in untimed_ranks(window, key)]
        return [*ranks, *(self.beside(origin) if key in PHASES else ())]

    def beside(self, origin: Origin) -> Sequence[str]:
        """Return the sources with requests on the same side of the front end of which an origin says nothing."""
        front = origin.windows[0].engine in FRONT_ENDS
        return [
            window.source
            for window in self.windows
            if window not in origin.windows
            and (window.engine in FRONT_ENDS) is front
            and has_requests(window)
        ]

    def absent(self, *keys: Key) -> str:
        """Return why none of `keys` is told, and what would tell it."""
        for key in keys:
            if any(tells(window, key) for window in self.windows) and self.origin(key) is None:
                return f"{key.value} is told on one side of the front end and the times beside it on the other"
            origin = self.origin(key) if isinstance(key, Distribution) else None
            if isinstance(key, Distribution) and origin is not None:
                untimed = self._untimed(key, origin)
                if untimed:
                    text = f"{', '.join(untimed)} does not tell {key.value}"
                    return f"{text}: the others' requests are not all"
        return reason_for(keys, tuple(dict.fromkeys(window.engine for window in self.windows)))

    def evidence(
        self,
        name: str,
        value: float,
        unit: str,
        origin: Origin,
        *,
        samples: float | None = None,
        interval: Interval | None = None,
        note: str = "",
        of_gauge: bool = False,
    ) -> Evidence:
        """Return a reading of this pool; that of a gauge speaks of when it was read, not of a life."""
        left_out = f"without rank {', '.join(origin.lost)}, which vanished" if origin.lost else ""
        return Evidence(
            id=f"{self.id_prefix}/{name}",
            name=name,
            value=float(value),
            unit=unit,
            source=origin.source,
            window=origin.moments if of_gauge else origin.window,
            samples=None if samples is None else round(samples),
            interval=interval,
            note="; ".join(part for part in (note, left_out) if part),
        )

    def ratio(
        self,
        name: str,
        part: Told,
        whole: Told,
        unit: str,
        *,
        note: str = "",
        at_most: float | None = None,
        transform: Callable[[float], float] = float,
    ) -> Reading:
        """Return part / whole, unknown without a whole or where it exceeds what it can be.

        A share above one is refused and never turned over: the two series count different things.
        """
        if whole.value <= 0:
            return Unknown(name, f"nothing was counted {_in(part.origin)}")
        value = part.value / whole.value
        if at_most is not None and value > at_most * (1 + 1e-9):
            return Unknown(
                name,
                f"{value:.4g} is above {at_most:g}: {' over '.join(_names(part, whole))} "
                "do not count the same thing, or they are swapped",
            )
        text = "; ".join(words for words in (note, part.origin.growth) if words)
        return self.evidence(
            name, transform(value), unit, part.origin, samples=whole.value, note=text
        )


def _age(length_s: float) -> str:
    for size_s, unit in ((86_400.0, "days"), (3_600.0, "h"), (60.0, "min")):
        if length_s >= 2 * size_s:
            return f"{length_s / size_s:.3g} {unit}"
    return f"{length_s:.3g} s"


def _in(origin: Origin) -> str:
    return f"({origin.growth})"


def _names(part: Told, whole: Told) -> tuple[str, ...]:
    names = dict.fromkeys((*part.origin.metrics, *whole.origin.metrics))
    return tuple(names) or ("part", "whole")


def pool_of(windows: Sequence[ServerWindow], id_prefix: str) -> Pool:
    """Join windows in an order that does not depend on the caller's."""
    return Pool(tuple(sorted(windows, key=lambda window: window.source)), id_prefix)
