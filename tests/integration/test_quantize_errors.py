"""What `trimtab quantize` says of files that cannot be walked, and what it leaves of them: no engine is started."""

import errno
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from gguf_kit import gguf, layers, text

from trimtab.interfaces.cli import main
from trimtab.runtime import gguf_codec

pytest.importorskip("gguf", reason="the gguf package is not installed")

Q8_0 = 8


def quantize(model: Path, *more: str) -> Result:
    return CliRunner().invoke(
        main, ["quantize", str(model), "--report", str(model.parent / "out"), *more]
    )


def model_in(folder: Path, data: bytes) -> Path:
    path = folder / "model.gguf"
    path.write_bytes(data)
    return path


def with_tokens(data: bytes, count: int) -> bytes:
    """The file with a tokenizer of so many tokens; its tensors' data stays aligned."""
    field = text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, count)
    field += b"".join(text(f"t{at}") for at in range(count))
    # A field of padding keeps what follows where alignment wants it.
    pad = text("pad") + struct.pack("<I", 8)
    pad += text("x" * (-(len(field) + len(pad) + 8) % 32))
    (fields,) = struct.unpack_from("<Q", data, 16)
    head = data[:16] + struct.pack("<Q", fields + 2) + field + pad
    return head + data[24:]


def as_shipped(folder: Path) -> bytes:
    """A file whose linear layers came in Q8_0."""
    from trimtab.engines.gguf_tensors import LINEAR, TensorKind

    plain, eight = folder / "plain.gguf", folder / "eight.gguf"
    plain.write_bytes(gguf(layers()))
    gguf_codec.convert(plain, eight, dict.fromkeys(LINEAR, TensorKind.Q8_0))
    data = eight.read_bytes()
    plain.unlink()
    eight.unlink()
    return data


def damaged() -> bytes:
    tensors = layers()
    tensors["blk.1.attn_norm.weight"][3] = np.nan
    return gguf(tensors)


BROKEN: dict[str, tuple[Callable[[], bytes], str]] = {
    "truncated": (lambda: gguf(layers())[:5000], "is not usable: it is cut off"),
    "unknown architecture": (
        lambda: gguf({"encoder.0.weight": np.ones((32, 32))}, architecture="strange"),
        "(architecture 'strange')",
    ),
    "weights that are no numbers": (
        damaged,
        "the tensor 'blk.1.attn_norm.weight' in {path} holds 1 values that are not finite",
    ),
    "another model's tokenizer": (
        lambda: with_tokens(gguf(layers()), 95),
        "the tokenizer in {path} has 95 tokens and the model 96",
    ),
}


@pytest.mark.parametrize("name", list(BROKEN))
def test_broken_model_is_one_clear_line_and_nothing_is_left(tmp_path: Path, name: str) -> None:
    """The file and the fault are named; the file is as it was; nothing was written."""
    make, said = BROKEN[name]
    path = model_in(tmp_path, make())
    before = path.read_bytes()
    found = quantize(path)
    assert found.exit_code == 1
    assert said.format(path=path) in found.output
    assert "Traceback" not in found.output
    assert path.read_bytes() == before
    assert [one.name for one in tmp_path.rglob("*") if one.is_file()] == ["model.gguf"]


def test_tokenizer_of_the_right_size_is_no_fault(tmp_path: Path) -> None:
    """The other fault is found behind it."""
    path = model_in(tmp_path, with_tokens(damaged(), 96))
    assert "values that are not finite" in quantize(path).output


def test_broken_line_of_evals_is_named(tmp_path: Path) -> None:
    """File and line, before the model is even looked at."""
    evals = tmp_path / "evals.jsonl"
    evals.write_text(
        '{"prompt": "x", "checks": [{"type": "exact", "value": "y"}]}\n{"prompt": 3}\n'
    )
    found = quantize(tmp_path / "none.gguf", "--quality", str(evals))
    assert found.exit_code == 1
    assert "evals.jsonl, line 2: Expected `str | null`, got `int` - at `$.prompt`" in found.output


def test_disk_that_fills_midway_leaves_the_original_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The expansion of a quantized file does not fit: named, the source byte for byte, no partial file."""
    path = model_in(tmp_path, as_shipped(tmp_path))
    before = path.read_bytes()
    whole = gguf_codec.rewritten

    def short(*arguments: object) -> object:
        for number, part in enumerate(whole(*arguments)):  # type: ignore[arg-type]
            if number == 5:
                raise OSError(errno.ENOSPC, "No space left on device")
            yield part

    monkeypatch.setattr(gguf_codec, "rewritten", short)
    found = quantize(path)
    assert found.exit_code == 1
    assert "No space left on device; nothing of it was kept" in found.output
    assert path.read_bytes() == before
    assert [one.name for one in tmp_path.rglob("*") if one.is_file()] == ["model.gguf"]
