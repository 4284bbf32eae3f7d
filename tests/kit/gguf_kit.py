"""Small GGUF files of chosen tensors, made in memory."""

import math
import struct
from collections.abc import Mapping

import numpy as np

F32, F16 = 0, 1
ALIGNMENT = 32


def text(value: str) -> bytes:
    """A GGUF string."""
    return struct.pack("<Q", len(value)) + value.encode()


def gguf(
    tensors: Mapping[str, np.ndarray], *, architecture: str = "llama", kind: int = F16
) -> bytes:
    """A file with the tensors (rows first) as F16; one-dimensional ones as F32."""
    fields = text("general.architecture") + struct.pack("<I", 8) + text(architecture)
    table, blob = b"", b""
    for name, values in tensors.items():
        own = F32 if values.ndim == 1 else kind
        shape = tuple(reversed(values.shape))
        table += text(name)
        table += struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, own, len(blob))
        raw = values.astype(np.float32 if own == F32 else np.float16).tobytes()
        blob += raw + bytes(-len(raw) % ALIGNMENT)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), 1) + fields + table
    return head + bytes(-len(head) % ALIGNMENT) + blob


def layers(count: int = 2, *, width: int = 64, seed: int = 1) -> dict[str, np.ndarray]:
    """The tensors of a small llama: embedding, and per layer attention, feed-forward and norms."""
    rng = np.random.default_rng(seed)

    def weights(rows: int, columns: int) -> np.ndarray:
        return rng.normal(scale=1.0 / math.sqrt(columns), size=(rows, columns))

    found: dict[str, np.ndarray] = {"token_embd.weight": weights(96, width)}
    for layer in range(count):
        at = f"blk.{layer}."
        found[at + "attn_norm.weight"] = np.ones(width)
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            found[f"{at}{name}.weight"] = weights(width, width)
        for name in ("ffn_gate", "ffn_up"):
            found[f"{at}{name}.weight"] = weights(2 * width, width)
        found[at + "ffn_down.weight"] = weights(width, 2 * width)
    return found
