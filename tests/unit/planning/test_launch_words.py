"""A plan's words as a vLLM server's, by device and model."""

import msgspec
import pytest

from trimtab.core.layout import PlanInputError
from trimtab.core.served import ModelShape
from trimtab.engines.kv_types import BY_ENGINE, NAMED
from trimtab.engines.model_names import find_model_shape
from trimtab.planning.launch_words import (
    AUTO,
    Server,
    dtype_of,
    kv_dtype_of,
    quantization_of,
    server_of,
    unknown_of_cache,
)

WORDS = (
    "auto", "16", "bf16", "bfloat16", "fp16", "float16", "8", "fp8", "fp8_e4m3", "fp8_e5m2", "int8", "4", "fp4",
    "nvfp4",
)  # fmt: skip
"""What the plan counts memory for."""
DEVICES = ("V100 SXM2 32GB", "T4", "A100 SXM 80GB", "H100 SXM", "B200", "MI300X")
MODELS = ("qwen3-32b", "llama-3.2-1b", "gpt-oss-20b", "deepseek-v3")


def model(name: str) -> ModelShape:
    found = find_model_shape(name)
    assert found is not None
    return found


def gpu(device: str) -> Server:
    return server_of(device, is_cpu=False)


def cpu(*, wide_vectors: bool) -> Server:
    return server_of("a CPU", is_cpu=True, wide_vectors=wide_vectors)


@pytest.mark.parametrize("device", [*DEVICES, "cpu"])
@pytest.mark.parametrize("name", MODELS)
def test_every_word_is_a_name_of_the_engine_or_refused_with_one_that_is_taken(
    device: str, name: str
) -> None:
    """What is passed is in the engine's own list, and what an error offers is never refused itself."""
    server = cpu(wide_vectors=True) if device == "cpu" else gpu(device)
    shape, dtype = model(name), dtype_of(server, "", "llama")
    for word in WORDS:
        try:
            passed = kv_dtype_of(word, dtype=dtype, server=server, model=shape)
        except PlanInputError as error:
            offered = error.nearest
            assert offered
            for near in offered:
                assert kv_dtype_of(near, dtype=dtype, server=server, model=shape)
        else:
            assert passed in (*BY_ENGINE["vllm"], *NAMED["vllm"])


def test_cache_of_four_bits_needs_heads_that_are_read_right() -> None:
    """Heads of 64 are misread before Blackwell."""
    small = model("llama-3.2-1b")
    assert small.head_size == 64
    with pytest.raises(PlanInputError, match="heads of 64"):
        kv_dtype_of("fp4", dtype="bfloat16", server=gpu("H100 SXM"), model=small)
    assert kv_dtype_of("fp4", dtype="bfloat16", server=gpu("B200"), model=small) == "nvfp4"


def test_cpu_without_wide_vectors_has_no_narrow_cache() -> None:
    """vLLM ends there, as it was seen to."""
    shape = model("qwen3-0.6b")
    with pytest.raises(PlanInputError, match="AVX-512"):
        kv_dtype_of("fp8", dtype="bfloat16", server=cpu(wide_vectors=False), model=shape)
    wide = kv_dtype_of("fp8", dtype="bfloat16", server=cpu(wide_vectors=True), model=shape)
    assert wide == "fp8"


@pytest.mark.parametrize(
    ("device", "precision", "dtype"),
    [
        ("T4", "", "float16"),
        ("V100 SXM2 32GB", "bf16", "float16"),
        ("H100 SXM", "", "bfloat16"),
        ("H100 SXM", "fp16", "float16"),
        ("H100 SXM", "float32", "float32"),
        ("T4", "fp32", "float32"),
        ("MI300X", "fp8", "bfloat16"),
    ],
)
def test_type_of_activations_follows_weights_and_device(
    device: str, precision: str, dtype: str
) -> None:
    """Asked for by name where the device has it."""
    assert dtype_of(gpu(device), precision, "llama") == dtype


def test_model_that_overflows_is_refused_at_float16_and_not_at_float32() -> None:
    """The error is of what was asked: the precision, or a device that has nothing else."""
    with pytest.raises(PlanInputError, match="precision: "):
        dtype_of(gpu("H100 SXM"), "fp16", "gemma2")
    with pytest.raises(PlanInputError, match="hardware: "):
        dtype_of(gpu("T4"), "", "gemma3_text")
    assert dtype_of(gpu("T4"), "fp32", "gemma2") == "float32"


def test_only_weights_of_16_bit_are_brought_to_fp8() -> None:
    """What is stored so needs nothing, and what is narrower cannot be made of it."""
    server = gpu("H100 SXM")
    dense, stored = model("qwen3-8b"), model("qwen3-8b-fp8")
    assert quantization_of(dense, "fp8", server).option == "fp8"
    assert quantization_of(stored, "fp8", server) == quantization_of(stored, "", server)
    narrow = quantization_of(model("qwen3-8b-awq"), "fp8", server)
    assert (narrow.option, narrow.stored) == ("", "fp8")


def test_device_without_fp8_of_weights_is_refused() -> None:
    """Turing has it by conversion, Volta has not."""
    shape = model("qwen3-8b")
    assert quantization_of(shape, "fp8", gpu("T4")).option == "fp8"
    with pytest.raises(PlanInputError, match="V100"):
        quantization_of(shape, "fp8", gpu("V100 SXM2 32GB"))


def test_what_was_not_tried_is_said() -> None:
    """A narrow cache was tried on CPUs only; the model's own needs no word."""
    assert "not tried" in unknown_of_cache("fp8", gpu("H100 SXM"))
    assert unknown_of_cache("fp8", cpu(wide_vectors=True)) == ""
    assert unknown_of_cache(AUTO, gpu("H100 SXM")) == ""


def test_model_of_unknown_parts_needs_no_precision() -> None:
    """Without --precision nothing is asked of the checkpoint."""
    shape = msgspec.structs.replace(model("qwen3-8b"), parts=())
    assert quantization_of(shape, "", gpu("H100 SXM")).stored == ""
