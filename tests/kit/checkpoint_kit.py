"""Small checkpoints on disk, of random weights, as tests of vLLM's ladder need them: no engine loads them."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from trimtab.engines.low_precision import to_bf16
from trimtab.engines.safetensors import StoredTensor, header_of

ROWS = 100
LAYER = {
    "self_attn.q_proj": (64, 64),
    "self_attn.k_proj": (32, 64),
    "self_attn.v_proj": (32, 64),
    "self_attn.o_proj": (64, 64),
    "mlp.gate_proj": (96, 64),
    "mlp.up_proj": (96, 64),
    "mlp.down_proj": (64, 96),
}


def tensors(layer: int, down_columns: int = 96) -> list[StoredTensor]:
    shapes: dict[str, tuple[int, ...]] = {**LAYER, "mlp.down_proj": (64, down_columns)}
    named = [(f"model.layers.{layer}.{name}.weight", shape) for name, shape in shapes.items()]
    if layer == 0:
        named.append(("model.embed_tokens.weight", (ROWS, 64)))
    return [StoredTensor(name=name, dtype="BF16", shape=shape) for name, shape in named]


def write_file(path: Path, held: list[StoredTensor], *, broken: str = "") -> None:
    rng = np.random.default_rng(1)
    parts = [header_of(held)]
    for one in held:
        values = rng.standard_normal(one.shape).astype(np.float32)
        if one.name == broken:
            values.flat[3] = np.nan
        parts.append(to_bf16(values))
    path.write_bytes(b"".join(parts))


def made(
    folder: Path,
    *,
    files: int = 1,
    vocabulary: int = ROWS,
    broken: str = "",
    down_columns: int = 96,
) -> Path:
    """A model of two layers in one file or two."""
    folder.mkdir()
    config: dict[str, Any] = {"architectures": ["LlamaForCausalLM"], "hidden_size": 64}
    (folder / "config.json").write_text(json.dumps(config))
    words = {f"w{at}": at for at in range(vocabulary)}
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": words}}))
    layers = [tensors(at, down_columns) for at in (0, 1)]
    held = layers if files == 2 else [[*layers[0], *layers[1]]]
    names = [f"model-{at}.safetensors" for at in range(files)]
    for name, each in zip(names, held, strict=True):
        write_file(folder / name, each, broken=broken)
    if files == 2:
        index = {one.name: name for name, each in zip(names, held, strict=True) for one in each}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return folder
