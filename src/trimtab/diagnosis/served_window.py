"""Several scrapes of one source become one window: counters and histograms as growth, gauges as means.

Law: growth is the sum of last minus first over the *clean* stretches between neighbouring scrapes. A stretch is clean
if every rank of the last scrape is at both of its ends and none of their counters went back. All ranks therefore speak
of the same time, `length_s` is the length of the clean stretches, and a restart takes its stretch out instead of
making growth negative, zero or guessed.

Regimes: with one scrape, or when no stretch is clean, counters and histograms are those since the start
(`lifetime`). A rank that was seen and is not in the last scrape is lost: it is named and its values are left out, for
what it does now is unknown. What changed its engine, model or version is another server: earlier scrapes are left out.

Failure modes: a server that restarts and overtakes its old counters between two scrapes is only seen if the page tells
when the process started; a counter that alone goes back while its process lives on is broken and left out.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

import msgspec

from trimtab.core.served import (
    Buckets,
    Counter,
    Distribution,
    EngineKind,
    Gauge,
    Note,
    RankSample,
    ServerSample,
    ServerWindow,
)
from trimtab.diagnosis.served_window_growth import (
    Stretch,
    can_be,
    covers,
    fell_and_counted,
    grown_buckets,
    grown_positions,
    readable,
    went_back,
)

STARTED_LATER_S_MIN = 1.0
"""A process start that moved by less is the same start, told with other rounding."""

Pair = tuple[ServerSample, ServerSample]
Key = Gauge | Counter | Distribution


class ServedWindowError(ValueError):
    """Scrapes that make no window: none at all, or of more than one source."""


def window_of(samples: Sequence[ServerSample]) -> ServerWindow:
    """Join the scrapes of one source, in any order, into one window.

    Of scrapes with the same time the last given counts. Raises `ServedWindowError` if there is no scrape, or if they
    are of several sources.
    """
    if len({sample.source for sample in samples}) != 1:
        raise ServedWindowError(
            f"a window needs scrapes of one source, got {sorted({one.source for one in samples})}"
        )
    in_order = tuple(sorted({one.at_s: one for one in samples}.values(), key=lambda s: s.at_s))
    scrapes, notes = _same_server(in_order)
    scrapes = tuple(_readable(sample, notes) for sample in scrapes)
    last = scrapes[-1]
    here = tuple(sorted((rank.rank for rank in last.ranks), key=rank_order))
    seen = {rank.rank for sample in scrapes for rank in sample.ranks}
    resets = [_is_reset(then, now) for then, now in pairwise(scrapes)]
    clean = [
        (then, now)
        for (then, now), reset in zip(pairwise(scrapes), resets, strict=True)
        if not reset and set(here) <= _ranks(then).keys() & _ranks(now).keys()
    ]
    _say_what_is_left_out(len(scrapes) - 1, resets, len(clean), notes)
    start_s, length_s = _span(last, clean, notes)
    lifetime = not clean
    return ServerWindow(
        source=last.source,
        engine=last.engine,
        version=last.version,
        model=last.model,
        lifetime=lifetime,
        start_s=start_s,
        end_s=last.at_s,
        length_s=length_s,
        scrapes=len(scrapes),
        ranks=tuple(_rank_window(name, scrapes, clean, notes) for name in here),
        gauges_max=tuple(_gauges(name, scrapes, max) for name in here),
        moments=tuple(_moment(sample, here) for sample in scrapes),
        totals=tuple(_ranks(last)[name] for name in here),
        lost_ranks=tuple(sorted(seen - set(here), key=rank_order)),
        restarts=sum(resets),
        configured=last.configured,
        names=last.names,
        notes=tuple(dict.fromkeys([*(note for one in in_order for note in one.notes), *notes])),
    )


def rank_order(rank: str) -> tuple[bool, int, str]:
    """Order ranks as people count: 2 before 10, numbers before words."""
    number = rank.isascii() and rank.isdigit() and len(rank) < 10
    return (not number, int(rank) if number else 0, rank)


def _same_server(scrapes: tuple[ServerSample, ...]) -> tuple[tuple[ServerSample, ...], list[Note]]:
    """Return the scrapes since engine, model and version are what the last one says."""
    last = scrapes[-1]
    first = 0
    for index, sample in enumerate(scrapes):
        # What a page does not tell yet is no change: some series begin at the first request.
        if any(
            told and now and told != now
            for told, now in zip(_what(sample), _what(last), strict=True)
        ):
            first = index + 1
    if first == 0:
        return scrapes, []
    before = scrapes[first - 1]
    text = (
        f"the page changed from {_identity(before)} to {_identity(last)}: "
        f"{first} of {len(scrapes)} scrapes are of another server and left out"
    )
    return scrapes[first:], [Note(kind="conflict", text=text)]


def _what(sample: ServerSample) -> tuple[str | None, str | None, str | None]:
    engine = None if sample.engine is EngineKind.UNKNOWN else sample.engine.value
    return engine, sample.version, sample.model


def _identity(sample: ServerSample) -> str:
    return " ".join(word for word in _what(sample) if word)


def _ranks(sample: ServerSample) -> dict[str, RankSample]:
    return {rank.rank: rank for rank in sample.ranks}


def _readable(sample: ServerSample, notes: list[Note]) -> ServerSample:
    """Leave out values that cannot be, so that one broken series does not spoil sums over all."""
    ranks: list[RankSample] = []
    for rank in sample.ranks:
        gauges = {key: one for key, one in rank.gauges.items() if can_be(one)}
        counters = {key: one for key, one in rank.counters.items() if can_be(one)}
        known = {key: readable(one) for key, one in rank.distributions.items()}
        distributions = {key: one for key, one in known.items() if one is not None}
        kept = {*gauges, *counters, *distributions}
        told: list[Key] = [*rank.gauges, *rank.counters, *rank.distributions]
        notes.extend(
            _left_out(rank.rank, key, "has a value that cannot be")
            for key in told
            if key not in kept
        )
        ranks.append(
            msgspec.structs.replace(
                rank, gauges=gauges, counters=counters, distributions=distributions
            )
        )
    return msgspec.structs.replace(sample, ranks=tuple(ranks))


def _left_out(rank: str, key: Key, why: str) -> Note:
    where = f" of rank {rank}" if rank else ""
    return Note(kind="broken", text=f"{key.value}{where} {why}; it is left out", metric=key.value)


def _is_reset(then: ServerSample, now: ServerSample) -> bool:
    """Say whether a process began anew between two scrapes.

    Where the page tells when the process started, a single counter that went back is taken for broken; a worker
    behind a page that lives on has restarted when at least half of what it had counted went back.
    """
    lives_on = then.started_at_s is not None and now.started_at_s is not None
    if lives_on and (now.started_at_s or 0.0) - (then.started_at_s or 0.0) > STARTED_LATER_S_MIN:
        return True
    before = _ranks(then)
    for rank in now.ranks:
        fell, counted = fell_and_counted(before.get(rank.rank, rank), rank)
        if fell and (not lives_on or 2 * fell >= counted):
            return True
    return False


def _say_what_is_left_out(
    stretches: int, resets: Sequence[bool], clean: int, notes: list[Note]
) -> None:
    if sum(resets):
        text = f"counters went back {sum(resets)} times: the server restarted"
        notes.append(Note(kind="conflict", text=text.replace("1 times", "once")))
    if missing := stretches - clean - sum(resets):
        text = f"{missing} of {stretches} stretches lack a rank at one end and are left out"
        notes.append(Note(kind="limit", text=text))


def _span(
    last: ServerSample, clean: Sequence[Pair], notes: list[Note]
) -> tuple[float, float | None]:
    """Return start and length of what counters speak of; the length of a life is known if its start is told."""
    if clean:
        return clean[0][0].at_s, math.fsum(now.at_s - then.at_s for then, now in clean)
    if last.started_at_s is None:
        return last.at_s, None
    length_s = last.at_s - last.started_at_s
    if length_s <= 0:
        text = "the page says that the process started after it was read: clocks differ"
        notes.append(Note(kind="conflict", text=text))
        return last.at_s, None
    return last.started_at_s, length_s


def _rank_window(
    name: str, scrapes: Sequence[ServerSample], clean: Sequence[Pair], notes: list[Note]
) -> RankSample:
    last = _ranks(scrapes[-1])[name]
    stretches = [
        Stretch(_ranks(then)[name], _ranks(now)[name], now.at_s - then.at_s) for then, now in clean
    ]
    return RankSample(
        rank=name,
        gauges=_gauges(name, scrapes, _mean),
        counters=_counters(last, stretches, notes) if clean else last.counters,
        distributions=_distributions(last, stretches, notes) if clean else last.distributions,
        accepted_by_position=grown_positions(stretches) if clean else last.accepted_by_position,
    )


def _mean(values: Iterable[float]) -> float:
    told = list(values)
    return math.fsum(told) / len(told)


def _gauges(
    name: str, scrapes: Sequence[ServerSample], join: Callable[[Iterable[float]], float]
) -> dict[Gauge, float]:
    told: dict[Gauge, list[float]] = {}
    for sample in scrapes:
        rank = _ranks(sample).get(name)
        for gauge, value in (rank.gauges if rank else {}).items():
            told.setdefault(gauge, []).append(value)
    return {gauge: join(values) for gauge, values in told.items()}


def _moment(sample: ServerSample, here: Sequence[str]) -> dict[Gauge, float]:
    """Return what ran and waited at a scrape; nothing if a rank is not on it, for a sum without it is no fall."""
    ranks = _ranks(sample)
    if not set(here) <= ranks.keys():
        return {}
    found: dict[Gauge, float] = {}
    for gauge in (Gauge.RUNNING, Gauge.WAITING):
        told = [ranks[name].gauges[gauge] for name in here if gauge in ranks[name].gauges]
        if told:
            found[gauge] = math.fsum(told)
    return found


def _counters(
    last: RankSample, stretches: Sequence[Stretch], notes: list[Note]
) -> dict[Counter, float]:
    grown: dict[Counter, float] = {}
    for counter in last.counters:
        told = [one for one in stretches if counter in one.then.counters.keys() & one.now.counters]
        ends = [(one.then.counters[counter], one.now.counters[counter]) for one in told]
        if not covers(told, stretches):
            notes.append(_left_out(last.rank, counter, "is not told by every scrape"))
        elif any(went_back(then, now) for then, now in ends):
            notes.append(_left_out(last.rank, counter, "went back though its process lives on"))
        else:
            grown[counter] = max(0.0, math.fsum(now - then for then, now in ends))
    return grown


def _distributions(
    last: RankSample, stretches: Sequence[Stretch], notes: list[Note]
) -> dict[Distribution, Buckets]:
    grown: dict[Distribution, Buckets] = {}
    for key in last.distributions:
        told = [
            one for one in stretches if key in one.then.distributions.keys() & one.now.distributions
        ]
        if not covers(told, stretches):
            notes.append(_left_out(last.rank, key, "is not told by every scrape"))
            continue
        found = grown_buckets(
            [(one.then.distributions[key], one.now.distributions[key]) for one in told]
        )
        if found is None:
            notes.append(_left_out(last.rank, key, "changed its edges or a bucket went back"))
        else:
            grown[key] = found
    return grown
