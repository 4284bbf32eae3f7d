"""What the tensors of a GGUF do in the model, and the types they may be written in.

Names are those of llama.cpp's converters, which most architectures share. A tensor with another name is kept as it is.
"""

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import msgspec

from trimtab.engines.gguf import GGUFHeader, Tensor, block_of


class TensorKind(StrEnum):
    """Types that weights are written in, from most bits to fewest."""

    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    Q8_0 = "q8_0"
    Q5_1 = "q5_1"
    Q5_0 = "q5_0"
    Q4_1 = "q4_1"
    Q4_0 = "q4_0"


NUMBERS: Final[Mapping[TensorKind, int]] = {
    TensorKind.F32: 0,
    TensorKind.F16: 1,
    TensorKind.BF16: 30,
    TensorKind.Q8_0: 8,
    TensorKind.Q5_1: 7,
    TensorKind.Q5_0: 6,
    TensorKind.Q4_1: 3,
    TensorKind.Q4_0: 2,
}
"""ggml's numbers of the types."""

KIND_NAMES: Final[Mapping[int, str]] = {
    **{number: kind.value for kind, number in NUMBERS.items()},
    10: "q2_k",
    11: "q3_k",
    12: "q4_k",
    13: "q5_k",
    14: "q6_k",
    15: "q8_k",
}


class Group(StrEnum):
    """What a tensor is for. `OTHER`: norms, biases and whatever is not known; never lowered."""

    EMBEDDING = "embedding"
    HEAD = "head"
    ATTENTION_Q = "attention_q"
    ATTENTION_K = "attention_k"
    ATTENTION_V = "attention_v"
    ATTENTION_OUTPUT = "attention_output"
    FFN_GATE = "ffn_gate"
    FFN_UP = "ffn_up"
    FFN_DOWN = "ffn_down"
    OTHER = "other"


ATTENTION: Final = (
    Group.ATTENTION_Q,
    Group.ATTENTION_K,
    Group.ATTENTION_V,
    Group.ATTENTION_OUTPUT,
)
FEED_FORWARD: Final = (Group.FFN_GATE, Group.FFN_UP, Group.FFN_DOWN)
LINEAR: Final = (*ATTENTION, *FEED_FORWARD)

_LAYER: Final = re.compile(r"blk\.(\d+)\.([a-z_]+?)(?:_exps|_shexp)?\.weight")
_OF_LAYER: Final = {
    "attn_q": Group.ATTENTION_Q,
    "attn_k": Group.ATTENTION_K,
    "attn_v": Group.ATTENTION_V,
    "attn_output": Group.ATTENTION_OUTPUT,
    "ffn_gate": Group.FFN_GATE,
    "ffn_up": Group.FFN_UP,
    "ffn_down": Group.FFN_DOWN,
}
_WHOLE: Final = {"token_embd.weight": Group.EMBEDDING, "output.weight": Group.HEAD}


class TensorPlace(msgspec.Struct, frozen=True):
    """A tensor's group, and its layer where it has one."""

    group: Group
    layer: int | None


def place_of(name: str) -> TensorPlace:
    """Say what a tensor is for by its name."""
    if (whole := _WHOLE.get(name)) is not None:
        return TensorPlace(whole, None)
    found = _LAYER.fullmatch(name)
    if found is None:
        return TensorPlace(Group.OTHER, None)
    return TensorPlace(_OF_LAYER.get(found[2], Group.OTHER), int(found[1]))


def can_be(tensor: Tensor, kind: TensorKind) -> bool:
    """Whether a tensor's rows divide into whole blocks of a type."""
    block = block_of(NUMBERS[kind])
    return block is not None and len(tensor.shape) >= 2 and tensor.shape[0] % block[0] == 0


def is_tied(header: GGUFHeader) -> bool:
    """Whether the output head is the input embedding: then one cannot be lowered without the other."""
    return all(tensor.name != "output.weight" for tensor in header.table)


def kinds_by_group(header: GGUFHeader) -> dict[Group, dict[str, int]]:
    """Count the tensors of each type in each group; what a file really holds."""
    found: dict[Group, dict[str, int]] = {}
    for tensor in header.table:
        name = KIND_NAMES.get(tensor.kind, f"type {tensor.kind}")
        counts = found.setdefault(place_of(tensor.name).group, {})
        counts[name] = counts.get(name, 0) + 1
    return found


def bits_per_weight(header: GGUFHeader) -> float:
    """Return the mean bits of a weight over the whole file."""
    values = sum(header.values.values())
    return 8.0 * sum(tensor.size for tensor in header.table) / values if values else 0.0
