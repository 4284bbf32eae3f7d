"""What the kernel tables' package calls things."""

import pytest

from trimtab.runtime.kernel_names import (
    candidates,
    checkpoints_of,
    near_models,
    system_of,
    width_in,
)

CARRIED = (
    "Qwen/Qwen3-32B",
    "Qwen/Qwen3-32B-FP8",
    "deepseek-ai/DeepSeek-R1",
    "deepseek-ai/DeepSeek-V3",
    "meta-llama/Meta-Llama-3.1-8B",
    "nvidia/DeepSeek-V3.1-NVFP4",
    "openai/gpt-oss-120b",
)
OWN = {
    "Qwen/Qwen3-32B-FP8": "fp8_block",
    "deepseek-ai/DeepSeek-R1": "fp8_block",
    "deepseek-ai/DeepSeek-V3": "fp8_block",
    "nvidia/DeepSeek-V3.1-NVFP4": "nvfp4",
    "openai/gpt-oss-120b": "mxfp4",
}


@pytest.mark.parametrize(
    ("name", "system"),
    [
        ("H100", "h100_sxm"),
        ("NVIDIA H200", "h200_sxm"),
        ("h100_sxm", "h100_sxm"),
        ("GB200", "gb200"),
        ("T4", None),
        ("no such thing", None),
    ],
)
def test_device_is_found_by_any_of_its_names(name: str, system: str | None) -> None:
    """People, drivers and tables call it differently; a device without tables has none."""
    assert system_of(name) == system


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("Qwen/Qwen3-32B", "Qwen/Qwen3-32B"),
        ("qwen3-32b", "Qwen/Qwen3-32B"),
        ("Qwen/Qwen3-32B-FP8", "Qwen/Qwen3-32B-FP8"),
        ("meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Meta-Llama-3.1-8B"),
        ("deepseek-r1-0528", "deepseek-ai/DeepSeek-R1"),
    ],
)
def test_model_is_found_without_owner_and_variant(name: str, first: str) -> None:
    """Variants share a shape; the name itself comes first."""
    assert checkpoints_of(name, CARRIED)[0] == first


@pytest.mark.parametrize(
    ("name", "width"),
    [("nvidia/DeepSeek-R1-NVFP4", "nvfp4"), ("Qwen3-32B-FP8", "fp8"), ("Qwen/Qwen3-32B", "")],
)
def test_width_in_a_name_is_read_as_a_precision(name: str, width: str) -> None:
    """A variant that is not carried is asked for by the precision that its name states."""
    assert width_in(name) == width


def test_model_that_is_not_carried_is_not_handed_on() -> None:
    """The package would look it up over the network."""
    assert checkpoints_of("somebody/new-model-9b", CARRIED) == ()
    assert near_models("Qwen3-33B", CARRIED)[0].startswith("Qwen/Qwen3-32B")


def asked(name: str, precision: str, *, dense: bool, kv_bits: float | None = None) -> list[str]:
    found = candidates(
        checkpoints_of(name, CARRIED), OWN, precision=precision, kv_bits=kv_bits,
        system="b200_sxm", dense=dense,
    )  # fmt: skip
    return [f"{each.model} {each.gemm} {each.moe} {each.kv}" for each in found]


def test_precision_as_stored_overrides_nothing() -> None:
    """The checkpoint knows."""
    assert asked("Qwen/Qwen3-32B", "", dense=True) == ["Qwen/Qwen3-32B None None None"]


def test_eight_bit_of_a_dense_model_has_one_scale_a_matrix_first() -> None:
    """That is how such models are narrowed at the start; blocks come second."""
    assert asked("Qwen/Qwen3-32B", "fp8", dense=True) == [
        "Qwen/Qwen3-32B fp8 fp8 None",
        "Qwen/Qwen3-32B fp8_block fp8_block None",
    ]


def test_eight_bit_of_a_checkpoint_that_stores_it_is_its_own() -> None:
    """DeepSeek's weights are in blocks already."""
    assert asked("deepseek-ai/DeepSeek-R1", "fp8", dense=False)[0] == (
        "deepseek-ai/DeepSeek-R1 None None None"
    )


def test_four_bit_floats_take_the_checkpoint_that_has_them() -> None:
    """Its makers left some matrices wide, which a plain override would not know."""
    assert asked("deepseek-ai/DeepSeek-R1", "nvfp4", dense=False)[0] == (
        "nvidia/DeepSeek-V3.1-NVFP4 None None None"
    )


def test_cache_precision_that_tables_lack_falls_back_and_says_so() -> None:
    """An eight-bit checkpoint with a 16-bit cache may not be measured."""
    found = candidates(
        ("Qwen/Qwen3-32B",), {}, precision="", kv_bits=16, system="h100_sxm", dense=True
    )
    assert [each.kv for each in found] == ["bfloat16", None]
    assert "KV cache as the checkpoint implies" in found[1].note


def test_precision_without_tables_is_replaced_and_says_so() -> None:
    """INT8 weights are taken as FP8."""
    found = candidates(
        ("Qwen/Qwen3-32B",), {}, precision="int8", kv_bits=None, system="h100_sxm", dense=True
    )
    assert found[0].note == "no tables for int8: taken as FP8"
