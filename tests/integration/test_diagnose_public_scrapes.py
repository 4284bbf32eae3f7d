"""Real pages of metrics that are public, read through the command."""

from pathlib import Path

import pytest
from scrape_kit import Told, diagnose


def told_of(public_data: Path, folder: Path, name: str) -> Told:
    return diagnose(folder, (public_data / "metrics" / name).read_bytes())


@pytest.fixture
def overloaded(public_data: Path, tmp_path: Path) -> Told:
    """SGLang with 162 requests running and 2,826 waiting."""
    return told_of(public_data, tmp_path, "sglang_2025_overloaded_llama31-8b.prom")


def test_overloaded_sglang_is_bound_by_admission(overloaded: Told) -> None:
    """The queue binds by admission; a KV cache used to 28% is ruled out."""
    assert overloaded.binding == ("queue", "admission")
    assert overloaded.code == 1
    assert any("KV" in each["text"] for each in overloaded.answer["ruled_out"])


def test_overloaded_sglang_has_first_tokens_above_the_last_edge(overloaded: Told) -> None:
    """77% of the first tokens lie beyond 30 s: p50 and p99 are "> 30 s" and never 30 s; the mean is known."""
    readings = overloaded.answer["readings"]
    assert [readings[name]["said"] for name in ("ttft_ms_p50", "ttft_ms_p99")] == ["> 30 s"] * 2
    assert readings["ttft_ms_mean"]["value"] == pytest.approx(213_653, abs=1)


def test_overloaded_sglang_has_a_gauge_that_is_not_believed(overloaded: Told) -> None:
    """86 tokens per second contradict 162 streams at 117 ms per token."""
    assert "gauge_contradicts" in {each["kind"] for each in overloaded.answer["warnings"]}
    assert "decode" not in overloaded.said("binding")


def test_trimmed_vllm_ngram_scrape_tells_both_lengths_by_name(
    public_data: Path, tmp_path: Path
) -> None:
    """Acceptance 45.4%; acceptance length 3.27 with and 2.27 without the bonus token, each labelled."""
    told = told_of(public_data, tmp_path, "vllm_v1_spec_decode_ngram_trimmed.prom")
    assert told.reading("draft_acceptance_share") == pytest.approx(0.454, abs=5e-4)
    assert told.reading("accepted_length_with_bonus") == pytest.approx(3.27, abs=5e-3)
    assert told.reading("accepted_length_without_bonus") == pytest.approx(2.27, abs=5e-3)
    assert (told.binding, told.code) == (None, 4)


def test_dynamo_quantile_has_its_bucket_beside_it(public_data: Path, tmp_path: Path) -> None:
    """All prompts lie in (100, 210]: p99 is between those, and the mean is 108."""
    told = told_of(public_data, tmp_path, "dynamo_frontend_qwen3-0.6b.prom")
    note = told.answer["readings"]["prompt_length_p99"]["note"]
    assert "100" in note
    assert "210" in note
    assert told.reading("prompt_length_mean") == pytest.approx(108.0, abs=0.05)


def test_two_engines_are_added_before_shares_are_taken(public_data: Path, tmp_path: Path) -> None:
    """45 of 90 drafted tokens over both ranks; the `_created` twin is no value."""
    told = told_of(public_data, tmp_path, "vllm_v1_spec_decode_two_engines_SYNTHETIC.prom")
    assert told.reading("draft_acceptance_share") == pytest.approx(0.5)
    assert told.reading("accepted_length_with_bonus") == pytest.approx(8.5)


@pytest.mark.parametrize(
    ("name", "engine"),
    [
        ("llamacpp-own.prom", "llamacpp"),
        ("llamacpp_server_2025_EXCERPT.prom", "llamacpp"),
        ("llamacpp_server_2026-09_names_SYNTHETIC_EXCERPT.prom", "llamacpp"),
        ("sglang_2024_first_metrics_gemma2-9b.prom", "sglang"),
        ("tgi_datadog_payload_EXCERPT.prom", "tgi"),
        ("vllm-0.32-ngram-own.prom", "vllm"),
        ("vllm-0.32-nixl-own.prom", "vllm"),
        ("vllm_0.30_renamed_only_SYNTHETIC.prom", "vllm"),
        ("vllm_datadog_fixture_mixed_versions_EXCERPT.prom", "vllm"),
        ("dynamo_worker_gauges_excerpt.prom", "dynamo_worker"),
    ],
)
def test_every_public_page_is_read_as_its_engine(
    public_data: Path, tmp_path: Path, name: str, engine: str
) -> None:
    """Each page is told apart by its names and answered, whatever the answer."""
    told = told_of(public_data, tmp_path, name)
    assert told.answer["sources"][0]["engine"] == engine
    assert told.code in {0, 1, 4}


def test_first_token_without_the_wait_is_told_apart(public_data: Path, tmp_path: Path) -> None:
    """The first SGLang's TTFT leaves the queue out: 0.3 s beside a wait of 11.8 s is said, not mixed."""
    told = told_of(public_data, tmp_path, "sglang_2024_first_metrics_gemma2-9b.prom")
    assert "leaves the wait out" in told.said("warnings")
    assert told.reading("queue_ms_mean") == pytest.approx(11_800, rel=0.01)
    assert told.reading("ttft_ms_mean") > told.reading("queue_ms_mean")
