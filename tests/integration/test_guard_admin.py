"""The operator's side of the gateway, asked through real sockets: from loopback, from elsewhere, under other names."""

import asyncio
import re
from pathlib import Path

import pytest
from fake_engine import FakeEngine
from guard_kit import ALICE, two_tenants
from harness import SECRET, Harness

from trimtab.policies.loadstate import LoadState
from trimtab.runtime.guard import Guard

TOKEN = "the-admin-token"
PAGES = ("/metrics", "/debug/fleet")


def own_address() -> str:
    """Return an address of this machine that is not loopback."""
    found = re.findall(
        r"-- (\d+\.\d+\.\d+\.\d+)\n\s+/32 host LOCAL", Path("/proc/net/fib_trie").read_text()
    )
    outside = [address for address in found if not address.startswith("127.")]
    assert outside, "this machine has no address but loopback"
    return outside[0]


async def ask(host: str, port: int, head: str) -> int:
    """Send a request head and return the status."""
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(head.encode() + b"\r\n\r\n")
    status = int((await reader.readline()).split()[1])
    writer.close()
    return status


def get(page: str, host: str = "127.0.0.1", **headers: str) -> str:
    """Return the head of a GET; '_' stands for '-'."""
    said = [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([f"GET {page} HTTP/1.1", f"Host: {host}", *said])


def keyed(load: LoadState) -> Guard:
    """Make a guard with two tenants' keys."""
    return Guard(places=10, load=load, secret=SECRET, ring=two_tenants())


@pytest.mark.parametrize("page", PAGES)
async def test_off_loopback_only_the_admin_token_opens(page: str) -> None:
    """From another address: nothing, a wrong token and a tenant's key are refused, the admin token passes."""
    address = own_address()
    async with Harness(FakeEngine(), host="0.0.0.0", admin_token=TOKEN, guard=keyed) as fleet:
        statuses = [
            await ask(address, fleet.port, get(page, address, **said))
            for said in (
                {},
                {"Authorization": "Bearer wrong"},
                {"Authorization": f"Bearer {ALICE}"},
                {"Authorization": f"Bearer {TOKEN}"},
            )
        ]
        inside = await ask("127.0.0.1", fleet.port, get(page))
    assert (statuses, inside) == ([403, 403, 403, 200], 200)


async def test_without_an_admin_token_nobody_from_elsewhere_sees_pages() -> None:
    """No token configured means closed, not open."""
    address = own_address()
    async with Harness(FakeEngine(), host="0.0.0.0") as fleet:
        statuses = [
            await ask(address, fleet.port, get("/debug/fleet", address, Authorization=said))
            for said in ("Bearer ", "Bearer None", "")
        ]
    assert statuses == [403, 403, 403]


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": "127.0.0.1.evil.example"},
        {"Origin": "https://evil.example"},
        {"X_Forwarded_For": "198.51.100.3"},
    ],
    ids=lambda headers: "-".join(headers),
)
@pytest.mark.parametrize("page", PAGES)
async def test_what_only_looks_like_loopback_is_refused(page: str, headers: dict[str, str]) -> None:
    """A rebound name, a page of another origin, a proxy on this machine: refused without the token, fine with it."""
    async with Harness(FakeEngine(), admin_token=TOKEN) as fleet:
        refused = await ask("127.0.0.1", fleet.port, get(page, **headers))
        passed = await ask(
            "127.0.0.1", fleet.port, get(page, **headers, Authorization=f"Bearer {TOKEN}")
        )
    assert (refused, passed) == (403, 200)


async def test_actions_need_the_same_and_the_admin_token_opens_no_v1() -> None:
    """The test of isolation asks replicas, so it is an action; the admin token is nobody's key."""
    address = own_address()
    async with Harness(FakeEngine(), host="0.0.0.0", admin_token=TOKEN, guard=keyed) as fleet:
        post = "POST /debug/isolation HTTP/1.1\r\nHost: {}\r\nContent-Length: 0{}"
        refused = await ask(address, fleet.port, post.format(address, ""))
        passed = await ask(
            address, fleet.port, post.format(address, f"\r\nAuthorization: Bearer {TOKEN}")
        )
        reply = await fleet.post(authorization=f"Bearer {TOKEN}")
    assert (refused, passed, reply.status) == (403, 200, 401)
