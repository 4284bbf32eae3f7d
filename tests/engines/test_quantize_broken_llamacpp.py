"""Models whose fault only the real engine shows: another model's tokenizer of the right size, broken weights."""

from pathlib import Path

import numpy as np
import pytest

from trimtab.core.ports import LaunchError
from trimtab.engines.gguf import Tensor
from trimtab.engines.gguf_tensors import NUMBERS, TensorKind
from trimtab.runtime.clock import SystemClock
from trimtab.runtime.gguf_codec import convert
from trimtab.runtime.model import check_model, find_model
from trimtab.runtime.quality_texts import PROSE, QualityText, standard_texts
from trimtab.runtime.quantize_ask import QuantizeAsk
from trimtab.runtime.quantize_original import quantized_groups
from trimtab.runtime.quantize_walk import quantize

pytestmark = [pytest.mark.engine_llamacpp, pytest.mark.timeout(300)]


def as_f16(folder: Path) -> bytearray:
    pytest.importorskip("gguf", reason="the gguf package is not installed")
    source, target = find_model(""), folder / "f16.gguf"
    groups = dict.fromkeys(quantized_groups(source), TensorKind.F16)
    convert(Path(source.path), target, groups)
    data = bytearray(target.read_bytes())
    target.unlink()
    return data


def table(folder: Path, data: bytearray) -> dict[str, Tensor]:
    path = folder / "model.gguf"
    path.write_bytes(data)
    return {one.name: one for one in check_model(str(path)).table}


def left(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*.gguf")]


async def walk(folder: Path) -> str:
    """Walk one rung of the broken model and return what is said of it."""
    [prose] = [one for one in standard_texts(1) if one.kind == PROSE]
    ask = QuantizeAsk(
        model=str(folder / "model.gguf"),
        folder=folder / "out",
        texts=(QualityText(PROSE, prose.name, prose.text[:2000]),),
        positions=64,
        kv_types=("f16",),
        only=("q8_0",),
        sensitivity=False,
        confirm=False,
    )
    with pytest.raises(LaunchError) as told:
        await quantize(ask, SystemClock(), lambda *_: None)
    return str(told.value)


async def test_embedding_of_another_tokenizer_is_told_before_any_rung(tmp_path: Path) -> None:
    """The rows of the embedding in another order are another tokenizer's: text is no likelier than chance."""
    data = as_f16(tmp_path)
    embedding = table(tmp_path, data)["token_embd.weight"]
    assert embedding.kind == NUMBERS[TensorKind.F16]
    raw = data[embedding.start : embedding.start + embedding.size]
    rows = np.frombuffer(bytes(raw), dtype=np.float16).reshape(embedding.shape[1], -1)
    data[embedding.start : embedding.start + embedding.size] = rows[::-1].tobytes()
    table(tmp_path, data)
    said = await walk(tmp_path)
    assert "finds text no likelier than chance" in said
    assert "its tokenizer belongs to another model" in said
    assert left(tmp_path) == ["model.gguf"]
