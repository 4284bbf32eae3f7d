"""What the kernel tables' package calls models, systems and widths of numbers, found without asking anybody outside.

The package looks up names that it does not know over the network. So only names that it carries a configuration for
are ever handed to it, and folders with a config.json that are there.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from trimtab.core.accelerators import UnknownAcceleratorError, find_accelerator
from trimtab.core.nearest import nearest_names
from trimtab.core.served import EngineKind
from trimtab.planning.precision import find_precision

ENGINES: Final = {
    EngineKind.VLLM: "vllm",
    EngineKind.SGLANG: "sglang",
    EngineKind.TRTLLM: "trtllm",
}

_SYSTEMS: Final = {
    "A100 PCIe 80GB": "a100_pcie",
    "A100 SXM 80GB": "a100_sxm",
    "L4": "l4",
    "L40S": "l40s",
    "H100 SXM": "h100_sxm",
    "H100 PCIe": "h100_pcie",
    "H200 SXM": "h200_sxm",
    "B200": "b200_sxm",
    "GB200": "gb200",
    "B300": "b300_sxm",
    "GB300": "gb300",
    "RTX PRO 6000 Server": "rtx_pro_6000_server",
}
_FOUR_BIT_PRODUCTS: Final = ("b200_sxm", "b300_sxm", "gb200", "gb300", "rtx_pro_6000_server")

# Variants of a name that share a shape with the one the package carries.
_SAME_SHAPE: Final = {
    "llama-3-8b": "llama-3.1-8b",
    "llama-3-70b": "llama-3.1-70b",
    "llama-3.3-70b": "llama-3.1-70b",
    "deepseek-r1-distill-llama-8b": "llama-3.1-8b",
    "deepseek-r1-distill-llama-70b": "llama-3.1-70b",
    "deepseek-r1": "deepseek-v3",
    "deepseek-r1-0528": "deepseek-v3",
    "deepseek-v3-0324": "deepseek-v3",
    "deepseek-v3.1": "deepseek-v3",
}
_TUNED: Final = re.compile(r"-(instruct|chat|it|base|hf|thinking|2507)(?=-|$)")
_WIDTH: Final = re.compile(r"-(nvfp4|fp4|fp8|mxfp4|bf16|awq|gptq|int4|int8|w4a16|w8a8)(?=-|$)")


class Widths(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint of the package and the widths to override, in its words; None leaves the checkpoint's own."""

    model: str
    gemm: str | None = None
    moe: str | None = None
    kv: str | None = None
    note: str = ""


def system_of(name: str) -> str | None:
    """Return the package's name of an accelerator, None where it has none."""
    plain = name.lower().replace("-", "_").replace(" ", "_")
    if plain in _SYSTEMS.values():
        return plain
    try:
        return _SYSTEMS.get(find_accelerator(name).name)
    except UnknownAcceleratorError:
        return None


def system_names() -> tuple[str, ...]:
    """Return the accelerators that may have tables."""
    return tuple(_SYSTEMS)


def package_systems() -> tuple[str, ...]:
    """Return the package's names of the accelerators that may have tables."""
    return tuple(_SYSTEMS.values())


def plain_name(name: str) -> str:
    """Return what names are compared by: no owner, no case, nothing that marks a tuned or a quantised variant."""
    last = name.rstrip("/").rpartition("/")[2].lower().removeprefix("meta-").replace("3_3", "3.3")
    bare = _WIDTH.sub("", _TUNED.sub("", last))
    return _SAME_SHAPE.get(bare, bare)


def checkpoints_of(name: str, carried: Iterable[str]) -> tuple[str, ...]:
    """Return what the package carries of a model: the name itself first, then variants of other widths."""
    found = sorted(each for each in carried if plain_name(each) == plain_name(name))
    last = name.rpartition("/")[2].lower()
    exact = [each for each in found if each.rpartition("/")[2].lower() == last]
    plain = [each for each in found if not _WIDTH.search(each.lower())]
    return tuple(dict.fromkeys((*exact, *plain, *found)))


