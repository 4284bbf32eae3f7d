"""Readings of what was done: rates, reuse, drafts, transfers."""

import msgspec
import pytest
from windows_kit import grew, lived, rank, scrape, spread

from trimtab.core.evidence import Evidence, Readings, Unknown
from trimtab.core.served import Counter, Distribution, EngineKind, Gauge, ServerWindow
from trimtab.diagnosis.served_names import ServedName, of_position
from trimtab.diagnosis.served_readings import notes_of, readings_of
from trimtab.diagnosis.served_window import window_of


def note(found: Readings, name: str) -> str:
    reading = found.get(name)
    return reading.reason if isinstance(reading, Unknown) else reading.note


def counted(**values: float) -> ServerWindow:
    return grew(rank(counters={Counter[name.upper()]: value for name, value in values.items()}))


def prefix(at_s: float, queries: float, hits: float):
    counters = {Counter.PREFIX_QUERIES: queries, Counter.PREFIX_HITS: hits}
    return scrape(rank(counters=counters), at_s=at_s)


def test_hit_share_is_that_of_the_window() -> None:
    """Two scrapes give the window's share; that since the start stands apart under its own name."""
    found = readings_of(window_of([prefix(0.0, 1e6, 9e5), prefix(10.0, 1.1e6, 9.05e5)]))
    assert found.value(ServedName.PREFIX_HIT_SHARE) == pytest.approx(0.05)
    assert found.value(ServedName.PREFIX_HIT_SHARE_LIFETIME) == pytest.approx(0.8227, abs=1e-4)
    assert "window of 10 s" in note(found, ServedName.PREFIX_HIT_SHARE)
    assert "since start" in note(found, ServedName.PREFIX_HIT_SHARE_LIFETIME)


def test_one_scrape_says_since_start() -> None:
    """A share over the server's life is marked as such wherever it stands."""
    found = readings_of(window_of([prefix(0.0, 1e6, 9e5)]))
    assert found.value(ServedName.PREFIX_HIT_SHARE) == pytest.approx(0.9)
    assert "since start" in note(found, ServedName.PREFIX_HIT_SHARE)


def test_more_hits_than_queries_are_refused() -> None:
    """A ratio above one is never turned over into a share."""
    found = readings_of(counted(prefix_hits=120.0, prefix_queries=100.0))
    for name in (ServedName.PREFIX_HIT_SHARE, ServedName.PREFIX_HIT_SHARE_LIFETIME):
        assert "1.2 is above 1" in note(found, name)
        assert found.value(name) is None
    accepted = readings_of(counted(accepted_tokens=120.0, drafted_tokens=100.0))
    assert "above 1" in note(accepted, ServedName.DRAFT_ACCEPTANCE_SHARE)


def test_nothing_looked_up_is_no_miss() -> None:
    """Without queries in the window the share is unknown, not zero."""
    found = readings_of(counted(prefix_hits=0.0, prefix_queries=0.0))
    assert "nothing was counted" in note(found, ServedName.PREFIX_HIT_SHARE)


def test_gauge_and_counters_that_differ_are_a_conflict() -> None:
    """The counters are trusted and the difference is shown."""
    counters = {Counter.PREFIX_QUERIES: 1_000.0, Counter.PREFIX_HITS: 0.0}
    window = grew(rank(gauges={Gauge.PREFIX_HIT_SHARE: 0.95}, counters=counters))
    assert readings_of(window).value(ServedName.PREFIX_HIT_SHARE) == 0.0
    assert any("95.0% by the gauge and 0.0%" in one.text for one in notes_of(window))
    kept = readings_of(window).get(ServedName.PREFIX_HIT_SHARE)
    assert isinstance(kept, Evidence)
    assert "95.0% by the gauge and 0.0%" in kept.disputed


@pytest.mark.parametrize(("gauge", "disputed"), [(9_000.0, True), (3_000.0, False)])
def test_rate_that_a_gauge_denies_says_so_itself(gauge: float, disputed: bool) -> None:
    """The counters are kept; whoever rests on them can see that another source says otherwise."""
    counters = {Counter.OUTPUT_TOKENS: 33_990.0}
    window = grew(rank(gauges={Gauge.OUTPUT_TOKENS_PER_S: gauge}, counters=counters))
    kept = readings_of(window).get(ServedName.OUTPUT_TOKENS_PER_S)
    assert isinstance(kept, Evidence)
    assert ("9000 tokens/s" in kept.disputed) is disputed


