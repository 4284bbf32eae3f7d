"""Ranks, last edges and gauges that contradict counters: variants of the cases in `test_diagnose_metrics.py`.

Each with other numbers, other engines' names, a needed fact missing, and a case in which the rule is silent.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
from engine_pages import dynamo, tgi, trtllm, vllm_v0
from scrape_kit import Hist, Load, apart, diagnose, kinds, lever, proposed, sglang, vllm

Page = Callable[..., str]

IDLE_RANK = Load(running=0, waiting=0, kv=0.10)
FULL_RANK = Load(running=40, waiting=12, kv=0.97)


@pytest.mark.parametrize("page", [vllm, sglang, trtllm], ids=["vllm", "sglang", "trtllm"])
def test_full_rank_is_found_by_each_engines_labels(tmp_path: Path, page: Page) -> None:
    """`engine` and `dp_rank` alike: the rank is named, its load is told apart, the others are no excuse."""
    told = diagnose(tmp_path, page(IDLE_RANK, FULL_RANK, IDLE_RANK))
    assert told.reading("ranks_saturated") == 1
    assert "rank 1: KV 97% used" in told.answer["readings"]["ranks_saturated"]["note"]
    assert [told.reading(f"running_mean#{rank}") for rank in "012"] == [0, 40, 0]
    assert told.binding == ("queue", "memory_capacity")
    assert "balance_ranks" in proposed(told)


@pytest.mark.parametrize("page", [vllm, sglang, trtllm], ids=["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize(
    ("lacking", "unknown"),
    [
        ("kv", ("kv_used_share_mean", "kv_used_share_max", "ranks_saturated")),
        ("running", ("running_mean", "running_max")),
        ("waiting", ("waiting_mean", "waiting_max")),
    ],
)
def test_what_one_rank_does_not_tell_is_unknown_of_the_server(
    tmp_path: Path, page: Page, lacking: str, unknown: tuple[str, ...]
) -> None:
    """A sum over the ranks that tell is not the server's: unknown, naming the rank, and KV is not ruled out."""
    busy = FULL_RANK.but(kv=0.5).without(lacking)
    told = diagnose(tmp_path, page(IDLE_RANK, busy))
    found = [told.answer["readings"][name] for name in unknown]
    assert [each["value"] for each in found] == [None] * len(unknown)
    assert "rank 1 does not tell" in found[0]["unknown"]
    assert (told.binding, told.code) == (None, 4)
    if lacking == "kv":
        assert "KV capacity" not in told.said("ruled_out")
        assert lever(told, "balance_ranks")["proposed"] is None


def test_full_rank_is_full_whatever_another_one_leaves_out(tmp_path: Path) -> None:
    """The known rank has no room; the mean over both stays unknown."""
    told = diagnose(tmp_path, vllm(FULL_RANK, IDLE_RANK.without("kv")))
    assert told.reading("kv_used_share_max") == 0.97
    assert told.reading("kv_used_share_mean") is None
    assert told.binding == ("queue", "memory_capacity")


@pytest.mark.parametrize("page", [sglang, trtllm], ids=["sglang", "trtllm"])
def test_rank_that_vanished_by_each_engines_labels(tmp_path: Path, page: Page) -> None:
    """Of two ranks one is gone: no fall in load, no idleness, no health."""
    both = page(IDLE_RANK, FULL_RANK)
    left = "\n".join(line for line in both.splitlines() if 'dp_rank="1"' not in line) + "\n"
    told = apart(tmp_path, both, left)
    assert told.answer["sources"][0]["lost_ranks"] == ["1"]
    assert (told.reading("running_mean"), told.reading("waiting_mean")) == (None, None)
    assert "rank_lost" in kinds(told)
    assert told.answer["activity"] != "idle"
    assert told.code != 0


def test_rank_that_came_is_not_one_that_vanished(tmp_path: Path) -> None:
    """A rank on the later page only is no loss."""
    told = apart(tmp_path, vllm(IDLE_RANK), vllm(IDLE_RANK, FULL_RANK))
    assert told.answer["sources"][0]["lost_ranks"] == []
    assert "rank_lost" not in kinds(told)


@pytest.mark.parametrize("page", [vllm, trtllm], ids=["vllm", "trtllm"])
def test_histograms_are_added_before_their_quantiles(tmp_path: Path, page: Page) -> None:
    """900 first tokens at 50 ms on one rank and 100 at 4 s on another: p50 is the first's, p99 the second's."""
    quick = Load(running=1, waiting=0, kv=0.1, ttft=Hist(900, 0.05))
    slow = Load(running=1, waiting=0, kv=0.1, ttft=Hist(100, 4.0))
    told = diagnose(tmp_path, page(quick, slow))
    assert 40 <= told.reading("ttft_ms_p50") <= 60
    assert 2500 <= told.reading("ttft_ms_p99") <= 5000
    assert told.reading("ttft_ms_mean") == pytest.approx(445.0)


