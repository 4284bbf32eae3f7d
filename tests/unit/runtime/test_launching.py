"""The pure parts of launching: slots for saved files, memory, log lines that may be kept."""

import pytest

from trimtab.core.revision import Model, Revision
from trimtab.engines.gguf import GGUFHeader
from trimtab.runtime.child import keepable, say_exit
from trimtab.runtime.launcher import assign_slots
from trimtab.runtime.model import memory_need

HEADER = GGUFHeader(
    version=3,
    tensors=1,
    fields={
        "general.architecture": "llama",
        "llama.block_count": 30,
        "llama.embedding_length": 576,
        "llama.attention.head_count": 9,
        "llama.attention.head_count_kv": 3,
    },
    counts={"tokenizer.ggml.tokens": 49152},
    data_start=0,
    data_end=100,
)
REVISION = Revision(
    engine="llamacpp",
    engine_version="1",
    model=Model(path="/m", sha256="0", name="m"),
    slots=4,
    context_tokens=2048,
)


@pytest.mark.parametrize(
    ("files", "slots", "expected"),
    [
        ([(0, "a"), (1, "b")], [0, 1, 2], ((0, "a"), (1, "b"))),
        ([(5, "a"), (0, "b")], [0, 1], ((1, "a"), (0, "b"))),
        ([(3, "a"), (2, "b"), (0, "c")], [0, 1], ((0, "a"), (1, "b"))),
        ([(0, "a")], [], ()),
        ([], [0], ()),
    ],
)
def test_saved_files_keep_their_slots_where_they_can(
    files: list[tuple[int, str]], slots: list[int], expected: tuple[tuple[int, str], ...]
) -> None:
    """Own slot first, else a free one; of more files than slots the first (fullest) stay."""
    assert assign_slots(files, slots) == expected


def test_kv_need_follows_slots_context_and_precision() -> None:
    """30 layers x 3 heads x (64 + 64) values x 2 bytes a token; Q8_0 takes 34 bytes for 32 values."""
    assert memory_need(REVISION, HEADER).kv == 4 * 2048 * 23_040
    assert memory_need(REVISION.replace(kv_type="q8_0"), HEADER).kv == 4 * 2048 * 11_520 * 34 // 32


def test_need_names_its_parts() -> None:
    """The message shows what the memory is for."""
    need = memory_need(REVISION.replace(host_cache_mib=64), HEADER)
    assert need.total == need.model + need.kv + need.workspace + 64 * 2**20
    assert "KV cache 180 MiB" in str(need)
    assert "host cache 64 MiB" in str(need)


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        (
            b"0.01.558.935 E srv    send_error: task id = 6\n",
            b"0.01.558.935 E srv    send_error: task id = 6",
        ),
        (b"0.01.277.281 W srv  operator(): got exception: last read: 'SECRET'\n", None),
        (b"parse: error parsing grammar: expecting ')' at\n", None),
        (b"root ::= SECRET\n", None),
        (
            b"terminate called after throwing an instance of 'std::runtime_error'\n",
            b"terminate called after throwing an instance of 'std::runtime_error'",
        ),
        (b"  what():  SECRET\n", None),
        (b"Fatal Python error: Segmentation fault\n", b"Fatal Python error: Segmentation fault"),
    ],
)
def test_only_lines_that_cannot_quote_a_request_are_kept(line: bytes, kept: bytes | None) -> None:
    """Warnings and free text of the engine may hold a prompt; its errors and fatal signals do not."""
    assert keepable(line) == kept


def test_exit_is_said_in_words() -> None:
    """A signal is told apart from an exit code."""
    assert [say_exit(code) for code in (-9, 1, None)] == [
        "signal 9",
        "exit code 1",
        "an unknown exit code",
    ]
