"""The safetensors format: what is written is read back, and what is not whole says where it breaks off."""

import pytest

from trimtab.engines.safetensors import SafetensorsError, StoredTensor, header_of, read_tensors

TENSORS = (
    StoredTensor(name="a", dtype="BF16", shape=(2, 3)),
    StoredTensor(name="b", dtype="I8", shape=(5,)),
)
WHOLE = header_of(TENSORS) + bytes(12) + bytes(5)


def test_written_file_is_read_back() -> None:
    """Names, types and shapes in order; bytes lie one after the other behind the header."""
    a, b = read_tensors(WHOLE, file_bytes=len(WHOLE))
    assert [(one.name, one.dtype, one.shape) for one in (a, b)] == [
        ("a", "BF16", (2, 3)),
        ("b", "I8", (5,)),
    ]
    assert b.start - a.start == a.size == 12
    assert b.start + b.size == len(WHOLE)


@pytest.mark.parametrize("end", [0, 4, 20, len(WHOLE) - 1])
def test_cut_file_is_refused_wherever_it_is_cut(end: int) -> None:
    """Before the header, in it, and one byte before the end."""
    cut = WHOLE[:end]
    with pytest.raises(SafetensorsError):
        read_tensors(cut, file_bytes=len(cut))


def test_longer_file_is_refused_with_both_ends() -> None:
    """Bytes that belong to no tensor are no part of the format."""
    longer = WHOLE + b"x"
    with pytest.raises(SafetensorsError, match=f"{len(longer)} bytes and its tensors end"):
        read_tensors(longer, file_bytes=len(longer))


@pytest.mark.parametrize(
    ("header", "words"),
    [
        (b'{"a":{"dtype":"F4","shape":[2],"data_offsets":[0,1]}}', "type F4"),
        (b'{"a":{"dtype":"I8","shape":[2],"data_offsets":[1,3]}}', "lies at"),
        (b'{"a":{"dtype":"I8"}}', "cannot be read"),
        (b"[1]", "cannot be read"),
    ],
)
def test_broken_header_says_what_is_wrong(header: bytes, words: str) -> None:
    """An unknown type, a gap, a field that is missing, no object."""
    data = len(header).to_bytes(8, "little") + header + bytes(3)
    with pytest.raises(SafetensorsError, match=words):
        read_tensors(data, file_bytes=len(data))
