"""Tenants: their keys, which are only ever kept hashed, and the cache salt that keeps their prefixes apart.

A key is `tt-ID-SECRET`: the id is public and stands in lists and records, the secret is 256 random bits. Kept is the
BLAKE2b hash of the whole key; with 256 random bits there is nothing to guess, so no slow hash is needed. A key that
was made elsewhere is accepted from 32 characters on.

The salt of a tenant is a keyed hash of its name. Engines that know `cache_salt` share no block between two salts, so
one tenant cannot find out by time what another one has asked; gateways that share the secret agree on the salt. One
salt per tenant also means that a prompt which all tenants share is computed once for each of them.
"""

import base64
import hashlib
import hmac
import re
from collections.abc import Iterable
from enum import StrEnum
from typing import Final, assert_never

import msgspec

KEY_PREFIX: Final = "tt"
SECRET_BYTES: Final = 32
ID_BYTES: Final = 4
FOREIGN_KEY_CHARS_MIN: Final = 32
KEY_CHARS_MAX: Final = 512
ANONYMOUS: Final = "anonymous"
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_SALT_PERSON: Final = b"trimtab-salt"
_KEY_PERSON: Final = b"trimtab-apikey"


class TenantError(ValueError):
    """A tenant, key or key file that cannot be used; the message says what and the fix."""


class Priority(StrEnum):
    """How long a request is still admitted as the gateway fills up."""

    LOW = "low"
    NORMAL = "normal"
    HIGH = "high"

    @property
    def rank(self) -> int:
        """0 is shed first."""
        match self:
            case Priority.LOW:
                return 0
            case Priority.NORMAL:
                return 1
            case Priority.HIGH:
                return 2
            case _:
                assert_never(self)


class ApiKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One key as it is kept. `hash`: 64 hex digits; times are seconds of the wall clock."""

    id: str
    tenant: str
    hash: str
    created_at_s: float
    revoked_at_s: float | None = None


class KeyBook(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All keys, revoked ones included, so that a list can say when a key ended."""

    format: int = 1
    keys: tuple[ApiKey, ...] = ()

    def by_hash(self) -> dict[str, ApiKey]:
        """Return the keys that open, by their hash."""
        return {key.hash: key for key in self.keys if key.revoked_at_s is None}

    def with_key(self, key: ApiKey) -> "KeyBook":
        """Return the book with one more key; raises `TenantError` where the id or the key is there already."""
        if any(one.id == key.id for one in self.keys):
            raise TenantError(f"there is a key {key.id} already")
        if key.hash in self.by_hash():
            raise TenantError("this key is in use already; revoke it first")
        return msgspec.structs.replace(self, keys=(*self.keys, key))

    def without_key(self, key_id: str, *, at_s: float) -> "KeyBook":
        """Return the book with one key revoked; raises `TenantError` where no such key opens."""
        if not any(key.id == key_id and key.revoked_at_s is None for key in self.keys):
            raise TenantError(f"no key {key_id} is in use; `trimtab keys list` shows them")
        keys = tuple(
            msgspec.structs.replace(key, revoked_at_s=at_s)
            if key.id == key_id and key.revoked_at_s is None
            else key
            for key in self.keys
        )
        return msgspec.structs.replace(self, keys=keys)


def check_name(tenant: str) -> str:
    """Return a tenant's name; raises `TenantError` if it is none."""
    if not _NAME.fullmatch(tenant):
        raise TenantError(
            f"{tenant!r} is no tenant name: 1 to 64 of a-z, 0-9, '.', '_' and '-', not beginning with one of the"
            " last three"
        )
    if tenant == ANONYMOUS:
        raise TenantError(f"{ANONYMOUS!r} is the name of requests without a key")
    return tenant


def make_key(random: bytes) -> str:
    """Return a key of 36 random bytes: its public id of 8 hex digits, and its secret."""
    if len(random) != ID_BYTES + SECRET_BYTES:
        raise ValueError(f"a key is made of {ID_BYTES + SECRET_BYTES} bytes, not {len(random)}")
    secret = _text(random[ID_BYTES:])
    return f"{KEY_PREFIX}-{random[:ID_BYTES].hex()}-{secret}"


