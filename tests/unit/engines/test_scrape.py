"""A page of metrics into series: grammar, limits, what is refused and what is only noted."""

import time

import pytest

from trimtab.core.ports import EngineFormatError
from trimtab.engines import scrape as module
from trimtab.engines.prom import Sample
from trimtab.engines.scrape import Scrape, read_scrape

WANTED = frozenset({"a:x", "a:x_total", "b"})


def read(text: str) -> Scrape:
    return read_scrape(text.encode(), wanted=WANTED)


def kinds(scrape: Scrape) -> list[str]:
    return [note.kind for note in scrape.notes]


@pytest.mark.parametrize(
    ("line", "labels", "value"),
    [
        ("a:x 1", {}, 1.0),
        ("\ufeffa:x 1", {}, 1.0),
        ("a:x\t2.5e3 1700000000000", {}, 2500.0),
        ("  a:x {} 3  \r", {}, 3.0),
        ('a:x{m="y"}4', {"m": "y"}, 4.0),
        ('a:x{m="y",n="z",} 4', {"m": "y", "n": "z"}, 4.0),
        ('a:x{ m = "y" } 4', {"m": "y"}, 4.0),
        ('a:x{m="a}b{c # d"} +Inf', {"m": "a}b{c # d"}, float("inf")),
        (r'a:x{m="q\"\\n\n"} -1', {"m": 'q"\\n\n'}, -1.0),
        ('{"a:x",m="y"} 5', {"m": "y"}, 5.0),
        ('a:x{m="y"} 6 # {trace_id="t"} 0.5 17.5', {"m": "y"}, 6.0),
        ("a:x 6 17.5 # {} 0.5", {}, 6.0),
    ],
)
def test_one_sample_is_read_in_every_spelling(
    line: str, labels: dict[str, str], value: float
) -> None:
    """Spaces, tabs, escapes, timestamps, exemplars, quoted names and a byte order mark are one grammar."""
    assert read(line + "\n") == Scrape({"a:x": (Sample(labels, value),)}, ())


@pytest.mark.parametrize(
    "line",
    [
        "a:x",
        "a:x one",
        'a:x{m="y" 1',
        "a:x{m=y} 1",
        'a:x{m="y",m="z"} 1',
        '{m="y"} 1',
        'a:x{"b",m="y"} 1',
        "a:x 1 2 3",
        "a:x 1_000",
        'a:x{m="' + "y" * 70_000 + '"} 1',
    ],
)
def test_line_that_is_no_sample_is_left_out_with_a_note(line: str) -> None:
    """One bad line does not spoil the page, and is not silent."""
    scrape = read(f"b 1\n{line}\n")
    assert (set(scrape.series), kinds(scrape)) == ({"b"}, ["broken"])


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\n\n",
        b"<html><body>Not Found</body></html>",
        b'{"detail": "Not Found"}',
        b"Not Found",
        b"a:x1.5\n",
        b"\x1f\x8b\x08\x00garbage",
        b"# just a remark\n",
    ],
)
def test_what_is_no_page_is_refused(body: bytes) -> None:
    """A page without one sample is an error and not an idle server."""
    with pytest.raises(EngineFormatError, match="not a page"):
        read_scrape(body, wanted=WANTED)


@pytest.mark.parametrize(
    ("body", "said"), [(b"", "empty"), (b"[]", "/prometheus/metrics"), (b" <html>", "markup")]
)
def test_refusal_says_what_it_is_instead(body: bytes, said: str) -> None:
    """TensorRT-LLM answers with JSON where others have the page, and has the page elsewhere."""
    with pytest.raises(EngineFormatError, match=said):
        read_scrape(body, wanted=WANTED)


def test_page_of_comments_is_a_page() -> None:
    """Labelled metrics begin with their first event: a fresh server may have types only."""
    assert read("# HELP a:x text\n# TYPE a:x counter\n") == Scrape({})


def test_names_nobody_asked_for_are_passed_over() -> None:
    """They may be as many and as odd as they like."""
    assert read('b 1\nother{x="1"} 2\nother{broken 3\n') == Scrape({"b": (Sample({}, 1.0),)})


def test_series_that_stands_twice_counts_once_if_it_says_the_same() -> None:
    """Collectors repeat series; the order of labels does not make another one."""
    text = 'a:x{m="y",n="z"} 1\na:x{n="z",m="y"} 1\n'
    assert read(text).series["a:x"] == (Sample({"m": "y", "n": "z"}, 1.0),)


def test_series_that_contradicts_itself_is_left_out() -> None:
    """Neither value can be chosen: the series is unknown."""
    scrape = read('a:x{m="y"} 1\na:x{m="y"} 2\na:x{m="z"} 3\n')
    assert [sample.value for sample in scrape.series["a:x"]] == [3.0]
    assert [(note.kind, note.metric) for note in scrape.notes] == [("broken", "a:x")]


def test_page_that_may_be_cut_says_so() -> None:
    """Without a line end the last value may lack digits."""
    assert [note.text for note in read("b 1\na:x 12").notes] == [
        "the page does not end with a line end: its last value may be cut"
    ]


def test_other_encodings_are_read_with_a_note() -> None:
    """A label in another encoding does not hide the numbers."""
    scrape = read_scrape(b'a:x{m="\xe9"} 1\n', wanted=WANTED)
    assert (scrape.series["a:x"][0].value, kinds(scrape)) == (1.0, ["broken"])


def test_too_large_a_page_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit in bytes is checked before anything is read."""
    monkeypatch.setattr(module, "PAGE_BYTES_MAX", 10)
    with pytest.raises(EngineFormatError, match="MiB"):
        read("a:x 1\na:x 2\n")


def test_too_many_series_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A million series of an engine are an error; those of other names only cost their bytes."""
    monkeypatch.setattr(module, "SERIES_MAX", 3)
    series = "".join(f'a:x{{m="{i}"}} 1\n' for i in range(4))
    with pytest.raises(EngineFormatError, match="more than 3 series"):
        read(series)
    assert read("b 1\n" + series.replace("a:x", "other")) == Scrape({"b": (Sample({}, 1.0),)})


@pytest.mark.parametrize(
    "evil",
    [
        'a:x{m="' + '\\"' * 30_000,
        "a:x{" + 'm="y",' * 10_000 + " 1",
        "a:x" + "{" * 60_000,
        "a:x{" + '"' * 60_001 + "} 1",
        "a:x " + "1" * 60_000,
    ],
    ids=["escapes", "labels", "braces", "quotes", "digits"],
)
def test_hostile_lines_cost_time_in_proportion(evil: str) -> None:
    """No line makes the grammar try every way to match it."""
    started = time.process_time()
    read(f"b 1\n{evil}\n")
    assert time.process_time() - started < 0.5
