"""How many bits each part of a model's weights takes as a checkpoint stores them.

Quantised checkpoints keep embeddings, the output matrix and norms at the base precision and shrink the matrices of the
layers, apart from modules that their configuration leaves out. A group of `g` values at `b` bits costs b + (16 + b) / g
bits per value with a 16-bit scale and a zero point (GPTQ, AWQ), b + 16 / g without; MXFP4 has an 8-bit scale for 32
values, NVFP4 one for 16; FP8 in blocks has a 32-bit scale for each block.
"""

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from trimtab.core.model_parts import PartName, WeightPart
from trimtab.core.nearest import nearest_names
from trimtab.core.ports import EngineFormatError

_DTYPE_BYTES: Final = {
    "float32": 4.0,
    "float16": 2.0,
    "bfloat16": 2.0,
    "float8_e4m3fn": 1.0,
    "float8_e5m2": 1.0,
    "half": 2.0,
    "float": 4.0,
}
NARROWED: Final = (
    PartName.ATTENTION,
    PartName.KEY_VALUE,
    PartName.LATENT,
    PartName.LINEAR,
    PartName.DENSE,
    PartName.SHARED_EXPERTS,
    PartName.EXPERTS,
)
"""The parts that quantisation narrows unless a checkpoint leaves some of them out."""

_METHODS: Final = (
    "fp8", "gptq", "awq", "mxfp4", "modelopt", "compressed-tensors", "bitsandbytes", "nvfp4",
    "fbgemm_fp8",
)  # fmt: skip
_LEFT_OUT_KEYS: Final = ("modules_to_not_convert", "ignore", "ignored_layers", "exclude_modules")
# How lists of modules that are left out name a part, behind the number of the layer.
_MODULES: Final[Mapping[PartName, tuple[str, ...]]] = {
    PartName.ATTENTION: ("self_attn", "self_attn.q_proj", "self_attn.q_b_proj", "self_attn.qkv_proj"),
    PartName.KEY_VALUE: ("self_attn", "self_attn.k_proj", "self_attn.qkv_proj"),
    PartName.LATENT: ("self_attn", "self_attn.kv_a_proj_with_mqa", "self_attn.fused_qkv_a_proj"),
    PartName.LINEAR: ("linear_attn", "linear_attn.in_proj_qkv", "linear_attn.in_proj_qkvz"),
    PartName.SHARED_EXPERTS: ("mlp.shared_expert", "mlp.shared_experts", "shared_experts"),
    PartName.EXPERTS: ("mlp.experts", "block_sparse_moe.experts"),
}  # fmt: skip
_LAYER: Final = re.compile(r"^.*layers\.(\d+|\*)\.")


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """The parts with the bits that each is stored at; `parts` is empty where the width is not known."""

    parts: tuple[WeightPart, ...] = ()
    notes: tuple[str, ...] = ()


def stored_parts(config: Mapping[str, object], parts: tuple[WeightPart, ...]) -> Stored:
    """Return counted parts with the bits that a configuration says, and what must be known about them."""
    base, notes = _base_bytes(config)
    quantized = config.get("quantization_config")
    if quantized is not None and not isinstance(quantized, Mapping):
        raise EngineFormatError(
            f"its quantization_config is {quantized!r} and no object; nearest valid: "
            f'{{"quant_method": "{_nearest_methods(str(quantized))[0]}"}}'
        )
    if not isinstance(quantized, Mapping):
        return Stored(parts=_widened(parts, 8.0 * base), notes=notes)
    method = str(quantized.get("quant_method") or quantized.get("quant_algo") or "")
    bits = _bits(method.lower(), quantized)
    if bits is None:
        near = " or ".join(_nearest_methods(method))
        note = (
            f"quant_method {method!r} of its quantization_config is not known or lacks its bits: size unknown; "
            f"nearest valid: {near}"
        )
        return Stored(notes=(*notes, note))
    left_out = _left_out(quantized, parts)
    narrowed = (PartName.EXPERTS,) if method.lower() == "mxfp4" else NARROWED
    kept = f", {', '.join(name.value for name in left_out)} too" if left_out else ""
    return Stored(
        parts=tuple(
            msgspec.structs.replace(
                part,
                bits=bits if part.name in narrowed and part.name not in left_out else 8.0 * base,
            )
            for part in parts
        ),
        notes=(
            *notes,
            f"weights at {bits:.3g} bits ({method}), embeddings and norms at {8 * base:.0f}{kept}",
        ),
    )


