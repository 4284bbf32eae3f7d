"""Readings of what is in flight: over ranks, over sources, and where a rank vanished."""

import pytest
from windows_kit import grew, lived, rank, scrape, spread

from trimtab.core.evidence import Evidence, Readings, Unknown
from trimtab.core.served import Counter, Distribution, EngineKind, Gauge
from trimtab.diagnosis.served_names import ServedName, of_rank, of_source
from trimtab.diagnosis.served_readings import ServedReadingsError, notes_of, readings_of
from trimtab.diagnosis.served_window import window_of


def loaded(name: str, running: float, waiting: float, kv: float):
    gauges = {Gauge.RUNNING: running, Gauge.WAITING: waiting, Gauge.KV_USED_SHARE: kv}
    return rank(name, gauges=gauges)


def reason(found: Readings, name: str) -> str:
    reading = found.get(name)
    assert isinstance(reading, Unknown), reading
    return reading.reason


def evidence(found: Readings, name: str) -> Evidence:
    reading = found.get(name)
    assert isinstance(reading, Evidence), reading
    return reading


IDLE_AND_FULL = (loaded("0", 0, 0, 0.10), loaded("1", 40, 12, 0.97))


def test_one_full_rank_beside_an_idle_one_is_seen() -> None:
    """Counts are summed, KV is mean and maximum, and the saturated rank is flagged and named."""
    found = readings_of(lived(*IDLE_AND_FULL))
    values = [
        found.value(name)
        for name in (
            ServedName.RUNNING_MEAN,
            ServedName.WAITING_MEAN,
            ServedName.KV_USED_SHARE_MEAN,
            ServedName.KV_USED_SHARE_MAX,
            ServedName.RANKS,
            ServedName.RANKS_SATURATED,
        )
    ]
    assert values == pytest.approx([40, 12, 0.535, 0.97, 2, 1])
    assert "rank 1: KV 97% used, 12 waiting" in evidence(found, ServedName.RANKS_SATURATED).note
    assert found.value(of_rank(ServedName.KV_USED_SHARE_MEAN, "0")) == pytest.approx(0.10)


def test_vanished_rank_is_unknown_and_no_fall_in_load() -> None:
    """Sums are unknown with the rank's name; the ranks that remain keep their own readings."""
    found = readings_of(window_of([scrape(*IDLE_AND_FULL), scrape(IDLE_AND_FULL[0], at_s=110.0)]))
    assert found.value(ServedName.RANKS_LOST) == 1
    for name in (
        ServedName.RUNNING_MEAN,
        ServedName.WAITING_MAX,
        ServedName.KV_USED_SHARE_MEAN,
    ):
        assert "rank 1 vanished" in reason(found, name)
    assert found.value(of_rank(ServedName.RUNNING_MEAN, "0")) == 0
    assert "may be idle or dead" in reason(found, of_rank(ServedName.RUNNING_MEAN, "1"))


def test_one_scrape_cannot_tell_what_vanished() -> None:
    """Lost ranks and restarts are unknown, not zero, and the reason names the second scrape."""
    found = readings_of(lived(*IDLE_AND_FULL))
    for name in (ServedName.RANKS_LOST, ServedName.RESTARTS, ServedName.COUNTERS_GROWN):
        assert "a second scrape" in reason(found, name)


def test_absent_gauge_is_unknown_with_what_would_tell_it() -> None:
    """Nothing is zero because a page lacks it; the reason is the engine's own."""
    bare = rank(gauges={Gauge.RUNNING: 3.0})
    for engine, words in (
        (EngineKind.VLLM, "--disable-log-stats"),
        (EngineKind.LLAMACPP, "/slots"),
        (EngineKind.SGLANG, "newer versions"),
        (EngineKind.TGI, "no KV gauge"),
    ):
        found = readings_of(lived(bare, engine=engine))
        assert words in reason(found, ServedName.KV_USED_SHARE_MEAN)
        assert found.value(ServedName.RUNNING_MEAN) == 3.0


