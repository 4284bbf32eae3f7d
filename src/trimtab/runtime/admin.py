"""Who may look at what is the operator's: /debug, /metrics, the page's state and its actions.

Open on loopback, elsewhere to the holder of the admin token alone, which is a token of its own: no tenant's key opens
here, and the admin token opens no /v1. Two things only look like loopback and are refused without the token:

- a page of another site in a browser on this machine, which names its own host (DNS made it loopback) or comes from
  another origin: the Host must be a name of loopback, and an Origin must be the same;
- a proxy on this machine that passes strangers on: it says so in a Forwarded, X-Forwarded-For, X-Real-IP or Via header.
"""

import hmac
import ipaddress
from typing import Final, Protocol
from urllib.parse import urlsplit

from trimtab.runtime.wire import ApiError

FORWARDED: Final = ("forwarded", "x-forwarded-for", "x-real-ip", "via")
LOOPBACK_NAMES: Final = frozenset({"localhost", "localhost.localdomain", "ip6-localhost"})
BEARER: Final = "bearer "


class HeaderLike(Protocol):
    """Headers of a request: names compare without case."""

    def get(self, name: str, /) -> str | None:
        """Return the value of a header, None if it is not there."""
        ...


def bearer_of(headers: HeaderLike) -> str | None:
    """Return the token of an Authorization header of the kind Bearer."""
    said = headers.get("authorization")
    if said is None or said[: len(BEARER)].lower() != BEARER:
        return None
    return said[len(BEARER) :].strip()


class AdminDoor:
    """Lets loopback and the holder of the admin token in."""

    def __init__(self, token: str | None) -> None:
        """Take the token; None or empty: nobody is let in from elsewhere."""
        self._token = token or None

    def check(self, remote: str | None, headers: HeaderLike) -> None:
        """Let a request pass or raise `ApiError` (403). `remote`: the address that it came from."""
        if self._has_token(headers):
            return
        if not is_loopback(remote):
            raise _refused("needs the admin token off loopback (Authorization: Bearer)")
        host = headers.get("host")
        # Without a Host it was no browser, and only browsers are led here by strangers.
        if host is not None and not is_loopback_host(host):
            raise _refused("is open to names of loopback only; with the admin token, to all")
        passed_on = [name for name in FORWARDED if headers.get(name) is not None]
        if passed_on:
            raise _refused(
                f"was passed on by a proxy ({passed_on[0]}), so it needs the admin token"
            )
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc.lower() != (host or "").lower():
            raise _refused("was asked for by a page of another origin")

    def _has_token(self, headers: HeaderLike) -> bool:
        said = bearer_of(headers)
        if said is None or self._token is None:
            return False
        return hmac.compare_digest(
            said.encode("utf-8", "surrogateescape"), self._token.encode("utf-8", "surrogateescape")
        )


def is_loopback(remote: str | None) -> bool:
    """Whether an address is of this machine; one that cannot be read is not."""
    try:
        address = ipaddress.ip_address(remote or "")
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def is_loopback_host(host: str) -> bool:
    """Whether a Host header names loopback, with or without a port."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    return name in LOOPBACK_NAMES or is_loopback(name)


def _refused(why: str) -> ApiError:
    return ApiError(403, "permission_error", "admin_only", f"this {why}")
