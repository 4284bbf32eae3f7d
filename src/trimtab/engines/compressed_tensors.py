"""Checkpoints of the compressed-tensors format, planned from the tensors of an unquantized one.

Names are those of Hugging Face's decoder models: `...layers.N.self_attn.q_proj.weight` and so on. A tensor with another
name is kept as it is. vLLM joins q, k and v, and gate and up, in one kernel each: such layers get one scheme or none.

    scheme         stored in place of NAME.weight [rows, columns] bf16
    int8 rounded   NAME.weight bf16, rounded to int8 rows and back: what the rounding costs, nothing of its speed
    W4A16          NAME.weight_packed I32 [rows, columns/8], weight_scale BF16 [rows, columns/32], weight_shape I64 [2]
    W8A8           NAME.weight I8, weight_scale F32 [rows, 1]; activations to int8 by token, as they come
    FP8            NAME.weight F8_E4M3, weight_scale F32 [rows, 1]; activations to e4m3 by token, as they come
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Final, assert_never

import msgspec
import numpy as np

from trimtab.core.keep_rules import nothing_kept, rule_matches
from trimtab.core.ports import EngineFormatError
from trimtab.engines.gguf_tensors import LINEAR, Group, TensorPlace
from trimtab.engines.low_precision import (
    INT4_GROUP,
    Floats,
    fp8_rows,
    int4_groups,
    int8_rows,
    packed_int4,
    rounded_int4,
    rounded_int8,
    to_bf16,
)
from trimtab.engines.safetensors import StoredTensor

HEAD_MODULE: Final = "lm_head"
_LAYER: Final = re.compile(r"(?:.*\.)?layers\.(\d+)\.(?:self_attn|mlp)\.(\w+)")
_OF_LAYER: Final = {
    "q_proj": Group.ATTENTION_Q,
    "k_proj": Group.ATTENTION_K,
    "v_proj": Group.ATTENTION_V,
    "o_proj": Group.ATTENTION_OUTPUT,
    "gate_proj": Group.FFN_GATE,
    "up_proj": Group.FFN_UP,
    "down_proj": Group.FFN_DOWN,
}
_WORDS: Final = {
    group: f"{'self_attn' if word[0] in 'qkvo' else 'mlp'}.{word}"
    for word, group in _OF_LAYER.items()
}
FUSED: Final = (
    frozenset({Group.ATTENTION_Q, Group.ATTENTION_K, Group.ATTENTION_V}),
    frozenset({Group.ATTENTION_OUTPUT}),
    frozenset({Group.FFN_GATE, Group.FFN_UP}),
    frozenset({Group.FFN_DOWN}),
)
"""Groups whose layers share a kernel."""


class Scheme(StrEnum):
    """How the weights of a rung are held, and whether activations go down with them."""

    ROUNDED_INT8 = "int8 rounded"
    ROUNDED_INT4 = "int4 rounded"
    W4A16 = "w4a16"
    W8A8 = "w8a8"
    FP8 = "fp8"

    @property
    def is_rounded(self) -> bool:
        """Whether weights are rounded and stored at their first width again."""
        return self in (Scheme.ROUNDED_INT8, Scheme.ROUNDED_INT4)


class ModuleChange(msgspec.Struct, frozen=True, kw_only=True):
    """What the weights of one linear layer become, or why they stay: `kept` is empty where they change."""

    module: str
    group: Group
    layer: int | None
    kept: str = ""


class CheckpointPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a checkpoint becomes. `ignore`: rules for whoever reads it, each of which matches a module."""

    scheme: Scheme
    changes: tuple[ModuleChange, ...]
    ignore: tuple[str, ...]

    @property
    def converted(self) -> frozenset[str]:
        """Names of the weights that change."""
        return frozenset(f"{one.module}.weight" for one in self.changes if not one.kept)


def place_of_weight(name: str) -> TensorPlace:
    """Say what a tensor is for by its name."""
    module, _, kind = name.rpartition(".")
    if kind != "weight":
        return TensorPlace(Group.OTHER, None)
    if module.endswith("embed_tokens"):
        return TensorPlace(Group.EMBEDDING, None)
    if module.endswith(HEAD_MODULE):
        return TensorPlace(Group.HEAD, None)
    found = _LAYER.fullmatch(module)
    if found is None:
        return TensorPlace(Group.OTHER, None)
    return TensorPlace(_OF_LAYER.get(found[2], Group.OTHER), int(found[1]))


