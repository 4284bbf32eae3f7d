"""Real pages of metrics, read by the one reader: each engine and version says what is known of its page.

The pages lie beside the project; a test says so and is skipped where they are absent.
"""

from pathlib import Path

import pytest

from trimtab.core.served import Buckets, Counter, Distribution, EngineKind, Gauge, ServerSample
from trimtab.engines.served import read_sample

SGLANG_2025 = "sglang_2025_overloaded_llama31-8b"
KINDS = {
    "dynamo_frontend_qwen3-0.6b": EngineKind.DYNAMO_FRONTEND,
    "dynamo_worker_gauges_excerpt": EngineKind.DYNAMO_WORKER,
    "llamacpp-own": EngineKind.LLAMACPP,
    "llamacpp_server_2025_EXCERPT": EngineKind.LLAMACPP,
    "llamacpp_server_2026-09_names_SYNTHETIC_EXCERPT": EngineKind.LLAMACPP,
    "sglang_2024_first_metrics_gemma2-9b": EngineKind.SGLANG,
    SGLANG_2025: EngineKind.SGLANG,
    "tgi_datadog_payload_EXCERPT": EngineKind.TGI,
    "vllm-0.32-ngram-own": EngineKind.VLLM,
    "vllm-0.32-nixl-own": EngineKind.VLLM,
    "vllm_0.30_renamed_only_SYNTHETIC": EngineKind.VLLM,
    "vllm_datadog_fixture_mixed_versions_EXCERPT": EngineKind.VLLM,
    "vllm_v1_spec_decode_ngram_trimmed": EngineKind.VLLM,
    "vllm_v1_spec_decode_two_engines_SYNTHETIC": EngineKind.VLLM,
}


@pytest.fixture
def pages(public_data: Path) -> Path:
    folder = public_data / "metrics"
    if not folder.is_dir():
        pytest.skip("public data: the pages of metrics are absent")
    return folder


def read(pages: Path, name: str) -> ServerSample:
    return read_sample((pages / f"{name}.prom").read_bytes(), source=name, at_s=1.0)


def counters(sample: ServerSample, *names: Counter) -> list[float | None]:
    return [sample.counter_sum(name) for name in names]


def mean_ms(buckets: Buckets) -> float:
    assert buckets.sum is not None
    return 1000.0 * buckets.sum / buckets.total


def test_every_page_is_known(pages: Path) -> None:
    """No page is without an expectation, and no expectation without its page."""
    assert sorted(KINDS) == sorted(path.stem for path in pages.glob("*.prom"))


@pytest.mark.parametrize("name", sorted(KINDS))
def test_engine_is_found_and_nothing_is_broken(pages: Path, name: str) -> None:
    """Real pages are sound: no line, value or histogram is left out."""
    sample = read(pages, name)
    assert sample.engine is KINDS[name]
    assert sample.ranks
    assert [note for note in sample.notes if note.kind == "broken"] == []


@pytest.mark.parametrize("name", sorted(KINDS))
def test_every_histogram_has_its_mean_and_ends_in_its_total(pages: Path, name: str) -> None:
    """Cumulative counts rise to the count of all."""
    for rank in read(pages, name).ranks:
        for buckets in rank.distributions.values():
            counts = [*buckets.cumulative, buckets.total]
            assert counts == sorted(counts)
            assert buckets.edges
            assert buckets.sum is not None


def test_overloaded_sglang_has_most_first_tokens_above_the_last_edge(pages: Path) -> None:
    """2,513 of 11,008 first tokens lie at or below 30 s; mean 213.7 s; the queue is long and the cache is not full."""
    (rank,) = read(pages, SGLANG_2025).ranks
    ttft = rank.distributions[Distribution.TTFT]
    assert (ttft.edges[-1], ttft.cumulative[-1], ttft.total) == (30.0, 2513.0, 11008.0)
    assert round(mean_ms(ttft) / 1000.0, 1) == 213.7
    assert round(mean_ms(rank.distributions[Distribution.TPOT])) == 117
    assert rank.distributions[Distribution.E2E].total == 11228.0
    assert (rank.gauges[Gauge.RUNNING], rank.gauges[Gauge.WAITING]) == (162.0, 2826.0)
    assert rank.gauges[Gauge.KV_USED_SHARE] == 0.28
    assert round(rank.gauges[Gauge.OUTPUT_TOKENS_PER_S], 1) == 86.5


def test_first_sglang_gave_percents_and_other_names(pages: Path) -> None:
    """10.61 is 0.1061, with a note; queue, model and version are found under the first names."""
    sample = read(pages, "sglang_2024_first_metrics_gemma2-9b")
    (rank,) = sample.ranks
    assert rank.gauges[Gauge.PREFIX_HIT_SHARE] == pytest.approx(0.1061)
    assert (sample.model, sample.version) == ("google/gemma-2-9b-it", "2024, by its names")
    assert [note.metric for note in sample.notes if note.kind == "unit"] == [
        "sglang:cache_hit_rate"
    ]
    assert round(mean_ms(rank.distributions[Distribution.QUEUE_TIME]) / 1000.0, 1) == 11.8


