"""Files that commands write: whole or not at all."""

from pathlib import Path

from trimtab.runtime.served_sources import SourceError


def write_whole(path: Path, text: str) -> None:
    """Write a file so that a reader never meets half of one; raises `SourceError`."""
    beside = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    except OSError as error:
        raise SourceError(f"{path} cannot be written: {error.strerror}") from error
