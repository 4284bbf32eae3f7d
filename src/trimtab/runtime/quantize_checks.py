"""Whether the original of a walk is a sound model at all: what is broken before is not to be blamed on a rung.

A model that finds text no likelier than chance has no use for a comparison. Chance is the same probability for every
token: log(vocabulary) nats a token.
"""

import math
import mmap
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from trimtab.core.ports import LaunchError
from trimtab.engines.gguf import GGUFHeader, Tensor
from trimtab.engines.gguf_tensors import NUMBERS, TensorKind
from trimtab.quality.loss import TextScore
from trimtab.runtime.model import check_model

TOKENS_FIELD = "tokenizer.ggml.tokens"
EMBEDDING = "token_embd.weight"
BF16_EXPONENT = 0x7F80


def check_tokenizer(path: str, header: GGUFHeader) -> None:
    """Raise `LaunchError` where a file's tokenizer has another number of tokens than its embedding has rows."""
    tokens = header.counts.get(TOKENS_FIELD)
    rows = next((one.shape[-1] for one in header.table if one.name == EMBEDDING), None)
    if tokens is not None and rows is not None and tokens != rows:
        raise LaunchError(
            f"the tokenizer in {path} has {tokens:,} tokens and the model {rows:,}: it belongs to another model; "
            "convert the model again with its own tokenizer"
        )


def check_weights(path: str) -> None:
    """Raise `LaunchError` where a plain float of a file is not finite; quantized ones are looked at as they expand."""
    header = check_model(path)
    with (
        Path(path).open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        memoryview(data) as view,
    ):
        broken = {one.name: count for one in header.table if (count := _not_finite(one, view))}
    if broken:
        name, count = next(iter(broken.items()))
        raise LaunchError(
            f"the tensor {name!r} in {path} holds {count} values that are not finite: the file is damaged, or was made "
            "from a run that diverged"
        )


def _not_finite(tensor: Tensor, view: memoryview) -> int:
    raw = view[tensor.start : tensor.start + tensor.size]
    try:
        if tensor.kind == NUMBERS[TensorKind.F32]:
            return int(np.count_nonzero(~np.isfinite(np.frombuffer(raw, dtype=np.float32))))
        if tensor.kind == NUMBERS[TensorKind.F16]:
            return int(np.count_nonzero(~np.isfinite(np.frombuffer(raw, dtype=np.float16))))
        if tensor.kind == NUMBERS[TensorKind.BF16]:
            bits = np.frombuffer(raw, dtype=np.uint16) & BF16_EXPONENT
            return int(np.count_nonzero(bits == BF16_EXPONENT))
        return 0
    finally:
        raw.release()


def check_models_text(path: str, vocabulary: int | None, scores: Sequence[TextScore]) -> None:
    """Raise `LaunchError` where the original finds every text no likelier than chance; `vocabulary` in tokens."""
    if not scores or not vocabulary:
        return
    best = min(scores, key=lambda one: one.mean if math.isfinite(one.mean) else math.inf)
    chance = math.log(vocabulary)
    if math.isfinite(best.mean) and best.mean < chance:
        return
    raise LaunchError(
        f"the original {path} finds text no likelier than chance ({best.mean:.2f} nats a token on {best.name}, chance "
        f"is {chance:.2f}): its tokenizer belongs to another model, or its weights are broken"
    )
