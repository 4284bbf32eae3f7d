"""Measured requests: reading them, their regimes, and errors of a simulation against them."""

import pytest
from sim_kit import engine_lines, measurement

from trimtab.sim.measured import (
    LIGHT_STREAMS,
    REGIME_SAMPLES_MIN,
    Measured,
    Regime,
    Served,
    Statistic,
    errors_of,
    held_blocks,
    read_engine_times,
    regimes_of,
)
from trimtab.workloads.base import WorkloadError

LINE = (
    '{"input_toks": 100, "output_toks": 11, "queued_ts": %s, "scheduled_ts": %s, '
    '"first_token_ts": %s, "last_token_ts": %s, "request_id": "a"}'
)


def one(at_s: float, *, wait_s: float = 0.0, lasts_s: float = 1.0, output: int = 11) -> Measured:
    """A request whose first token comes 0.1 s after it was scheduled."""
    return Measured(
        at_s=at_s,
        input_tokens=100,
        output_tokens=output,
        scheduled_s=at_s + wait_s,
        first_token_s=at_s + wait_s + 0.1,
        last_token_s=at_s + wait_s + 0.1 + lasts_s,
    )


def test_engine_times_become_seconds_from_the_first_arrival_in_order() -> None:
    """The file may be in any order; the engine's clock starts anywhere."""
    lines = [LINE % (52.0, 52.5, 53.0, 54.0), LINE % (50.0, 50.0, 50.2, 51.2)]
    first, second = read_engine_times(lines, file="r.jsonl")
    assert (first.at_s, second.at_s, second.scheduled_s) == (0.0, 2.0, 2.5)
    assert first.ttft_ms == pytest.approx(200.0)
    assert first.e2e_ms == pytest.approx(1200.0)
    assert first.tpot_ms == pytest.approx(100.0)


def test_single_token_has_no_time_per_token() -> None:
    """It is unknown, not 0."""
    assert one(0.0, output=1).tpot_ms is None


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (LINE % (5.0, 4.0, 6.0, 7.0), "r.jsonl, line 2, queued_ts"),
        (LINE.replace("100", "0") % (5.0, 5.0, 6.0, 7.0), "input_toks"),
        ('{"input_toks": 1}', "output_toks"),
        ("{", "r.jsonl, line 2"),
    ],
)
def test_wrong_line_is_named_with_its_field(line: str, told: str) -> None:
    """Times out of order, lengths of 0, fields that are missing, no JSON."""
    with pytest.raises(WorkloadError) as caught:
        read_engine_times([LINE % (1.0, 1.0, 2.0, 3.0), line], file="r.jsonl")
    assert told in str(caught.value)
    assert "line 2" in str(caught.value)


def test_file_without_requests_is_refused() -> None:
    """There is nothing to fit."""
    with pytest.raises(WorkloadError, match=r"r\.jsonl: no request"):
        read_engine_times(["", "\n"], file="r.jsonl")


def test_regime_is_queued_batched_or_light() -> None:
    """By the wait first, then by how many requests are in the engine."""
    light = [one(0.0)]
    crowd = [one(10.0 + at / 1000.0) for at in range(LIGHT_STREAMS + 1)]
    queued = [one(20.0, wait_s=0.25)]
    found = regimes_of([*light, *crowd, *queued])
    assert found[0] is Regime.LIGHT
    assert found[1 : 1 + LIGHT_STREAMS] == [Regime.LIGHT] * LIGHT_STREAMS
    assert found[-2:] == [Regime.BATCHED, Regime.QUEUED]


