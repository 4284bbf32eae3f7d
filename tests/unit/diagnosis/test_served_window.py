"""Scrapes become windows: what grew, for how long, and who vanished."""

import math

import pytest
from windows_kit import rank, scrape

from trimtab.core.served import Buckets, Counter, Distribution, EngineKind, Gauge
from trimtab.diagnosis.served_window import ServedWindowError, window_of

OUTPUT, PROMPT = Counter.OUTPUT_TOKENS, Counter.PROMPT_TOKENS


def counted(value: float, at_s: float, *, started_at_s: float | None = None, name: str = "0"):
    return scrape(rank(name, counters={OUTPUT: value}), at_s=at_s, started_at_s=started_at_s)


def test_counters_grow_and_gauges_are_averaged() -> None:
    """Counters give last minus first, gauges mean and maximum, over the seconds between the scrapes."""
    window = window_of(
        [
            scrape(rank(gauges={Gauge.RUNNING: run}, counters={OUTPUT: out}), at_s=at_s)
            for at_s, run, out in ((0.0, 2.0, 1_000.0), (5.0, 10.0, 1_300.0), (10.0, 3.0, 1_800.0))
        ]
    )
    assert (window.lifetime, window.length_s, window.scrapes) == (False, 10.0, 3)
    assert (window.start_s, window.end_s) == (0.0, 10.0)
    assert window.ranks[0].counters == {OUTPUT: 800.0}
    assert window.ranks[0].gauges == {Gauge.RUNNING: 5.0}
    assert window.gauges_max == ({Gauge.RUNNING: 10.0},)
    assert window.totals[0].counters == {OUTPUT: 1_800.0}


def test_one_scrape_speaks_of_the_servers_life() -> None:
    """Its length is that since the process started, and unknown where the page does not tell."""
    told = window_of([counted(900.0, 1_000.0, started_at_s=400.0)])
    assert (told.lifetime, told.start_s, told.length_s) == (True, 400.0, 600.0)
    assert told.ranks[0].counters == {OUTPUT: 900.0}
    untold = window_of([counted(900.0, 1_000.0)])
    assert (untold.lifetime, untold.start_s, untold.length_s) == (True, 1_000.0, None)


def test_process_that_starts_after_it_was_read_has_no_age() -> None:
    """Clocks that differ make the length unknown, never negative, and are named."""
    window = window_of([counted(900.0, 1_000.0, started_at_s=5_000.0)])
    assert window.length_s is None
    assert [note.kind for note in window.notes] == ["conflict"]


def test_restart_takes_its_stretch_out() -> None:
    """Growth and length are of the stretches without a reset; the restart is counted."""
    window = window_of(
        [counted(value, at_s) for at_s, value in ((0, 100), (10, 200), (20, 30), (30, 90))]
    )
    assert (window.restarts, window.lifetime) == (1, False)
    assert window.length_s == 20.0
    assert window.ranks[0].counters == {OUTPUT: 160.0}
    assert any("restarted" in note.text for note in window.notes)


def test_restart_between_the_only_two_scrapes_leaves_a_life() -> None:
    """Nothing is known of the window; what the new process says since its start is."""
    window = window_of([counted(5_000.0, 0.0), counted(40.0, 10.0)])
    assert (window.restarts, window.lifetime, window.length_s) == (1, True, None)
    assert window.ranks[0].counters == {OUTPUT: 40.0}


def test_later_process_start_is_a_restart_though_counters_overtook() -> None:
    """A process that began anew is found by its start even if its counters are higher than before."""
    window = window_of(
        [counted(50.0, 0.0, started_at_s=-10.0), counted(80.0, 60.0, started_at_s=20.0)]
    )
    assert (window.restarts, window.lifetime, window.length_s) == (1, True, 40.0)


def test_single_counter_that_falls_while_its_process_lives_is_broken() -> None:
    """The others keep their growth; the broken one is left out and named."""
    pages = [
        scrape(
            rank(counters={OUTPUT: out, PROMPT: prompt, Counter.DRAFTS: drafts}),
            at_s=at_s,
            started_at_s=-50.0,
        )
        for at_s, out, prompt, drafts in ((0.0, 10.0, 100.0, 9.0), (10.0, 30.0, 400.0, 2.0))
    ]
    window = window_of(pages)
    assert (window.restarts, window.lifetime) == (0, False)
    assert window.ranks[0].counters == {OUTPUT: 20.0, PROMPT: 300.0}
    assert [note.metric for note in window.notes] == [Counter.DRAFTS]


def test_worker_that_restarts_behind_a_page_that_lives_is_found() -> None:
    """Where most of what a rank counted went back, that rank restarted whatever the page's own start says."""
    pages = [
        scrape(rank("0", counters={OUTPUT: a}), rank("1", counters={OUTPUT: b}), at_s=at_s,
               started_at_s=-50.0)
        for at_s, a, b in ((0.0, 10.0, 500.0), (10.0, 30.0, 20.0))
    ]  # fmt: skip
    assert window_of(pages).restarts == 1


