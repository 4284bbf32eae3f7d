"""GGUF headers: what they say, and every way in which a file is not whole."""

import struct

import pytest

from trimtab.engines.gguf import GGUFError, GGUFHeader, read_header


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def field(name: str, number: int) -> bytes:
    return text(name) + struct.pack("<II", 4, number)


def gguf(*, version: int = 3, values: int = 64, kind: int = 0, offset: int = 0) -> bytes:
    fields = [
        text("general.architecture") + struct.pack("<I", 8) + text("llama"),
        field("llama.block_count", 2),
        field("llama.embedding_length", 64),
        field("llama.attention.head_count", 4),
        field("llama.attention.head_count_kv", 2),
        field("llama.context_length", 512),
        text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 2) + text("a") + text("bc"),
    ]
    tensor = text("t") + struct.pack("<IQIQ", 1, values, kind, offset)
    head = b"GGUF" + struct.pack("<IQQ", version, 1, len(fields)) + b"".join(fields) + tensor
    padded = head + bytes(-len(head) % 32)
    return padded + bytes(offset + values * 4)


def read(data: bytes) -> GGUFHeader:
    return read_header(data, file_bytes=len(data))


def test_header_tells_the_size_of_the_kv_cache() -> None:
    """Layers x KV heads x (key + value length): 2 x 2 x (16 + 16)."""
    header = read(gguf())
    assert header.kv_values_per_token == 128
    assert (header.context_tokens, header.vocabulary, header.tensors) == (512, 2, 1)


def test_whole_file_ends_where_its_tensors_end() -> None:
    """The end of the data is that of the last tensor."""
    data = gguf()
    assert read(data).data_end == len(data)


def test_file_cut_in_its_tensors_is_found() -> None:
    """A good header over missing data is the common broken download."""
    data = gguf()
    with pytest.raises(GGUFError, match="cut off"):
        read(data[:-1])


@pytest.mark.parametrize("length", [4, 8, 24, 40, 100, 200])
def test_file_cut_in_its_header_is_found(length: int) -> None:
    """A header that ends early is an error of its own, not of the parser."""
    with pytest.raises(GGUFError, match="cut off"):
        read(gguf()[:length])


def test_other_file_is_no_gguf() -> None:
    """The first four bytes decide."""
    with pytest.raises(GGUFError, match="does not begin with GGUF"):
        read(b"PK\x03\x04" + bytes(100))


def test_unknown_version_is_refused() -> None:
    """A layout that nobody here knows is not guessed at."""
    with pytest.raises(GGUFError, match="version 9"):
        read(gguf(version=9))


def test_quantized_tensor_counts_in_blocks() -> None:
    """64 values of Q8_0 are two blocks of 34 bytes."""
    header = read(gguf(kind=8))
    assert header.data_end - header.data_start == 68


def test_every_flipped_header_byte_gives_a_header_or_its_error() -> None:
    """Corruption never shows as another exception, and never as an endless read."""
    data = gguf()
    for index in range(len(data) - 256):
        broken = data[:index] + bytes([data[index] ^ 0xFF]) + data[index + 1 :]
        try:
            found: object = read(broken)
        except GGUFError as error:
            found = error
        assert isinstance(found, GGUFHeader | GGUFError)