def test_error_is_that_of_the_statistic_over_the_scored_requests() -> None:
    """Simulated times are a tenth longer; requests that are not scored do not count."""
    real = [one(float(at * 10), lasts_s=1.0 + at) for at in range(4)]
    made = [
        Served(
            ttft_ms=times.ttft_ms * 1.1,
            e2e_ms=times.e2e_ms * 1.1,
            tpot_ms=(times.tpot_ms or 0) * 1.1,
        )
        for times in real
    ]
    made[0] = Served(ttft_ms=9e9, e2e_ms=9e9, tpot_ms=9e9)
    errors = errors_of(real, made, [Regime.LIGHT] * 4, scored=(1, 2, 3), fitted=(0,))
    overall = [error for error in errors if error.regime is None]
    assert {error.metric for error in overall} == {"ttft_ms", "tpot_ms", "e2e_ms"}
    assert {error.samples for error in overall} == {3}
    assert [error.error for error in overall] == pytest.approx([0.1] * 9)
    e2e = next(e for e in overall if (e.metric, e.statistic) == ("e2e_ms", Statistic.MEAN))
    assert e2e.measured == pytest.approx((2100.0 + 3100.0 + 4100.0) / 3)


def test_regime_that_was_hardly_fitted_is_marked_as_extrapolated() -> None:
    """Fewer than REGIME_SAMPLES_MIN requests of it in the fitted part."""
    count = REGIME_SAMPLES_MIN
    real = [one(float(at)) for at in range(2 * count)]
    made = [Served(ttft_ms=100.0, e2e_ms=1100.0, tpot_ms=100.0) for _ in real]
    regimes = [Regime.LIGHT] * count + [Regime.QUEUED] * count
    errors = errors_of(real, made, regimes, scored=range(2 * count), fitted=range(count + 9))
    assert {e.extrapolated for e in errors if e.regime is Regime.LIGHT} == {False}
    assert {e.extrapolated for e in errors if e.regime is Regime.QUEUED} == {True}
    assert {e.extrapolated for e in errors if e.regime is None} == {False}
    assert [e for e in errors if e.regime is Regime.BATCHED] == []


def test_times_of_single_tokens_are_left_out_of_time_per_token() -> None:
    """An unknown is no sample."""
    real = [one(0.0, output=1), one(5.0)]
    made = [
        Served(ttft_ms=100.0, e2e_ms=1100.0, tpot_ms=None),
        Served(ttft_ms=100.0, e2e_ms=1100.0, tpot_ms=100.0),
    ]
    errors = errors_of(real, made, [Regime.LIGHT] * 2, scored=(0, 1), fitted=())
    counts = {error.metric: error.samples for error in errors if error.regime is None}
    assert counts == {"ttft_ms": 2, "tpot_ms": 1, "e2e_ms": 2}


def test_lines_of_an_engine_are_read_back() -> None:
    """What is written as engine times is the measurement."""
    made = measurement(8)
    found = read_engine_times(engine_lines(made), file="x")
    assert [one.input_tokens for one in found] == [one.input_tokens for one in made]
    assert [one.ttft_ms for one in found] == pytest.approx([one.ttft_ms for one in made], abs=1e-6)


def reused(at_s: float, replica: str, **more: object) -> Measured:
    """A prompt of 1,000 tokens, 800 of them reused, that is answered for a second."""
    made = {"input_tokens": 1_000, "output_tokens": 10, "cached_tokens": 800, **more}
    return Measured(at_s=at_s, first_token_s=at_s, last_token_s=at_s + 1.0, replica=replica, **made)


def test_reused_blocks_are_shared_only_where_copies_could_not_have_run() -> None:
    """Two at once fit a KV of 2,000 tokens with a copy each; of three at once, and only there, one is held."""
    real = [reused(0.0, "a"), reused(0.5, "a"), reused(1.2, "a")]
    real += [reused(0.1 * at, "b") for at in range(3)]
    names = held_blocks(real, kv_tokens=2_000, block_tokens=16)
    assert [list(one) for one in names[:3]] == [[], [], []]
    assert [list(one) for one in names[3:]] == [list(range(1, 51))] * 3


def test_blocks_that_a_measurement_names_are_held_as_named() -> None:
    """Nothing is guessed where it is told."""
    real = [reused(0.1 * at, "a", hashes=(7, 8)) for at in range(4)]
    assert set(held_blocks(real, kv_tokens=1_000, block_tokens=16)) == {(7, 8)}
