"""What arrives in a simulation: scaled, bent, joined, and with the blocks that a trace names."""

import itertools
import random

import numpy as np
import pytest

from trimtab.sim.arrivals import (
    Arrival,
    Diurnal,
    Sessions,
    begun_at,
    diurnal,
    from_records,
    join,
    overlay,
    sessions,
    stretch,
)
from trimtab.workloads.base import WorkloadError
from trimtab.workloads.trace_files import MOONCAKE_BLOCK_TOKENS, mooncake_records
from trimtab.workloads.traces import TraceRecord


def bursty(seconds: int = 600) -> list[Arrival]:
    """Ten requests within a second at the start of every minute, and one in its middle."""
    times = [
        minute + offset
        for minute in range(0, seconds, 60)
        for offset in (*(at / 10.0 for at in range(10)), 30.0)
    ]
    return [
        Arrival(at_s=at, session=f"s{n}", input_tokens=600, output_tokens=9, hashes=(n, n + 1))
        for n, at in enumerate(times)
    ]


def burstiness(arrivals: list[Arrival]) -> float:
    """Coefficient of variation of the gaps."""
    gaps = np.diff([one.at_s for one in arrivals])
    return float(gaps.std() / gaps.mean())


def test_stretched_trace_has_the_rate_times_the_factor_and_the_same_burstiness() -> None:
    """All gaps are divided by the same, so their variation over their mean stays."""
    base = bursty()
    faster = stretch(base, 3.0)
    assert faster[-1].at_s == pytest.approx(base[-1].at_s / 3.0)
    assert burstiness(faster) == pytest.approx(burstiness(base))
    with pytest.raises(WorkloadError, match="above 0"):
        stretch(base, 0.0)


def test_overlaid_copies_keep_the_length_of_bursts_and_share_nothing() -> None:
    """Three times the requests over the same time; a copy's bursts are as long as the trace's; names differ."""
    base = bursty()
    laid = list(overlay(base, 3, random.Random(4)))
    assert len(laid) == 3 * len(base)
    assert [one.at_s for one in laid] == sorted(one.at_s for one in laid)
    assert max(one.at_s for one in laid) <= base[-1].at_s
    copies = {0: set[int](), 1: set[int](), 2: set[int]()}
    for one in laid:
        copies[int(one.session.partition("#")[2] or 0)].update(one.hashes)
    assert all(a.isdisjoint(b) for a, b in itertools.combinations(copies.values(), 2))
    second = sorted(one.at_s for one in laid if one.session.endswith("#1"))
    assert np.quantile(np.diff(second), 0.8) == pytest.approx(0.1)


def test_day_bends_the_rate_and_keeps_order_and_number() -> None:
    """With a low of 0.2 the quiet tenth of a period has far fewer requests than the busy one."""
    even = [
        Arrival(at_s=float(at), session=str(at), input_tokens=1, output_tokens=1)
        for at in range(2000)
    ]
    bent = diurnal(even, Diurnal(period_s=2000.0, low=0.2, high=1.8))
    times = [one.at_s for one in bent]
    assert times == sorted(times)
    assert (len(bent), [one.session for one in bent]) == (2000, [one.session for one in even])
    quiet = sum(at < 200.0 for at in times)
    busy = sum(900.0 <= at < 1100.0 for at in times)
    assert quiet < 60
    assert busy > 300


def test_joined_traces_follow_each_other_after_the_gap() -> None:
    """The second starts a gap after the last request of the first."""
    parts = [bursty(60), bursty(120)]
    joined = join(parts, 5.0)
    assert len(joined) == len(parts[0]) + len(parts[1])
    start_s = parts[0][-1].at_s + 5.0
    assert [one.at_s for one in joined[len(parts[0]) :]] == [start_s + one.at_s for one in parts[1]]