def key_id(key: str) -> str:
    """Return the public id of a key: what it says itself, else the first 8 hex digits of its hash."""
    prefix, _, rest = key.partition("-")
    said, _, secret = rest.partition("-")
    if prefix == KEY_PREFIX and secret and re.fullmatch(r"[0-9a-f]{8}", said):
        return said
    return hash_key(key)[: 2 * ID_BYTES]


def hash_key(key: str) -> str:
    """Return what is kept of a key: BLAKE2b of 256 bits, as 64 hex digits."""
    data = key.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(data, digest_size=SECRET_BYTES, person=_KEY_PERSON).hexdigest()


def new_key(key: str, tenant: str, *, at_s: float) -> ApiKey:
    """Return a key as it is kept; raises `TenantError` on a name that is none or a key that could be guessed."""
    if not FOREIGN_KEY_CHARS_MIN <= len(key) <= KEY_CHARS_MAX or not key.isascii():
        raise TenantError(
            f"a key has {FOREIGN_KEY_CHARS_MIN} to {KEY_CHARS_MAX} ASCII characters, this one has {len(key)};"
            " leave it out and one is made"
        )
    if any(char.isspace() or not char.isprintable() for char in key):
        raise TenantError("a key has no spaces and no control characters")
    return ApiKey(id=key_id(key), tenant=check_name(tenant), hash=hash_key(key), created_at_s=at_s)


def find_key(keys: dict[str, ApiKey], said: str) -> ApiKey | None:
    """Return the key that a client showed, None if it opens nothing.

    Found by its hash, so the time it takes says nothing about the characters of a key.
    """
    if len(said) > KEY_CHARS_MAX:
        return None
    hashed = hash_key(said)
    found = keys.get(hashed)
    return found if found is not None and hmac.compare_digest(found.hash, hashed) else None


def salt_of(tenant: str, key: bytes) -> str:
    """Return the cache salt of a tenant: a keyed BLAKE2b of 256 bits of its name, 43 characters of base64url.

    `key` is the secret derived for salts; gateways that share it agree, and nobody else can work a salt out.
    """
    digest = hashlib.blake2b(
        tenant.encode(), key=key, digest_size=SECRET_BYTES, person=_SALT_PERSON
    ).digest()
    return _text(digest)


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class IsolationVerdict(StrEnum):
    """What a self-test of the isolation between tenants found on a replica."""

    PROVEN = "proven"
    LEAKS = "leaks"
    NOT_PROVEN = "not_proven"
    ERROR = "error"


class IsolationProbe(msgspec.Struct, frozen=True, kw_only=True):
    """Cached tokens that an engine reported for one prompt; None is not reported.

    `first`: for the first tenant, who asks first; `same`: for that tenant again; `other`: for another tenant.
    """

    prompt_tokens: int | None
    first: int | None
    same: int | None
    other: int | None


def judge_isolation(probe: IsolationProbe) -> tuple[IsolationVerdict, str]:
    """Say what a probe proves, and why.

    Isolation is proven only where the cache is seen to work: the same tenant hits and the other one does not.
    """
    if probe.same is None or probe.other is None:
        return (
            IsolationVerdict.NOT_PROVEN,
            "the engine does not report cached tokens, so nothing can be seen of its cache",
        )
    if probe.first:
        return (
            IsolationVerdict.LEAKS,
            f"{probe.first} tokens of a prompt that nobody had asked under this salt were in the cache",
        )
    if probe.other > 0:
        return (
            IsolationVerdict.LEAKS,
            f"another tenant's request found {probe.other} tokens in the cache: the engine does not keep salts apart",
        )
    if probe.same == 0:
        return (
            IsolationVerdict.NOT_PROVEN,
            "the same tenant found nothing either: prefix caching is off, or the prompt was pushed out",
        )
    return (
        IsolationVerdict.PROVEN,
        f"the same tenant found {probe.same} tokens in the cache, another one none",
    )


def worst(verdicts: Iterable[IsolationVerdict]) -> IsolationVerdict:
    """Return what holds of a fleet: a leak anywhere is a leak, proven is only what is proven everywhere."""
    found = frozenset(verdicts)
    for verdict in (IsolationVerdict.LEAKS, IsolationVerdict.ERROR, IsolationVerdict.NOT_PROVEN):
        if verdict in found:
            return verdict
    return IsolationVerdict.PROVEN if found else IsolationVerdict.NOT_PROVEN
