"""What the gateway reads from the disk: its secret, and the texts of the coding workload."""

import os
import stat
from pathlib import Path

import pytest

from trimtab.runtime.secret import SECRET_BYTES, SecretError, default_secret_path, load_secret
from trimtab.runtime.sources import MODULES, SourcesError, standard_library


def test_secret_is_made_once_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    """The first call makes 32 bytes with mode 0600, later ones read the same; no draft is left."""
    where = tmp_path / "deep" / "secret"
    first, second = load_secret(where), load_secret(where)
    assert first.digest(b"x") == second.digest(b"x")
    assert (stat.S_IMODE(where.stat().st_mode), where.stat().st_size) == (0o600, SECRET_BYTES)
    assert stat.S_IMODE(where.parent.stat().st_mode) == 0o700
    assert os.listdir(where.parent) == ["secret"]


def test_two_installations_have_different_secrets(tmp_path: Path) -> None:
    """Hashes of one installation mean nothing in another."""
    one, other = load_secret(tmp_path / "a"), load_secret(tmp_path / "b")
    assert one.digest(b"x") != other.digest(b"x")


def test_first_of_two_makers_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that lost the race takes the secret of the one that won it."""
    where = tmp_path / "secret"
    winner = load_secret(where)
    monkeypatch.setattr(Path, "exists", lambda self: False)
    assert load_secret(where).digest(b"x") == winner.digest(b"x")


def test_secret_follows_the_state_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """XDG_STATE_HOME counts where it is an absolute path, else ~/.local/state."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    absolute = default_secret_path()
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    monkeypatch.setenv("HOME", "/home/x")
    assert absolute == tmp_path / "trimtab" / "secret"
    assert default_secret_path() == Path("/home/x/.local/state/trimtab/secret")


@pytest.mark.parametrize("size", [0, 31, 33])
def test_broken_secret_is_a_clear_error(tmp_path: Path, size: int) -> None:
    """A file of another size is not taken, and not replaced: hashes would silently change."""
    where = tmp_path / "secret"
    where.write_bytes(b"x" * size)
    where.chmod(0o600)
    with pytest.raises(SecretError, match=r"broken.*remove it"):
        load_secret(where)
    assert where.stat().st_size == size


def test_secret_open_to_others_is_refused(tmp_path: Path) -> None:
    """A secret that others can read is none."""
    where = tmp_path / "secret"
    load_secret(where)
    where.chmod(0o644)
    with pytest.raises(SecretError, match="chmod 600"):
        load_secret(where)


def test_folder_that_cannot_be_made_is_a_clear_error(tmp_path: Path) -> None:
    """A file where the folder should be is named, with the way out."""
    (tmp_path / "file").write_text("")
    with pytest.raises(SecretError, match="XDG_STATE_HOME"):
        load_secret(tmp_path / "file" / "secret")


def test_secret_does_not_show_itself(tmp_path: Path) -> None:
    """Its text form, which may land in a log, has no byte of it."""
    secret = load_secret(tmp_path / "secret")
    assert (repr(secret), f"{secret}") == ("Secret(...)", "Secret(...)")


def test_standard_library_is_there_whole() -> None:
    """Every listed module has text, and enough of it for many functions."""
    texts = standard_library()
    assert tuple(texts) == MODULES
    assert all("def " in text for text in texts.values())


def test_missing_source_is_a_clear_error(tmp_path: Path) -> None:
    """The file that is missing is named."""
    with pytest.raises(SourcesError, match=MODULES[0]):
        standard_library(tmp_path)
