"""The report's page: complete, self-contained, escaped, honest about what is unknown."""

import re
from html.parser import HTMLParser

import msgspec
import pytest
from result_kit import ROUTING, SPECULATION, result

from trimtab.interfaces.report_html import SECTIONS, render
from trimtab.interfaces.report_levers import _without_repeats
from trimtab.interfaces.report_tables import table
from trimtab.interfaces.report_timeline import timeline_picture
from trimtab.interfaces.report_words import change, mean
from trimtab.runtime.result import Latency, TimelinePoint, TuneResult, summarise

VOID = {"meta", "br", "link", "img", "input", "hr"}


class Outline(HTMLParser):
    """Reads a page: its tags must nest, its ids and links are collected."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.words: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what opens."""
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in {"href", "src"}:
                self.links.append(value or "")

    def handle_endtag(self, tag: str) -> None:
        """Check that what closes is what opened last."""
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        """Collect what a reader sees, and the style."""
        self.words.append(data)


def empty() -> TuneResult:
    """A run that ended before anything was found."""
    nothing = summarise("baseline", [])
    return msgspec.structs.replace(
        result(),
        baseline=nothing,
        final=nothing,
        diagnoses=(),
        budgets=(),
        levers=(),
        triggers=(),
        timeline=(),
        distributions=(),
    )


@pytest.mark.parametrize("found", [result(), empty()], ids=["whole", "empty"])
def test_page_is_well_formed_and_every_link_leads_into_it(found: TuneResult) -> None:
    """Tags nest and close; all sections are there; nothing is loaded from anywhere."""
    page = render(found)
    outline = Outline(page)
    assert outline.open == []
    assert outline.ids == [anchor for anchor, _ in SECTIONS]
    assert set(outline.links) == {f"#{anchor}" for anchor, _ in SECTIONS}
    assert re.findall(r"url\(|@import|<script", page) == []


def test_every_picture_has_a_description_and_a_table() -> None:
    """Who cannot see a picture gets its title, its description and its figures."""
    page = render(result())
    pictures = page.count("<svg ")
    assert pictures == 8
    assert page.count("<desc>") == pictures
    assert page.count("Figures as a table") == pictures


def test_names_and_texts_are_escaped() -> None:
    """A text with markup in it is shown, not obeyed."""
    page = render(result())
    assert "bandwidth &lt;and&gt; the batch" in page
    assert "<and>" not in page


def test_verdicts_are_told_in_words_and_signs() -> None:
    """Pass and hold differ by word and sign, not only by colour."""
    words = "".join(Outline(render(result())).words)
    assert "\u2713 pass" in words
    assert "\u2016 hold" in words


def test_unknown_is_said_and_never_a_number() -> None:
    """An empty run has unknown means, ratios and shares; no None, no nan."""
    words = "".join(Outline(render(empty())).words)
    assert "unknown (n=0)" in words
    assert [bad for bad in ("None ", "nan", "inf ") if bad in words] == []


def test_reader_can_run_it_again() -> None:
    """The commands name the seed, the ledger and every lever with a chain."""
    words = "".join(Outline(render(result())).words)
    assert "trimtab tune --workload coding --seed 1" in words
    assert f"trimtab ledger --ledger out/ledger.sqlite chain {ROUTING}" in words
    assert f"chain {SPECULATION}" not in words


def test_broken_ledger_is_said_loudly() -> None:
    """A report over a ledger that does not verify says so."""
    broken = msgspec.structs.replace(result().ledger, verified=False)
    assert "does NOT verify" in render(msgspec.structs.replace(result(), ledger=broken))


def test_looks_in_a_row_with_one_verdict_are_told_once() -> None:
    """A hundred looks that hold are one line with their number; a change of verdict is a line of its own."""
    steps = [
        "Proposed x.",
        "Look 1 (canary, 10% in the slice): hold.\n  hold a",
        "Look 2 (canary, 10% in the slice): hold.\n  hold b",
        "Look 3 (canary, 10% in the slice): pass.",
        "The rollout moved.",
        "Look 4 (ramping, 25% in the slice): pass.",
    ]
    assert _without_repeats(steps) == [
        (steps[0], 0),
        (steps[2], 1),
        (steps[3], 0),
        (steps[4], 0),
        (steps[5], 0),
    ]


def test_lever_that_was_taken_back_has_no_share_any_more() -> None:
    """Whatever its slice was, after the way back nothing meets the lever."""
    moves = [
        TimelinePoint(at_s=10.0, lane="x", what="canary", share=0.1),
        TimelinePoint(at_s=50.0, lane="x", what="rolled_back", share=0.1, verdict="fail"),
    ]
    picture = timeline_picture(moves, 100.0)
    assert re.findall(r">([a-z ]+ \d+%)<", picture) == ["canary 10%", "rolled back 0%"]


def test_columns_of_numbers_stand_to_the_right() -> None:
    """A column is numeric if every cell in it is, or is empty or unknown."""
    found = table(("name", "n"), [("12 ms", "1,200"), ("words", "unknown"), ("3", "")])
    assert re.findall(r"<td class=\"number\">([^<]*)", found) == ["1,200", "unknown", ""]


def test_mean_has_interval_and_n() -> None:
    """A mean without an interval says so."""
    assert mean(Latency(n=3, mean=1234.5, p50=None, p95=None)) == (
        "1,234 ms (interval unknown, n=3)"
    )
    assert mean(Latency(n=0, mean=None, p50=None, p95=None)) == "unknown (n=0)"


def test_change_needs_two_known_figures() -> None:
    """A factor of nothing is unknown."""
    assert [change(2.0, 1.0), change(None, 1.0), change(1.0, None), change(0.0, 1.0)] == [
        "0.50x",
        "unknown",
        "unknown",
        "unknown",
    ]
