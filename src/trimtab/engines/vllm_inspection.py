"""What a running vLLM says of its own layers, over its developer endpoint: the precision that is effective.

The answer to `collective_rpc` of `get_model_inspection` is, for each rank, a tree of modules in which equal layers are
told once (`(0-29): 30 x LlamaDecoderLayer(`). A linear layer that is quantized names its scheme (`quant=...`); one
that is not names none, whatever its configuration asked for.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from trimtab.core.ports import EngineFormatError
from trimtab.engines.compressed_tensors import CheckpointPlan, Scheme
from trimtab.engines.gguf_tensors import Group

RPC_PATH: Final = "/collective_rpc"
RESET_CACHE_PATH: Final = "/reset_prefix_cache"
INSPECT_BODY: Final = msgspec.json.encode({"method": "get_model_inspection"})
PLAIN: Final = "plain"
_LINE: Final = re.compile(
    r"^(?P<indent> *)\((?P<name>[^)]*)\): (?:(?P<times>\d+) x )?(?P<kind>\w+)\(?"
)
_QUANT: Final = re.compile(r"\bquant=(\w+)")
_LAYERS: Final[Mapping[str, tuple[Group, ...]]] = {
    "qkv_proj": (Group.ATTENTION_Q, Group.ATTENTION_K, Group.ATTENTION_V),
    "q_proj": (Group.ATTENTION_Q,),
    "k_proj": (Group.ATTENTION_K,),
    "v_proj": (Group.ATTENTION_V,),
    "o_proj": (Group.ATTENTION_OUTPUT,),
    "gate_up_proj": (Group.FFN_GATE, Group.FFN_UP),
    "gate_proj": (Group.FFN_GATE,),
    "up_proj": (Group.FFN_UP,),
    "down_proj": (Group.FFN_DOWN,),
    "lm_head": (Group.HEAD,),
    "embed_tokens": (Group.EMBEDDING,),
}
_SCHEMES: Final[Mapping[Scheme, str]] = {
    Scheme.W4A16: "CompressedTensorsWNA16",
    Scheme.W8A8: "CompressedTensorsW8A8Int8",
    Scheme.FP8: "CompressedTensorsW8A8Fp8",
}


class _Results(msgspec.Struct):
    results: list[str]


def reload_body(folder: str) -> bytes:
    """Ask a server to take other weights of the same shapes and types, without a restart."""
    return msgspec.json.encode({"method": "reload_weights", "kwargs": {"weights_path": folder}})


def read_inspection(body: bytes) -> dict[str, dict[str, int]]:
    """Return how many layers of each group run in which scheme, on the first rank; raises `EngineFormatError`."""
    try:
        trees = msgspec.json.decode(body, type=_Results).results
    except msgspec.MsgspecError as error:
        raise EngineFormatError("the engine told nothing of its layers") from error
    if not trees:
        raise EngineFormatError("the engine told of no rank")
    return counted_layers(trees[0])


def counted_layers(tree: str) -> dict[str, dict[str, int]]:
    """Count the layers of each group by scheme; `PLAIN` where none is named."""
    found: dict[str, dict[str, int]] = {}
    # How often each module that is open holds what is inside it, with its indentation.
    open_times: list[tuple[int, int]] = []
    for line in tree.splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        indent = len(match["indent"])
        while open_times and open_times[-1][0] >= indent:
            open_times.pop()
        times = int(match["times"] or 1) * (open_times[-1][1] if open_times else 1)
        open_times.append((indent, times))
        quant = _QUANT.search(line)
        for group in _LAYERS.get(match["name"], ()):
            counts = found.setdefault(group.value, {})
            name = quant[1] if quant else PLAIN
            counts[name] = counts.get(name, 0) + times
    return found


def not_effective(
    plan: CheckpointPlan | None, effective: Mapping[str, Mapping[str, int]]
) -> tuple[str, ...]:
    """Return, in words, where layers do not run in the scheme that was planned; `plan` None: nothing is lowered."""
    wanted: dict[str, dict[str, int]] = {}
    for one in plan.changes if plan is not None else ():
        lowered = not one.kept and plan is not None and not plan.scheme.is_rounded
        name = _SCHEMES[plan.scheme] if plan is not None and lowered else PLAIN
        counts = wanted.setdefault(one.group.value, {})
        counts[name] = counts.get(name, 0) + 1
    if plan is None:
        wanted = {
            group: {PLAIN: sum(counts.values())}
            for group, counts in effective.items()
            if group not in (Group.HEAD.value, Group.EMBEDDING.value)
        }
    return tuple(
        f"{group}: {_words(counts)} planned, {_words(effective.get(group, {}))} run"
        for group, counts in wanted.items()
        if counts != effective.get(group)
    )


def _words(counts: Mapping[str, int]) -> str:
    parts: Sequence[str] = [f"{count} {name}" for name, count in sorted(counts.items())]
    return ", ".join(parts) or "none"
