"""What a diagnosis makes of gauges, counters and histograms that are easily misread, through the public command.

Each case comes with other numbers, with another engine's names, and with a needed fact missing; each rule has a case
in which it must stay silent.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
from scrape_kit import (
    Hist,
    Load,
    apart,
    diagnose,
    facts,
    judgement,
    kinds,
    lever,
    proposed,
    sglang,
    vllm,
)

Page = Callable[..., str]

BUSY = Load(
    running=259,
    waiting=535,
    kv=0.823,
    preemptions=10,
    queries=1_000_000,
    hits=320_000,
    prompt_tokens=1_000_000,
    output_tokens=200_000,
    finished=400,
    ttft=Hist(400, 20.0),
    queue=Hist(400, 19.0),
    e2e=Hist(400, 60.0),
    tpot=Hist(400, 0.04),
)
LATER = BUSY.but(
    preemptions=90,
    queries=2_000_000,
    hits=640_000,
    prompt_tokens=2_000_000,
    output_tokens=400_000,
    finished=800,
    ttft=Hist(800, 20.0),
    queue=Hist(800, 19.0),
    e2e=Hist(800, 60.0),
    tpot=Hist(800, 0.04),
)
CALM = Load(
    running=4,
    waiting=0,
    kv=0.2,
    preemptions=0,
    queries=1_000_000,
    hits=946_000,
    prompt_tokens=1_000_000,
    output_tokens=200_000,
    finished=1000,
    ttft=Hist(1000, 0.08),
    queue=Hist(1000, 0.0005),
    prefill=Hist(1000, 0.08),
    decode=Hist(1000, 0.92),
    e2e=Hist(1000, 1.0),
    tpot=Hist(1000, 0.0092),
)


UNSHARED = 'prompts = ["no shared prefix"]\n'
CACHING = {"prefix_affine_routing", "prompt_layout", "enable_prefix_caching"}


@pytest.mark.parametrize(
    ("page", "first", "last"),
    [
        (vllm, BUSY, LATER),
        (
            vllm,
            BUSY.but(running=40, waiting=90, kv=0.93),
            LATER.but(running=40, waiting=90, kv=0.93),
        ),
        (sglang, BUSY, LATER.but(hits=640_000)),
    ],
    ids=["vllm", "other numbers", "sglang"],
)
def test_hits_of_preempted_requests_are_not_reuse(
    tmp_path: Path, page: Page, first: Load, last: Load
) -> None:
    """Preemption with a full cache is KV capacity; its hit share is untrusted and proposes no caching."""
    told = apart(tmp_path, page(first), page(last), *facts(tmp_path, UNSHARED))
    assert told.binding == ("queue", "memory_capacity")
    assert told.code == 1
    assert "hit_share_untrusted" in kinds(told)
    assert proposed(told) & CACHING == set()


def test_full_cache_that_nobody_tells_is_no_verdict(tmp_path: Path) -> None:
    """Without KV usage a queue may be for memory or for slots: neither is claimed, and what would tell is named."""
    told = apart(
        tmp_path, vllm(BUSY.without("kv", "preemptions")), vllm(LATER.without("kv", "preemptions"))
    )
    assert (told.binding, told.code) == (None, 4)
    assert "kv" in told.said("unknown", "would_tell").lower()


def test_hits_are_trusted_where_nothing_is_preempted(tmp_path: Path) -> None:
    """The warning about preempted requests stays silent on a calm server with a shared prefix."""
    told = apart(tmp_path, vllm(CALM), vllm(CALM.but(queries=2e6, hits=1_892_000, finished=2000)))
    assert "hit_share_untrusted" not in kinds(told)


@pytest.mark.parametrize("page", [vllm, sglang], ids=["vllm", "sglang"])
def test_high_hit_share_is_not_gain(tmp_path: Path, page: Page) -> None:
    """With prefill at 8% of request time caching can gain at most 8%, whatever the hit share."""
    told = diagnose(tmp_path, page(CALM))
    routing = lever(told, "prefix_affine_routing")
    gain = routing["gain_share_max"]
    assert isinstance(gain, float)
    assert gain <= 0.0801
    assert "little left to gain" in told.text
    assert proposed(told) & CACHING == set()


def test_gain_of_caching_is_unknown_without_phase_times(tmp_path: Path) -> None:
    """A hit share alone gives no ceiling."""
    told = diagnose(tmp_path, vllm(Load(running=4, waiting=0, kv=0.2, queries=1e6, hits=946_000)))
    assert lever(told, "prefix_affine_routing")["gain_share_max"] is None


@pytest.mark.parametrize(
    ("page", "first", "last", "window", "life"),
    [
        (vllm, (1e6, 9e5), (1.1e6, 9.05e5), 0.05, 905 / 1100),
        (vllm, (4e5, 1e5), (6e5, 2.5e5), 0.75, 250 / 600),
        (sglang, (1e6, 9e5), (1.1e6, 9.05e5), 0.05, 905 / 1100),
    ],
    ids=["vllm", "other numbers", "sglang"],
)
def test_hit_share_is_of_the_window(
    tmp_path: Path,
    page: Page,
    first: tuple[float, float],
    last: tuple[float, float],
    window: float,
    life: float,
) -> None:
    """Two scrapes tell the share of the window; that since the start keeps a name of its own."""
    pages = [
        page(Load(running=1, waiting=0, queries=asked, prompt_tokens=asked, hits=hits))
        for asked, hits in (first, last)
    ]
    told = apart(tmp_path, *pages)
    assert told.reading("prefix_hit_share") == pytest.approx(window, abs=1e-6)
    assert told.reading("prefix_hit_share_lifetime") == pytest.approx(life, abs=1e-6)


def test_hit_share_of_one_scrape_says_since_start(tmp_path: Path) -> None:
    """One scrape cannot tell a window: its figures say that they are since the start."""
    told = diagnose(tmp_path, vllm(Load(running=1, waiting=0, queries=1.1e6, hits=9.05e5)))
    assert told.answer["sources"][0]["lifetime"] is True
    assert "since start" in str(told.answer["readings"]["prefix_hit_share_lifetime"])


@pytest.mark.parametrize("hits", [1.2e6, 5e6])
def test_more_hits_than_queries_are_refused(tmp_path: Path, hits: float) -> None:
    """A share above 1 cannot be: it is unknown with the reason, and no rule uses it."""
    told = diagnose(tmp_path, vllm(Load(running=1, waiting=0, queries=1e6, hits=hits)))
    assert told.reading("prefix_hit_share_lifetime") is None
    assert told.reading("prefix_hit_share") is None
    assert "hit_share_impossible" in kinds(told)


OLD = 'vllm:gpu_cache_usage_perc{{model_name="m"}} {}\n'
NEW = 'vllm:kv_cache_usage_perc{{model_name="m"}} {}\n'
RUNS = 'vllm:num_requests_running{model_name="m"} 3\n'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (OLD.format(0.7), 0.7),
        (OLD.format(0.7) + NEW.format(0.1), 0.1),
        (NEW.format(0.4), 0.4),
        (NEW.format(0.4) + OLD.format(0.9), 0.4),
        ('sglang:token_usage{model_name="m"} 0.31\n', 0.31),
        ("", None),
    ],
    ids=["old", "both", "new", "both, other order", "sglang", "neither"],
)
def test_renamed_gauge_is_read_by_either_name(
    tmp_path: Path, text: str, expected: float | None
) -> None:
    """The newer name goes first, absence is unknown and never 0."""
    told = diagnose(tmp_path, text + ("" if "sglang" in text else RUNS))
    assert told.reading("kv_used_share_mean") == expected


def test_two_names_that_disagree_are_shown(tmp_path: Path) -> None:
    """A conflict is told, not settled in silence."""
    told = diagnose(tmp_path, OLD.format(0.7) + NEW.format(0.1) + RUNS)
    assert "conflict" in kinds(told)


def test_percent_becomes_a_share_with_a_note(tmp_path: Path) -> None:
    """The first SGLang told its hit rate in per cent; the record says that it was converted."""
    first = 'sglang:cache_hit_rate{name="m"} 10.61\nsglang:num_requests_running{name="m"} 3\n'
    told = diagnose(tmp_path, first)
    assert told.reading("prefix_hit_share") == pytest.approx(0.1061)
    assert "unit" in kinds(told)
    later = (
        'sglang:cache_hit_rate{model_name="m"} 0.0075\nsglang:num_running_reqs{model_name="m"} 3\n'
    )
    told = diagnose(tmp_path, later)
    assert told.reading("prefix_hit_share") == pytest.approx(0.0075)
    assert "unit" not in kinds(told)


IDLE_RANK = Load(running=0, waiting=0, kv=0.10)
FULL_RANK = Load(running=40, waiting=12, kv=0.97)


@pytest.mark.parametrize(
    ("page", "ranks", "expected"),
    [
        (vllm, (IDLE_RANK, FULL_RANK), (40, 12, 0.535, 0.97)),
        (
            vllm,
            (FULL_RANK.but(running=10), IDLE_RANK.but(kv=0.3), IDLE_RANK),
            (10, 12, 1.37 / 3, 0.97),
        ),
        (sglang, (IDLE_RANK, FULL_RANK), (40, 12, 0.535, 0.97)),
    ],
    ids=["vllm", "other numbers", "sglang"],
)
def test_ranks_of_one_server_are_added_and_the_full_one_is_seen(
    tmp_path: Path, page: Page, ranks: tuple[Load, ...], expected: tuple[float, ...]
) -> None:
    """Counts are summed, KV has mean and maximum, and one saturated rank is flagged."""
    told = diagnose(tmp_path, page(*ranks))
    names = ("running_mean", "waiting_mean", "kv_used_share_mean", "kv_used_share_max")
    assert [told.reading(name) for name in names] == pytest.approx(expected)
    assert told.reading("ranks_saturated") == 1
    assert "rank_saturated" in kinds(told)


def test_no_rank_is_flagged_where_all_have_room(tmp_path: Path) -> None:
    """Two ranks of equal, small load: silence."""
    told = diagnose(tmp_path, vllm(IDLE_RANK.but(running=3), IDLE_RANK.but(running=3)))
    assert "rank_saturated" not in kinds(told)


def test_rank_that_vanished_is_unknown_and_not_idle(tmp_path: Path) -> None:
    """A rank missing from the later scrape makes the sums unknown; load did not fall."""
    told = apart(tmp_path, vllm(IDLE_RANK, FULL_RANK), vllm(IDLE_RANK))
    assert told.answer["sources"][0]["lost_ranks"] == ["1"]
    assert told.reading("running_mean") is None
    assert "rank_lost" in kinds(told)
    assert told.code != 0


def test_created_twins_change_nothing(tmp_path: Path) -> None:
    """Times of creation are no values."""
    page = vllm(CALM)
    twins = 'vllm:prefix_cache_queries_created{engine="0",model_name="m"} 1.7e9\n'
    plain, doubled = diagnose(tmp_path, page), diagnose(tmp_path, page + twins)
    assert plain.answer["readings"] == doubled.answer["readings"]


OVERLOADED = Load(
    running=162,
    waiting=2826,
    kv=0.28,
    output_gauge=86.5,
    prompt_tokens=8_000_000,
    output_tokens=7_500_000,
    ttft=Hist(11_008, 213.7),
    e2e=Hist(11_228, 277.5),
    tpot=Hist(7_400_757, 0.117),
)


@pytest.mark.parametrize(
    ("page", "load"),
    [
        (sglang, OVERLOADED),
        (sglang, OVERLOADED.but(running=64, waiting=700, kv=0.4, ttft=Hist(5000, 90.0))),
        (vllm, OVERLOADED),
    ],
    ids=["sglang", "other numbers", "vllm"],
)
def test_rank_beyond_the_last_edge_is_above_it(tmp_path: Path, page: Page, load: Load) -> None:
    """A quantile in +Inf reads "> edge"; the queue is bound by admission and KV is ruled out."""
    told = diagnose(tmp_path, page(load))
    for name in ("ttft_ms_p50", "ttft_ms_p99"):
        assert told.answer["readings"][name]["said"] == "> 60 s"
    assert told.reading("ttft_ms_mean") == pytest.approx(1000 * load.ttft.mean)
    assert told.binding == ("queue", "admission")
    assert "KV" in told.said("ruled_out")
    assert told.code == 1


def test_quantile_inside_a_bucket_is_not_above_the_edge(tmp_path: Path) -> None:
    """What lies in a finite bucket is told with the bucket's width."""
    told = diagnose(tmp_path, sglang(OVERLOADED.but(ttft=Hist(100, 0.3))))
    found = told.answer["readings"]["ttft_ms_p99"]
    assert ">" not in found["said"]
    assert "250" in found["note"]


