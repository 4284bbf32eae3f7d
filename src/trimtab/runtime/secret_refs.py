"""Secrets by reference: configuration says where a key is, never the key."""

import os
from pathlib import Path
from typing import Final

from trimtab.runtime.secret import SecretError

SECRET_BYTES_MAX: Final = 16 * 1024


def resolve_secret(reference: str) -> str:
    """Return the text that `env:NAME` or `file:PATH` means, without the white space around it.

    Raises `SecretError` that names the reference and the fix, never the text: where it is not set, cannot be read, is
    empty, or could not stand in a header.
    """
    kind, _, place = reference.partition(":")
    match kind:
        case "env":
            text = os.environ.get(place)
            if text is None:
                raise SecretError(f"{reference}: the variable {place} is not set; export it")
        case "file":
            text = _read(Path(place), reference)
        case _:
            raise SecretError("a secret is named by env:NAME or file:PATH, not written out")
    text = text.strip()
    if not text:
        raise SecretError(f"{reference} is empty; put the key there")
    if not text.isascii() or not text.isprintable():
        raise SecretError(f"{reference} has characters that cannot stand in a header")
    return text


def _read(path: Path, reference: str) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(SECRET_BYTES_MAX + 1)
        if len(data) > SECRET_BYTES_MAX:
            raise SecretError(f"{reference} is longer than {SECRET_BYTES_MAX} bytes: no key")
        return data.decode("ascii")
    except OSError as error:
        raise SecretError(f"{reference} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SecretError(f"{reference} has characters that cannot stand in a header") from error
