"""Which precisions of the KV cache an engine holds on which device: what was seen, what it names, what is not known.

A verdict stands for the device it was seen on. On CPUs vLLM 0.32 was tried: four types work, three start without a word
and answer with 11 to 13 nats a token instead of 2. On accelerators nothing was tried here: a type that the engine names
is not refused by what was seen on CPUs, and that it is unknown is said with the record; what is asked of a candidate
before it gets traffic, and its quality gates, judge it. Where the device is not known, what was garbage on CPUs is
refused until somebody says that it is none.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import msgspec

from trimtab.core.served import EngineKind
from trimtab.engines.llamacpp import KV_TYPES
from trimtab.engines.vllm_checks import GARBAGE_KV_TYPES


class KvDevice(StrEnum):
    """What a server computes on, as far as somebody said so."""

    CPU = "cpu"
    ACCELERATOR = "accelerator"
    UNKNOWN = "unknown"


BY_ENGINE: Final[Mapping[str, tuple[str, ...]]] = {
    EngineKind.LLAMACPP.value: tuple(KV_TYPES),
    # Tried on CPUs. `fp8` is e4m3. `auto` is the model's own precision.
    EngineKind.VLLM.value: ("auto", "fp8", "fp8_e4m3", "fp8_e5m2"),
    # As its documentation lists them; none was tried here.
    EngineKind.SGLANG.value: ("auto", "fp8_e5m2", "fp8_e4m3", "bf16", "bfloat16", "fp4_e2m1"),
}

NAMED: Final[Mapping[str, tuple[str, ...]]] = {
    # vLLM 0.32, `CacheDType` in vllm/config/cache.py, but for those above. Its CPU backend takes none of them by name
    # (vllm/v1/attention/backends/cpu_attn.py).
    EngineKind.VLLM.value: (
        "float16",
        "bfloat16",
        "fp8_inc",
        "fp8_ds_mla",
        "nvfp4_ds_mla",
        "turboquant_k8v4",
        "turboquant_4bit_nc",
        "turboquant_k3v4_nc",
        "turboquant_3bit_nc",
        "ultraquant_4bit",
        "int4_per_token_head",
        "int8_per_token_head",
        "fp8_per_token_head",
        "nvfp4",
        "nvfp4_4over6",
    ),
}
"""What an engine names beyond what was tried or documented for every device."""

TRIED_ON_CPUS: Final = frozenset({EngineKind.LLAMACPP.value, EngineKind.VLLM.value})


class KvVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """Why a KV type is refused, or else what is not known of it; both empty where it was seen to work."""

    problem: str = ""
    unknown: str = ""


def judge_kv_type(engine: str, kv_type: str, device: KvDevice) -> KvVerdict:
    """Say what is known of an engine that holds its KV cache in a type on a device, with the types it can."""
    able = BY_ENGINE.get(engine)
    if able is None:
        known = ", ".join(sorted(BY_ENGINE))
        return KvVerdict(
            problem=f"what {engine!r} can hold its KV cache in is not known here: this is known of {known}"
        )
    on_cpus = engine in TRIED_ON_CPUS
    if kv_type in able:
        # llama.cpp is launched here, on this machine; `auto` is what the server runs as it is.
        tried = engine == EngineKind.LLAMACPP.value or kv_type == "auto"
        tried = tried or (on_cpus and device is KvDevice.CPU)
        return KvVerdict(unknown="" if tried else _untried(engine, kv_type, device, on_cpus))
    choices = f"use one of {', '.join(able)}"
    if kv_type not in NAMED.get(engine, ()):
        return KvVerdict(problem=f"{engine} does not hold its KV cache in {kv_type!r}: {choices}")
    garbage = kv_type in GARBAGE_KV_TYPES
    seen = f"{engine} on CPUs starts with {kv_type} without a word and answers with garbage"
    if device is KvDevice.CPU:
        does_not = f"{engine} on CPUs does not hold its KV cache in {kv_type!r}"
        return KvVerdict(problem=f"{seen if garbage else does_not}: {choices}")
    if garbage and device is KvDevice.UNKNOWN:
        return KvVerdict(
            problem=f"{seen}, and what these servers run on is not told: {choices}, or name their accelerator "
            "(fleet.attached, labels.accelerator)"
        )
    return KvVerdict(
        unknown=f"{_untried(engine, kv_type, device, False)}{f'; {seen}' if garbage else ''}"
    )


def _untried(engine: str, kv_type: str, device: KvDevice, on_cpus: bool) -> str:
    where = {
        KvDevice.CPU: "on CPUs",
        KvDevice.ACCELERATOR: "on an accelerator",
        KvDevice.UNKNOWN: "on what these servers run on, which is not told",
    }[device]
    seen = ", only on CPUs, where it works" if on_cpus else ""
    return f"KV in {kv_type} was not tried {where} with {engine}{seen}: it may be refused, idle or garbage there"
