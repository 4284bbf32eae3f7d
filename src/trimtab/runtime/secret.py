"""The installation's secret: prompts are only ever remembered as hashes that need it to be guessed."""

import contextlib
import hashlib
import os
import stat
from pathlib import Path

SECRET_BYTES = 32
DIGEST_BYTES = 16


class SecretError(RuntimeError):
    """The secret cannot be read or made; the message names the file and the fix."""


class Secret:
    """32 random bytes with the keyed hash that is made from them. Its text form shows nothing."""

    def __init__(self, key: bytes) -> None:
        if len(key) != SECRET_BYTES:
            raise SecretError(f"a secret has {SECRET_BYTES} bytes, not {len(key)}")
        self._key = key

    def __repr__(self) -> str:
        return "Secret(...)"

    def derive(self, purpose: str) -> bytes:
        """Return a key for one purpose, so that two uses never share hashes."""
        return hashlib.blake2b(
            purpose.encode(), key=self._key, digest_size=SECRET_BYTES, person=b"trimtab-derive"
        ).digest()

    def digest(self, data: bytes) -> str:
        """Return the keyed BLAKE2b hash of `data`, 32 hex digits."""
        return self.hasher(data).hexdigest()

    def hasher(self, data: bytes = b"") -> "hashlib.blake2b":
        """Return a keyed hash that can be fed in parts; equal bytes give what `digest` gives."""
        return hashlib.blake2b(data, key=self._key, digest_size=DIGEST_BYTES)


def default_secret_path() -> Path:
    """Return where the secret lies: ${XDG_STATE_HOME:-~/.local/state}/trimtab/secret."""
    state = os.environ.get("XDG_STATE_HOME", "")
    # The specification tells to ignore a relative path.
    base = Path(state) if state.startswith("/") else Path.home() / ".local" / "state"
    return base / "trimtab" / "secret"


def load_secret(path: Path | None = None) -> Secret:
    """Read the installation's secret, made at the first call; raises `SecretError`.

    Two processes that start at once end up with the same secret: the file appears whole and the first one wins.
    """
    where = path or default_secret_path()
    try:
        if not where.exists():
            _create(where)
        return _read(where)
    except OSError as error:
        raise SecretError(
            f"the secret {where} cannot be used: {error.strerror}; set XDG_STATE_HOME to a folder you may write"
        ) from error


def _read(where: Path) -> Secret:
    with where.open("rb") as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        key = file.read(SECRET_BYTES + 1)
    if mode & 0o077:
        raise SecretError(f"the secret {where} is open to others (mode {mode:o}): chmod 600 it")
    if len(key) != SECRET_BYTES:
        raise SecretError(
            f"the secret {where} is broken ({SECRET_BYTES} bytes expected): remove it and a new one is made;"
            " hashes of earlier requests will then not match new ones"
        )
    return Secret(key)


def _create(where: Path) -> None:
    where.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = where.with_name(f".{where.name}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(os.urandom(SECRET_BYTES))
            file.flush()
            os.fsync(file.fileno())
        # A link, not a rename: it fails where another process was first, whose secret then counts.
        with contextlib.suppress(FileExistsError):
            os.link(draft, where)
    finally:
        draft.unlink(missing_ok=True)
