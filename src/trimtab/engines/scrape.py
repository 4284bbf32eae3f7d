"""A page of metrics as bytes, read into the series that somebody asked for.

Prometheus text and OpenMetrics are one grammar here: comments are left out (types too: whoever reads a name knows what
it is), a sample may carry a timestamp and an exemplar, a name may stand inside the braces. A page of five megabytes is
read while a person waits, which a parser that looks at every character in Python cannot do: lines of names that nobody
asked for are passed over, plain labels are read by one regular expression, each text of labels only once, and whatever
is not plain goes to the ecosystem's parser.

Failure modes: a page that holds no sample, is too large or has too many series is refused with `EngineFormatError`;
single lines that are no samples, and series that stand there twice with different values, are left out with a note.
"""

import re
from collections.abc import Iterator, Mapping

import msgspec
from prometheus_client.parser import parse_labels

from trimtab.core.ports import EngineFormatError
from trimtab.core.served import Note
from trimtab.engines.prom import Sample
from trimtab.engines.served_notes import NoteBook

PAGE_BYTES_MAX = 64 * 2**20
SERIES_MAX = 200_000
LINE_CHARS_MAX = 65_536

_NAME = re.compile(r"[A-Za-z_:][A-Za-z0-9_:]*+")
_SAMPLE = re.compile(
    r"(?P<name>[A-Za-z_:][A-Za-z0-9_:]*+)?[ \t]*+"
    r'(?:\{(?P<labels>(?:[^"}]*+"(?:[^"\\]++|\\.)*+")*+[^"}]*+)\}[ \t]*+|(?<=[ \t]))'
    r"(?P<value>[-+.0-9A-Za-z]++)(?:[ \t]++[-+.0-9eE]++)?(?:[ \t]++#.*+)?"
)
_LABEL = re.compile(r'([A-Za-z_][A-Za-z0-9_]*+)="([^"\\]*+)"(?:,|$)')
_PLAIN_LABELS = re.compile(r'(?:[A-Za-z_][A-Za-z0-9_]*+="[^"\\]*+"(?:,|$))*+')
_COMMENT_OF_A_PAGE = re.compile(r"#[ \t]*(?:HELP|TYPE|EOF|UNIT)\b")

Key = frozenset[tuple[str, str]]


class Scrape(msgspec.Struct, frozen=True):
    """The series of a page by their full names, and what a reader must know about the page."""

    series: Mapping[str, tuple[Sample, ...]]
    notes: tuple[Note, ...] = ()


class SeriesStore:
    """Collects series, at most `SERIES_MAX`; a series may come twice with one value, not with two."""

    def __init__(self, notes: NoteBook) -> None:
        self._notes = notes
        self._found: dict[str, dict[Key, Sample]] = {}
        self._spoiled: set[tuple[str, Key]] = set()
        self._count = 0

    def add(self, name: str, labels: Mapping[str, str], value: float, key: Key) -> None:
        """Keep a series; raises `EngineFormatError` when there are too many."""
        series = self._found.setdefault(name, {})
        before = series.get(key)
        if before is None:
            self._count += 1
            if self._count > SERIES_MAX:
                raise EngineFormatError(f"more than {SERIES_MAX} series of an engine")
            series[key] = Sample(labels, value)
        elif before.value != value and not (before.value != before.value and value != value):
            self._spoiled.add((name, key))

    def series(self) -> dict[str, tuple[Sample, ...]]:
        """Return what was kept, by name."""
        for name, key in self._spoiled:
            del self._found[name][key]
            self._notes.add(
                "broken", "a series stands there twice with different values and is left out", name
            )
        return {name: tuple(kept.values()) for name, kept in self._found.items() if kept}


def read_scrape(body: bytes, *, wanted: frozenset[str]) -> Scrape:
    """Read the wanted names of a page.

    Raises `EngineFormatError` for what is no page of metrics, is over `PAGE_BYTES_MAX` or has over `SERIES_MAX` series.
    """
    if len(body) > PAGE_BYTES_MAX:
        raise EngineFormatError(f"a page of metrics over {PAGE_BYTES_MAX // 2**20} MiB")
    notes = NoteBook()
    text = _decode(body, notes)
    store = SeriesStore(notes)
    labels = _LabelReader()
    bad = 0
    is_page = False
    for line in _lines(text):
        if line[0] == "#":
            is_page = is_page or _COMMENT_OF_A_PAGE.match(line) is not None
            continue
        name = _NAME.match(line)
        if name is not None and name[0] not in wanted:
            # What nobody asked for only shows, once, that this is a page.
            is_page = is_page or _read_line(line, labels) is not None
            continue
        sample = _read_line(line, labels)
        if sample is None:
            bad += 1
            continue
        is_page = True
        if sample[0] in wanted:
            store.add(*sample)
    if not is_page:
        raise EngineFormatError(f"not a page of Prometheus metrics: {_what_it_is(text)}")
    if bad:
        notes.add("broken", f"{bad} lines are no samples and are left out")
    return Scrape(store.series(), notes.notes())


def _what_it_is(text: str) -> str:
    match text.lstrip()[:1]:
        case "[" | "{":
            return "it is JSON (TensorRT-LLM has the page at /prometheus/metrics)"
        case "<":
            return "it is markup"
        case "":
            return "it is empty"
        case _:
            return "no sample in it"


def _decode(body: bytes, notes: NoteBook) -> str:
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = body.decode("utf-8-sig", errors="replace")
        notes.add("broken", "the page is not UTF-8")
    if text and not text.endswith("\n"):
        notes.add("broken", "the page does not end with a line end: its last value may be cut")
    return text


def _lines(text: str) -> Iterator[str]:
    """Yield lines that hold something; splitting one by one spares a copy of the page."""
    start, size = 0, len(text)
    while start < size:
        end = text.find("\n", start)
        end = size if end < 0 else end
        line = text[start:end].strip(" \t\r")
        start = end + 1
        if line:
            yield line


def _read_line(
    line: str, labels: "_LabelReader"
) -> tuple[str, Mapping[str, str], float, Key] | None:
    """Return name, labels, value and key of one sample; None for what is no sample."""
    if len(line) > LINE_CHARS_MAX:
        return None
    match = _SAMPLE.fullmatch(line)
    if match is None:
        return None
    try:
        value = float(match["value"])
    except ValueError:
        return None
    found = labels.read(match["labels"] or "")
    if found is None:
        return None
    quoted, pairs, key = found
    name = match["name"] or quoted
    # A name before the braces and another inside them is a contradiction.
    if not name or (match["name"] and quoted):
        return None
    return name, pairs, value, key


class _LabelReader:
    """Reads each text of labels once; holds as many as a page may have series."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, Mapping[str, str], Key] | None] = {"": ("", {}, Key())}

    def read(self, text: str) -> tuple[str, Mapping[str, str], Key] | None:
        """Return the name inside the braces ("" if none), the labels and their key; None for nonsense."""
        try:
            return self._known[text]
        except KeyError:
            pass
        found = _read_labels(text)
        if len(self._known) < SERIES_MAX:
            self._known[text] = found
        return found


def _read_labels(text: str) -> tuple[str, Mapping[str, str], Key] | None:
    if _PLAIN_LABELS.fullmatch(text):
        pairs = _LABEL.findall(text)
        labels = dict(pairs)
        if len(labels) != len(pairs):
            return None
    else:
        try:
            labels = parse_labels(text)
        except (ValueError, IndexError):
            return None
    name = labels.pop("__name__", "")
    return name, labels, Key(labels.items())
