"""Recent requests in figures."""

from events_kit import request

from trimtab.core.record import RequestRecord
from trimtab.core.types import ErrorClass
from trimtab.interfaces.web.recent import Latency, recent

NOW_S = 10_000.0
LONG_AGO_S = 0.0


def record(finished_ago_s: float, **changes: object) -> RequestRecord:
    return request(1, finished_at_s=NOW_S - finished_ago_s, **changes).record


def test_windows_hold_what_finished_within_them() -> None:
    """A request counts in every window that reaches back to its end, and in no other."""
    records = [record(400.0), record(200.0), record(59.0), record(1.0)]
    found = recent(records, now_s=NOW_S, since_s=LONG_AGO_S, records_max=100)
    assert [(window.window_s, window.n) for window in found.windows] == [(60.0, 2), (300.0, 3)]


def test_window_is_no_longer_than_recording() -> None:
    """Shortly after the start the only window is the time since then: no figure speaks of a time before it."""
    found = recent([record(1.0)], now_s=NOW_S, since_s=NOW_S - 20.0, records_max=100)
    assert [window.window_s for window in found.windows] == [20.0]


def test_quantiles_are_over_known_values_and_say_how_many() -> None:
    """A request without a TTFT is counted, and is not part of the quantiles."""
    records = [record(3.0, ttft_ms=100.0), record(2.0, ttft_ms=None), record(1.0, ttft_ms=300.0)]
    window = recent(records, now_s=NOW_S, since_s=LONG_AGO_S, records_max=100).windows[0]
    assert (3, Latency(n=2, p50=200.0, p95=290.0)) == (window.n, window.ttft_ms)


def test_without_requests_latency_is_unknown_and_not_zero() -> None:
    """An empty window has counts of 0 and no latency."""
    window = recent([], now_s=NOW_S, since_s=LONG_AGO_S, records_max=100).windows[0]
    assert (0, Latency(n=0, p50=None, p95=None)) == (window.n, window.tpot_ms)


def test_bad_ends_are_counted_by_class() -> None:
    """What did not end well is told apart by the class of its error."""
    records = [
        record(3.0, error=ErrorClass.OVERLOADED, status=503),
        record(2.0, error=ErrorClass.OVERLOADED, status=503),
        record(1.0),
    ]
    window = recent(records, now_s=NOW_S, since_s=LONG_AGO_S, records_max=100).windows[0]
    assert (window.ended, window.ok) == ({"overloaded": 2}, 1)


def test_dropped_records_are_admitted() -> None:
    """Where the oldest kept record is younger than the window, the window says that it is not complete."""
    records = [record(100.0), record(1.0)]
    found = recent(records, now_s=NOW_S, since_s=LONG_AGO_S, records_max=2)
    assert [window.complete for window in found.windows] == [True, False]


def test_bins_cover_the_longest_window_and_lose_no_request() -> None:
    """Twenty bins of 15 s reach back five minutes; each request within them is in exactly one."""
    records = [record(float(ago)) for ago in range(280, 0, -1)]
    found = recent(records, now_s=NOW_S, since_s=LONG_AGO_S, records_max=1_000)
    assert (len(found.bins), sum(each.n for each in found.bins)) == (20, 280)


def test_bins_do_not_reach_back_before_the_start() -> None:
    """Before recording began nothing is known: there is no bin with a 0 there."""
    found = recent([record(1.0)], now_s=NOW_S, since_s=NOW_S - 20.0, records_max=100)
    assert len(found.bins) in (2, 3)