def modules_of(tensors: Sequence[StoredTensor]) -> tuple[str, ...]:
    """Return the linear modules of a checkpoint; the output head is one though it may be the embedding's weights."""
    found = [
        one.name.removesuffix(".weight")
        for one in tensors
        if one.name.endswith(".weight")
        and len(one.shape) == 2
        and place_of_weight(one.name).group not in (Group.EMBEDDING, Group.HEAD)
    ]
    return (*found, HEAD_MODULE)


def plan_checkpoint(
    tensors: Sequence[StoredTensor],
    scheme: Scheme,
    lowered: Sequence[Group],
    *,
    keep: frozenset[str] = frozenset(),
    ignore: Sequence[str] = (),
) -> CheckpointPlan:
    """Plan a rung. `keep`: names of weights that stay; `ignore`: a user's rules, exact names or `re:` and a pattern.

    Raises `EngineFormatError` for a rule that matches no module, and where nothing is left to convert.
    """
    modules = modules_of(tensors)
    check_ignore(ignore, modules)
    # Embedding and head are no more than probed: rounded in place, to see what that would cost.
    able = (*LINEAR, *(lowered if scheme.is_rounded else ()))
    changes: list[ModuleChange] = []
    for tensor in tensors:
        place = place_of_weight(tensor.name)
        if place.group not in able or len(tensor.shape) != 2:
            continue
        module = tensor.name.removesuffix(".weight")
        why = _kept_because(tensor, place.group, scheme, lowered, keep)
        if not why and any(rule_matches(rule, module) for rule in ignore):
            why = "named by an ignore rule"
        changes.append(ModuleChange(module=module, group=place.group, layer=place.layer, kept=why))
    if not scheme.is_rounded:
        changes = _joined(changes)
    if all(one.kept for one in changes):
        raise EngineFormatError(f"no linear layer is left to be held as {scheme.value}")
    rules = _rules(changes, modules)
    check_ignore(rules, modules)
    return CheckpointPlan(scheme=scheme, changes=tuple(changes), ignore=rules)


def _kept_because(
    tensor: StoredTensor,
    group: Group,
    scheme: Scheme,
    lowered: Sequence[Group],
    keep: frozenset[str],
) -> str:
    if group not in lowered:
        return "its group stays high"
    if tensor.name in keep:
        return "heavy in outliers"
    if scheme in (Scheme.W4A16, Scheme.ROUNDED_INT4) and tensor.shape[1] % INT4_GROUP:
        return f"{tensor.shape[1]} columns do not divide into groups of {INT4_GROUP}"
    return ""


def _joined(changes: Sequence[ModuleChange]) -> list[ModuleChange]:
    """Keep a layer whose kernel is shared with one that stays."""
    stays = {(one.layer, _fused(one.group)): one.module for one in changes if one.kept}
    return [
        msgspec.structs.replace(one, kept=f"shares its kernel with {other}, which stays")
        if not one.kept and (other := stays.get((one.layer, _fused(one.group)))) is not None
        else one
        for one in changes
    ]


def _fused(group: Group) -> frozenset[Group]:
    return next((one for one in FUSED if group in one), frozenset({group}))


def fused_only(groups: Sequence[Group]) -> tuple[Group, ...]:
    """Return those groups of which every partner in a shared kernel is named too."""
    return tuple(group for group in groups if _fused(group) <= set(groups))


def _rules(changes: Sequence[ModuleChange], modules: Sequence[str]) -> tuple[str, ...]:
    """Return rules for all modules that stay, as few as say it: whole groups by a pattern, single layers by name."""
    rules: list[str] = []
    for group in LINEAR:
        mine = [one for one in changes if one.group is group]
        kept = [one.module for one in mine if one.kept]
        if kept and len(kept) == len(mine):
            rules.append(rf"re:.*\.{re.escape(_WORDS[group])}$")
        else:
            rules += kept
    known = {one.module for one in changes}
    return (*rules, *(module for module in modules if module not in known))


def check_ignore(rules: Sequence[str], modules: Sequence[str]) -> None:
    """Raise `EngineFormatError` for a rule that is no pattern or matches nothing."""
    for rule in rules:
        if (wrong := nothing_kept(rule, modules)) is not None:
            raise EngineFormatError(wrong)


