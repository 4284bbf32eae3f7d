"""The copy with blocked weights: made once, made again when it is not whole, and never half there."""

import hashlib
from pathlib import Path

import pytest

from trimtab.core.ports import LaunchError
from trimtab.runtime import model_copy
from trimtab.runtime.model import PACKAGED_SHA256, find_model
from trimtab.runtime.model_copy import blocked_copy, cache_folder


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of our own, and a conversion that can be counted by its result."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(model_copy, "reencode", lambda data: b"blocked " + data)
    return tmp_path / "trimtab"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"weights")
    return path


def test_copy_is_made_once(cache: Path, source: Path) -> None:
    """The second start finds it and writes nothing."""
    copy, digest = blocked_copy(source, "ab" * 32)
    assert digest == hashlib.sha256(b"blocked weights").hexdigest()
    written = copy.stat().st_mtime_ns
    assert copy.parent == cache
    assert copy.read_bytes() == b"blocked weights"
    assert blocked_copy(source, "ab" * 32)[0].stat().st_mtime_ns == written
    assert sorted(path.name for path in cache.iterdir()) == sorted(
        [copy.name, copy.with_suffix(".sha256").name]
    )


@pytest.mark.parametrize("damage", [b"", b"blocked weightz"])
def test_damaged_copy_is_made_again(cache: Path, source: Path, damage: bytes) -> None:
    """A copy that does not have its checksum is not run."""
    copy, _ = blocked_copy(source, "ab" * 32)
    copy.write_bytes(damage)
    assert blocked_copy(source, "ab" * 32)[0].read_bytes() == b"blocked weights"


def test_copy_without_its_checksum_is_made_again(cache: Path, source: Path) -> None:
    """A start that was killed between the two files left no proof."""
    copy, _ = blocked_copy(source, "ab" * 32)
    copy.with_suffix(".sha256").unlink()
    copy.write_bytes(b"other")
    assert blocked_copy(source, "ab" * 32)[0].read_bytes() == b"blocked weights"


def test_cache_that_cannot_be_written_is_a_clear_error(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message names the place and both ways out."""
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(model_copy, "reencode", lambda data: data)
    with pytest.raises(LaunchError, match=r"engine\.blocked_weights = false"):
        blocked_copy(source, "ab" * 32)


def test_packaged_model_runs_from_its_copy() -> None:
    """The file itself stays as it was installed; its copy lies in the cache under another checksum."""
    stored, copy = find_model(""), find_model("", blocked_weights=True)
    assert stored.sha256 == PACKAGED_SHA256
    assert Path(copy.path).parent == cache_folder()
    assert copy.sha256 == hashlib.sha256(Path(copy.path).read_bytes()).hexdigest()
    assert copy.sha256 != stored.sha256
    assert copy.name == stored.name
