"""Hit shares and renamed metrics: cases with other numbers, other engines' names, a needed fact missing, and silence.

The first form of each case stands in `test_diagnose_metrics.py`; here are its variants, through the public command.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
from engine_pages import dynamo, tgi, trtllm, vllm_v0
from scrape_kit import (
    Hist,
    Load,
    apart,
    diagnose,
    facts,
    kinds,
    lever,
    llamacpp,
    proposed,
    sglang,
    vllm,
)

Page = Callable[..., str]

THRASHING = Load(
    running=120,
    waiting=240,
    kv=0.88,
    preemptions=5,
    queries=2_000_000,
    hits=500_000,
    prompt_tokens=2_000_000,
    output_tokens=100_000,
    finished=300,
    ttft=Hist(300, 18.0),
    queue=Hist(300, 17.0),
    e2e=Hist(300, 50.0),
    tpot=Hist(300, 0.05),
)
THRASHING_LATER = THRASHING.but(
    preemptions=45,
    queries=3_000_000,
    hits=760_000,
    prompt_tokens=3_000_000,
    output_tokens=180_000,
    finished=600,
    ttft=Hist(600, 18.0),
    queue=Hist(600, 17.0),
    e2e=Hist(600, 50.0),
    tpot=Hist(600, 0.05),
)
UNSHARED = 'prompts = ["no shared prefix"]\n'
CACHING = {"prefix_affine_routing", "prompt_layout", "enable_prefix_caching"}


def test_hits_of_preempted_requests_by_older_names(tmp_path: Path) -> None:
    """A version that tells a hit rate and no counters of hits is judged the same."""
    told = apart(tmp_path, vllm_v0(THRASHING), vllm_v0(THRASHING_LATER), *facts(tmp_path, UNSHARED))
    assert (told.binding, told.code) == (("queue", "memory_capacity"), 1)
    assert "hit_share_untrusted" in kinds(told)
    assert proposed(told) & CACHING == set()


def test_hits_of_preempted_requests_without_the_tag(tmp_path: Path) -> None:
    """That the prompts share nothing need not be told: preemption alone makes the share doubtful."""
    told = apart(tmp_path, vllm(THRASHING), vllm(THRASHING_LATER))
    assert told.binding == ("queue", "memory_capacity")
    assert "recomputation of the same request" in told.said("do_not")
    assert proposed(told) & CACHING == set()


@pytest.mark.parametrize(
    ("page", "lacking"),
    [
        (vllm, ("kv",)),
        (vllm, ("preemptions",)),
        (sglang, ("kv",)),
        (sglang, ("preemptions",)),
        (trtllm, ()),
        (tgi, ()),
        (dynamo, ()),
    ],
    ids=["vllm, no KV", "vllm, no preemptions", "sglang, no KV", "sglang, no preemptions",
         "trtllm counts none", "tgi has neither", "dynamo has neither"],
)  # fmt: skip
def test_nearly_full_cache_with_a_fact_missing_is_no_verdict(
    tmp_path: Path, page: Page, lacking: tuple[str, ...]
) -> None:
    """With KV usage or preemptions untold neither memory nor admission is claimed, and KV is not ruled out."""
    pages = (page(each.without(*lacking)) for each in (THRASHING, THRASHING_LATER))
    told = apart(tmp_path, *pages, *facts(tmp_path, UNSHARED))
    assert (told.binding, told.code) == (None, 4)
    assert "KV capacity" not in told.said("ruled_out")
    assert proposed(told) & CACHING == set()


def test_preemptions_since_the_start_say_nothing_of_now(tmp_path: Path) -> None:
    """One scrape counts preemptions of its whole life: whether they go on is what a second one tells."""
    told = diagnose(tmp_path, vllm(THRASHING_LATER), options=facts(tmp_path, UNSHARED))
    assert (told.binding, told.code) == (None, 4)
    assert "preempted now is unknown" in told.said("unknown")
    assert "second scrape" in told.said("would_tell")


def test_preemption_with_a_cache_that_nobody_tells_lets_no_phase_dominate(tmp_path: Path) -> None:
    """Decode has most of the time, and requests lose their memory meanwhile: neither is called what binds."""
    pages = (vllm_v0(each.without("kv", "waiting")) for each in (THRASHING, THRASHING_LATER))
    told = apart(tmp_path, *pages, "--model", "meta-llama/Llama-3.1-8B", "--hardware", "H100")
    assert (told.binding, told.code) == (None, 4)
    assert "want of KV memory" in told.said("unknown")


def test_full_cache_needs_no_preemptions(tmp_path: Path) -> None:
    """At 97% a queue waits for KV memory whether or not anybody counts preemptions."""
    told = diagnose(tmp_path, vllm(THRASHING.but(kv=0.97).without("preemptions")))
    assert told.binding == ("queue", "memory_capacity")


def test_nearly_full_cache_without_preemption_leaves_the_queue_to_admission(tmp_path: Path) -> None:
    """The rule of preemption is silent where the counter stands still: slots bind, the hits are believed."""
    still = THRASHING_LATER.but(preemptions=5)
    told = apart(tmp_path, vllm(THRASHING), vllm(still))
    assert told.binding == ("queue", "admission")
    assert "hit_share_untrusted" not in kinds(told)


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
HALF = CALM.but(
    hits=500_000,
    ttft=Hist(1000, 0.05),
    prefill=Hist(1000, 0.05),
    decode=Hist(1000, 1.95),
    e2e=Hist(1000, 2.0),
)


@pytest.mark.parametrize(
    ("page", "load", "ceiling"),
    [
        (vllm, HALF, 0.0251),
        (trtllm, CALM, 0.0801),
        (vllm_v0, CALM, 0.0801),
        (dynamo, CALM, 0.0801),
    ],
    ids=["other numbers", "trtllm", "vllm v0", "dynamo"],
)
def test_ceiling_of_caching_is_what_prefill_takes(
    tmp_path: Path, page: Page, load: Load, ceiling: float
) -> None:
    """Whatever the hit share, caching cannot save more than prefill's part of request time."""
    told = diagnose(tmp_path, page(load))
    gain = lever(told, "prefix_affine_routing")["gain_share_max"]
    assert 0.0 < gain <= ceiling
    assert "little left to gain from caching" in told.text
    assert proposed(told) & CACHING == set()


