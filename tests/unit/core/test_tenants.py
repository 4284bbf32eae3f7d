"""Keys open by their hash alone, salts keep tenants apart, and the self-test claims no more than it saw."""

import pytest

from trimtab.core.tenants import (
    IsolationProbe,
    IsolationVerdict,
    KeyBook,
    TenantError,
    check_name,
    find_key,
    hash_key,
    judge_isolation,
    key_id,
    make_key,
    new_key,
    salt_of,
    worst,
)

KEY = make_key(bytes(range(36)))


def test_a_key_says_its_id_and_its_secret_is_long() -> None:
    """8 hex digits that may be shown, 43 characters that may not."""
    prefix, shown, secret = KEY.split("-", 2)
    assert (prefix, shown, len(secret)) == ("tt", "00010203", 43)
    assert key_id(KEY) == "00010203"


def test_what_is_kept_of_a_key_does_not_hold_it() -> None:
    """The record of a key has its id and tenant, but no part of the secret."""
    kept = new_key(KEY, "alice", at_s=1.0)
    assert KEY.split("-", 2)[2] not in repr(kept)
    assert kept.hash == hash_key(KEY)


def test_a_key_opens_until_it_is_revoked() -> None:
    """A revoked key stays in the book and opens nothing."""
    book = KeyBook().with_key(new_key(KEY, "alice", at_s=1.0))
    found = find_key(book.by_hash(), KEY)
    assert found is not None
    assert found.tenant == "alice"
    assert find_key(book.by_hash(), KEY + "x") is None
    closed = book.without_key("00010203", at_s=2.0)
    assert find_key(closed.by_hash(), KEY) is None
    assert closed.keys[0].revoked_at_s == 2.0


def test_a_key_is_not_added_twice_and_not_revoked_twice() -> None:
    """Both are errors that say what to do."""
    book = KeyBook().with_key(new_key(KEY, "alice", at_s=1.0))
    with pytest.raises(TenantError, match="there is a key 00010203"):
        book.with_key(new_key(KEY, "bob", at_s=1.0))
    closed = book.without_key("00010203", at_s=2.0)
    with pytest.raises(TenantError, match="no key 00010203 is in use"):
        closed.without_key("00010203", at_s=3.0)


def test_a_key_from_elsewhere_needs_length() -> None:
    """What could be guessed is refused; a long foreign key gets an id from its hash."""
    with pytest.raises(TenantError, match="32 to 512 ASCII characters"):
        new_key("sk-short", "alice", at_s=0.0)
    with pytest.raises(TenantError, match="no spaces"):
        new_key("x" * 40 + " y", "alice", at_s=0.0)
    foreign = "sk-" + "a" * 45
    assert new_key(foreign, "alice", at_s=0.0).id == hash_key(foreign)[:8]


@pytest.mark.parametrize("name", ["", "Alice", "a b", ".a", "a" * 65, "a\n", "anonymous", "ä"])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    """Names stand in files, metrics and ledgers: few characters, and not the one of keyless requests."""
    with pytest.raises(TenantError):
        check_name(name)


def test_salts_differ_by_tenant_and_by_secret_and_are_stable() -> None:
    """Two gateways that share the secret agree; another secret or tenant gives another salt."""
    salts = {salt_of("alice", b"k" * 32), salt_of("bob", b"k" * 32), salt_of("alice", b"l" * 32)}
    assert len(salts) == 3
    assert {len(salt) for salt in salts} == {43}
    assert salt_of("alice", b"k" * 32) == salt_of("alice", b"k" * 32)


@pytest.mark.parametrize(
    ("first", "same", "other", "verdict"),
    [
        (0, 640, 0, IsolationVerdict.PROVEN),
        (0, 640, 640, IsolationVerdict.LEAKS),
        (0, 640, 16, IsolationVerdict.LEAKS),
        (0, 0, 640, IsolationVerdict.LEAKS),
        (640, 640, 0, IsolationVerdict.LEAKS),
        (0, 0, 0, IsolationVerdict.NOT_PROVEN),
        (None, None, None, IsolationVerdict.NOT_PROVEN),
        (None, 640, 0, IsolationVerdict.PROVEN),
        (0, 640, None, IsolationVerdict.NOT_PROVEN),
    ],
)
def test_isolation_is_proven_only_where_the_cache_is_seen_to_work(
    first: int | None, same: int | None, other: int | None, verdict: IsolationVerdict
) -> None:
    """Caching off is "not proven", never "passed"; any hit of another tenant is a leak."""
    probe = IsolationProbe(prompt_tokens=700, first=first, same=same, other=other)
    assert judge_isolation(probe)[0] is verdict


def test_a_leak_anywhere_is_a_leak_and_nothing_tested_is_not_proven() -> None:
    """The verdict of a fleet is the worst of its replicas'."""
    proven, leaks = IsolationVerdict.PROVEN, IsolationVerdict.LEAKS
    not_proven, error = IsolationVerdict.NOT_PROVEN, IsolationVerdict.ERROR
    assert [
        worst(each) for each in ((), (proven,), (proven, not_proven), (error, leaks, proven))
    ] == [
        not_proven,
        proven,
        not_proven,
        leaks,
    ]
