"""GGUF files written again with other types: what changes, what stays, and what is refused."""

from collections.abc import Mapping

import numpy as np
import pytest
from gguf_kit import gguf, layers

from trimtab.engines.gguf import GGUFError, read_header
from trimtab.engines.gguf_rewrite import Floats, plan_conversion, rewritten
from trimtab.engines.gguf_tensors import (
    ATTENTION,
    FEED_FORWARD,
    Group,
    TensorKind,
    bits_per_weight,
    is_tied,
    kinds_by_group,
    place_of,
)


class PlainCodec:
    """Knows F16 and F32, and writes Q8_0 by its definition."""

    def decode(self, raw: bytes, kind: int, shape: tuple[int, ...]) -> Floats:
        values = np.frombuffer(raw, dtype={0: np.float32, 1: np.float16}[kind])
        return values.astype(np.float32).reshape(tuple(reversed(shape)))

    def encode(self, values: Floats, kind: int) -> bytes:
        assert kind == 8
        blocks = values.reshape(-1, 32)
        step = (np.abs(blocks).max(axis=1) / 127.0).astype(np.float16)
        wide = np.where(step == 0, 1, step.astype(np.float32))[:, None]
        codes = np.rint(blocks / wide).clip(-127, 127).astype(np.int8)
        return np.concatenate(
            [step.view(np.uint8).reshape(-1, 2), codes.view(np.uint8)], axis=1
        ).tobytes()


def converted(
    data: bytes, wanted: Mapping[Group, TensorKind], keep: frozenset[str] = frozenset()
) -> bytes:
    plan = plan_conversion(read_header(data, file_bytes=len(data)), wanted, keep)
    return b"".join(rewritten(data, plan, PlainCodec()))


FFN_Q8 = dict.fromkeys(FEED_FORWARD, TensorKind.Q8_0)


def test_chosen_groups_change_and_all_else_stays_byte_for_byte() -> None:
    """Feed-forward becomes Q8_0; attention, norms and embedding keep their bytes."""
    data = gguf(layers())
    before = read_header(data, file_bytes=len(data))
    new = converted(data, FFN_Q8)
    after = read_header(new, file_bytes=len(new))
    kinds = kinds_by_group(after)
    assert {tuple(kinds[group]) for group in FEED_FORWARD} == {("q8_0",)}
    assert {tuple(kinds[group]) for group in ATTENTION} == {("f16",)}
    for old, now in zip(before.table, after.table, strict=True):
        if now.kind == old.kind:
            assert data[old.start : old.start + old.size] == new[now.start : now.start + now.size]


def test_written_values_are_those_of_the_source_but_for_rounding() -> None:
    """No value moves by more than half a step of its block."""
    tensors = layers(1)
    data = gguf(tensors)
    new = converted(data, FFN_Q8)
    header = read_header(new, file_bytes=len(new))
    [down] = [one for one in header.table if one.name == "blk.0.ffn_down.weight"]
    blocks = np.frombuffer(new[down.start : down.start + down.size], dtype=np.uint8).reshape(-1, 34)
    step = blocks[:, :2].copy().view(np.float16).astype(np.float32)
    values = (blocks[:, 2:].view(np.int8) * step).reshape(64, 128)
    source = tensors["blk.0.ffn_down.weight"].astype(np.float16).astype(np.float32)
    assert np.abs(values - source).max() <= 0.51 * step.max()


def test_bits_follow_what_was_written() -> None:
    """Fewer than 16 and more than 8.5, for attention stays."""
    data = gguf(layers())
    new = converted(data, FFN_Q8)
    before = bits_per_weight(read_header(data, file_bytes=len(data)))
    after = bits_per_weight(read_header(new, file_bytes=len(new)))
    assert 8.5 < after < before


def test_kept_tensor_stays_and_says_why() -> None:
    """One layer is held back by name."""
    data = gguf(layers())
    plan = plan_conversion(
        read_header(data, file_bytes=len(data)), FFN_Q8, frozenset({"blk.1.ffn_up.weight"})
    )
    [kept] = [one for one in plan.changes if one.name == "blk.1.ffn_up.weight"]
    assert (kept.after, kept.kept) == ("f16", "held back by name")
    assert len(plan.converted) == 5


def test_rule_that_matches_nothing_is_an_error() -> None:
    """A typo in what is to be kept would silently protect nothing."""
    data = gguf(layers())
    with pytest.raises(GGUFError, match=r"no tensor 'blk\.7\.ffn_up\.weight'"):
        converted(data, FFN_Q8, frozenset({"blk.7.ffn_up.weight"}))


def test_group_without_tensors_is_an_error() -> None:
    """A model of other names would be copied unchanged and pass as quantized."""
    data = gguf({"layers.0.mlp.weight": np.ones((32, 32))}, architecture="strange")
    with pytest.raises(GGUFError, match="no tensors of ffn_gate, ffn_up, ffn_down"):
        converted(data, FFN_Q8)


def test_value_that_is_not_finite_names_its_tensor() -> None:
    """Damaged weights are found before anything is taken for a model."""
    tensors = layers(1)
    tensors["blk.0.ffn_up.weight"][3, 5] = np.nan
    with pytest.raises(
        GGUFError, match=r"'blk\.0\.ffn_up\.weight' holds 1 values that are not finite"
    ):
        converted(gguf(tensors), FFN_Q8)


def test_rows_that_do_not_divide_into_blocks_stay() -> None:
    """48 columns are no whole number of blocks of 32."""
    data = gguf(layers(1, width=48))
    plan = plan_conversion(read_header(data, file_bytes=len(data)), FFN_Q8)
    assert all("do not divide" in one.kept for one in plan.changes if one.group is Group.FFN_UP)


@pytest.mark.parametrize(
    ("name", "group", "layer"),
    [
        ("token_embd.weight", Group.EMBEDDING, None),
        ("output.weight", Group.HEAD, None),
        ("blk.11.attn_k.weight", Group.ATTENTION_K, 11),
        ("blk.3.ffn_down_exps.weight", Group.FFN_DOWN, 3),
        ("blk.3.ffn_norm.weight", Group.OTHER, 3),
        ("blk.3.attn_q.bias", Group.OTHER, None),
        ("rope_freqs.weight", Group.OTHER, None),
    ],
)
def test_place_of_a_tensor_is_told_by_its_name(name: str, group: Group, layer: int | None) -> None:
    """Norms, biases and unknown names are never lowered."""
    assert (place_of(name).group, place_of(name).layer) == (group, layer)


def test_model_without_a_head_of_its_own_is_tied() -> None:
    """Then the embedding is the head."""
    tied = gguf(layers(1))
    own = gguf({**layers(1), "output.weight": np.ones((96, 64))})
    assert is_tied(read_header(tied, file_bytes=len(tied)))
    assert not is_tied(read_header(own, file_bytes=len(own)))
