"""Readings of times: means, quantiles with their buckets, time per token, shares by phase."""

import pytest
from windows_kit import grew, lived, rank, spread

from trimtab.core.evidence import Evidence, Readings, Unknown
from trimtab.core.served import Buckets, Counter, Distribution, EngineKind, Gauge, ServerWindow
from trimtab.diagnosis.served_names import ServedName, high_of, low_of
from trimtab.diagnosis.served_readings import notes_of, readings_of

OVERLOADED = lived(
    rank(
        "",
        gauges={
            Gauge.RUNNING: 162.0,
            Gauge.WAITING: 2_826.0,
            Gauge.KV_USED_SHARE: 0.28,
            Gauge.OUTPUT_TOKENS_PER_S: 86.508,
        },
        counters={Counter.PROMPT_TOKENS: 8_128_902.0, Counter.OUTPUT_TOKENS: 7_557_572.0},
        distributions={
            Distribution.TTFT: Buckets(
                edges=(20.0, 25.0, 30.0),
                cumulative=(2_326.0, 2_417.0, 2_513.0),
                total=11_008.0,
                sum=2_351_897.947,
            ),
            Distribution.E2E: spread(11_228.0, 277.529),
            Distribution.TPOT: spread(7_400_757.0, 0.117145),
        },
    ),
    engine=EngineKind.SGLANG,
)
"""Figures of a real page: most first tokens came after the last edge."""


def note(found: Readings, name: str) -> str:
    reading = found.get(name)
    return reading.reason if isinstance(reading, Unknown) else reading.note


def timed(**means: float) -> ServerWindow:
    """Give a window in which 100 requests took these mean seconds."""
    return grew(
        rank(
            distributions={
                Distribution[name.upper()]: spread(100.0, mean) for name, mean in means.items()
            }
        )
    )


def test_quantile_above_the_last_edge_has_no_upper_end() -> None:
    """Median and p99 read "> 30000 ms"; the mean stands, and the upper end is unknown."""
    found = readings_of(OVERLOADED)
    for name in (ServedName.TTFT_MS_P50, ServedName.TTFT_MS_P99):
        assert note(found, name).startswith("> 30000 ms")
        assert found.value(low_of(name)) == 30_000.0
        assert isinstance(found.get(high_of(name)), Unknown)
    assert found.value(ServedName.TTFT_MS_MEAN) == pytest.approx(213_654, abs=1)


def test_throughput_gauge_that_cannot_be_is_marked() -> None:
    """162 running requests at 117 ms a token make 1,383 tokens/s, not 87."""
    found = readings_of(OVERLOADED)
    assert found.value(ServedName.OUTPUT_IMPLIED_TOKENS_PER_S) == pytest.approx(1_383, abs=1)
    assert "the gauge is not trusted" in note(found, ServedName.OUTPUT_GAUGE_TOKENS_PER_S)


def test_throughput_gauge_is_measured_by_the_counters_of_the_window() -> None:
    """A gauge near the counters' rate is left alone; the mean over a life says nothing against it."""
    for grown, trusted in ((900.0, True), (9_000.0, False)):
        gauges, counters = {Gauge.OUTPUT_TOKENS_PER_S: 100.0}, {Counter.OUTPUT_TOKENS: grown}
        found = readings_of(grew(rank(gauges=gauges, counters=counters)))
        text = note(found, ServedName.OUTPUT_GAUGE_TOKENS_PER_S)
        assert ("not trusted" not in text) is trusted
    life = readings_of(lived(rank(gauges=gauges, counters=counters)))
    assert "not trusted" not in note(life, ServedName.OUTPUT_GAUGE_TOKENS_PER_S)


def test_populations_that_differ_are_named() -> None:
    """More requests ended than had a first token: the note says so where either is read."""
    assert "11,008 requests had a first token and 11,228 ended" in note(
        readings_of(OVERLOADED), ServedName.TTFT_MS_MEAN
    )
    assert [one.kind for one in notes_of(OVERLOADED)] == ["population"]
    assert notes_of(timed(ttft=1.0, e2e=2.0)) == ()