def width_in(name: str) -> str:
    """Return the precision that a name states ("-FP8"), empty if none."""
    found = _WIDTH.search(name.lower())
    return found[1] if found else ""


def near_models(name: str, carried: Iterable[str]) -> tuple[str, ...]:
    """Return the names that are nearest to one that is not carried."""
    return nearest_names(name, tuple(sorted(carried)))


def candidates(
    checkpoints: tuple[str, ...],
    own: Mapping[str, str],
    *,
    precision: str,
    kv_bits: float | None,
    system: str,
    dense: bool,
) -> tuple[Widths, ...]:
    """Return what to ask the tables for, the best first.

    `own`: the width that each checkpoint stores ("" is 16 bit), in the package's words. A precision that cannot be had
    exactly is replaced by the nearest that can, and a note says so; so is the cache's.
    """
    found = _weights(checkpoints, own, precision, kv_bits, system, dense)
    implied = "KV cache as the checkpoint implies, as there are no tables for the one asked for"
    return (
        *found,
        *(
            msgspec.structs.replace(
                each, kv=None, note="; ".join(filter(None, (each.note, implied)))
            )
            for each in found
            if each.kv is not None
        ),
    )


def _weights(
    checkpoints: tuple[str, ...],
    own: Mapping[str, str],
    precision: str,
    kv_bits: float | None,
    system: str,
    dense: bool,
) -> tuple[Widths, ...]:
    kv = None if kv_bits is None else "bfloat16" if kv_bits > 8 else "fp8"
    first = checkpoints[0]
    if not precision:
        return (Widths(model=first, kv=kv),)
    wanted = find_precision(precision).name
    stored = own.get(first, "")
    if wanted in ("bf16", "fp32"):
        plain = next((each for each in checkpoints if not own.get(each)), first)
        return (Widths(model=plain, gemm="bfloat16", moe="bfloat16", kv=kv),)
    if wanted in ("fp8", "fp8_block", "mxfp8", "int8", "w8a16"):
        return _eight_bit(checkpoints, own, wanted, kv, dense=dense)
    if wanted in ("nvfp4", "mxfp4"):
        return _four_bit_floats(checkpoints, own, stored, kv, system)
    return (
        Widths(model=first, gemm="int4_wo", moe="int4_wo", kv=kv),
        Widths(model=first, kv=kv, note=f"no tables for {wanted}: the checkpoint's own precision"),
    )


def _eight_bit(
    checkpoints: tuple[str, ...],
    own: Mapping[str, str],
    wanted: str,
    kv: str | None,
    *,
    dense: bool,
) -> tuple[Widths, ...]:
    first = checkpoints[0]
    stored = own.get(first, "").startswith("fp8")
    # Dense models are published with one scale a matrix or narrowed so at the start; mixtures with scales in blocks.
    block_first = wanted == "fp8_block" or not dense
    block = Widths(model=first, gemm="fp8_block", moe="fp8_block", kv=kv)
    whole = Widths(model=first, gemm="fp8", moe="fp8", kv=kv)
    pair = (block, whole) if block_first else (whole, block)
    note = "" if wanted.startswith("fp8") else f"no tables for {wanted}: taken as FP8"
    found = (Widths(model=first, kv=kv), *pair) if stored else pair
    return tuple(msgspec.structs.replace(each, note=note) for each in found)


def _four_bit_floats(
    checkpoints: tuple[str, ...], own: Mapping[str, str], stored: str, kv: str | None, system: str
) -> tuple[Widths, ...]:
    first = checkpoints[0]
    if stored == "mxfp4":
        native = Widths(model=first, kv=kv)
        narrow = msgspec.structs.replace(native, moe="w4a8_mxfp4_mxfp8")
        return (narrow, native) if system in _FOUR_BIT_PRODUCTS else (native,)
    named = [each for each in checkpoints if own.get(each) in ("nvfp4", "mixed_precision")]
    found = [Widths(model=each, kv=kv) for each in named]
    return (*found, Widths(model=first, gemm="nvfp4", moe="nvfp4", kv=kv))