def test_vanished_rank_is_lost_and_not_idle() -> None:
    """A rank of an earlier scrape that the last one lacks is named and has no values."""
    window = window_of(
        [
            scrape(rank("0", gauges={Gauge.RUNNING: 4}), rank("1", gauges={Gauge.RUNNING: 40})),
            scrape(rank("0", gauges={Gauge.RUNNING: 6}), at_s=110.0),
        ]
    )
    assert window.lost_ranks == ("1",)
    assert [(one.rank, one.gauges) for one in window.ranks] == [("0", {Gauge.RUNNING: 5.0})]


def test_rank_that_blinked_is_not_lost() -> None:
    """The stretches next to the gap are left out for every rank, so that all speak of the same time."""
    both = [
        scrape(
            rank("0", counters={OUTPUT: 10.0 * at_s}),
            *([] if at_s == 10.0 else [rank("1", counters={OUTPUT: at_s})]),
            at_s=at_s,
        )
        for at_s in (0.0, 10.0, 20.0, 30.0)
    ]
    window = window_of(both)
    assert (window.lost_ranks, window.length_s) == ((), 10.0)
    assert [one.counters[OUTPUT] for one in window.ranks] == [100.0, 10.0]
    assert [note.kind for note in window.notes] == ["limit"]


def test_series_that_begins_between_two_scrapes_is_unknown() -> None:
    """Absent at one end is not zero: a page that was cut short looks the same."""
    window = window_of([scrape(rank(counters={PROMPT: 5.0}), at_s=0.0), scrape(
        rank(counters={PROMPT: 9.0, OUTPUT: 400.0}), at_s=10.0)])  # fmt: skip
    assert window.ranks[0].counters == {PROMPT: 4.0}
    assert [note.metric for note in window.notes] == [OUTPUT]


def histogram(*cumulative: float, total: float, summed: float | None = None) -> Buckets:
    return Buckets(edges=(1.0, 2.0), cumulative=cumulative, total=total, sum=summed)


def told(buckets: Buckets, at_s: float):
    return scrape(rank(distributions={Distribution.TTFT: buckets}), at_s=at_s)


def test_histograms_grow_bucket_by_bucket() -> None:
    """The window's histogram holds the window's values only, the sum included."""
    window = window_of(
        [
            told(histogram(10, 20, total=30, summed=60.0), 0.0),
            told(histogram(10, 25, total=40, summed=90.0), 10.0),
        ]
    )
    expected = histogram(0, 5, total=10, summed=30.0)
    assert expected == window.ranks[0].distributions[Distribution.TTFT]


def test_histogram_that_changed_its_edges_is_left_out() -> None:
    """Counts at other edges cannot be subtracted."""
    other = Buckets(edges=(1.0, 4.0), cumulative=(20, 30), total=40)
    window = window_of([told(histogram(10, 20, total=30), 0.0), told(other, 10.0)])
    assert window.ranks[0].distributions == {}
    assert [note.kind for note in window.notes] == ["broken"]


def test_values_that_cannot_be_are_left_out_and_named() -> None:
    """NaN, infinite and negative values and histograms that fall do not reach any sum."""
    broken = rank(
        gauges={Gauge.RUNNING: math.nan, Gauge.WAITING: 3.0},
        counters={OUTPUT: -1.0, PROMPT: math.inf},
        distributions={Distribution.TTFT: histogram(20, 10, total=30)},
    )
    window = window_of([scrape(broken)])
    assert window.ranks[0].gauges == {Gauge.WAITING: 3.0}
    assert (window.ranks[0].counters, window.ranks[0].distributions) == ({}, {})
    assert {note.metric for note in window.notes} == {
        Gauge.RUNNING, OUTPUT, PROMPT, Distribution.TTFT,
    }  # fmt: skip


def test_another_model_on_the_same_address_is_another_server() -> None:
    """Scrapes from before the change are left out; what a page does not tell yet is no change."""
    pages = [
        scrape(rank(counters={OUTPUT: value}), at_s=at_s, model=model)
        for at_s, value, model in ((0, 5, "a"), (10, 50, None), (20, 60, "b"), (30, 90, "b"))
    ]
    window = window_of(pages)
    assert (window.model, window.length_s) == ("b", 20.0)
    assert window.ranks[0].counters == {OUTPUT: 40.0}
    assert any("changed from vllm a to vllm b" in note.text for note in window.notes)


def test_window_needs_scrapes_of_one_source() -> None:
    """None at all and several sources are errors that name what was given."""
    with pytest.raises(ServedWindowError, match="got \\[\\]"):
        window_of([])
    with pytest.raises(ServedWindowError, match="'a', 'b'"):
        window_of([scrape(source="a"), scrape(source="b", engine=EngineKind.SGLANG)])
