"""Real pages of engines, as an attached server would show them: which engine, how loaded, what to advise."""

from pathlib import Path

import msgspec
import pytest

from trimtab.core.served import EngineKind, ServerSample
from trimtab.core.types import Phase
from trimtab.engines.attached import identity_of, kind_of_server
from trimtab.engines.served import read_sample
from trimtab.engines.served_load import EngineLoad, has_restarted, load_of, readings_of_sample
from trimtab.runtime.attached_advice import advice_words, advise_attached

RECORDED = Path(__file__).parent / "transcripts" / "live"
LOADS = {
    "sglang_2025_overloaded_llama31-8b": (EngineKind.SGLANG, 162, 2826, 0.28),
    "sglang_2024_first_metrics_gemma2-9b": (EngineKind.SGLANG, 0, 0, 0.01),
    "vllm-0.32-ngram-own": (EngineKind.VLLM, 0, 0, 0.0),
    "vllm_0.30_renamed_only_SYNTHETIC": (EngineKind.VLLM, None, None, 0.4),
    "llamacpp-own": (EngineKind.LLAMACPP, 0, 0, None),
    "tgi_datadog_payload_EXCERPT": (EngineKind.TGI, 0, 0, None),
}


def sample_at(path: Path, at_s: float) -> ServerSample:
    return read_sample(path.read_bytes(), source="a", at_s=at_s)


@pytest.mark.parametrize("name", sorted(LOADS))
def test_load_of_a_real_page_is_told_or_unknown(public_data: Path, name: str) -> None:
    """Old and new names, percent and share, engines without a gauge: the same words, and no zero for unknown."""
    path = public_data / "metrics" / f"{name}.prom"
    if not path.is_file():
        pytest.skip("public data: the pages of metrics are absent")
    sample = sample_at(path, 1.0)
    engine, running, waiting, share = LOADS[name]
    load = load_of(sample)
    assert kind_of_server(sample, None) is engine
    assert (load.running, load.waiting, load.kv_used_share) == (running, waiting, share)


@pytest.mark.parametrize(
    ("folder", "engine"),
    [("vllm/long-prompts", EngineKind.VLLM), ("embedded/long-prompts", EngineKind.LLAMACPP)],
)
def test_recorded_servers_are_identified(folder: str, engine: EngineKind) -> None:
    """By their metrics alone; a list of models adds its names."""
    sample = sample_at(RECORDED / folder / "0-0.prom", 1.0)
    models = b'{"object":"list","data":[{"id":"m","owned_by":"x"}]}'
    found = identity_of(kind_of_server(sample, models), models=models, sample=sample, own=None)
    assert (found.engine, found.models[0]) == (engine, "m")
    assert not found.slots_told


def test_counters_of_a_window_go_on_and_are_no_restart() -> None:
    """Three pages of one server in order; in reverse they would be one."""
    pages = [sample_at(RECORDED / "vllm" / "long-prompts" / f"0-{n}.prom", n) for n in range(3)]
    assert not has_restarted(pages[0], pages[2])
    grown = [readings_of_sample(page, source="a").value("prompt_tokens_total") for page in pages]
    assert None not in grown
    assert grown == sorted(grown, key=lambda value: value or 0.0)
    assert grown[0] != grown[2]
    lower = msgspec.structs.replace(pages[0], started_at_s=pages[2].started_at_s)
    assert has_restarted(pages[2], lower)


def test_advice_for_attached_servers_is_that_of_their_own_pages() -> None:
    """Long prompts on vLLM bind prefill; what would relieve it is for whoever runs the servers."""
    folder = RECORDED / "vllm" / "long-prompts"
    pages = tuple(sample_at(folder / f"0-{n}.prom", 100.0 + 15.0 * n) for n in range(3))
    advice = advise_attached([("a", pages)], at_s=131.0)
    assert advice is not None
    assert advice.binding is not None
    assert advice.binding.phase is Phase.PREFILL
    assert advice_words(advice).startswith("prefill is bound by ")


def test_one_page_is_no_window() -> None:
    """Nothing has grown yet: nothing is said."""
    page = sample_at(RECORDED / "vllm" / "long-prompts" / "0-0.prom", 1.0)
    assert advise_attached([("a", (page,))], at_s=1.0) is None
    assert load_of(page) != EngineLoad()