def test_throughput_gauge_that_contradicts_counters_is_flagged(tmp_path: Path) -> None:
    """162 running at 117 ms per token make about 1,385 tokens per second; a gauge of 86 is not believed."""
    told = diagnose(tmp_path, sglang(OVERLOADED))
    assert "gauge_contradicts" in kinds(told)
    told = diagnose(tmp_path, sglang(OVERLOADED.but(output_gauge=1385.0)))
    assert "gauge_contradicts" not in kinds(told)


def test_chunk_gaps_are_not_token_times(tmp_path: Path) -> None:
    """vLLM's inter-token latency is a gap between chunks: TPOT comes from its own histogram, or is unknown."""
    both = vllm(CALM.but(chunk_gap=Hist(1000, 0.0087), tpot=Hist(1000, 0.00327)))
    told = diagnose(tmp_path, both)
    assert told.reading("tpot_ms_mean") == pytest.approx(3.27)
    assert told.reading("chunk_gap_ms_mean") == pytest.approx(8.7)
    only = vllm(Load(running=4, waiting=0, kv=0.2, chunk_gap=Hist(1000, 0.0087)))
    told = diagnose(tmp_path, only)
    assert told.reading("tpot_ms_mean") is None
    assert told.reading("chunk_gap_ms_mean") == pytest.approx(8.7)