OVERLOADED = Load(
    running=162,
    waiting=2826,
    kv=0.28,
    output_gauge=86.5,
    prompt_tokens=8_000_000,
    output_tokens=7_500_000,
    finished=11_228,
    ttft=Hist(11_008, 213.7),
    e2e=Hist(11_228, 277.5),
    tpot=Hist(7_400_757, 0.117),
)


@pytest.mark.parametrize("page", [trtllm, vllm_v0], ids=["trtllm", "vllm v0"])
def test_overload_by_other_engines_names(tmp_path: Path, page: Page) -> None:
    """Admission binds, KV is ruled out, first tokens lie above the last edge and decode is not blamed."""
    told = diagnose(tmp_path, page(OVERLOADED))
    assert told.binding == ("queue", "admission")
    assert told.answer["readings"]["ttft_ms_p50"]["said"] == "> 60 s"
    assert "KV capacity" in told.said("ruled_out")


@pytest.mark.parametrize("page", [tgi, dynamo], ids=["tgi", "dynamo"])
def test_overload_of_an_engine_that_never_tells_kv_usage_is_no_verdict(
    tmp_path: Path, page: Page
) -> None:
    """Where neither KV usage nor slots are told, what the queue waits for is unknown."""
    told = diagnose(tmp_path, page(OVERLOADED))
    assert (told.binding, told.code) == (None, 4)
    assert "neither KV usage nor slots are told" in told.said("unknown")


@pytest.mark.parametrize(
    ("lacking", "words"),
    [
        (("kv",), "neither KV usage nor slots are told"),
        (("waiting", "queue"), "neither queue time nor waiting requests are told"),
    ],
)
def test_overload_with_a_fact_missing_is_no_verdict(
    tmp_path: Path, lacking: tuple[str, ...], words: str
) -> None:
    """Without the queue nothing dominates; without KV usage its resource is unknown. First tokens stay "> 60 s"."""
    told = diagnose(tmp_path, sglang(OVERLOADED.without(*lacking)))
    assert (told.binding, told.code) == (None, 4)
    assert words in told.said("unknown")
    assert told.answer["readings"]["ttft_ms_p99"]["said"] == "> 60 s"


def test_first_tokens_that_nobody_times_have_no_quantile(tmp_path: Path) -> None:
    """No histogram, no figure; the queue is known without it."""
    told = diagnose(tmp_path, sglang(OVERLOADED.without("ttft")))
    found = told.answer["readings"]["ttft_ms_p99"]
    assert (found["value"], "above_last_edge" in kinds(told)) == (None, False)
    assert told.binding == ("queue", "admission")


def test_last_edge_is_not_named_where_first_tokens_lie_below_it(tmp_path: Path) -> None:
    """50 ms in a finite bucket: no warning of a last edge."""
    told = diagnose(tmp_path, sglang(OVERLOADED.but(ttft=Hist(11_008, 0.05))))
    assert "above_last_edge" not in kinds(told)


def test_populations_that_differ_are_named(tmp_path: Path) -> None:
    """More requests ended than had a first token: told, and silent where the counts agree."""
    assert "population" in kinds(diagnose(tmp_path, vllm(OVERLOADED)))
    agreed = OVERLOADED.but(e2e=Hist(11_008, 277.5))
    assert "population" not in kinds(diagnose(tmp_path, vllm(agreed)))


@pytest.mark.parametrize(
    ("page", "load", "flagged"),
    [
        (vllm_v0, OVERLOADED, True),
        (vllm_v0, OVERLOADED.but(output_gauge=1700.0), False),
        (sglang, OVERLOADED.but(running=20, output_gauge=900.0), True),
        (sglang, OVERLOADED.but(running=20, output_gauge=171.0), False),
        (sglang, OVERLOADED.without("tpot", "e2e", "ttft"), False),
        (sglang, OVERLOADED.without("output_gauge"), False),
    ],
    ids=["vllm v0", "vllm v0 agrees", "other numbers", "other numbers agree", "no time per token", "no gauge"],
)  # fmt: skip
def test_throughput_gauge_is_held_against_streams_and_their_pace(
    tmp_path: Path, page: Page, load: Load, flagged: bool
) -> None:
    """A factor of three between the two is a contradiction; without either of them there is none to find."""
    assert ("gauge_contradicts" in kinds(diagnose(tmp_path, page(load)))) is flagged


def test_throughput_gauge_is_held_against_counters_of_a_window(tmp_path: Path) -> None:
    """6,000 tokens in a minute are 100 per second: a gauge of 86 agrees, one of 1,000 does not."""
    for gauge, flagged in ((86.5, False), (1000.0, True)):
        first = Load(running=2, waiting=0, kv=0.3, output_tokens=1e6, output_gauge=gauge)
        told = apart(tmp_path, sglang(first), sglang(first.but(output_tokens=1e6 + 6000)))
        assert ("gauge_contradicts" in kinds(told)) is flagged, gauge


