"""Step times that are kept between runs."""

from pathlib import Path

from trimtab.planning.grid_times import empty_grid
from trimtab.planning.kernel_port import NoTimes
from trimtab.runtime.kernel_cache import GridCache, Kept

ONE = Kept(notes=("a law",), extended=False, grids=(empty_grid(),))


def test_what_was_kept_is_found_by_the_next_run(tmp_path: Path) -> None:
    """Another object over the same folder."""
    GridCache(tmp_path / "kernels").put("a key", ONE)
    assert GridCache(tmp_path / "kernels").get("a key") == ONE
    assert GridCache(tmp_path / "kernels").get("another key") is None


def test_that_tables_have_nothing_is_kept_too(tmp_path: Path) -> None:
    """Finding that out loads them just as well."""
    none = NoTimes(because="there are no tables for it", nearest=("H100",))
    GridCache(tmp_path).put("a key", none)
    assert GridCache(tmp_path).get("a key") == none


def test_broken_file_is_as_good_as_none(tmp_path: Path) -> None:
    """It is made again instead of stopping a plan."""
    cache = GridCache(tmp_path)
    cache.put("a key", ONE)
    next(tmp_path.glob("*.times")).write_bytes(b"garbage")
    assert cache.get("a key") is None
    cache.put("a key", ONE)
    assert cache.get("a key") == ONE


def test_folder_that_cannot_be_written_costs_nothing_but_time(tmp_path: Path) -> None:
    """A file stands where the folder should be."""
    (tmp_path / "kernels").write_text("in the way")
    cache = GridCache(tmp_path / "kernels")
    cache.put("a key", ONE)
    assert cache.get("a key") is None


def test_no_folder_keeps_nothing() -> None:
    """Tests and callers that want no trace."""
    cache = GridCache(None)
    cache.put("a key", ONE)
    assert cache.get("a key") is None