@pytest.mark.parametrize("page", [tgi, llamacpp], ids=["tgi", "llamacpp"])
def test_engine_without_phase_times_gives_no_ceiling_of_caching(tmp_path: Path, page: Page) -> None:
    """Where prefill's time is untold nothing is said of what caching could gain."""
    told = diagnose(tmp_path, page(CALM))
    assert lever(told, "prefix_affine_routing")["gain_share_max"] is None
    assert "little left to gain" not in told.text


def test_little_left_is_not_said_where_much_is_left(tmp_path: Path) -> None:
    """Prefill at 60% of the time, prompts that allow 80% and two ranks that reuse 10%: affinity is proposed."""
    slow = CALM.but(
        hits=100_000,
        ttft=Hist(1000, 0.6),
        prefill=Hist(1000, 0.6),
        decode=Hist(1000, 0.4),
        tpot=Hist(1000, 0.004),
    )
    allowed = "[cache]\nreuse_ceiling_share = 0.8\nreuse_after_fix_share = 0.82\n"
    told = diagnose(tmp_path, vllm(slow, slow), options=facts(tmp_path, allowed))
    assert "prefix_affine_routing" in proposed(told)
    assert "little left to gain" not in told.text


def looked_up(page: Page, queries: float, hits: float) -> str:
    """A page of a server whose cache was asked so often; llama.cpp counts computed tokens apart from cached ones."""
    prompt = queries - hits if page is llamacpp else queries
    return page(Load(running=1, waiting=0, queries=queries, prompt_tokens=prompt, hits=hits))


@pytest.mark.parametrize("page", [trtllm, llamacpp], ids=["trtllm", "llamacpp"])
def test_hit_share_of_the_window_by_other_engines(tmp_path: Path, page: Page) -> None:
    """5% in the window beside 82% since the start, in whatever words the engine counts."""
    told = apart(tmp_path, looked_up(page, 1e6, 9e5), looked_up(page, 1.1e6, 9.05e5))
    assert told.reading("prefix_hit_share") == pytest.approx(0.05, abs=1e-6)
    assert told.reading("prefix_hit_share_lifetime") == pytest.approx(905 / 1100, abs=1e-6)
    assert "hit_share_lifetime" in kinds(told)


def test_window_that_agrees_with_the_life_is_not_remarked(tmp_path: Path) -> None:
    """Both at 50%: no warning that one of them speaks of another time."""
    told = apart(tmp_path, looked_up(vllm, 1e6, 5e5), looked_up(vllm, 1.2e6, 6e5))
    assert "hit_share_lifetime" not in kinds(told)


def test_window_in_which_nothing_was_looked_up_has_no_hit_share(tmp_path: Path) -> None:
    """0 of 0 is unknown: neither 0 nor the share since the start."""
    told = apart(tmp_path, looked_up(vllm, 1e6, 9e5), looked_up(vllm, 1e6, 9e5))
    assert told.reading("prefix_hit_share") is None
    assert told.reading("prefix_hit_share_lifetime") == pytest.approx(0.9)


@pytest.mark.parametrize("page", [sglang, trtllm], ids=["sglang", "trtllm"])
def test_more_hits_than_queries_are_refused_by_any_names(tmp_path: Path, page: Page) -> None:
    """More cached than prompt tokens cannot be: unknown, with a warning."""
    told = diagnose(tmp_path, looked_up(page, 1e6, 1.3e6))
    assert told.reading("prefix_hit_share") is None
    assert "hit_share_impossible" in kinds(told)