@pytest.mark.parametrize(
    ("page", "lengths", "low", "high", "mean"),
    [
        (dynamo, Hist(170_450, 108.0), 100, 200, 108.0),
        (dynamo, Hist(5_000, 1_500.0), 1000, 2000, 1500.0),
        (vllm, Hist(170_450, 108.0), 100, 200, 108.0),
        (sglang, Hist(900, 30.0), 10, 50, 30.0),
        (tgi, Hist(900, 30.0), 10, 50, 30.0),
    ],
    ids=["dynamo", "other numbers", "vllm", "sglang", "tgi"],
)
def test_quantile_has_the_width_of_its_bucket_beside_it(
    tmp_path: Path, page: Page, lengths: Hist, low: float, high: float, mean: float
) -> None:
    """All in one bucket: between its edges, beside a mean that is known."""
    told = diagnose(tmp_path, page(Load(running=1, waiting=0, prompt_length=lengths)))
    note = told.answer["readings"]["prompt_length_p99"]["note"]
    assert f"between {low} and {high}" in note
    assert told.reading("prompt_length_mean") == pytest.approx(mean)
    assert "wide_bucket" in kinds(told)


def test_length_histogram_without_its_sum_has_no_mean(tmp_path: Path) -> None:
    """The quantile's edges stay; the mean is unknown and not the middle of the bucket."""
    page = dynamo(Load(running=1, waiting=0, prompt_length=Hist(900, 30.0)))
    cut = "\n".join(line for line in page.splitlines() if "_sum" not in line) + "\n"
    told = diagnose(tmp_path, cut)
    assert told.reading("prompt_length_mean") is None
    assert "between 10 and 50" in told.answer["readings"]["prompt_length_p99"]["note"]


def test_narrow_bucket_is_not_remarked(tmp_path: Path) -> None:
    """A bucket from 90 to 110 around a mean of 100 says enough."""
    hist = "\n".join(
        f'vllm:request_prompt_tokens_bucket{{engine="0",model_name="m",le="{edge}"}} {count}'
        for edge, count in (("90", 0), ("110", 500), ("+Inf", 500))
    )
    rest = 'vllm:request_prompt_tokens_{}{{engine="0",model_name="m"}} {}\n'
    page = f"# TYPE vllm:request_prompt_tokens histogram\n{hist}\n"
    told = diagnose(tmp_path, page + rest.format("count", 500) + rest.format("sum", 50_000))
    assert told.reading("prompt_length_mean") == 100.0
    assert "wide_bucket" not in kinds(told)


TIGHT = Load(running=60, waiting=90, kv=0.88, preemptions=0, finished=10)


@pytest.mark.parametrize("page", [vllm, sglang], ids=["vllm", "sglang"])
def test_that_nothing_is_preempted_needs_the_word_of_every_rank(tmp_path: Path, page: Page) -> None:
    """One rank counts no preemption and the other none at all: memory is neither claimed nor ruled out."""
    ranks = (TIGHT, TIGHT.without("preemptions"))
    told = apart(tmp_path, page(*ranks), page(*(each.but(finished=90) for each in ranks)))
    assert told.reading("preemptions") is None
    assert (told.binding, told.code) == (None, 4)
    assert "KV capacity" not in told.said("ruled_out")


def test_preemption_at_one_rank_is_known_whatever_another_one_leaves_out(tmp_path: Path) -> None:
    """Some is true of the server where one rank has some."""
    silent = TIGHT.without("preemptions")
    told = apart(
        tmp_path, vllm(TIGHT, silent), vllm(TIGHT.but(preemptions=7), silent.but(finished=90))
    )
    assert told.reading("preemptions") == 7
    assert told.binding == ("queue", "memory_capacity")


def test_times_of_different_ranks_are_not_mixed(tmp_path: Path) -> None:
    """One rank times the queue and the other whole answers: no share of the one in the other."""
    first = Load(running=4, waiting=0, kv=0.2, ttft=Hist(50, 2.0), e2e=Hist(50, 4.0))
    second = Load(running=4, waiting=0, kv=0.2, ttft=Hist(50, 2.0), queue=Hist(50, 1.9))
    told = diagnose(tmp_path, vllm(first, second))
    assert told.reading("ttft_ms_mean") == pytest.approx(2000.0)
    assert [told.reading(name) for name in ("e2e_ms_mean", "queue_share")] == [None, None]
    assert "rank 1 does not tell e2e_s" in told.answer["readings"]["e2e_ms_mean"]["unknown"]


def test_hits_and_queries_are_of_the_same_ranks(tmp_path: Path) -> None:
    """5e5 hits of one rank over its own 1e6 queries: another rank's queries do not halve the share."""
    both = Load(running=1, waiting=0, queries=1e6, hits=5e5)
    told = diagnose(tmp_path, vllm(both, both.without("hits")))
    assert told.reading("prefix_hit_share") == 0.5