ARMS = """
[[arms]]
chunk_gap_ms = {0}
tokens_per_chunk = {1}
[[arms]]
chunk_gap_ms = {2}
tokens_per_chunk = {3}
"""


@pytest.mark.parametrize(
    ("numbers", "answer", "change"),
    [
        ((5.0, 1, 8.7, 2.66), "faster per token", -0.346),
        ((8.72, 1, 9.0, 2.8), "faster per token", -0.631),
        ((5.0, 1, 11.0, 1.5), "slower per token", 0.467),
    ],
)
def test_speculation_is_judged_per_token_and_not_per_chunk(
    tmp_path: Path, numbers: tuple[float, ...], answer: str, change: float
) -> None:
    """Chunk gap over tokens per chunk is the time per token; the gap stays a number of its own."""
    told = diagnose(tmp_path, vllm(CALM), options=facts(tmp_path, ARMS.format(*numbers)))
    found = judgement(told, "time per token between arms")
    assert found["answer"] == answer
    assert any(value == pytest.approx(change, abs=0.002) for value in found["numbers"].values())


def test_one_chunk_for_many_tokens_tells_no_token_time(tmp_path: Path) -> None:
    """200 tokens in one chunk: the time per token is not observable."""
    text = "[[arms]]\noutput_tokens = 200\nchunks = 1\n[[arms]]\noutput_tokens = 200\nchunks = 1\n"
    told = diagnose(tmp_path, vllm(CALM), options=facts(tmp_path, text))
    assert judgement(told, "time per token between arms")["answer"] == "not observable"
