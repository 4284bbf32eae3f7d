"""Public pages of metrics, and recorded runs as their servers would have told them, read through the command."""

from pathlib import Path

import pytest
from run_kit import Run
from scrape_kit import Told, diagnose, facts

DIAGNOSES = Path(__file__).resolve().parents[2] / "docs/diagnoses"


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


def test_page_of_admission_shows_what_the_command_says(overloaded: Told) -> None:
    """The worked example is this very answer, its confidence included."""
    page = (DIAGNOSES / "queue-admission.md").read_text()
    assert f"(confidence {overloaded.answer['confidence']:.0%};" in page


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


MODEL = ("--model", "meta-llama/Llama-3.1-8B")


@pytest.fixture
def small_memory(public_data: Path) -> Run:
    """Llama-3.1-8B at 10 requests a second on an RTX 4090: its KV cache fills within five seconds."""
    return Run(public_data / "serving/llmservingsim/RTX4090/Llama-3.1-8B/vllm")


@pytest.fixture
def few_slots(public_data: Path) -> Run:
    """The same requests on an RTX PRO 6000 with 128 slots."""
    return Run(public_data / "serving/llmservingsim/Llama-3.1-8B/vllm")


@pytest.mark.parametrize(("start", "end"), [(10, 20), (60, 100), (100, 150)])
def test_recorded_run_with_a_full_cache_is_bound_by_memory(
    small_memory: Run, tmp_path: Path, start: int, end: int
) -> None:
    """While the queue grows and while it drains, the KV cache is what requests wait for."""
    pages = (small_memory.page(start), small_memory.page(end))
    options = ("--between", str(end - start), *MODEL, "--hardware", "RTX 4090")
    told = diagnose(tmp_path, *pages, options=options)
    assert (told.binding, told.code) == (("queue", "memory_capacity"), 1)
    if (start, end) == (60, 100):
        page = (DIAGNOSES / "queue-memory-capacity.md").read_text()
        assert f"(confidence {told.answer['confidence']:.0%};" in page


@pytest.mark.parametrize(("start", "end"), [(15, 25), (20, 30), (30, 40)])
def test_recorded_run_with_full_slots_is_bound_by_admission_and_bandwidth(
    few_slots: Run, tmp_path: Path, start: int, end: int
) -> None:
    """128 streams run and others wait: slots bind the queue, reading memory binds decode, which takes most time."""
    options = ("--between", "10", *MODEL, "--hardware", "RTX PRO 6000")
    pages = (few_slots.page(start, kv=False), few_slots.page(end, kv=False))
    told = diagnose(tmp_path, *pages, options=(*options, *facts(tmp_path, "slots = 128\n")))
    bound = {each["phase"]: each["resource"] for each in told.answer["phases"]}
    assert (bound["queue"], bound["decode"]) == ("admission", "memory_bandwidth")
    assert (told.binding, told.code) == (("decode", "memory_bandwidth"), 1)
    if (start, end) == (20, 30):
        page = (DIAGNOSES / "decode-memory-bandwidth.md").read_text()
        assert f"(confidence {told.answer['confidence']:.0%};" in page


def test_recorded_queue_that_grows_is_seen_before_its_waits_end(
    few_slots: Run, tmp_path: Path
) -> None:
    """The requests that ended waited 20 ms; those that wait now are in no histogram, and are not "hardly queued"."""
    pages = (few_slots.page(15, kv=False), few_slots.page(25, kv=False))
    told = diagnose(tmp_path, *pages, options=("--between", "10"))
    queue = told.answer["phases"][0]
    assert told.reading("queue_ms_mean") < 100
    assert queue["share"] == pytest.approx(0.33, abs=0.02)
    assert "queueing" not in told.said("ruled_out")


def test_recorded_run_without_slots_and_cache_gauge_cannot_say_what_it_waits_for(
    few_slots: Run, tmp_path: Path
) -> None:
    """Neither KV usage nor slots: the queue's resource is unknown."""
    pages = (few_slots.page(15, kv=False), few_slots.page(25, kv=False))
    told = diagnose(tmp_path, *pages, options=("--between", "10"))
    assert told.answer["phases"][0]["resource"] is None
    assert told.binding is None or told.binding[0] != "queue"
