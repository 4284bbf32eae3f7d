"""`trimtab keys`: keys are kept hashed in a file for its owner alone, whoever writes at once."""

import json
import stat
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from trimtab.core.tenants import KeyBook, TenantError, find_key, make_key, new_key
from trimtab.interfaces.cli import main
from trimtab.runtime.keys import KeyRing, change_keys, read_keys


def run(path: Path, *args: str, line: str | None = None) -> Result:
    """Run `trimtab keys` on a file."""
    return CliRunner().invoke(main, ["keys", *args, "--keys", str(path)], input=line)


def put(path: Path, key: str, tenant: str) -> None:
    """Add a key to a file."""
    made = new_key(key, tenant, at_s=0.0)
    change_keys(path, lambda book: book.with_key(made))


def test_an_added_key_opens_and_stands_nowhere_in_the_file(tmp_path: Path) -> None:
    """The command prints the key once; the file holds its hash, mode 0600."""
    path = tmp_path / "state" / "keys.json"
    added = run(path, "add", "alice")
    assert added.exit_code == 0
    key = added.stdout.strip()
    assert key.split("-", 2)[2] not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    found = KeyRing(path).find(key, 0.0)
    assert found is not None
    assert found.tenant == "alice"


def test_a_list_shows_ids_tenants_and_revoked_keys_but_no_key(tmp_path: Path) -> None:
    """What is listed may be shown to anybody."""
    path = tmp_path / "keys.json"
    keys = [run(path, "add", name).stdout.strip() for name in ("alice", "bob")]
    ids = [key.split("-")[1] for key in keys]
    assert run(path, "revoke", ids[0]).exit_code == 0
    listed = run(path, "list")
    assert [line.split()[:3] for line in listed.stdout.splitlines()] == [
        [ids[0], "alice", "revoked"],
        [ids[1], "bob", "in"],
    ]
    told = json.loads(run(path, "list", "--json").stdout)
    assert [set(one) for one in told["keys"]] == [
        {"id", "tenant", "created_at_s", "revoked_at_s"}
    ] * 2


def test_a_key_from_elsewhere_is_taken_from_standard_input(tmp_path: Path) -> None:
    """Clients keep the key they have; it is not printed again."""
    path = tmp_path / "keys.json"
    foreign = "sk-" + "q" * 40
    added = run(path, "add", "alice", "--stdin", line=foreign + "\n")
    assert (added.exit_code, added.stdout) == (0, "")
    found = KeyRing(path).find(foreign, 0.0)
    assert found is not None
    assert found.tenant == "alice"


@pytest.mark.parametrize(
    ("args", "line", "said"),
    [
        (("add", "Not A Name"), None, "is no tenant name"),
        (("add", "alice", "--stdin"), "short\n", "32 to 512 ASCII characters"),
        (("add", "alice", "--stdin"), "", "no key came"),
        (("revoke", "12345678"), None, "no key 12345678 is in use"),
    ],
)
def test_a_wrong_use_is_one_line_that_says_what(
    tmp_path: Path, args: tuple[str, ...], line: str | None, said: str
) -> None:
    """Exit code 1, no traceback, and no file is left behind half made."""
    path = tmp_path / "keys.json"
    result = run(path, *args, line=line)
    assert result.exit_code == 1
    assert said in result.stderr
    assert not path.exists() or read_keys(path) == KeyBook()


@pytest.mark.parametrize(
    ("content", "mode", "said"),
    [
        (b"{}", 0o644, "open to others"),
        (b"no json", 0o600, "no file of keys"),
        (b'{"format": 2}', 0o600, "later version"),
        (b'{"keys": [{"id": "x"}]}', 0o600, "missing required field"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_with_the_fix(
    tmp_path: Path, content: bytes, mode: int, said: str
) -> None:
    """Neither taken as empty nor as everybody's."""
    path = tmp_path / "keys.json"
    path.write_bytes(content)
    path.chmod(mode)
    with pytest.raises(TenantError, match=said):
        read_keys(path)
    with pytest.raises(TenantError, match=said):
        KeyRing(path)


def test_writers_at_once_lose_no_key(tmp_path: Path) -> None:
    """Eight threads that add five keys each leave forty."""
    path = tmp_path / "keys.json"

    def write(number: int) -> None:
        for turn in range(5):
            key = make_key(bytes([number, turn]) * 18)
            put(path, key, f"t{number}")

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    book = read_keys(path)
    assert book is not None
    assert len(book.keys) == 40
    assert [each.name for each in tmp_path.iterdir() if each.suffix == ".part"] == []


def test_a_ring_takes_changes_within_a_second_and_keeps_its_keys_when_the_file_breaks(
    tmp_path: Path,
) -> None:
    """A revoked key stops opening; a broken or missing file changes nothing and is told."""
    path = tmp_path / "keys.json"
    said: list[str] = []
    ring = KeyRing(path, said.append)
    assert not ring.has_file
    keys = [make_key(bytes([number]) * 36) for number in range(2)]
    for key in keys:
        put(path, key, "alice")
    assert ring.find(keys[0], 10.0) is not None
    change_keys(path, lambda book: book.without_key("00000000", at_s=1.0))
    assert ring.find(keys[0], 10.5) is not None
    assert ring.find(keys[0], 11.1) is None
    assert ring.find(keys[1], 11.1) is not None
    path.write_text("broken")
    assert ring.find(keys[1], 13.0) is not None
    path.unlink()
    assert ring.find(keys[1], 15.0) is not None
    assert [text.split(":")[0] for text in said] == ["the keys stay as they were"] * 2


def test_a_key_is_found_by_its_hash_alone(tmp_path: Path) -> None:
    """A key that is much too long is not even hashed."""
    key = make_key(bytes(36))
    book = KeyBook().with_key(new_key(key, "alice", at_s=0.0))
    assert find_key(book.by_hash(), key) is not None
    assert find_key(book.by_hash(), key + "x" * 10_000) is None