def test_quantile_between_two_edges_carries_both() -> None:
    """All prompts in (100, 210] with mean 108: p99 is between 100 and 210."""
    lengths = Buckets(
        edges=(100.0, 210.0, 430.0),
        cumulative=(0.0, 170_450.0, 170_450.0),
        total=170_450.0,
        sum=18_408_629.0,
    )
    window = lived(
        rank(distributions={Distribution.PROMPT_LENGTH: lengths}),
        engine=EngineKind.DYNAMO_FRONTEND,
    )
    found = readings_of(window)
    name = ServedName.PROMPT_LENGTH_P99
    assert note(found, name).startswith("between 100 and 210 tokens: one bucket, 110 tokens wide")
    assert (found.value(low_of(name)), found.value(high_of(name))) == (100.0, 210.0)
    assert found.value(ServedName.PROMPT_LENGTH_MEAN) == pytest.approx(108.0, abs=0.01)
    reading = found.get(name)
    assert isinstance(reading, Evidence)
    assert reading.interval is not None
    assert (reading.interval.low, reading.interval.high) == (100.0, 210.0)


def chunked(gap_s: float, tokens_per_chunk: float) -> ServerWindow:
    """Give a window of 10 requests with 101 chunks each."""
    return grew(
        rank(
            counters={Counter.OUTPUT_TOKENS: 10.0 + 1_000.0 * tokens_per_chunk},
            distributions={
                Distribution.CHUNK_GAP: spread(1_000.0, gap_s),
                Distribution.TTFT: spread(10.0, 0.1),
            },
        )
    )


def test_chunk_gap_grows_while_time_per_token_falls() -> None:
    """Speculation on: the gap goes from 5.0 to 8.7 ms and the token from 5.0 to 3.27 ms."""
    off, on = readings_of(chunked(0.005, 1.0)), readings_of(chunked(0.0087, 2.66))
    assert off.value(ServedName.TPOT_MS_MEAN) == pytest.approx(5.0)
    assert on.value(ServedName.TPOT_MS_MEAN) == pytest.approx(3.27, abs=0.005)
    assert off.value(ServedName.CHUNK_GAP_MS_MEAN) == pytest.approx(5.0)
    assert on.value(ServedName.CHUNK_GAP_MS_MEAN) == pytest.approx(8.7)
    assert on.value(ServedName.TOKENS_PER_CHUNK_MEAN) == pytest.approx(2.66)


def test_tokens_that_came_in_one_chunk_are_not_timed() -> None:
    """200 tokens of one request in one chunk: the time per token is not observable from chunks."""
    window = grew(
        rank(
            counters={Counter.OUTPUT_TOKENS: 200.0},
            distributions={
                Distribution.CHUNK_GAP: spread(0.0, 0.0),
                Distribution.TTFT: spread(1.0, 3.0),
                Distribution.E2E: spread(1.0, 3.1),
            },
        )
    )
    found = readings_of(window)
    assert found.value(ServedName.TPOT_MS_MEAN) is None
    assert "not observable from chunks" in note(found, ServedName.TPOT_MS_MEAN)


def test_time_per_token_is_told_before_it_is_derived() -> None:
    """The engine's own histogram counts; without it E2E, TTFT and lengths give it."""
    told = readings_of(timed(tpot=0.02, e2e=9.0, ttft=1.0, output_length=101.0))
    assert told.value(ServedName.TPOT_MS_MEAN) == pytest.approx(20.0)
    derived = readings_of(timed(e2e=9.0, ttft=1.0, output_length=101.0))
    assert derived.value(ServedName.TPOT_MS_MEAN) == pytest.approx(80.0)
    assert "(E2E - TTFT)" in note(derived, ServedName.TPOT_MS_MEAN)
    assert readings_of(timed(e2e=9.0)).value(ServedName.TPOT_MS_MEAN) is None


