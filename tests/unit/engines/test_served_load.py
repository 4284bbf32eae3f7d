"""A server's load from its own page: the same words for every engine, unknown where nobody tells."""

import pytest

from trimtab.core.evidence import Unknown
from trimtab.core.served import Counter, EngineKind, Gauge, RankSample, ServerSample
from trimtab.engines.served_load import (
    EngineLoad,
    drafts_nothing,
    has_restarted,
    load_of,
    readings_of_sample,
)


def rank(name: str, prompt: float | None = None, **gauges: float) -> RankSample:
    counters = {} if prompt is None else {Counter.PROMPT_TOKENS: prompt}
    return RankSample(
        rank=name, gauges={Gauge[key.upper()]: v for key, v in gauges.items()}, counters=counters
    )


def page(*ranks: RankSample, started_at_s: float | None = None) -> ServerSample:
    return ServerSample(
        source="a", at_s=5.0, engine=EngineKind.VLLM, ranks=ranks, started_at_s=started_at_s
    )


def test_counts_are_added_and_the_fullest_kv_counts() -> None:
    """Half idle on average is full where it matters."""
    found = load_of(
        page(
            rank("0", running=0, waiting=0, kv_used_share=0.10),
            rank("1", running=40, waiting=12, kv_used_share=0.97),
        )
    )
    assert (found.running, found.waiting, found.kv_used_share) == (40, 12, 0.97)
    assert found.kv_used_share_mean == pytest.approx(0.535)
    assert found.saturated == ("1",)


def test_page_without_a_gauge_leaves_it_unknown() -> None:
    """A renamed or absent gauge is not zero."""
    found = load_of(page(rank("0", running=3)))
    assert found == EngineLoad(running=3)


def test_lost_rank_makes_all_unknown() -> None:
    """What is left would read as a fall in load."""
    found = load_of(page(rank("0", running=3)), ranks_before={"0", "1"})
    assert found == EngineLoad(lost=("1",))


def test_server_wide_series_are_no_rank_that_can_be_lost() -> None:
    """A page's own totals carry no load gauge: their absence later is no loss."""
    assert load_of(page(rank("0", running=1)), ranks_before={"0"}) == EngineLoad(running=1)


@pytest.mark.parametrize(
    ("before", "after", "restarted"),
    [
        (page(rank("0", 10.0)), page(rank("0", 12.0)), False),
        (page(rank("0", 10.0)), page(rank("0", 2.0)), True),
        (page(rank("0", 10.0), rank("1", 9.0)), page(rank("0", 10.0)), False),
        (page(rank("0"), started_at_s=1.0), page(rank("0"), started_at_s=9.0), True),
        (page(rank("0"), started_at_s=1.0), page(rank("0"), started_at_s=1.0), False),
        (page(rank("0"), started_at_s=1.0), page(rank("0")), False),
    ],
    ids=["grew", "fell", "rank lost", "started anew", "same start", "start not told"],
)
def test_restart_is_told_by_start_time_or_a_counter_that_fell(
    before: ServerSample, after: ServerSample, restarted: bool
) -> None:
    """A rank that vanished is no restart."""
    assert has_restarted(before, after) == restarted


def test_readings_have_the_names_of_the_fleet_and_unknown_stays_unknown() -> None:
    """Counters end in _total, so that rates are made of them."""
    found = readings_of_sample(
        page(rank("0", 10.0, running=3), rank("1", 5.0, running=1)), source="a"
    )
    assert found.value("requests_processing") == 4.0
    assert found.value("prompt_tokens_total") == 15.0
    assert isinstance(found.get("preemptions_total"), Unknown)
    assert isinstance(found.get("kv_used_share"), Unknown)


@pytest.mark.parametrize(
    ("engine", "counters", "gauges", "known"),
    [
        (EngineKind.VLLM, {Counter.OUTPUT_TOKENS: 9.0}, {}, True),
        (EngineKind.VLLM, {Counter.OUTPUT_TOKENS: 9.0, Counter.ACCEPTED_TOKENS: 3.0}, {}, False),
        (EngineKind.VLLM, {}, {}, None),
        (EngineKind.SGLANG, {Counter.OUTPUT_TOKENS: 9.0}, {}, True),
        (EngineKind.SGLANG, {Counter.OUTPUT_TOKENS: 9.0}, {Gauge.ACCEPTED_LENGTH: 2.4}, False),
        (EngineKind.LLAMACPP, {Counter.OUTPUT_TOKENS: 9.0}, {}, None),
        (EngineKind.UNKNOWN, {Counter.OUTPUT_TOKENS: 9.0}, {}, None),
    ],
)
def test_server_is_known_to_draft_nothing_only_where_its_engine_would_count_it(
    engine: EngineKind,
    counters: dict[Counter, float],
    gauges: dict[Gauge, float],
    known: bool | None,
) -> None:
    """Absent is unknown, but for engines whose counters of drafts are there whenever they draft."""
    rank = RankSample(rank="", counters=counters, gauges=gauges)
    assert drafts_nothing(ServerSample(engine=engine, source="s", at_s=1.0, ranks=(rank,))) is known
