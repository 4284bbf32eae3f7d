"""Weights at another precision than a checkpoint stores them: what an override such as "fp8" means in bits.

Scales are counted: w4a16 has a 16-bit scale for 128 values, NVFP4 an 8-bit one for 16, MXFP4 and MXFP8 one for 32, FP8
in blocks a 32-bit one for 128 x 128. Embeddings, output matrix, norms and routers stay as they are. Of models with
latent attention NVFP4 and MXFP4 leave the attention at 16 bit, as their makers publish them.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from trimtab.core.layout import PlanInputError
from trimtab.core.model_parts import PartName, WeightPart
from trimtab.core.nearest import nearest_names
from trimtab.core.served import ModelShape
from trimtab.engines.model_weights import NARROWED


class Precision(msgspec.Struct, frozen=True, kw_only=True):
    """How matrices are stored and multiplied. `bits`: of a weight with its scales; `operand_bits`: of the product.

    `kv_bits`: the cache's precision that engines take with it unless told otherwise.
    """

    name: str
    bits: float
    operand_bits: int
    kv_bits: int = 16


PRECISIONS: Final[Mapping[str, Precision]] = {
    each.name: each
    for each in (
        Precision(name="fp32", bits=32.0, operand_bits=16),
        Precision(name="bf16", bits=16.0, operand_bits=16),
        Precision(name="fp8", bits=8.0, operand_bits=8),
        Precision(name="fp8_block", bits=8.0 + 32.0 / 16384.0, operand_bits=8),
        Precision(name="int8", bits=8.0, operand_bits=8),
        Precision(name="w8a16", bits=8.0, operand_bits=16),
        Precision(name="mxfp8", bits=8.25, operand_bits=8),
        Precision(name="w4a16", bits=4.0 + 16.0 / 128.0, operand_bits=16),
        Precision(name="awq", bits=4.0 + 20.0 / 128.0, operand_bits=16),
        Precision(name="nvfp4", bits=4.5, operand_bits=4),
        Precision(name="mxfp4", bits=4.25, operand_bits=4),
    )
}
"""The precisions that can be asked for."""

_ALIASES: Final = {
    "fp16": "bf16", "float16": "bf16", "bfloat16": "bf16", "16bit": "bf16", "float32": "fp32", "float8": "fp8",
    "w8a8": "int8", "fp4": "nvfp4", "int4": "w4a16", "gptq": "w4a16", "4bit": "w4a16", "8bit": "fp8",
    "fp8block": "fp8_block", "blockfp8": "fp8_block",
}  # fmt: skip
_FOUR_BIT_FLOATS: Final = ("nvfp4", "mxfp4")
_LATENT_KEPT: Final = (PartName.ATTENTION, PartName.LATENT)
_STORED_ALIKE_BITS: Final = 0.75
"""Within that many bits a checkpoint counts as stored at the precision asked for, and its own scales are believed."""


def find_precision(name: str) -> Precision:
    """Return a precision by its name; raises `PlanInputError` on the field `precision`."""
    plain = name.lower().replace("-", "_")
    plain = _ALIASES.get(plain.replace("_", ""), plain)
    found = PRECISIONS.get(plain)
    if found is None:
        known = tuple(PRECISIONS)
        near = nearest_names(name, (*known, *_ALIASES)) or known
        raise PlanInputError("precision", f"no precision {name!r} is known", near)
    return found


def find_kv_bits(name: str) -> int:
    """Return the bits of a cache precision such as "fp8" or "auto" (16); raises `PlanInputError`."""
    known = {
        "auto": 16, "bf16": 16, "fp16": 16, "bfloat16": 16, "float16": 16, "16": 16, "fp8": 8, "fp8_e4m3": 8,
        "fp8_e5m2": 8, "int8": 8, "8": 8, "nvfp4": 4, "fp4": 4, "4": 4,
    }  # fmt: skip
    found = known.get(name.lower())
    if found is None:
        near = nearest_names(name, known) or ("auto", "fp8")
        raise PlanInputError("kv_precision", f"no cache precision {name!r} is known", near)
    return found


def with_precision(model: ModelShape, name: str) -> ModelShape:
    """Return a model with its matrices at another precision; one that is stored so already is returned as it is.

    Raises `PlanInputError` for an unknown precision, or where the model's parts are not known.
    """
    wanted = find_precision(name)
    if not model.parts:
        raise PlanInputError(
            "precision", f"the parts of {model.name} are not known, so it stays as it is stored"
        )
    kept = _LATENT_KEPT if model.latent_kv and wanted.name in _FOUR_BIT_FLOATS else ()
    stored = stored_bits(model)
    if abs(stored - wanted.bits) <= _STORED_ALIKE_BITS:
        return model
    parts = tuple(_narrowed(part, wanted, kept) for part in model.parts)
    by_name = {part.name: part for part in parts}
    embedding = by_name.get(PartName.EMBEDDING)
    experts = by_name.get(PartName.EXPERTS)
    return msgspec.structs.replace(
        model,
        parts=parts,
        weight_bytes=sum(part.bytes for part in parts),
        lookup_bytes=embedding.bytes if embedding and model.lookup_parameters else 0.0,
        expert_bytes=experts.bytes if experts else 0.0,
        notes=(
            *model.notes,
            f"weights taken at {wanted.bits:.3g} bits ({wanted.name}) instead of {stored:.3g} as stored",
        ),
    )


def stored_bits(model: ModelShape) -> float:
    """Return the bits at which the largest matrices are stored: those of the experts, or else of the feed forward."""
    for name in (PartName.EXPERTS, PartName.DENSE, PartName.ATTENTION):
        for part in model.parts:
            if part.name is name:
                return part.bits
    return 16.0


def _narrowed(part: WeightPart, wanted: Precision, kept: tuple[PartName, ...]) -> WeightPart:
    if part.name not in NARROWED:
        return part
    return msgspec.structs.replace(part, bits=16.0 if part.name in kept else wanted.bits)
