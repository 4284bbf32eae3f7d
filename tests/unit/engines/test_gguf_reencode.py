"""Q4_1 weights as Q8_0: the values stay, the file stays a model, everything else stays as it was."""

import struct

import numpy as np
import pytest

from trimtab.engines.gguf import GGUFError, read_header, read_tensors
from trimtab.engines.gguf_reencode import Q4_1, Q8_0, as_q8_0, reencode

F32 = 0


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def q4_1(rng: np.random.Generator, blocks: int) -> bytes:
    scales = rng.uniform(0.01, 0.2, size=(blocks, 2)).astype(np.float16)
    scales[:, 1] *= -8
    nibbles = rng.integers(0, 256, size=(blocks, 16), dtype=np.uint8)
    return np.concatenate([scales.view(np.uint8).reshape(blocks, 4), nibbles], axis=1).tobytes()


def values_of_q4_1(raw: bytes) -> np.ndarray:
    found = []
    for at in range(0, len(raw), 20):
        scale, least = np.frombuffer(raw[at : at + 4], dtype=np.float16).astype(np.float64)
        codes = raw[at + 4 : at + 20]
        found += [(code & 15) * scale + least for code in codes]
        found += [(code >> 4) * scale + least for code in codes]
    return np.array(found)


def values_of_q8_0(raw: bytes) -> np.ndarray:
    found = []
    for at in range(0, len(raw), 34):
        (scale,) = np.frombuffer(raw[at : at + 2], dtype=np.float16).astype(np.float64)
        found += [code * scale for code in np.frombuffer(raw[at + 2 : at + 34], dtype=np.int8)]
    return np.array(found)


def model(alignment: int | None = None) -> tuple[bytes, bytes, bytes]:
    """A file of two tensors, one Q4_1 of 64 x 2 and one F32 of 3, and their bytes."""
    coded, plain = q4_1(np.random.default_rng(1), 4), struct.pack("<3f", 1.0, -2.0, 3.5)
    fields = [text("general.architecture") + struct.pack("<I", 8) + text("llama")]
    if alignment is not None:
        fields.append(text("general.alignment") + struct.pack("<II", 4, alignment))
    table = text("w") + struct.pack("<IQQIQ", 2, 64, 2, Q4_1, 0)
    table += text("norm") + struct.pack("<IQIQ", 1, 3, F32, 96)
    head = b"GGUF" + struct.pack("<IQQ", 3, 2, len(fields)) + b"".join(fields) + table
    step = alignment or 32
    data = head + bytes(-len(head) % step) + coded + bytes(96 - len(coded)) + plain
    return data, coded, plain


def test_values_stay_but_for_rounding_to_eight_bits() -> None:
    """No value moves by more than half a step of its block, and a little for the F16 scale."""
    raw = q4_1(np.random.default_rng(7), 50)
    before, after = values_of_q4_1(raw), values_of_q8_0(as_q8_0(raw))
    largest = np.abs(before).reshape(-1, 32).max(axis=1).repeat(32)
    assert np.all(np.abs(after - before) <= largest * (0.5 / 127 + 1e-3))


def test_block_of_zeros_stays_zero() -> None:
    """A scale of nothing divides nothing."""
    assert values_of_q8_0(as_q8_0(bytes(20))).tolist() == [0.0] * 32


def test_file_stays_a_whole_model_with_other_types() -> None:
    """Header fields and shapes are kept, only Q4_1 changes its type, and other tensors keep their bytes."""
    data, coded, plain = model()
    made = reencode(data)
    before, after = read_tensors(data), read_tensors(made)
    assert [one.kind for one in after.tensors] == [Q8_0, F32]
    assert [(t.name, t.shape) for t in after.tensors] == [(t.name, t.shape) for t in before.tensors]
    assert made[: after.table_start] == data[: before.table_start]
    first, second = after.tensors
    assert made[first.start : first.start + first.size] == as_q8_0(coded)
    assert made[second.start : second.start + second.size] == plain
    assert all(one.start % 32 == 0 for one in after.tensors)
    assert read_header(made, file_bytes=len(made)).architecture == "llama"


def test_same_file_gives_the_same_bytes() -> None:
    """Copies of two hosts have one checksum, so that their KV may be exchanged."""
    data, _, _ = model()
    assert reencode(data) == reencode(data)


def test_other_alignments_are_refused() -> None:
    """What cannot be written again is said, not guessed."""
    with pytest.raises(GGUFError, match="aligned to 64 bytes"):
        reencode(model(alignment=64)[0])


def test_tensor_of_unknown_type_is_refused_by_name() -> None:
    """Its size is unknown, so it cannot be copied."""
    data = model()[0]
    broken = data.replace(struct.pack("<IQ", F32, 96), struct.pack("<IQ", 999, 96))
    with pytest.raises(GGUFError, match="'norm' has the unknown type 999"):
        read_tensors(broken)
