"""Scales, ticks and text of hand-written pictures."""

from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.interfaces.svg import (
    Drawing,
    fitted,
    linear,
    log_ticks,
    logarithmic,
    ticks,
    width_of,
)


def test_linear_scale_keeps_values_within_its_ends() -> None:
    """Ends map to ends, the middle to the middle, what lies outside to the nearer end."""
    across = linear(10.0, 20.0, 100.0, 200.0)
    assert [across(value) for value in (10, 15, 20, 0, 99)] == [100, 150, 200, 100, 200]


def test_logarithmic_scale_gives_equal_factors_equal_widths() -> None:
    """A factor of ten is as wide everywhere."""
    across = logarithmic(1.0, 100.0, 0.0, 200.0)
    assert [round(across(value), 6) for value in (1, 10, 100, 0)] == [0, 100, 200, 0]


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.0, 1.0, (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)),
        (0.0, 540.0, (0.0, 200.0, 400.0)),
        (3.0, 3.0, (3.0,)),
    ],
)
def test_ticks_are_round(low: float, high: float, expected: tuple[float, ...]) -> None:
    """Steps of 1, 2 or 5 times a power of ten."""
    assert ticks(low, high) == expected


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6), st.integers(2, 12))
def test_ticks_lie_within_and_are_not_too_many(low: float, span: float, about: int) -> None:
    """Any range gives rising ticks inside it, at most one more than asked for."""
    found = ticks(low, low + span, about=about)
    slack = 1e-6 * (abs(low) + span)
    assert list(found) == sorted(set(found))
    assert len(found) <= about + 1
    assert all(low - slack <= tick <= low + span + slack for tick in found)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (180.0, 11_000.0, (200.0, 500.0, 1000.0, 2000.0, 5000.0, 10_000.0)),
        (1.0, 1e6, (1.0, 10.0, 100.0, 1000.0, 10_000.0, 100_000.0, 1_000_000.0)),
        (22.0, 90.0, (40.0, 60.0, 80.0)),
    ],
)
def test_log_ticks_suit_the_span(low: float, high: float, expected: tuple[float, ...]) -> None:
    """1, 2, 5 over decades, fewer over many, even steps within one."""
    assert log_ticks(low, high) == expected


def test_text_is_escaped_and_the_picture_is_described() -> None:
    """Whatever a name holds, the picture stays well-formed and has a title and a description."""
    drawing = Drawing(100, 50, title="a < b", description="x & y")
    drawing.text(1, 2, "<script>")
    drawing.rect(0, 0, 10, 10, "box", title='"quoted" & <more>')
    drawing.rect(0, 0, 0, 10, "box")
    tree = ElementTree.fromstring(drawing.render())
    name = "{http://www.w3.org/2000/svg}"
    assert [child.tag.removeprefix(name) for child in tree] == ["title", "desc", "text", "rect"]
    assert [child.text for child in tree][:3] == ["a < b", "x & y", "<script>"]
    assert tree[3][0].text == '"quoted" & <more>'


def test_words_that_are_too_wide_are_cut_with_an_ellipsis() -> None:
    """What fits stays; what does not ends with an ellipsis and fits."""
    assert fitted("short", 200) == "short"
    cut = fitted("a very long name of a lever", 80)
    assert cut.endswith("\u2026")
    assert width_of(cut) <= 80