def test_dynamo_lengths_lie_in_one_bucket(pages: Path) -> None:
    """All 170,450 lengths lie in (100, 210], with a mean of 108.0."""
    (rank,) = read(pages, "dynamo_frontend_qwen3-0.6b").ranks
    lengths = rank.distributions[Distribution.PROMPT_LENGTH]
    at = dict(zip(lengths.edges, lengths.cumulative, strict=True))
    assert (at[100.0], at[210.0], round(mean_ms(lengths) / 1000.0, 1)) == (0.0, 170450.0, 108.0)


def test_trimmed_ngram_page_has_its_three_counters(pages: Path) -> None:
    """Acceptance 45.4 %, length 3.27 with the bonus token and 2.27 without follow from them."""
    drafts, drafted, accepted = counters(
        read(pages, "vllm_v1_spec_decode_ngram_trimmed"),
        Counter.DRAFTS,
        Counter.DRAFTED_TOKENS,
        Counter.ACCEPTED_TOKENS,
    )
    assert (drafts, drafted, accepted) == (713.0, 3556.0, 1615.0)


def test_two_engines_keep_their_positions_apart(pages: Path) -> None:
    """Each rank has the positions it reached; `_created` twins are no values."""
    ranks = read(pages, "vllm_v1_spec_decode_two_engines_SYNTHETIC").ranks
    found = [
        (rank.rank, rank.counters[Counter.DRAFTS], rank.accepted_by_position) for rank in ranks
    ]
    assert found == [("0", 4.0, (4.0, 3.0)), ("1", 2.0, (2.0,))]


def test_newest_vllm_tells_tokens_by_where_they_came_from(pages: Path) -> None:
    """Prompt tokens include the cached ones, the capacity is told, the start is read."""
    sample = read(pages, "vllm-0.32-ngram-own")
    names = (Counter.PROMPT_TOKENS, Counter.CACHED_TOKENS, Counter.PREFIX_HITS)
    assert counters(sample, *names) == [13348.0, 4864.0, 4864.0]
    assert [rank.rank for rank in sample.ranks if rank.gauges] == ["0"]
    assert sample.gauge_sum(Gauge.KV_CAPACITY_TOKENS) == 93184.0
    assert (sample.started_at_s, sample.configured["block_size"]) == (1795971644.66, "128")


def test_decode_side_of_a_pair_tells_its_transfers(pages: Path) -> None:
    """4 transfers of 165 MB with 120 descriptors; the hits came from outside."""
    sample = read(pages, "vllm-0.32-nixl-own")
    transfers = (Counter.TRANSFERS, Counter.TRANSFER_BYTES, Counter.TRANSFER_DESCRIPTORS)
    assert counters(sample, *transfers) == [4.0, 165150720.0, 120.0]
    assert counters(sample, Counter.PREFIX_HITS, Counter.EXTERNAL_HITS) == [0.0, 6850.0]


def test_mixed_versions_are_named(pages: Path) -> None:
    """A page that no server gave: names of V0 stand beside newer ones."""
    sample = read(pages, "vllm_datadog_fixture_mixed_versions_EXCERPT")
    assert sample.version == "mixed: names of V0 beside newer ones"
    assert sample.gauge_sum(Gauge.KV_CAPACITY_TOKENS) == 7281.0 * 16.0


@pytest.mark.parametrize(
    ("name", "prompt", "cached"),
    [
        ("llamacpp_server_2025_EXCERPT", 33065.0, None),
        ("llamacpp_server_2026-09_names_SYNTHETIC_EXCERPT", 150000.0, 30000.0),
        ("llamacpp-own", 14964.0, 12465.0),
    ],
)
def test_llamacpp_prompt_tokens_include_the_cached_ones(
    pages: Path, name: str, prompt: float, cached: float | None
) -> None:
    """Whatever the version counts, the reading means the same."""
    sample = read(pages, name)
    assert counters(sample, Counter.PROMPT_TOKENS, Counter.CACHED_TOKENS) == [prompt, cached]


def test_five_megabytes_of_many_ranks_are_read_whole(pages: Path) -> None:
    """A page in the shape that the newest vLLM writes loses no rank; `bench/bench_scrape.py` says what it costs."""
    text = (pages / "vllm-0.32-ngram-own.prom").read_text()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    one = "\n".join(lines) + "\n"
    count = 5_000_000 // len(one) + 1
    body = "".join(one.replace('engine="0"', f'engine="{n}"') for n in range(count)).encode()
    sample = read_sample(body, source="many", at_s=1.0)
    assert len(body) > 5_000_000
    assert len([rank for rank in sample.ranks if rank.gauges]) == count