def stored_as(tensor: StoredTensor, scheme: Scheme) -> tuple[StoredTensor, ...]:
    """Return what a converted weight is stored as, in order."""
    module = tensor.name.removesuffix(".weight")
    rows, columns = tensor.shape
    parts: tuple[tuple[str, str, tuple[int, ...]], ...]
    match scheme:
        case Scheme.ROUNDED_INT8 | Scheme.ROUNDED_INT4:
            parts = (("weight", "BF16", (rows, columns)),)
        case Scheme.W4A16:
            parts = (
                ("weight_packed", "I32", (rows, columns // 8)),
                ("weight_scale", "BF16", (rows, columns // INT4_GROUP)),
                ("weight_shape", "I64", (2,)),
            )
        case Scheme.W8A8:
            parts = (("weight", "I8", (rows, columns)), ("weight_scale", "F32", (rows, 1)))
        case Scheme.FP8:
            parts = (("weight", "F8_E4M3", (rows, columns)), ("weight_scale", "F32", (rows, 1)))
        case _:
            assert_never(scheme)
    return tuple(
        StoredTensor(name=f"{module}.{name}", dtype=dtype, shape=shape)
        for name, dtype, shape in parts
    )


def encoded(values: Floats, scheme: Scheme) -> Iterator[bytes]:
    """Yield the bytes of what `stored_as` names."""
    match scheme:
        case Scheme.ROUNDED_INT8:
            yield to_bf16(rounded_int8(values))
        case Scheme.ROUNDED_INT4:
            yield to_bf16(rounded_int4(values))
        case Scheme.W4A16:
            fours, scales = int4_groups(values)
            yield packed_int4(fours).tobytes()
            yield to_bf16(scales)
            yield np.array(values.shape, dtype=np.int64).tobytes()
        case Scheme.W8A8:
            eights, scales = int8_rows(values)
            yield eights.tobytes()
            yield scales.tobytes()
        case Scheme.FP8:
            floats, scales = fp8_rows(values)
            yield floats.tobytes()
            yield scales.tobytes()
        case _:
            assert_never(scheme)


def scheme_groups(scheme: Scheme) -> dict[str, object]:
    """Return the `config_groups` that checkpoint and recipe share; a rounded scheme is weight-only there."""
    match scheme:
        case Scheme.ROUNDED_INT8:
            weights, activations = _number(8, "int", "channel"), None
        case Scheme.ROUNDED_INT4 | Scheme.W4A16:
            weights, activations = _number(4, "int", "group", group_size=INT4_GROUP), None
        case Scheme.W8A8:
            weights = _number(8, "int", "channel")
            activations = _number(8, "int", "token", dynamic=True)
        case Scheme.FP8:
            weights = _number(8, "float", "channel")
            activations = _number(8, "float", "token", dynamic=True)
        case _:
            assert_never(scheme)
    return {
        "group_0": {
            "targets": ["Linear"],
            "weights": weights,
            "input_activations": activations,
            "output_activations": None,
        }
    }


def _number(
    bits: int, kind: str, strategy: str, *, dynamic: bool = False, group_size: int | None = None
) -> dict[str, object]:
    return {
        "num_bits": bits,
        "type": kind,
        "symmetric": True,
        "strategy": strategy,
        "group_size": group_size,
        "dynamic": dynamic,
    }


_FORMATS: Final[Mapping[Scheme, str]] = {
    Scheme.W4A16: "pack-quantized",
    Scheme.W8A8: "int-quantized",
    Scheme.FP8: "float-quantized",
}


def quantization_config(plan: CheckpointPlan) -> dict[str, object] | None:
    """Return what config.json says of a planned checkpoint, None where it holds plain weights."""
    if plan.scheme.is_rounded:
        return None
    return {
        "quant_method": "compressed-tensors",
        "format": _FORMATS[plan.scheme],
        "quantization_status": "compressed",
        "global_compression_ratio": None,
        "config_groups": scheme_groups(plan.scheme),
        "ignore": list(plan.ignore),
        "kv_cache_scheme": None,
    }


def recipe_of(plan: CheckpointPlan) -> str:
    """Return the recipe that makes the same checkpoint with llm-compressor on a machine with a GPU (YAML)."""
    groups = msgspec.json.encode(scheme_groups(plan.scheme)).decode()
    ignore = "".join(f"        - {msgspec.json.encode(rule).decode()}\n" for rule in plan.ignore)
    return (
        f"# {plan.scheme.value}, written by trimtab quantize; rounding to the nearest, no calibration data\n"
        "quantization_stage:\n"
        "  quantization_modifiers:\n"
        "    QuantizationModifier:\n"
        f"      config_groups: {groups}\n"
        "      ignore:\n"
        f"{ignore}"
    )