def test_rates_need_a_length_of_time() -> None:
    """Growth per second of the window; one scrape without a start time has no rate."""
    found = readings_of(counted(output_tokens=33_990.0, preemptions=20.0))
    assert found.value(ServedName.OUTPUT_TOKENS_PER_S) == pytest.approx(3_399.0)
    assert found.value(ServedName.PREEMPTIONS_PER_S) == pytest.approx(2.0)
    assert found.value(ServedName.PREEMPTIONS) == 20.0
    once = readings_of(lived(rank(counters={Counter.OUTPUT_TOKENS: 5.0})))
    assert "a second scrape" in note(once, ServedName.OUTPUT_TOKENS_PER_S)


def test_window_of_unknown_length_has_ratios_and_no_rates() -> None:
    """Saved scrapes without times still tell what part of what grew."""
    window = counted(prefix_hits=20.0, prefix_queries=100.0, output_tokens=50.0)
    found = readings_of(msgspec.structs.replace(window, length_s=None))
    assert found.value(ServedName.PREFIX_HIT_SHARE) == pytest.approx(0.2)
    assert "window of unknown length" in note(found, ServedName.PREFIX_HIT_SHARE)
    assert "between the scrapes is not known" in note(found, ServedName.OUTPUT_TOKENS_PER_S)


def test_acceptance_and_both_accepted_lengths() -> None:
    """1,615 of 3,556 drafted tokens in 713 drafts: 45.4%, 2.27 without the bonus token, 3.27 with it."""
    found = readings_of(counted(drafts=713.0, drafted_tokens=3_556.0, accepted_tokens=1_615.0))
    assert found.value(ServedName.DRAFT_ACCEPTANCE_SHARE) == pytest.approx(0.454, abs=5e-4)
    assert found.value(ServedName.ACCEPTED_LENGTH_WITHOUT_BONUS) == pytest.approx(2.27, abs=0.01)
    assert found.value(ServedName.ACCEPTED_LENGTH_WITH_BONUS) == pytest.approx(3.27, abs=0.01)
    assert note(found, ServedName.ACCEPTED_LENGTH_WITH_BONUS).startswith("with the bonus token")
    without = note(found, ServedName.ACCEPTED_LENGTH_WITHOUT_BONUS)
    assert without.startswith("without the bonus token")


def test_drafts_are_a_part_of_steps_and_of_output() -> None:
    """5,306 accepted of 33,990 tokens are 15.6%; 2,901 drafts in 28,684 steps of requests are 10.1%."""
    found = readings_of(
        counted(
            drafts=2_901.0, drafted_tokens=8_703.0, accepted_tokens=5_306.0, output_tokens=33_990.0
        )
    )
    assert found.value(ServedName.ACCEPTED_SHARE_OF_OUTPUT) == pytest.approx(0.156, abs=5e-4)
    assert found.value(ServedName.DRAFTED_SHARE_OF_STEPS) == pytest.approx(0.101, abs=5e-4)
    assert found.value(ServedName.DRAFTED_LENGTH_MEAN) == pytest.approx(3.0)


def test_acceptance_by_position_is_of_all_drafts() -> None:
    """Of 100 drafts 90 had their first token accepted and 40 their second, over both ranks."""
    ranks = [
        rank(name, counters={Counter.DRAFTS: 50.0}, positions=positions)
        for name, positions in (("0", (50.0, 30.0)), ("1", (40.0, 10.0)))
    ]
    found = readings_of(lived(*ranks))
    shares = [
        found.value(of_position(ServedName.DRAFT_ACCEPTANCE_SHARE, position))
        for position in (1, 2, 3)
    ]
    assert shares == [0.9, 0.4, None]


