"""Weights at another precision: which parts narrow, by how much, and what is refused."""

import pytest

from trimtab.core.layout import PlanInputError
from trimtab.core.model_parts import PartName
from trimtab.core.served import ModelShape
from trimtab.engines.model_names import find_model_shape
from trimtab.planning.precision import (
    PRECISIONS,
    find_kv_bits,
    find_precision,
    stored_bits,
    with_precision,
)


def model(name: str) -> ModelShape:
    found = find_model_shape(name)
    assert found is not None
    return found


def bits(shape: ModelShape, name: PartName) -> float:
    return next(part.bits for part in shape.parts if part.name is name)


def test_fp8_halves_matrices_and_leaves_embeddings() -> None:
    """Llama 3.1 8B: 6.98 of 8.03 billion parameters at one byte, the others at two."""
    narrow = with_precision(model("llama-3.1-8b"), "fp8")
    assert bits(narrow, PartName.DENSE) == 8.0
    assert bits(narrow, PartName.EMBEDDING) == 16.0
    assert narrow.weight_bytes == pytest.approx(9.08e9, rel=2e-3)


def test_four_bit_floats_leave_latent_attention_wide() -> None:
    """As makers publish DeepSeek in NVFP4: experts at 4.5 bits, attention at 16."""
    narrow = with_precision(model("deepseek-r1"), "nvfp4")
    assert bits(narrow, PartName.EXPERTS) == 4.5
    assert bits(narrow, PartName.ATTENTION) == 16.0


@pytest.mark.parametrize(
    ("name", "precision"),
    [("deepseek-r1", "fp8"), ("gpt-oss-120b", "fp4"), ("llama-3.1-8b", "bf16")],
)
def test_checkpoint_that_is_stored_so_already_stays_as_it_is(name: str, precision: str) -> None:
    """The file's own scales are believed over the usual ones."""
    assert with_precision(model(name), precision) is not None
    assert with_precision(model(name), precision).weight_bytes == model(name).weight_bytes


@pytest.mark.parametrize("precision", PRECISIONS)
def test_sizes_by_part_sum_up_at_every_precision(precision: str) -> None:
    """Total, experts and lookup follow from the parts."""
    found = with_precision(model("qwen3-30b-a3b"), precision)
    assert found.weight_bytes == pytest.approx(sum(part.bytes for part in found.parts))
    experts = next(part for part in found.parts if part.name is PartName.EXPERTS)
    assert found.expert_bytes == experts.bytes


@pytest.mark.parametrize(
    ("written", "name"),
    [("FP16", "bf16"), ("w8a8", "int8"), ("fp4", "nvfp4"), ("int4", "w4a16")],
)
def test_other_writings_of_a_precision_are_known(written: str, name: str) -> None:
    """What engines call it and what people call it."""
    assert find_precision(written).name == name


def test_unknown_precision_names_the_field_and_the_nearest() -> None:
    """A precision that does not exist offers those that look alike."""
    with pytest.raises(PlanInputError) as caught:
        find_precision("fp9")
    assert caught.value.field == "precision"
    assert "fp8" in caught.value.nearest


def test_unknown_cache_precision_names_the_field() -> None:
    """KV has precisions of its own."""
    assert (find_kv_bits("auto"), find_kv_bits("fp8_e4m3")) == (16, 8)
    with pytest.raises(PlanInputError) as caught:
        find_kv_bits("fp7")
    assert caught.value.field == "kv_precision"


def test_model_of_unknown_parts_cannot_be_narrowed() -> None:
    """Without parts nobody knows what would shrink."""
    with pytest.raises(PlanInputError, match="precision"):
        with_precision(ModelShape(name="m", source="a test", weight_bytes=1.0), "fp8")


def test_stored_width_is_that_of_the_largest_matrices() -> None:
    """Experts tell it for mixtures, the feed forward for dense models."""
    assert stored_bits(model("gpt-oss-120b")) == 4.25
    assert stored_bits(model("llama-3.1-8b")) == 16.0