def test_first_token_time_that_leaves_the_wait_out_is_completed() -> None:
    """TTFT 0.31 s beside a wait of 11.8 s: users wait 12.1 s, and 0.31 s of it is prefill."""
    window = timed(ttft=0.309, queue_time=11.83, e2e=33.5)
    found = readings_of(window)
    assert found.value(ServedName.TTFT_MS_MEAN) == pytest.approx(12_139.0)
    assert found.value(ServedName.PREFILL_MS_MEAN) == pytest.approx(309.0)
    assert "leaves out the wait" in note(found, ServedName.TTFT_MS_P50)
    assert found.value(ServedName.FIRST_TOKEN_SHARE) == pytest.approx(12.139 / 33.5)
    assert any("leaves the wait out" in one.text for one in notes_of(window))
    holds = readings_of(timed(ttft=12.0, queue_time=11.0))
    assert holds.value(ServedName.TTFT_MS_MEAN) == pytest.approx(12_000.0)


def test_shares_are_of_the_mean_end_to_end_time() -> None:
    """Phases over E2E; what no phase tells is named as such."""
    found = readings_of(timed(queue_time=1.0, prefill_time=2.0, decode_time=5.0, e2e=10.0))
    values = [
        found.value(name)
        for name in (
            ServedName.QUEUE_SHARE,
            ServedName.PREFILL_SHARE,
            ServedName.DECODE_SHARE,
            ServedName.UNACCOUNTED_SHARE,
        )
    ]
    assert values == pytest.approx([0.1, 0.2, 0.5, 0.2])
    assert found.value(ServedName.TRANSFER_SHARE) is None


def test_phases_of_other_requests_do_not_make_shares_above_one() -> None:
    """Where a growing queue outlasts the requests that ended, the sum of phases is the whole."""
    found = readings_of(timed(queue_time=30.0, prefill_time=2.0, decode_time=8.0, e2e=20.0))
    assert found.value(ServedName.QUEUE_SHARE) == pytest.approx(0.75)
    assert "different requests" in note(found, ServedName.QUEUE_SHARE)
    assert found.value(ServedName.UNACCOUNTED_SHARE) == 0.0


def test_queue_that_nothing_tells_stays_unknown() -> None:
    """Gauges of waiting requests are no time: no share is made of them here."""
    found = readings_of(OVERLOADED)
    assert found.value(ServedName.QUEUE_SHARE) is None
    assert found.value(ServedName.DECODE_SHARE) is None
    assert found.value(ServedName.FIRST_TOKEN_SHARE) == pytest.approx(0.770, abs=5e-4)


def test_seconds_of_prefill_and_decode_are_shares_of_slot_time() -> None:
    """llama.cpp counts seconds only: its shares leave the queue out and say so."""
    counters = {
        Counter.PROMPT_SECONDS: 30.0,
        Counter.DECODE_SECONDS: 10.0,
        Counter.OUTPUT_TOKENS: 500.0,
    }
    found = readings_of(grew(rank(counters=counters), engine=EngineKind.LLAMACPP))
    assert found.value(ServedName.PREFILL_SHARE) == pytest.approx(0.75)
    assert found.value(ServedName.DECODE_SHARE) == pytest.approx(0.25)
    assert found.value(ServedName.TPOT_MS_MEAN) == pytest.approx(20.0)
    assert "the queue is not in it" in note(found, ServedName.PREFILL_SHARE)
    assert "timings" in note(found, ServedName.TTFT_MS_MEAN)


def test_step_tokens_come_from_steps_where_no_histogram_has_them() -> None:
    """Prompt and output tokens over decode steps."""
    counters = {
        Counter.PROMPT_TOKENS: 900.0,
        Counter.OUTPUT_TOKENS: 100.0,
        Counter.DECODE_STEPS: 50.0,
    }
    found = readings_of(grew(rank(counters=counters), engine=EngineKind.LLAMACPP))
    assert found.value(ServedName.STEP_TOKENS_MEAN) == pytest.approx(20.0)