def test_hits_of_unknown_queries_are_no_share(tmp_path: Path) -> None:
    """A count of hits alone says nothing, and nothing is refused either."""
    told = diagnose(tmp_path, vllm(Load(running=1, waiting=0, hits=1e5)))
    assert told.reading("prefix_hit_share") is None
    assert "hit_share_impossible" not in kinds(told)


def test_every_token_found_is_possible(tmp_path: Path) -> None:
    """A share of exactly 1 is not refused."""
    told = diagnose(tmp_path, looked_up(vllm, 1e6, 1e6))
    assert told.reading("prefix_hit_share") == 1.0
    assert "hit_share_impossible" not in kinds(told)


OLD = 'vllm:gpu_cache_usage_perc{{model_name="m"}} {}\n'
NEW = 'vllm:kv_cache_usage_perc{{model_name="m"}} {}\n'
RUNS = 'vllm:num_requests_running{model_name="m"} 3\nvllm:num_requests_waiting{model_name="m"} 0\n'

SGLANG_RUNS = 'sglang:num_running_reqs{model_name="m"} 3\n'
SGLANG_2024, SGLANG_2025 = "2024, by its names", "2025 or later, by its names"


@pytest.mark.parametrize(
    ("text", "usage", "version"),
    [
        (OLD.format(0.35) + RUNS, 0.35, "V1 before 0.30, by its names"),
        (OLD.format(0.9) + NEW.format(0.55) + RUNS, 0.55, "V1 before 0.30, by its names"),
        (NEW.format(0.97) + RUNS, 0.97, "V1, by its names"),
        ('sglang:token_usage{name="m"} 0.3\nsglang:num_requests_running{name="m"} 3\n', 0.3, SGLANG_2024),
        ('sglang_token_usage{model_name="m"} 0.3\n' + SGLANG_RUNS, 0.3, SGLANG_2025),
        ('sglang:kv_cache_usage_perc{model_name="m"} 0.4\n' + SGLANG_RUNS, 0.4, SGLANG_2025),
        ("llamacpp:kv_cache_usage_ratio 0.6\n", 0.6, "before mid 2025, by its names"),
        ('trtllm_kv_cache_utilization{model_name="m"} 0.2\n', 0.2, None),
        ('dynamo_component_gpu_cache_usage_percent{model="m"} 0.31\n', 0.31, None),
    ],
    ids=["vllm old", "vllm both", "vllm new", "sglang first", "sglang_", "sglang newer", "llamacpp",
         "trtllm", "dynamo"],
)  # fmt: skip
def test_usage_of_the_cache_is_read_by_each_engines_names(
    tmp_path: Path, text: str, usage: float, version: str | None
) -> None:
    """Old, both or new: one value, the newer name first, and the version that the names speak of."""
    told = diagnose(tmp_path, text)
    assert told.reading("kv_used_share_mean") == usage
    assert told.answer["sources"][0]["version"] == version


@pytest.mark.parametrize(
    "text",
    [RUNS, 'sglang:num_running_reqs{model_name="m"} 3\nsglang:num_queue_reqs{model_name="m"} 9\n'],
    ids=["vllm", "sglang"],
)
def test_usage_that_no_name_tells_is_unknown_and_decides_nothing(tmp_path: Path, text: str) -> None:
    """Never 0: KV is not ruled out, nothing is said of memory, and what would tell is named."""
    told = diagnose(tmp_path, text)
    found = told.answer["readings"]["kv_used_share_max"]
    assert (found["value"], found["said"], bool(found["unknown"])) == (None, "unknown", True)
    assert (told.binding, told.code) == (None, 4)
    assert "KV" not in told.said("ruled_out", "do_not")
    assert "gauge of KV usage" in told.said("would_tell")


@pytest.mark.parametrize(
    ("line", "share", "converted"),
    [
        ('sglang:cache_hit_rate{name="m"} 55.5', 0.555, True),
        ('sglang:cache_hit_rate{name="m"} 0.9', 0.009, True),
        ('sglang:cache_hit_rate{model_name="m"} 0.9', 0.9, False),
        ('vllm:gpu_prefix_cache_hit_rate{model_name="m"} 0.25', 0.25, False),
        ('vllm:gpu_prefix_cache_hit_rate{model_name="m"} 25', 0.25, True),
        ('dynamo_component_gpu_prefix_cache_hit_rate{model="m"} 0.4', 0.4, False),
        ('sglang:cache_hit_rate{model_name="m"} 1.5', None, True),
        ('vllm:gpu_prefix_cache_hit_rate{model_name="m"} -1', None, False),
        ('sglang:cache_hit_rate{name="m"} 140', None, False),
    ],
)
def test_hit_rate_is_a_share_whatever_its_unit(
    tmp_path: Path, line: str, share: float | None, converted: bool
) -> None:
    """Per cent is divided with a note; what may be either, and what cannot be, is unknown."""
    told = diagnose(tmp_path, line + "\n")
    found = told.reading("prefix_hit_share")
    assert found == (None if share is None else pytest.approx(share))
    assert ("unit" in kinds(told)) is converted
