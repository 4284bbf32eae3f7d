"""Compiled configurations that are kept between runs."""

from pathlib import Path

from trimtab.runtime.kernel_cache import Compiled, CompiledCache

ONE = Compiled(spec=b"\x00\x01", widths="matrices fp8", version="1")


def test_what_was_kept_is_found_by_the_next_run(tmp_path: Path) -> None:
    """Another object over the same folder."""
    CompiledCache(tmp_path / "kernels").put("a key", ONE)
    assert CompiledCache(tmp_path / "kernels").get("a key") == ONE
    assert CompiledCache(tmp_path / "kernels").get("another key") is None


def test_broken_file_is_as_good_as_none(tmp_path: Path) -> None:
    """It is made again instead of stopping a plan."""
    cache = CompiledCache(tmp_path)
    cache.put("a key", ONE)
    next(tmp_path.glob("*.spec")).write_bytes(b"garbage")
    assert cache.get("a key") is None
    cache.put("a key", ONE)
    assert cache.get("a key") == ONE


def test_folder_that_cannot_be_written_costs_nothing_but_time(tmp_path: Path) -> None:
    """A file stands where the folder should be."""
    (tmp_path / "kernels").write_text("in the way")
    cache = CompiledCache(tmp_path / "kernels")
    cache.put("a key", ONE)
    assert cache.get("a key") is None


def test_no_folder_keeps_nothing() -> None:
    """Tests and callers that want no trace."""
    cache = CompiledCache(None)
    cache.put("a key", ONE)
    assert cache.get("a key") is None
