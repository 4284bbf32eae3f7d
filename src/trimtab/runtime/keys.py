"""The file of API keys, hashed and readable by its owner alone, and the ring of keys that a running gateway opens by.

The command that adds or revokes a key and the gateways that look at it are different processes. Writers take a lock
beside the file; readers see the old or the new file, never half of one. A gateway looks at the file's stamp at most
once a second, so that a revoked key opens for a second more at most, and without a restart. A file that breaks or goes
away while a gateway runs changes nothing: the keys that were read last go on, and the reason is told.
"""

import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from trimtab.core.tenants import (
    ID_BYTES,
    SECRET_BYTES,
    ApiKey,
    KeyBook,
    TenantError,
    find_key,
    make_key,
)
from trimtab.runtime.secret import default_secret_path

LOOK_EVERY_S: Final = 1.0
FILE_BYTES_MAX: Final = 16 * 1024 * 1024
_BOOKS: Final = msgspec.json.Decoder(KeyBook)

Stamp = tuple[int, int, int]


def default_keys_path(secret_path: Path | None = None) -> Path:
    """Return where keys are kept: beside the installation's secret, or beside that one."""
    return (secret_path or default_secret_path()).with_name("keys.json")


def fresh_key() -> str:
    """Return a key that nobody has."""
    return make_key(os.urandom(ID_BYTES + SECRET_BYTES))


def read_keys(path: Path) -> KeyBook | None:
    """Return the keys in a file, None where there is no file; raises `TenantError` on one that cannot be used."""
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            data = file.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise TenantError(f"the keys in {path} cannot be read: {error.strerror}") from error
    if mode & 0o077:
        raise TenantError(
            f"the keys in {path} are open to others (mode {mode:o}): chmod 600 it, and make new keys if others"
            " may have written there"
        )
    if len(data) > FILE_BYTES_MAX:
        raise TenantError(f"{path} is longer than {FILE_BYTES_MAX} bytes: no file of keys")
    return _book(data, path)


def _book(data: bytes, path: Path) -> KeyBook:
    try:
        book = _BOOKS.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise TenantError(
            f"{path} is no file of keys: {error}; put a copy back, or remove it and add keys anew"
        ) from error
    if book.format != 1:
        raise TenantError(f"{path} was written by a later version (format {book.format})")
    return book


def change_keys(path: Path, change: Callable[[KeyBook], KeyBook]) -> KeyBook:
    """Read, change and write a file of keys with nobody else in between; raises `TenantError`.

    The file has mode 0600 and is on disk before this returns.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _locked(path):
            changed = change(read_keys(path) or KeyBook())
            _write(path, msgspec.json.format(msgspec.json.encode(changed), indent=1))
    except OSError as error:
        raise TenantError(
            f"the keys in {path} cannot be written: {error.strerror}; --keys names another file"
        ) from error
    return changed


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    # Not the file itself: it is replaced under the lock.
    beside = path.with_name(f".{path.name}.lock")
    with open(os.open(beside, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _write(path: Path, data: bytes) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(data + b"\n")
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


class KeyRing:
    """The keys that open a gateway now. `say` hears why a changed file was not taken."""

    def __init__(self, path: Path, say: Callable[[str], None] = lambda _: None) -> None:
        """Read the file if there is one; raises `TenantError` on one that cannot be used."""
        self._path = path
        self._say = say
        self._stamp = _stamp(path)
        book = read_keys(path)
        self._keys: dict[str, ApiKey] = {} if book is None else book.by_hash()
        self.has_file = book is not None
        """Whether keys were ever added here; a book of revoked keys alone still closes the gateway."""
        self._looked_s = float("-inf")

    def find(self, said: str, now_s: float) -> ApiKey | None:
        """Return the key that a client showed, None if it opens nothing."""
        self.look(now_s)
        return find_key(self._keys, said)

    def look(self, now_s: float) -> None:
        """Read the file again if it changed, at most once a second."""
        if now_s - self._looked_s < LOOK_EVERY_S:
            return
        self._looked_s = now_s
        stamp = _stamp(self._path)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            book = read_keys(self._path)
        except TenantError as error:
            self._say(f"the keys stay as they were: {error}")
            return
        if book is None:
            if self.has_file:
                self._say(f"the keys stay as they were: {self._path} is gone")
            return
        self._keys, self.has_file = book.by_hash(), True


def _stamp(path: Path) -> Stamp | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
