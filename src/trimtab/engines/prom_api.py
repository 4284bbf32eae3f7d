"""Answers of Prometheus' HTTP API, read into the same samples as pages of metrics.

An instant vector gives one sample for each target, a matrix one for each target and time: a range vector asked of the
instant endpoint holds what was scraped, at the times when it was. A series that is absent at a time is absent from that
time's sample. Targets are told apart by `instance`, else by `pod`; jobs keep their instances apart.

Failure modes: an answer that is an error, no JSON, or beyond the limits raises `EngineFormatError`. Prometheus puts
`exported_` before a label of the engine that its own labels hide; those are the engine's and are put back. Its native
histograms are not read.
"""

import math
import re
from collections.abc import Mapping

import msgspec

from trimtab.core.ports import EngineFormatError
from trimtab.core.served import EngineKind, Note, ServerSample
from trimtab.engines.scrape import PAGE_BYTES_MAX, SERIES_MAX, Key, Scrape, SeriesStore
from trimtab.engines.served import TABLES, WANTED, sample_of_scrape
from trimtab.engines.served_names import STARTED
from trimtab.engines.served_notes import NoteBook

SAMPLES_MAX = 20_000
VALUES_MAX = 5_000_000
WARNINGS_MAX = 8
TIME_S_MAX = 1e11
"""Later than any wall clock: seconds of 5138, so that milliseconds are not taken for seconds."""

_HIDDEN = "exported_"
_SELECTOR = re.compile(r'\{?\s*((?:[^"{}]|"(?:[^"\\]|\\.)*")*?)[\s,]*\}?')
_TARGET_LABELS = ("job", "namespace")
_INSTANCE_LABELS = ("instance", "pod")
_SCRAPE_LABELS = frozenset({"job", "instance", "pod", "namespace", "container", "endpoint"})

Value = tuple[float, str]


class _Series(msgspec.Struct):
    metric: dict[str, str]
    value: Value | None = None
    values: tuple[Value, ...] = ()


class _Data(msgspec.Struct):
    resultType: str  # noqa: N815  (the API's own key)
    result: msgspec.Raw


class _Answer(msgspec.Struct):
    status: str
    data: _Data | None = None
    error: str = ""
    warnings: tuple[str, ...] = ()


# Arrays within arrays without end are refused by the decoder in its own way.
_MALFORMED = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_ANSWER = msgspec.json.Decoder(_Answer)
_RESULT = msgspec.json.Decoder(tuple[_Series, ...])


def instant_query(selector: str) -> str:
    """Return the query for the newest value of every known metric of the targets that a selector names.

    `selector` is what stands inside the braces, with or without them; raises `EngineFormatError` if it is none.
    """
    match = _SELECTOR.fullmatch(selector.strip())
    if match is None:
        raise EngineFormatError(f"not a selector of labels: {selector!r}")
    prefixes = sorted({prefix for table in TABLES for prefix in table.prefixes})
    names = "|".join(f"{prefix}.+" for prefix in prefixes) + f"|{STARTED}"
    own = f",{match[1]}" if match[1] else ""
    return f'{{__name__=~"{names}"{own}}}'


def window_query(selector: str, window_s: float) -> str:
    """Return the query for all values of the last `window_s` seconds; the newest only if that is not positive."""
    query = instant_query(selector)
    return f"{query}[{max(1, round(window_s))}s]" if window_s > 0 else query


def read_api(body: bytes, *, source: str, at_s: float) -> tuple[ServerSample, ...]:
    """Read an answer into samples by time and target, the earliest first; empty if nothing matched.

    A sample's source is `source` with the target behind it. `at_s`, when it was asked, stands in where the answer tells
    no time. Targets without a known name are left out where others have one. Raises `EngineFormatError`.
    """
    answer = _decode(body)
    samples: list[ServerSample] = []
    found, notes = _by_target(answer, at_s)
    for (target, time_s), (store, own) in found.items():
        own.add_all(notes)
        series = store.series()
        where = f"{source} {target}".strip()
        samples.append(sample_of_scrape(Scrape(series, own.notes()), source=where, at_s=time_s))
    known = [sample for sample in samples if sample.engine is not EngineKind.UNKNOWN]
    return tuple(sorted(known or samples, key=lambda one: (one.at_s, one.source)))


def _decode(body: bytes) -> _Answer:
    if len(body) > PAGE_BYTES_MAX:
        raise EngineFormatError(f"an answer over {PAGE_BYTES_MAX // 2**20} MiB")
    try:
        answer = _ANSWER.decode(body)
    except _MALFORMED as error:
        raise EngineFormatError("not an answer of the Prometheus API") from error
    if answer.status != "success":
        raise EngineFormatError(
            f"the Prometheus API refused: {answer.error[:500] or answer.status}"
        )
    return answer


Stores = dict[tuple[str, float], tuple[SeriesStore, NoteBook]]


def _by_target(answer: _Answer, at_s: float) -> tuple[Stores, tuple[Note, ...]]:
    """Sort the values of an answer by target and time."""
    notes = NoteBook()
    for text in answer.warnings[:WARNINGS_MAX]:
        notes.add("limit", f"the API warns: {text[:200]}")
    stores: Stores = {}
    values = 0
    for series in _series_of(answer):
        told = series.values or ((series.value,) if series.value else ())
        if not told:
            notes.add("limit", "native histograms are on the server and were not read")
        name, target, labels = _parted(series.metric)
        if name not in WANTED:
            continue
        key = Key(labels.items())
        values += len(told)
        if values > VALUES_MAX:
            raise EngineFormatError(f"an answer with more than {VALUES_MAX} values")
        for time_s, text in told:
            at = (target, time_s if 0 <= time_s < TIME_S_MAX else at_s)
            _store_of(stores, at).add(name, labels, _number(text), key)
    return stores, notes.notes()


def _store_of(stores: Stores, at: tuple[str, float]) -> SeriesStore:
    if at not in stores:
        if len(stores) >= SAMPLES_MAX:
            raise EngineFormatError(f"more than {SAMPLES_MAX} targets and times")
        own = NoteBook()
        stores[at] = (SeriesStore(own), own)
    return stores[at][0]


def _series_of(answer: _Answer) -> tuple[_Series, ...]:
    if answer.data is None or answer.data.resultType not in {"vector", "matrix"}:
        raise EngineFormatError("the Prometheus API answered with neither a vector nor a matrix")
    try:
        found = _RESULT.decode(answer.data.result)
    except _MALFORMED as error:
        raise EngineFormatError(
            "the series in the Prometheus API's answer are malformed"
        ) from error
    if len(found) > SERIES_MAX:
        raise EngineFormatError(f"an answer with more than {SERIES_MAX} series")
    return found


def _parted(metric: Mapping[str, str]) -> tuple[str, str, dict[str, str]]:
    """Return a series' name, its target and the labels that are the engine's own."""
    instance = next((metric[label] for label in _INSTANCE_LABELS if metric.get(label)), "")
    target = "/".join(part for part in (*map(metric.get, _TARGET_LABELS), instance) if part)
    labels = {
        label: text
        for label, text in metric.items()
        if label not in _SCRAPE_LABELS and label != "__name__" and not label.startswith(_HIDDEN)
    }
    for label, text in metric.items():
        own = label.removeprefix(_HIDDEN)
        if own != label and own not in _SCRAPE_LABELS:
            labels[own] = text
    return metric.get("__name__", ""), target, labels


def _number(text: str) -> float:
    """Return a value; what is no number is NaN, which nothing reads."""
    try:
        return float(text)
    except ValueError:
        return math.nan
