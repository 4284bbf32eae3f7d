"""Eval files on disk: drawn by a fixed seed, refused by name, schemas checked before anything starts."""

import gzip
import json
from pathlib import Path

import pytest

from trimtab.core.ports import LaunchError
from trimtab.quality.evals import LINE_BYTES_MAX
from trimtab.runtime.quality_evals import check_schemas, read_evals
from trimtab.runtime.quality_texts import TextError, named_texts, standard_texts


def file_of(folder: Path, name: str, *items: dict[str, object]) -> Path:
    path = folder / name
    path.write_text("".join(json.dumps(item) + "\n" for item in items))
    return path


def item(name: str, check: dict[str, object] | None = None) -> dict[str, object]:
    return {"id": name, "prompt": "x", "checks": [check or {"type": "exact", "value": "y"}]}


def test_part_of_a_file_is_drawn_by_a_fixed_seed(tmp_path: Path) -> None:
    """Twice the same, in the file's order, and how many there are is told."""
    path = file_of(tmp_path, "a.jsonl", *(item(f"q{at}") for at in range(50)))
    first, again = read_evals([path], items_max=10), read_evals([path], items_max=10)
    assert (first, first.total, len(first.items)) == (again, 50, 10)
    numbers = [int(one.id[1:]) for one in first.items]
    assert numbers == sorted(numbers)


def test_item_that_comes_twice_is_refused(tmp_path: Path) -> None:
    """Scores are paired by id."""
    paths = [file_of(tmp_path, name, item("q")) for name in ("a.jsonl", "b.jsonl")]
    with pytest.raises(TextError, match=r"'q' comes twice in .*a\.jsonl, .*b\.jsonl"):
        read_evals(paths, items_max=10)


def test_broken_line_names_its_file(tmp_path: Path) -> None:
    """File and line."""
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(item("q")) + "\n{\n")
    with pytest.raises(TextError, match=r"a\.jsonl, line 2 is no JSON object"):
        read_evals([path], items_max=10)


def test_schema_that_is_none_is_refused_before_anything_starts(tmp_path: Path) -> None:
    """With the item's name."""
    pytest.importorskip("jsonschema", reason="the jsonschema package is not installed")
    bad = item("q7", {"type": "json_schema", "value": {"type": "strng"}})
    good = item("q8", {"type": "json_schema", "value": {"type": "object"}})
    with pytest.raises(LaunchError, match="eval item q7: its json_schema is none"):
        check_schemas(read_evals([file_of(tmp_path, "a.jsonl", bad, good)], items_max=10))
    check_schemas(read_evals([file_of(tmp_path, "b.jsonl", good)], items_max=10))


@pytest.mark.parametrize(
    ("data", "said"),
    [(b"", "is empty"), (b"\xff\xfe", "is no UTF-8 text"), (None, "cannot be read")],
)
def test_text_that_cannot_be_used_is_refused_by_name(
    tmp_path: Path, data: bytes | None, said: str
) -> None:
    """Empty, no text, or not there."""
    path = tmp_path / "mail.txt"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(TextError, match=rf"mail\.txt {said}"):
        named_texts((("letters", path),))


def test_standard_texts_are_code_and_prose_of_every_installation() -> None:
    """As many of each as were asked for, none empty, none twice."""
    texts = standard_texts(3)
    assert [one.kind for one in texts] == ["code"] * 3 + ["prose"] * 3
    assert len({one.text for one in texts}) == 6
    assert min(len(one.text) for one in texts) > 2000


def test_published_file_is_read_compressed(tmp_path: Path) -> None:
    """As HumanEval comes: gzip by its name; one that was cut off is refused by name."""
    data = gzip.compress((json.dumps(item("q")) + "\n").encode())
    path = tmp_path / "HumanEval.jsonl.gz"
    path.write_bytes(data)
    assert [one.id for one in read_evals([path], items_max=10).items] == ["q"]
    path.write_bytes(data[:-12])
    with pytest.raises(TextError, match=r"HumanEval\.jsonl\.gz"):
        read_evals([path], items_max=10)


def test_line_without_an_end_is_not_held_in_memory(tmp_path: Path) -> None:
    """More than may be read is refused where it begins."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"x" * (LINE_BYTES_MAX + 5))
    with pytest.raises(TextError, match=r"a\.jsonl, line 1: 1,048,577 bytes"):
        read_evals([path], items_max=10)
