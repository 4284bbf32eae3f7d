"""How many bytes a model's weights take as a checkpoint stores them.

Quantised checkpoints keep embeddings, the output matrix and norms at the base precision and shrink the matrices of the
layers. A group of `g` values at `b` bits costs b + (16 + b) / g bits per value with a 16-bit scale and a zero point
(GPTQ, AWQ), b + 16 / g without; MXFP4 has an 8-bit scale for 32 values, NVFP4 one for 16.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

_DTYPE_BYTES: Final = {
    "float32": 4.0,
    "float16": 2.0,
    "bfloat16": 2.0,
    "float8_e4m3fn": 1.0,
}


class Matrices(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters of a model by what they are for. `head` is 0 where the embedding is the output matrix too (`tied`)."""

    embedding: float
    head: float
    attention: float
    dense: float
    experts: float
    other: float
    tied: bool

    @property
    def total(self) -> float:
        """All parameters."""
        return self.embedding + self.head + self.attention + self.dense + self.experts + self.other

    @property
    def lookup(self) -> float:
        """Those that are only looked up."""
        return 0.0 if self.tied else self.embedding


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of a checkpoint's weights, of its looked-up embedding and of its routed experts; None if not known."""

    total: float | None
    lookup: float = 0.0
    experts: float = 0.0
    notes: tuple[str, ...] = ()


def stored_bytes(config: Mapping[str, object], matrices: Matrices | None) -> Stored:
    """Return the bytes of a checkpoint's weights and what must be known about them."""
    if matrices is None:
        return Stored(total=None)
    base, notes = _base_bytes(config)
    lookup = matrices.lookup * base
    quantized = config.get("quantization_config")
    if not isinstance(quantized, Mapping):
        total, experts = matrices.total * base, matrices.experts * base
        return Stored(total=total, lookup=lookup, experts=experts, notes=notes)
    method = str(quantized.get("quant_method") or quantized.get("quant_algo") or "")
    bits = _bits(method.lower(), quantized)
    if bits is None:
        note = f"quantization {method or 'unnamed'!r} is not known: size unknown"
        return Stored(total=None, notes=(*notes, note))
    shrunk = matrices.experts
    if method.lower() != "mxfp4":  # which quantises the experts alone
        shrunk += matrices.attention + matrices.dense
    return Stored(
        total=shrunk * bits / 8.0 + (matrices.total - shrunk) * base,
        lookup=lookup,
        experts=matrices.experts * bits / 8.0,
        notes=(
            *notes,
            f"weights at {bits:.3g} bits ({method}), embeddings and norms at {8 * base:.0f}",
        ),
    )


def _base_bytes(config: Mapping[str, object]) -> tuple[float, tuple[str, ...]]:
    told = config.get("torch_dtype") or config.get("dtype")
    known = _DTYPE_BYTES.get(str(told))
    if known is not None:
        return known, ()
    return 2.0, (f"precision {told!r} is not told or not known: 16 bit assumed",)


def _bits(method: str, config: Mapping[str, object]) -> float | None:
    """Bits per quantised weight, scales included; None for a method that is not known."""
    match method:
        case "fp8" | "fbgemm_fp8":
            return 8.0
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


def _compressed_bits(config: Mapping[str, object]) -> float | None:
    groups = config.get("config_groups")
    first = next(iter(groups.values()), None) if isinstance(groups, Mapping) else None
    weights = first.get("weights") if isinstance(first, Mapping) else None
    if not isinstance(weights, Mapping):
        return None
    bits, group = _number(weights.get("num_bits")), _number(weights.get("group_size"))
    return None if bits is None else bits + (16.0 / group if group else 0.0)


def _number(value: object) -> float | None:
    """A positive number, None for anything else (a group size of -1 is a whole channel)."""
    return float(value) if isinstance(value, int) and value > 0 else None