def test_blocks_of_a_trace_are_honoured_at_the_grain_of_the_engine() -> None:
    """A block of 512 is 32 of 16; prompts share exactly what the trace says, a started block is not full."""
    lines = [
        '{"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [1, 2, 3]}',
        '{"timestamp": 10, "input_length": 1536, "output_length": 5, "hash_ids": [1, 2, 9]}',
    ]
    one, other = from_records(
        mooncake_records(lines, file="t"),
        trace_block_tokens=MOONCAKE_BLOCK_TOKENS,
        block_tokens=16,
    )
    assert (len(one.hashes), len(other.hashes)) == (1100 // 16, 96)
    same = [a == b for a, b in zip(one.hashes, other.hashes, strict=False)]
    assert (sum(same), all(same[:64])) == (64, True)


def test_made_up_sessions_share_system_group_and_their_own_past() -> None:
    """A turn begins with the whole turn before it; sessions of one group share more than those of two."""
    shape = Sessions(rate_per_s=2.0, duration_s=300.0, turns=4, groups=2, think_s=1.0)
    made = sessions(shape, random.Random(2), block_tokens=16)
    by_session: dict[str, list[Arrival]] = {}
    for one in made:
        by_session.setdefault(one.session, []).append(one)
    turns = next(found for found in by_session.values() if len(found) == 4)
    for before, after in itertools.pairwise(turns):
        assert after.hashes[: len(before.hashes)] == before.hashes
    firsts = [found[0] for found in by_session.values()]
    shared = {
        sum(a == b for a, b in zip(firsts[0].hashes, one.hashes, strict=False))
        for one in firsts[1:]
    }
    assert shared == {512 // 16, (512 + 1024) // 16}


def test_trace_that_begins_elsewhere_keeps_its_requests_and_gaps() -> None:
    """What was before the new beginning comes behind the end, a mean gap after it; times stay in order."""
    trace = bursty()
    moved = begun_at(trace, 0.5)
    assert sorted(one.session for one in moved) == sorted(one.session for one in trace)
    first = next(at for at, one in enumerate(trace) if one.session == moved[0].session)
    order = [one.session for one in (*trace[first:], *trace[:first])]
    assert [one.session for one in moved] == order
    assert all(a.at_s <= b.at_s for a, b in itertools.pairwise(moved))
    gap_s = trace[-1].at_s / (len(trace) - 1)
    seam = len(trace) - first
    assert moved[seam].at_s - moved[seam - 1].at_s == pytest.approx(gap_s)
    assert 0.0 <= moved[0].at_s <= gap_s * len(trace) / 2
    assert begun_at(trace, 0.0) == trace
    assert begun_at(trace[:1], 0.7) == trace[:1]


def blocks(line: int, at_s: float, *ids: int) -> TraceRecord:
    """A prompt of whole blocks of 64 tokens."""
    return TraceRecord(
        line=line,
        at_s=at_s,
        session=f"s{line}",
        input_tokens=64 * len(ids),
        output_tokens=5,
        scope="",
        runs=tuple((one, 1) for one in ids),
        label="",
    )


@pytest.mark.parametrize("size", [16, 48])
def test_equal_names_are_one_object(size: int) -> None:
    """A prompt that repeats another costs references, not names, whether or not blocks divide."""
    records = [blocks(1, 0.0, 1, 2, 3), blocks(2, 1.0, 1, 2, 9)]
    one, other = from_records(records, trace_block_tokens=64, block_tokens=size)
    shared = 128 // size
    assert one.hashes[:shared] == other.hashes[:shared]
    same = [a is b for a, b in zip(one.hashes, other.hashes, strict=True)]
    assert same == [True] * shared + [False] * (len(same) - shared)


def test_names_that_would_take_too_much_memory_name_the_line_and_what_helps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Three hundred prompts of a hundred blocks each are over a bound that the first few are within."""
    monkeypatch.setattr("trimtab.sim.arrivals.NAMES_BYTES_MAX", 1 << 20)
    records = [blocks(at + 1, float(at), *range(100 * at, 100 * (at + 1))) for at in range(300)]
    assert from_records(records[:20], trace_block_tokens=64, block_tokens=16)
    with pytest.raises(WorkloadError, match=r"t\.jsonl, line \d+: .*duration_s.*block_tokens"):
        from_records(records, trace_block_tokens=64, block_tokens=16, file="t.jsonl")


def test_what_comes_after_the_horizon_is_left_out() -> None:
    """Counted from the first request, wherever that is; the last moment is still in."""
    records = [blocks(at + 1, 5.0 + at, at) for at in range(6)]
    made = from_records(records, trace_block_tokens=64, block_tokens=16, horizon_s=3.0)
    assert [one.at_s for one in made] == [0.0, 1.0, 2.0, 3.0]
