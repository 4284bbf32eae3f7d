"""What the benchmarks judge by: a soak sees what is lost, doubled or left half; medians carry their intervals."""

import json
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[3]))
from bench.proxy.engine import event
from bench.proxy.results import US, Row, cost_ratio, interval, quantile, table, tail_difference
from bench.soak import judged

DONE = b"data: [DONE]\n\n"
ERROR = b'data: {"error":{"code":"upstream_broken"}}\n\n'


def said(*numbers: int) -> bytes:
    return b"".join(event(f"c1 {number}") for number in numbers)


@pytest.mark.parametrize(
    ("body", "outcome"),
    [
        (said(0, 1, 2) + event(None, "stop") + DONE, "stream whole"),
        (said(0, 1) + ERROR, "ended in an error event"),
        (ERROR, "ended in an error event"),
    ],
)
def test_whole_and_properly_ended_streams_are_right(body: bytes, outcome: str) -> None:
    """All events and one end, or an unbroken beginning and one error."""
    assert judged("c1", 3, body) == (outcome, None)


@pytest.mark.parametrize(
    "body",
    [
        said(0, 1, 2)[:-1],
        said(0, 2, 3) + DONE,
        said(0, 0, 1) + DONE,
        said(1, 0, 2) + DONE,
        said(0, 1) + DONE,
        said(0, 1, 2),
        said(0, 1, 2) + DONE + DONE,
        said(0, 1) + ERROR + ERROR,
        said(0) + ERROR + said(1),
        said(0, 1) + ERROR + DONE,
        said(0, 1, 2) + DONE + said(0),
        b"".join(event(f"c2 {number}") for number in range(3)) + DONE,
    ],
)
def test_what_is_lost_doubled_mixed_up_or_left_half_is_wrong(body: bytes) -> None:
    """Each of these must be found, or the soak proves nothing."""
    assert judged("c1", 3, body)[1] is not None


def row(proxy: str, number: int, cost: float, tail: float) -> Row:
    return Row(
        proxy=proxy,
        round=number,
        streams=64,
        offered_per_s=3_200.0,
        events_per_s=3_100.0,
        cpu_us_per_event=cost,
        cpu_share=0.1,
        added_ms_p50=1.0,
        added_ms_p99=tail,
        resident_mib=50.0,
        completed=90,
        failed=1,
        samples=91,
    )


def test_ratios_are_taken_within_a_round() -> None:
    """A round in which everything was slow changes no ratio: pairs are of one round."""
    rows = [row(US, at, 2.0 * scale, 5.0) for at, scale in enumerate((10.0, 50.0, 20.0))]
    rows += [row("other", at, scale, 3.0) for at, scale in enumerate((10.0, 50.0, 20.0))]
    ratio, tail = cost_ratio(rows, "other", 64), tail_difference(rows, "other", 64)
    assert ratio is not None
    assert tail is not None
    assert (ratio.value, ratio.low, ratio.high, ratio.n) == (2.0, 2.0, 2.0, 3)
    assert tail.value == 2.0
    assert "2.00 [2.00, 2.00]" in table(rows, (US, "other"))


def test_interval_needs_two_rounds_and_holds_the_median() -> None:
    """Of one value there is no interval, of none nothing at all."""
    alone, several = interval([3.0]), interval([1.0, 2.0, 3.0, 4.0, 100.0])
    assert alone is not None
    assert several is not None
    assert interval([]) is None
    assert (alone.low, alone.high) == (None, None)
    assert (several.low or 0.0) <= several.value == 3.0 <= (several.high or 0.0)
    assert quantile([], 0.5) is None
    assert quantile(list(map(float, range(100))), 0.99) == 99.0


def test_event_of_the_fake_engine_is_of_the_size_that_is_told() -> None:
    """About 190 bytes, as engines send them, so that costs per event can be compared."""
    data = event(" token")
    assert 170 <= len(data) <= 210
    assert json.loads(data[6:])["choices"][0]["delta"]["content"] == " token"
