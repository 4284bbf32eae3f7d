"""Readings from engine counters, fleet views and the process table."""

import pytest
from situations import FLEET, WINDOW

from trimtab.core.decision import FleetView, ReplicaView
from trimtab.core.evidence import Evidence, Readings, Unknown, Window
from trimtab.core.types import ReplicaState, Role
from trimtab.diagnosis.from_probes import (
    fleet_readings,
    readings_from_probes,
    readings_from_processes,
    readings_from_views,
    window_share,
)
from trimtab.diagnosis.names import Name, merged


def probe(at_s: float, **values: float) -> Readings:
    return Readings(
        tuple(
            Evidence(
                id=f"{name}@{at_s}",
                name=name,
                value=value,
                unit="tokens",
                source="engine",
                window=Window(at_s, at_s),
            )
            for name, value in values.items()
        )
    )


def view(at_s: float, *, running: int, waiting: int = 0) -> FleetView:
    replica = ReplicaView(
        id="replica-1",
        url="http://127.0.0.1:1",
        role=Role.MIXED,
        revision="r",
        state=ReplicaState.READY,
        slots=4,
        running=running,
        waiting=waiting,
    )
    return FleetView(at_s=at_s, replicas=(replica,))


def test_counter_becomes_a_rate_of_the_window() -> None:
    """Growth over the time between two reads, not the total over the engine's life; gauges pass."""
    found = readings_from_probes(
        probe(10.0, prompt_tokens_total=1_000.0, requests_deferred=1.0),
        probe(20.0, prompt_tokens_total=1_500.0, requests_deferred=3.0),
        id_prefix="p",
    )
    assert found.value("prompt_tokens_per_s") == 50.0
    assert found.value(Name.REQUESTS_DEFERRED) == 3.0


def test_counter_that_went_back_is_unknown() -> None:
    """A restart makes the rate unknown, with the reason; it is neither zero nor negative."""
    found = readings_from_probes(
        probe(10.0, prompt_tokens_total=1_000.0),
        probe(20.0, prompt_tokens_total=5.0),
        id_prefix="p",
    ).get("prompt_tokens_per_s")
    assert isinstance(found, Unknown)
    assert "went back from 1000 to 5" in found.reason


def test_counter_that_one_read_lacks_is_unknown() -> None:
    """A metric that appeared or vanished between two reads has no rate."""
    found = readings_from_probes(probe(10.0), probe(20.0, drafts_total=5.0), id_prefix="p")
    assert isinstance(found.get("drafts_per_s"), Unknown)


def test_hit_ratio_is_of_the_window() -> None:
    """(queries, hits) = (1e6, 9e5) then (1.1e6, 9.05e5) is 0.05, not the lifetime's 0.82."""
    before = probe(0.0, hits_total=9e5, misses_total=1e5)
    after = probe(10.0, hits_total=9.05e5, misses_total=1.95e5)
    share = window_share(before, after, part="hits_total", rest="misses_total")
    assert share == pytest.approx(0.05)
    back = window_share(after, before, part="hits_total", rest="misses_total")
    assert isinstance(back, Unknown)


def test_fleet_sums_counts_and_averages_shares() -> None:
    """Two engines: rates and counts add, shares average with the largest named; a missing one is unknown."""
    one = probe(0.0, requests_deferred=0.0, slots_busy_share=0.1)
    two = probe(0.0, requests_deferred=12.0, slots_busy_share=0.97)
    found = fleet_readings([one, two], id_prefix="f")
    assert found.value(Name.REQUESTS_DEFERRED) == 12.0
    busy = found.get(Name.SLOTS_BUSY_SHARE)
    assert isinstance(busy, Evidence)
    assert busy.value == pytest.approx(0.535)
    assert "at most 0.97" in busy.note
    gone = fleet_readings([one, Readings()], id_prefix="f").get(Name.REQUESTS_DEFERRED)
    assert isinstance(gone, Unknown)


def test_waiting_is_told_from_waiting_for_a_slot() -> None:
    """A request that waits while slots are free waits for something else."""
    found = readings_from_views(
        [view(1.0, running=4, waiting=2), view(2.0, running=1, waiting=1), view(3.0, running=0)],
        window=WINDOW,
        id_prefix="v",
    )
    assert found.value(Name.SLOTS_BUSY_SHARE) == pytest.approx(5 / 12)
    assert found.value(Name.WAITING_SHARE) == pytest.approx(2 / 3)
    assert found.value(Name.WAITING_SLOTS_FULL_SHARE) == 0.5


def test_cpu_time_is_a_share_of_the_replicas_threads() -> None:
    """CPU seconds over threads x window; a replica that restarted makes the share unknown."""

    def busy(before: dict[str, float | None], after: dict[str, float | None]) -> Readings:
        return readings_from_processes(
            before, after, {"a": 10, "b": 20}, fleet=FLEET, window=WINDOW, id_prefix="c"
        )

    found = busy({"a": 10.0, "b": 0.0}, {"a": 90.0, "b": 40.0})
    assert found.value(Name.CPU_BUSY_SHARE) == pytest.approx(0.6)
    assert found.value(Name.MEMORY_RESIDENT_BYTES) == 30.0
    restarted = busy({"a": 10.0, "b": 50.0}, {"a": 90.0, "b": 4.0})
    assert isinstance(restarted.get(Name.CPU_BUSY_SHARE), Unknown)


def test_merging_prefers_evidence_and_the_later_part() -> None:
    """What one source does not know another may; of two that know, the later counts."""
    unknown = Readings((Unknown("x", "not here"),))
    assert merged(unknown, probe(1.0, x=1.0)).value("x") == 1.0
    assert merged(probe(1.0, x=1.0), unknown).value("x") == 1.0
    assert merged(probe(1.0, x=1.0), probe(2.0, x=2.0)).value("x") == 2.0
