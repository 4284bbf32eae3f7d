"""Finds out how long a server keeps an idle connection open, and whether the gateway lets go of it earlier.

A connection that the server closes while the gateway still counts on it makes the next request on it fail. So the
gateway's idle time must be the shorter one.
"""

import asyncio
import contextlib
import re
from typing import Final

import msgspec
from yarl import URL

from trimtab.core.ports import Clock
from trimtab.runtime.access import Access

HEAD_BYTES_MAX: Final = 64 * 1024
MARGIN_S: Final = 1.0
"""Idle times that differ by less race with the network and with the clock of the other side."""

_SAID: Final = re.compile(rb"^keep-alive:.*?\btimeout=(\d+)", re.IGNORECASE | re.MULTILINE)
_LENGTH: Final = re.compile(rb"^content-length:\s*(\d+)", re.IGNORECASE | re.MULTILINE)


class KeptAlive(msgspec.Struct, frozen=True, kw_only=True):
    """How long a server kept an idle connection.

    `closed_after_s`: None where it was open still after `watched_s`; `said_s`: what its Keep-Alive header promised.
    """

    closed_after_s: float | None
    watched_s: float
    said_s: float | None = None


class KeepAliveError(RuntimeError):
    """A server's keep-alive could not be watched; the message says why."""


async def watch_keepalive(
    url: str, access: Access, clock: Clock, *, at_most_s: float, page: str = "/health"
) -> KeptAlive:
    """Ask a server for a page, then leave the connection idle until the server closes it or `at_most_s` are over.

    Raises `KeepAliveError` where there is no answer to wait after.
    """
    target = URL(url)
    host, port = target.host or "", target.port or 80
    try:
        async with asyncio.timeout(at_most_s + 5.0):
            reader, writer = await asyncio.open_connection(host, port, ssl=access.tls)
    except (OSError, TimeoutError) as error:
        raise KeepAliveError(f"no connection ({type(error).__name__})") from error
    try:
        writer.write(_request(target, page, access))
        async with asyncio.timeout(5.0):
            head = await _answer(reader)
        began_s = clock.mono_s()
        try:
            async with asyncio.timeout(at_most_s):
                await reader.read(1)
            closed_s: float | None = clock.mono_s() - began_s
        except TimeoutError:
            closed_s = None
        said = _SAID.search(head)
        return KeptAlive(
            closed_after_s=closed_s,
            watched_s=at_most_s,
            said_s=None if said is None else float(said[1]),
        )
    except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        raise KeepAliveError(f"it did not answer {page} ({type(error).__name__})") from error
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def _request(target: URL, page: str, access: Access) -> bytes:
    lines = [f"GET {target.raw_path.rstrip('/')}{page} HTTP/1.1", f"Host: {target.raw_authority}"]
    lines += [f"{name}: {value}" for name, value in access.headers.items()]
    return ("\r\n".join([*lines, "Connection: keep-alive"]) + "\r\n\r\n").encode()


async def _answer(reader: asyncio.StreamReader) -> bytes:
    """Read an answer to its end and return its head; only the length that most health pages have is understood."""
    head = await reader.readuntil(b"\r\n\r\n")
    if len(head) > HEAD_BYTES_MAX:
        raise asyncio.LimitOverrunError("the head is too long", len(head))
    length = _LENGTH.search(head)
    if length is not None and int(length[1]):
        await reader.readexactly(min(int(length[1]), HEAD_BYTES_MAX))
    elif length is None and b"chunked" in head.lower():
        await reader.readuntil(b"0\r\n\r\n")
    return head


def keepalive_trouble(pool_idle_s: float, kept: KeptAlive, *, replica: str) -> str:
    """Say that the gateway counts on connections longer than the server keeps them; empty if it does not.

    A pool that keeps nothing (0 s) cannot. Names both numbers, the gaps between requests at which it hurts, and the
    setting that ends it.
    """
    told = [each for each in (kept.closed_after_s, kept.said_s) if each is not None]
    if not told or pool_idle_s <= 0:
        return ""
    server_s = min(told)
    if pool_idle_s + MARGIN_S <= server_s:
        return ""
    source = "seen" if kept.closed_after_s == server_s else "said in its Keep-Alive header"
    fix = max(0.0, server_s - MARGIN_S)
    return (
        f"{replica} closes idle connections after {server_s:.1f} s ({source}), and the gateway keeps them for "
        f"{pool_idle_s:.1f} s: a request that comes {server_s:.1f} to {max(pool_idle_s, server_s):.1f} s after the one "
        f"before can meet a reset; set gateway.upstream_keepalive_s to {fix:.1f} or let the server keep them longer"
    )
