"""Step times that are kept between runs."""

import subprocess
import sys
from pathlib import Path

from trimtab.planning.grid_times import empty_grid
from trimtab.planning.kernel_port import NoTimes
from trimtab.runtime.kernel_cache import GridCache, Kept

ONE = Kept(notes=("a law",), extended=False, grids=(empty_grid(),))
WRITER = """
import sys
from pathlib import Path
from trimtab.planning.kernel_port import NoTimes
from trimtab.runtime.kernel_cache import GridCache
for at in range(40):
    none = NoTimes(because="none", nearest=())
    GridCache(Path(sys.argv[1])).put("a model", {f"{sys.argv[2]}{at}": none})
"""


def test_what_was_kept_is_found_by_the_next_run(tmp_path: Path) -> None:
    """Another object over the same folder."""
    GridCache(tmp_path / "kernels").put("a model", {"a layout": ONE})
    assert GridCache(tmp_path / "kernels").get("a model", "a layout") == ONE
    assert GridCache(tmp_path / "kernels").get("a model", "another layout") is None


def test_that_tables_have_nothing_is_kept_too(tmp_path: Path) -> None:
    """Finding that out loads them just as well."""
    none = NoTimes(because="there are no tables for it", nearest=("H100",))
    GridCache(tmp_path).put("a model", {"a layout": none})
    assert GridCache(tmp_path).get("a model", "a layout") == none


def test_broken_file_is_as_good_as_none(tmp_path: Path) -> None:
    """It is made again instead of stopping a plan."""
    cache = GridCache(tmp_path)
    cache.put("a model", {"a layout": ONE})
    next(tmp_path.glob("*.times")).write_bytes(b"garbage")
    cache = GridCache(tmp_path)
    assert cache.get("a model", "a layout") is None
    cache.put("a model", {"a layout": ONE})
    assert cache.get("a model", "a layout") == ONE


def test_folder_that_cannot_be_written_costs_nothing_but_time(tmp_path: Path) -> None:
    """A file stands where the folder should be."""
    (tmp_path / "kernels").write_text("in the way")
    cache = GridCache(tmp_path / "kernels")
    cache.put("a model", {"a layout": ONE})
    assert cache.get("a model", "a layout") is None


def test_layouts_of_a_model_share_a_file_and_news_leave_the_others(tmp_path: Path) -> None:
    """Even those that another process wrote after this one read it; another model has a file of its own."""
    first, second = GridCache(tmp_path), GridCache(tmp_path)
    none = NoTimes(because="there are no tables for it")
    assert second.get("a model", "a layout") is None
    first.put("a model", {"a layout": ONE})
    second.put("a model", {"another layout": none})
    first.put("another model", {"a layout": none})
    third = GridCache(tmp_path)
    assert third.get("a model", "a layout") == second.get("a model", "a layout") == ONE
    assert third.get("a model", "another layout") == none
    assert third.get("another model", "a layout") == none
    assert len(list(tmp_path.glob("*.times"))) == 2


def test_no_folder_keeps_nothing() -> None:
    """Tests and callers that want no trace."""
    cache = GridCache(None)
    cache.put("a model", {"a layout": ONE})
    assert cache.get("a model", "a layout") is None


def test_processes_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    """Two keep forty layouts each beside one that was there."""
    GridCache(tmp_path).put("a model", {"before": ONE})
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), name]) for name in ("a", "b")
    ]
    assert [one.wait(60) for one in writers] == [0, 0]
    kept = GridCache(tmp_path)
    names = ["before", *(f"{name}{at}" for name in "ab" for at in range(40))]
    assert [name for name in names if kept.get("a model", name) is None] == []
