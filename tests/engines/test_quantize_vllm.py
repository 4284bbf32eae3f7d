"""The ladder of precisions on real vLLM servers: rounded in place, with kernels of its own, and KV that is garbage."""

import asyncio
import json
from pathlib import Path

import pytest

from trimtab.core.types import Verdict
from trimtab.engines.compressed_tensors import Scheme
from trimtab.quality.ladder import RungResult
from trimtab.quality.quantized import Quantized
from trimtab.quality.rung_results import loss_gate
from trimtab.runtime import quality_speed
from trimtab.runtime.clock import SystemClock
from trimtab.runtime.quality_texts import CODE, QualityText
from trimtab.runtime.quantize_ask import QuantizeAsk, WalkEngine
from trimtab.runtime.quantize_walk import quantize
from trimtab.runtime.sources import standard_library

pytestmark = [pytest.mark.engine_vllm, pytest.mark.alone, pytest.mark.timeout(900)]

GARBAGE = "int8_per_token_head"
EIGHT_BIT_KV = any(flag in Path("/proc/cpuinfo").read_text() for flag in ("avx512", "amx"))
"""What vLLM's CPU kernels for a KV cache of 8 bits need."""

BRIEF = {"INPUT_TOKENS": 32, "OUTPUT_TOKENS": 8, "LONE_OUTPUT_TOKENS": 12, "WARM_OUTPUT_TOKENS": 4}
"""That both arms are timed in turn is looked at here, not what comes out."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("quantize")


@pytest.fixture(scope="module")
def found(folder: Path) -> Quantized:
    """One walk: four servers start, one of them for everything that keeps the original's shapes."""
    ask = QuantizeAsk(
        model="",
        engine=WalkEngine.VLLM,
        folder=folder,
        texts=(QualityText(CODE, "heapq.py", standard_library()["heapq.py"][:6000]),),
        positions=512,
        kv_types=("auto", GARBAGE),
        rounds=1,
        concurrencies=(2,),
        margin_nats=0.1,
        free_prompts=2,
        only=("int8 rounded", "w8a8", f"bf16, KV {GARBAGE}"),
        sensitivity=False,
        confirm=False,
    )
    with pytest.MonkeyPatch.context() as patch:
        for name, tokens in BRIEF.items():
            patch.setattr(quality_speed, name, tokens)
        return asyncio.run(quantize(ask, SystemClock(), lambda *_: None))


def rung(found: Quantized, label: str) -> RungResult:
    return next(one for one in found.results if one.rung.label == label)


def test_original_beside_itself_shows_no_difference_after_other_weights(found: Quantized) -> None:
    """The second server scores to the last digit what the first one does, in bf16 in every layer."""
    same = rung(found, "bf16")
    assert found.repeats_exactly
    assert same.quality[loss_gate(CODE)].harm == 0.0
    assert set(same.effective["ffn_down"]) == {"plain"}
    assert same.verdict is Verdict.PASS


def test_weights_rounded_in_place_answer_for_quality_alone(found: Quantized) -> None:
    """They cost something, they pass, and no speed is claimed of them."""
    rounded = rung(found, "int8 rounded")
    assert rounded.verdict is Verdict.PASS
    assert rounded.quality[loss_gate(CODE)].harm != 0.0
    assert rounded.speed is None
    assert found.choice.rung != rounded.rung.label


def test_int8_kernels_run_in_every_layer_and_are_timed(found: Quantized, folder: Path) -> None:
    """Read back from the server; the recipe for a GPU machine lies beside the report."""
    eight = rung(found, "w8a8")
    assert eight.effective["ffn_down"] == {"CompressedTensorsW8A8Int8": 30}
    assert eight.effective["attention_q"] == {"CompressedTensorsW8A8Int8": 30}
    assert eight.bits_per_weight < 12
    assert eight.kinds[CODE] is Verdict.PASS
    assert eight.speed is not None
    assert eight.speed.tpot_ms.n == 1
    recipe = (folder / "recipes" / f"{Scheme.W8A8.value}.yaml").read_text()
    assert "QuantizationModifier" in recipe


def test_kv_that_is_garbage_fails_before_any_traffic(found: Quantized) -> None:
    """The server starts without a word; its first text gives it away, and it is asked nothing more.

    On a CPU without AVX-512 vLLM refuses to start with it: that is told in vLLM's words.
    """
    garbage = rung(found, f"bf16, KV {GARBAGE}")
    assert garbage.speed is None
    if EIGHT_BIT_KV:
        assert garbage.verdict is Verdict.FAIL
        assert garbage.because.startswith("garbage: ")
        assert garbage.because.endswith("it met no traffic")
    else:
        assert garbage.verdict is Verdict.ERROR
        assert "requires x86 with AVX-512" in garbage.because


def test_nothing_is_left_but_what_was_chosen(found: Quantized, folder: Path) -> None:
    """Checkpoints of rungs that were not chosen are gone; a chosen one is whole, with its configuration."""
    assert list((folder / "models").iterdir()) == []
    kept = {path.parent for path in folder.rglob("*.safetensors")}
    assert kept == ({Path(found.artifact)} if found.artifact else set())
    for each in kept:
        config = json.loads((each / "config.json").read_text())
        assert config["quantization_config"]["quant_method"] == "compressed-tensors"
