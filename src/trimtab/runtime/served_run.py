"""From scrapes to advice: the one place where reading, windows, readings and rules are put together."""

from collections import deque
from collections.abc import Sequence
from typing import Final

import msgspec

from trimtab.core.evidence import Readings
from trimtab.core.ports import Clock
from trimtab.core.served import Note, ServerSample, ServerWindow
from trimtab.diagnosis.served_advice import Outcome, ServedAdvice
from trimtab.diagnosis.served_facts import ServedFacts
from trimtab.diagnosis.served_readings import notes_of, readings_of
from trimtab.diagnosis.served_rules import advise_served
from trimtab.diagnosis.served_rules_before import facts_against
from trimtab.diagnosis.served_rules_configured import facts_with
from trimtab.diagnosis.served_window import window_of
from trimtab.runtime.served_groups import Series, group
from trimtab.runtime.served_sources import (
    Failure,
    Scrape,
    Scraper,
    Source,
    SourceError,
    SourceKind,
    read_file,
)

SCRAPES_KEPT_MAX: Final = 240
"""Scrapes of one server that a watch keeps; older ones are forgotten even inside the window."""


COMPARED: Final = "compared"
"""Kind of the notes that say what a comparison rests on."""


class Diagnosed(msgspec.Struct, frozen=True, kw_only=True):
    """What one look at servers came to. `notes`: of the scrapes, and how they were put together."""

    advice: ServedAdvice
    readings: Readings
    windows: tuple[ServerWindow, ...]
    failures: tuple[Failure, ...]
    notes: tuple[Note, ...]
    at_s: float


def diagnose_scrapes(
    found: Sequence[Scrape | Failure],
    facts: ServedFacts,
    *,
    at_s: float,
    between_s: float | None = None,
    before: Sequence[Scrape | Failure] = (),
) -> Diagnosed:
    """Diagnose what was read; raises `SourceError` if something was asked for and nothing could be read.

    `between_s`: seconds between the saved scrapes of one server, where their files' times do not tell. `before`:
    scrapes of an earlier day or of another arm, to compare with.
    """
    scrapes, failures = _read_of(found)
    # A saved scrape is as old as it is: only what was read live can be stale.
    live = bool(scrapes) and all(each.source.kind is not SourceKind.FILE for each in scrapes)
    grouped = group(scrapes, between_s=between_s)
    windows = tuple(_window(series) for series in grouped.servers)
    readings = readings_of(windows) if windows else Readings()
    facts = facts_with(facts, windows)
    compared: tuple[Note, ...] = ()
    if before:
        facts, compared = _against(facts, readings, before, between_s)
    advice = advise_served(readings, facts, at_s=at_s if live else None)
    return Diagnosed(
        advice=_beside(advice, failures),
        readings=readings,
        windows=windows,
        failures=failures,
        notes=(*grouped.notes, *(notes_of(windows) if windows else ()), *compared),
        at_s=at_s,
    )


def _beside(advice: ServedAdvice, failures: Sequence[Failure]) -> ServedAdvice:
    """Return the advice; servers are not healthy as a whole while one that was named could not be read."""
    if not failures or advice.outcome is not Outcome.HEALTHY:
        return advice
    lost = ", ".join(dict.fromkeys(each.source for each in failures))
    return msgspec.structs.replace(
        advice,
        outcome=Outcome.CANNOT_TELL,
        healthy=None,
        healthy_because=f"{advice.healthy_because}; but {lost} was not read",
        would_tell=(*advice.would_tell, f"an answer of {lost}"),
    )


def _read_of(found: Sequence[Scrape | Failure]) -> tuple[list[Scrape], tuple[Failure, ...]]:
    scrapes = [each for each in found if isinstance(each, Scrape)]
    failures = tuple(dict.fromkeys(each for each in found if isinstance(each, Failure)))
    if failures and not scrapes:
        told = "; ".join(f"{each.source}: {each.reason}" for each in failures)
        raise SourceError(f"nothing could be read. {told}")
    return scrapes, failures


def _against(
    facts: ServedFacts,
    readings: Readings,
    before: Sequence[Scrape | Failure],
    between_s: float | None,
) -> tuple[ServedFacts, tuple[Note, ...]]:
    """Return the facts with what the earlier scrapes let compare, and what a reader must know of that."""
    scrapes, failures = _read_of(before)
    windows = tuple(_window(series) for series in group(scrapes, between_s=between_s).servers)
    if not windows:
        raise SourceError("the pages to compare with are of no server that is known")
    lives = [window.source for window in windows if window.lifetime]
    text = f"compared with {', '.join(window.source for window in windows)}"
    if lives:
        text += f", of which {', '.join(lives)} speaks of its life since the start"
    told = [Note(kind=COMPARED, text=text)]
    told += [Note(kind=COMPARED, text=f"{each.source}: {each.reason}") for each in failures]
    return facts_against(facts, readings_of(windows), readings), tuple(told)


def _window(series: Series) -> ServerWindow:
    window = window_of(series.samples)
    if series.timed or window.lifetime:
        return window
    return msgspec.structs.replace(window, length_s=None)


class Watch:
    """Looks at servers again and again; each look is about the last `window_s` seconds.

    Saved scrapes are read once and stay in every look. Use as an async context manager.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        facts: ServedFacts,
        clock: Clock,
        *,
        window_s: float,
        before: Sequence[Scrape | Failure] = (),
    ) -> None:
        self._facts = facts
        self._clock = clock
        self._window_s = window_s
        self._before = tuple(before)
        self._saved = [read_file(each) for each in sources if each.kind is SourceKind.FILE]
        live = [each for each in sources if each.kind is not SourceKind.FILE]
        self._scraper = Scraper(live, clock, window_s=window_s)
        self._kept: dict[Source, deque[Scrape]] = {}

    async def __aenter__(self) -> "Watch":
        await self._scraper.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._scraper.__aexit__()

    async def look(self) -> Diagnosed:
        """Read every source once more and diagnose the window that ends now; raises `SourceError`."""
        seen = await self._scraper.scrape()
        now_s = self._clock.wall_s()
        failures = [each for each in seen if isinstance(each, Failure)]
        for each in seen:
            if isinstance(each, Scrape):
                kept = self._kept.setdefault(each.source, deque(maxlen=SCRAPES_KEPT_MAX))
                if each.source.kind is SourceKind.PROMETHEUS:
                    kept.clear()
                kept.append(each)
        recent = [scrape for kept in self._kept.values() for scrape in self._recent(kept, now_s)]
        return diagnose_scrapes(
            [*self._saved, *recent, *failures], self._facts, at_s=now_s, before=self._before
        )

    def _recent(self, kept: Sequence[Scrape], now_s: float) -> list[Scrape]:
        inside = [each for each in kept if _newest(each.samples) >= now_s - self._window_s]
        # Of a source that stopped answering the last word stays, so that it is seen to be old.
        return inside or [kept[-1]]


def _newest(samples: Sequence[ServerSample]) -> float:
    return max((sample.at_s for sample in samples), default=0.0)
