"""Keys by reference: found where they are named, never shown, refused with the fix."""

from pathlib import Path

import pytest

from trimtab.core.config import AttachedServer, FleetConfig
from trimtab.runtime.access import access_of
from trimtab.runtime.secret import SecretError
from trimtab.runtime.secret_refs import SECRET_BYTES_MAX, resolve_secret


def test_variable_and_file_give_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """White space around it is none of it: files end with a line."""
    monkeypatch.setenv("K", "sk-1")
    path = tmp_path / "key"
    path.write_text("  sk-2\n")
    assert (resolve_secret("env:K"), resolve_secret(f"file:{path}")) == ("sk-1", "sk-2")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"sk\r\nX-Injected: 1", "cannot stand in a header"),
        ("schlüssel".encode(), "cannot stand in a header"),
        (b"x" * (SECRET_BYTES_MAX + 1), "no key"),
    ],
)
def test_what_is_no_key_is_refused_without_being_shown(
    tmp_path: Path, content: bytes, said: str
) -> None:
    """The message names the reference only."""
    path = tmp_path / "key"
    path.write_bytes(content)
    with pytest.raises(SecretError, match=said) as raised:
        resolve_secret(f"file:{path}")
    assert "Injected" not in str(raised.value)


def test_key_written_out_is_not_taken() -> None:
    """And not repeated."""
    with pytest.raises(SecretError, match="not written out") as raised:
        resolve_secret("sk-very-secret")
    assert "very-secret" not in str(raised.value)


def test_server_s_own_key_goes_before_the_fleet_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without either none is sent; TLS is for https only."""
    monkeypatch.setenv("OWN", "own")
    monkeypatch.setenv("ALL", "all")
    fleet = FleetConfig(api_key="env:ALL")
    own = AttachedServer(url="https://h:1", api_key="env:OWN")
    plain = AttachedServer(url="http://h:2")
    assert access_of(own, fleet).headers == {"Authorization": "Bearer own"}
    assert access_of(plain, fleet).headers == {"Authorization": "Bearer all"}
    assert access_of(plain, FleetConfig()).headers == {}
    assert (access_of(own, fleet).tls is None, access_of(plain, fleet).tls) == (False, None)


def test_certificates_that_cannot_be_read_name_the_setting(tmp_path: Path) -> None:
    """A wrong path, and a file without a certificate."""
    empty = tmp_path / "ca.pem"
    empty.write_text("no certificate")
    for place in (tmp_path / "none.pem", empty):
        with pytest.raises(SecretError, match=r"fleet\.ca_file"):
            access_of(AttachedServer(url="https://h"), FleetConfig(ca_file=str(place)))