def test_gauge_of_accepted_length_holds_the_bonus_token() -> None:
    """An engine that tells a length only tells it with the bonus token; both names say which they are."""
    found = readings_of(lived(rank(gauges={Gauge.ACCEPTED_LENGTH: 2.6}), engine=EngineKind.SGLANG))
    assert found.value(ServedName.ACCEPTED_LENGTH_WITH_BONUS) == pytest.approx(2.6)
    assert found.value(ServedName.ACCEPTED_LENGTH_WITHOUT_BONUS) == pytest.approx(1.6)


def moved(transfers: float, seconds: float, post: float, size: float, descriptors: float):
    return grew(
        rank(
            counters={
                Counter.TRANSFER_DESCRIPTORS: descriptors * transfers,
                Counter.TRANSFER_FAILURES: 2.0,
            },
            distributions={
                Distribution.TRANSFER_TIME: spread(transfers, seconds),
                Distribution.TRANSFER_POST_TIME: spread(transfers, post),
                Distribution.TRANSFER_SIZE: spread(transfers, size),
                Distribution.E2E: spread(transfers, 10 * seconds),
            },
        )
    )


def test_transfer_figures_show_what_binds() -> None:
    """313 MB in 174 ms are 1.80 GB/s, of which 129 ms post 40,064 descriptors."""
    found = readings_of(moved(50.0, 0.174, 0.129, 313e6, 40_064.0))
    assert found.value(ServedName.TRANSFER_MS_MEAN) == pytest.approx(174.0)
    assert found.value(ServedName.TRANSFER_POST_MS_MEAN) == pytest.approx(129.0)
    assert found.value(ServedName.TRANSFER_BYTES_MEAN) == pytest.approx(313e6)
    assert found.value(ServedName.TRANSFER_BYTES_PER_S) == pytest.approx(1.80e9, rel=0.01)
    assert found.value(ServedName.TRANSFER_DESCRIPTORS_MEAN) == pytest.approx(40_064.0)
    assert found.value(ServedName.TRANSFER_FAILURES) == 2.0
    assert found.value(ServedName.TRANSFER_SHARE) == pytest.approx(0.1)


def test_transfers_counted_without_histograms_are_read_too() -> None:
    """Bytes and transfers as counters give the mean size; the time is unknown with its reason."""
    found = readings_of(counted(transfers=10.0, transfer_bytes=5e8, transfer_descriptors=300.0))
    assert found.value(ServedName.TRANSFER_BYTES_MEAN) == pytest.approx(5e7)
    assert found.value(ServedName.TRANSFER_DESCRIPTORS_MEAN) == pytest.approx(30.0)
    assert "transfer_time_s" in note(found, ServedName.TRANSFER_BYTES_PER_S)


def test_no_transfer_has_no_figures() -> None:
    """A connector that moved nothing in the window has no mean and no speed."""
    found = readings_of(moved(0.0, 0.0, 0.0, 0.0, 0.0))
    assert found.value(ServedName.TRANSFER_BYTES_PER_S) is None
    assert found.value(ServedName.TRANSFER_MS_MEAN) is None


def test_computed_prompt_tokens_leave_cached_ones_out() -> None:
    """Where nothing is known of cached tokens, neither is what was computed."""
    found = readings_of(counted(prompt_tokens=1_000.0, cached_tokens=400.0))
    assert found.value(ServedName.COMPUTED_PROMPT_TOKENS_PER_S) == pytest.approx(60.0)
    unknown = readings_of(counted(prompt_tokens=1_000.0))
    assert unknown.value(ServedName.COMPUTED_PROMPT_TOKENS_PER_S) is None


def test_failed_share_is_of_all_that_ended() -> None:
    """One failure beside 99 finished requests is one in a hundred."""
    found = readings_of(counted(requests_failed=1.0, requests_finished=99.0))
    assert found.value(ServedName.REQUESTS_FAILED_SHARE) == pytest.approx(0.01)


def test_metrics_stand_in_the_source() -> None:
    """Evidence names the page's own metric, so that a reader can look it up."""
    page = scrape(
        rank(gauges={Gauge.RUNNING: 3.0}), names={Gauge.RUNNING: "vllm:num_requests_running"}
    )
    reading = readings_of(window_of([page])).get(ServedName.RUNNING_MEAN)
    assert isinstance(reading, Evidence)
    assert reading.source == "server (vllm:num_requests_running)"
