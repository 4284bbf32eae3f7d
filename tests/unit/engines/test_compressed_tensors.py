"""Planning a checkpoint: what is lowered, what stays and why, and rules that match what they name."""

import numpy as np
import pytest
from checkpoint_kit import LAYER

from trimtab.core.keep_rules import rule_matches
from trimtab.core.ports import EngineFormatError
from trimtab.engines.compressed_tensors import (
    Scheme,
    encoded,
    fused_only,
    plan_checkpoint,
    quantization_config,
    recipe_of,
    stored_as,
)
from trimtab.engines.gguf_tensors import ATTENTION, FEED_FORWARD, LINEAR, Group
from trimtab.engines.low_precision import Floats
from trimtab.engines.safetensors import StoredTensor


def weights(layers: int = 2) -> tuple[StoredTensor, ...]:
    named: list[tuple[str, tuple[int, ...]]] = [("model.embed_tokens.weight", (100, 64))]
    for layer in range(layers):
        named += [(f"model.layers.{layer}.{name}.weight", shape) for name, shape in LAYER.items()]
        named.append((f"model.layers.{layer}.input_layernorm.weight", (64,)))
    return tuple(StoredTensor(name=name, dtype="BF16", shape=shape) for name, shape in named)


def kept(plan_of: Scheme, **asked: object) -> dict[str, str]:
    plan = plan_checkpoint(weights(), plan_of, LINEAR, **asked)  # type: ignore[arg-type]
    return {one.module: one.kept for one in plan.changes if one.kept}


def test_all_linear_layers_are_lowered_and_head_and_embedding_are_not() -> None:
    """Seven in each layer; the one rule that is left names the head."""
    plan = plan_checkpoint(weights(), Scheme.W8A8, LINEAR)
    assert len(plan.converted) == 14
    assert plan.ignore == ("lm_head",)
    assert "model.embed_tokens.weight" not in plan.converted


def test_groups_that_stay_are_one_rule_each_that_matches_their_layers() -> None:
    """Attention stays: four patterns, and none of them touches a feed-forward layer."""
    plan = plan_checkpoint(weights(), Scheme.FP8, FEED_FORWARD)
    assert len(plan.ignore) == 5
    attention = "model.layers.1.self_attn.q_proj"
    assert any(rule_matches(rule, attention) for rule in plan.ignore)
    assert not any(rule_matches(rule, "model.layers.1.mlp.up_proj") for rule in plan.ignore)


@pytest.mark.parametrize("rule", ["lm_heads", "model.layers.9.mlp.up_proj", r"re:.*\.router$"])
def test_ignore_rule_that_matches_nothing_is_an_error(rule: str) -> None:
    """A misspelt one would quantize what was to stay; it is named, and the nearest module with it."""
    with pytest.raises(EngineFormatError, match="matched nothing; nearest: "):
        plan_checkpoint(weights(), Scheme.W8A8, LINEAR, ignore=(rule,))


def test_ignore_rule_that_is_no_pattern_is_an_error() -> None:
    """It says what is wrong with it."""
    with pytest.raises(EngineFormatError, match="is no pattern"):
        plan_checkpoint(weights(), Scheme.W8A8, LINEAR, ignore=("re:(",))


def test_layer_that_shares_its_kernel_stays_with_its_partner() -> None:
    """q, k and v are one kernel, in one layer; rounding in place has no kernels, so there each stays alone."""
    one = "model.layers.0.self_attn.k_proj"
    joined = kept(Scheme.W8A8, keep=frozenset({f"{one}.weight"}))
    assert set(joined) == {f"model.layers.0.self_attn.{name}_proj" for name in "qkv"}
    assert joined["model.layers.0.self_attn.q_proj"].startswith("shares its kernel")
    assert set(kept(Scheme.ROUNDED_INT8, keep=frozenset({f"{one}.weight"}))) == {one}


def test_columns_that_do_not_divide_into_groups_stay_high() -> None:
    """Four bits need groups of 32."""
    odd = StoredTensor(name="model.layers.0.mlp.down_proj.weight", dtype="BF16", shape=(64, 100))
    tensors = (*(one for one in weights(1) if one.name != odd.name), odd)
    plan = plan_checkpoint(tensors, Scheme.W4A16, LINEAR)
    (stays,) = [one for one in plan.changes if one.kept]
    assert (stays.module, "do not divide" in stays.kept) == (odd.name[:-7], True)


def test_nothing_left_to_convert_is_an_error() -> None:
    """A rung that lowers nothing is not that rung."""
    with pytest.raises(EngineFormatError, match="no linear layer is left"):
        plan_checkpoint(weights(), Scheme.W8A8, LINEAR, ignore=(r"re:model\.layers\.",))


def test_embedding_is_probed_in_place_and_never_held_in_a_scheme() -> None:
    """Rounded alone it is one change; a scheme for it finds nothing to convert."""
    plan = plan_checkpoint(weights(), Scheme.ROUNDED_INT4, (Group.EMBEDDING,))
    assert plan.converted == {"model.embed_tokens.weight"}
    with pytest.raises(EngineFormatError):
        plan_checkpoint(weights(), Scheme.W8A8, (Group.EMBEDDING,))


@pytest.mark.parametrize("scheme", list(Scheme))
def test_encoded_bytes_are_those_that_the_header_announces(scheme: Scheme) -> None:
    """Part by part."""
    tensor = StoredTensor(name="model.layers.0.mlp.up_proj.weight", dtype="BF16", shape=(96, 64))
    values: Floats = np.random.default_rng(3).standard_normal((96, 64)).astype(np.float32)
    announced = [part.size for part in stored_as(tensor, scheme)]
    assert [len(part) for part in encoded(values, scheme)] == announced


def test_configuration_and_recipe_say_the_same() -> None:
    """One scheme, one list of rules; rounded weights are plain to whoever reads them."""
    plan = plan_checkpoint(weights(), Scheme.W8A8, FEED_FORWARD)
    config = quantization_config(plan)
    assert config is not None
    assert (config["format"], config["ignore"]) == ("int-quantized", list(plan.ignore))
    recipe = recipe_of(plan)
    assert '"strategy":"token"' in recipe
    assert recipe.count("\n        - ") == len(plan.ignore)
    rounded = plan_checkpoint(weights(), Scheme.ROUNDED_INT8, LINEAR)
    assert quantization_config(rounded) is None


def test_groups_without_their_kernel_partners_wait() -> None:
    """v alone cannot go down; attention whole can."""
    assert fused_only((Group.ATTENTION_V, Group.FFN_DOWN)) == (Group.FFN_DOWN,)
    assert fused_only(ATTENTION) == ATTENTION