def _nearest_methods(method: str) -> tuple[str, ...]:
    return nearest_names(method, _METHODS) or _METHODS


def _widened(parts: tuple[WeightPart, ...], bits: float) -> tuple[WeightPart, ...]:
    return tuple(msgspec.structs.replace(part, bits=bits) for part in parts)


def _base_bytes(config: Mapping[str, object]) -> tuple[float, tuple[str, ...]]:
    told = config.get("torch_dtype") or config.get("dtype")
    if told is None or told == "auto":
        return 2.0, ("its precision is not told: 16 bit assumed",)
    known = _DTYPE_BYTES.get(str(told).removeprefix("torch."))
    if known is None:
        near = nearest_names(str(told), _DTYPE_BYTES) or ("bfloat16",)
        raise EngineFormatError(
            f"its torch_dtype {told!r} is not known; nearest valid: {' or '.join(near)}"
        )
    return known, ()


def _left_out(
    quantized: Mapping[str, object], parts: tuple[WeightPart, ...]
) -> tuple[PartName, ...]:
    """The parts that a checkpoint leaves at the base precision in at least half of their layers."""
    named: dict[str, set[str]] = {}
    for key in _LEFT_OUT_KEYS:
        listed = quantized.get(key)
        for entry in listed if isinstance(listed, list) else ():
            found = _LAYER.match(str(entry))
            layer = found[1] if found else "*"
            tail = str(entry)[found.end() :] if found else str(entry).removeprefix("re:")
            named.setdefault(tail.strip(".*"), set()).add(layer)
    return tuple(
        part.name
        for part in parts
        if any(
            "*" in named[word] or 2 * len(named[word]) >= part.layers
            for word in _MODULES.get(part.name, ())
            if word in named
        )
    )


def _bits(method: str, config: Mapping[str, object]) -> float | None:
    """Bits per quantised weight, scales included; None for a method that is not known."""
    match method:
        case "fp8" | "fbgemm_fp8":
            return 8.0 + _block_scale_bits(config)
        case "gptq" | "awq":
            bits = _number(config.get("bits") or config.get("w_bit"))
            group = _number(config.get("group_size") or config.get("q_group_size"))
            return None if bits is None else bits + ((16 + bits) / group if group else 0.0)
        case "mxfp4":
            return 4.25
        case "bitsandbytes":
            return 4.5 if config.get("load_in_4bit") is True else 8.0
        case "modelopt" | "nvfp4":
            return {"fp8": 8.0, "nvfp4": 4.5}.get(str(config.get("quant_algo")).lower())
        case "compressed-tensors":
            return _compressed_bits(config)
        case _:
            return None


def _block_scale_bits(config: Mapping[str, object]) -> float:
    size = config.get("weight_block_size")
    if not isinstance(size, list) or len(size) != 2:
        return 0.0
    sides = [_number(side) for side in size]
    return 32.0 / (sides[0] * sides[1]) if sides[0] and sides[1] else 0.0


def _compressed_bits(config: Mapping[str, object]) -> float | None:
    groups = config.get("config_groups")
    first = next(iter(groups.values()), None) if isinstance(groups, Mapping) else None
    weights = first.get("weights") if isinstance(first, Mapping) else None
    if not isinstance(weights, Mapping):
        return None
    bits, group = _number(weights.get("num_bits")), _number(weights.get("group_size"))
    if bits is None:
        return None
    # Four-bit floats carry scales of 8 bits (NVFP4 for 16 values, MXFP4 for 32), integers of 16.
    scale = 8.0 if weights.get("type") == "float" and bits == 4.0 else 16.0
    return bits + (scale / group if group else 0.0)


def _number(value: object) -> float | None:
    """A positive number, None for anything else (a group size of -1 is a whole channel)."""
    return float(value) if isinstance(value, int) and value > 0 else None
