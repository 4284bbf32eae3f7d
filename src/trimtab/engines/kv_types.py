"""Which precisions of the KV cache each engine is known to hold, and which start without a word and are garbage."""

from collections.abc import Mapping
from typing import Final

from trimtab.core.served import EngineKind
from trimtab.engines.llamacpp import KV_TYPES
from trimtab.engines.vllm_checks import GARBAGE_KV_TYPES

BY_ENGINE: Final[Mapping[str, tuple[str, ...]]] = {
    EngineKind.LLAMACPP.value: tuple(KV_TYPES),
    # `fp8` is e4m3. `auto` is the model's own precision.
    EngineKind.VLLM.value: ("auto", "fp8", "fp8_e4m3", "fp8_e5m2"),
    # As its documentation lists them; none was tried here.
    EngineKind.SGLANG.value: ("auto", "fp8_e5m2", "fp8_e4m3"),
}


def kv_type_problem(engine: str, kv_type: str) -> str:
    """Return why an engine cannot hold its KV cache in a type, with the types it can; empty where it can."""
    able = BY_ENGINE.get(engine)
    if able is None:
        known = ", ".join(sorted(BY_ENGINE))
        return (
            f"what {engine!r} can hold its KV cache in is not known here: this is known of {known}"
        )
    if kv_type in able:
        return ""
    choices = f"use one of {', '.join(able)}"
    if engine == EngineKind.VLLM.value and kv_type in GARBAGE_KV_TYPES:
        return f"{engine} starts with {kv_type} without a word and answers with garbage (seen on CPUs): {choices}"
    return f"{engine} does not hold its KV cache in {kv_type!r}: {choices}"