def test_rank_at_its_limit_of_requests_is_saturated() -> None:
    """KV with room does not make a rank free when its slots are all taken and requests wait."""
    gauges = {Gauge.RUNNING: 4.0, Gauge.WAITING: 2.0, Gauge.REQUESTS_MAX: 4.0}
    found = readings_of(lived(rank(gauges=gauges)))
    assert found.value(ServedName.RANKS_SATURATED) == 1
    unknown = readings_of(lived(rank(gauges={Gauge.RUNNING: 4.0, Gauge.WAITING: 2.0})))
    assert "limit of requests" in reason(unknown, ServedName.RANKS_SATURATED)


def test_busy_and_nothing_counted_differs_from_idle() -> None:
    """Counters that moved are counted, so that a stale page is not taken for an idle server."""
    still = grew(rank(gauges={Gauge.RUNNING: 8.0}, counters={Counter.OUTPUT_TOKENS: 0.0}))
    moved = grew(rank(gauges={Gauge.RUNNING: 8.0}, counters={Counter.OUTPUT_TOKENS: 90.0}))
    assert readings_of(still).value(ServedName.COUNTERS_GROWN) == 0
    assert readings_of(moved).value(ServedName.COUNTERS_GROWN) == 1


def test_device_exporter_adds_memory_and_no_rank() -> None:
    """A GPU exporter tells memory; the engine's ranks and requests stay as they are."""
    device = rank(gauges={Gauge.GPU_MEMORY_USED_BYTES: 60e9, Gauge.GPU_MEMORY_TOTAL_BYTES: 80e9})
    gpus = window_of([scrape(device, source="dcgm", engine=EngineKind.DCGM)])
    found = readings_of([lived(loaded("0", 4, 0, 0.2)), gpus])
    assert found.value(ServedName.GPU_MEMORY_USED_SHARE) == pytest.approx(0.75)
    assert (found.value(ServedName.RANKS), found.value(ServedName.RUNNING_MEAN)) == (1, 4)
    assert found.value(of_source(ServedName.RUNNING_MEAN, "server")) == 4


def test_front_end_does_not_count_requests_twice() -> None:
    """What an engine tells counts; a front end fills in what no engine has, and conflicts are shown."""
    worker = grew(
        rank("0", gauges={Gauge.RUNNING: 10.0}, counters={Counter.REQUESTS_FINISHED: 100.0})
    )
    front = grew(
        rank(
            "",
            gauges={Gauge.RUNNING: 10.0},
            counters={Counter.REQUESTS_FINISHED: 400.0},
            distributions={Distribution.TTFT: spread(400.0, 0.5)},
        ),
        source="front",
        engine=EngineKind.DYNAMO_FRONTEND,
    )
    found = readings_of([front, worker])
    assert found.value(ServedName.RUNNING_MEAN) == 10
    assert found.value(ServedName.REQUESTS_FINISHED_PER_S) == pytest.approx(10.0)
    assert found.value(ServedName.TTFT_MS_MEAN) == pytest.approx(500.0)
    assert any("40 at the front end, 10 at the engines" in note.text for note in notes_of([front, worker]))  # fmt: skip


def test_limits_are_those_of_ranks() -> None:
    """Requests that may run add up over ranks; the longest context does not."""
    gauges = {Gauge.REQUESTS_MAX: 256.0, Gauge.CONTEXT_TOKENS_MAX: 8_192.0}
    found = readings_of(lived(rank("0", gauges=gauges), rank("1", gauges=gauges)))
    assert found.value(ServedName.REQUESTS_MAX) == 512
    assert found.value(ServedName.CONTEXT_TOKENS_MAX) == 8_192


def test_server_that_only_prefills_is_not_taken_for_fast() -> None:
    """Its requests are halves of those of the server that decodes, and the note says so."""
    prefill, decode = (
        grew(rank(distributions={Distribution.OUTPUT_LENGTH: spread(50.0, mean)}), source=source)
        for source, mean in (("prefill", 1.0), ("decode", 200.0))
    )
    assert any("prefill makes one token" in note.text for note in notes_of([prefill, decode]))
    assert notes_of([decode]) == ()


def test_readings_need_windows_of_different_sources() -> None:
    """No window, and two of one source, are errors."""
    with pytest.raises(ServedReadingsError, match="need a window"):
        readings_of([])
    with pytest.raises(ServedReadingsError, match="same source"):
        readings_of([lived(), lived()])
