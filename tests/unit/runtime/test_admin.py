"""What is the operator's opens on loopback and to the admin token, and to nothing that only looks like either."""

import pytest

from trimtab.runtime.admin import AdminDoor, bearer_of, is_loopback, is_loopback_host
from trimtab.runtime.wire import ApiError

TOKEN = "admin-token"


def opens(remote: str | None, token: str | None = TOKEN, **headers: str) -> bool:
    """Whether a door with a token lets a request in; headers with '_' for '-'."""
    said = {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        AdminDoor(token).check(remote, said)
    except ApiError as error:
        return (error.status, error.code) != (403, "admin_only")
    return True


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:8400", "127.0.0.1:8400", "127.9.9.9", "[::1]:80"]
)
def test_loopback_under_a_name_of_loopback_is_let_in(host: str) -> None:
    """Any way to say this machine, with or without a port."""
    assert opens("127.0.0.1", host=host)
    assert opens("::1", host=host)
    assert opens("::ffff:127.0.0.1", host=host)


def test_loopback_without_a_host_is_no_browser_and_let_in() -> None:
    """HTTP/1.0 needs none; whoever leads a browser here cannot leave it out."""
    assert opens("127.0.0.1")


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "127.0.0.1.evil.example",
        "",
        "localhost.evil.example:8400",
        "192.0.2.7",
        "[::1",
        "a b",
    ],
)
def test_another_name_that_leads_to_loopback_is_refused(host: str) -> None:
    """A page whose name was made to mean loopback still says its own name; with the token it may."""
    assert not opens("127.0.0.1", host=host)
    assert opens("127.0.0.1", host=host, authorization=f"Bearer {TOKEN}")


def test_off_loopback_only_the_admin_token_opens() -> None:
    """No token, a wrong one, or another scheme: refused. The scheme's case does not matter."""
    assert not opens("192.0.2.7", host="localhost")
    assert not opens("192.0.2.7", authorization="Bearer wrong")
    assert not opens("192.0.2.7", authorization=TOKEN)
    assert opens("192.0.2.7", authorization=f"bearer {TOKEN}")


@pytest.mark.parametrize("token", [None, ""])
def test_without_an_admin_token_nobody_from_elsewhere_is_let_in(token: str | None) -> None:
    """An empty token is no token: an empty Bearer does not match it."""
    assert not opens("192.0.2.7", token, authorization="Bearer ")
    assert opens("127.0.0.1", token, host="127.0.0.1")


@pytest.mark.parametrize("name", ["x_forwarded_for", "forwarded", "x_real_ip", "via"])
def test_what_a_proxy_passed_on_is_not_from_loopback(name: str) -> None:
    """The proxy is on this machine, who asked it is not."""
    assert not opens("127.0.0.1", host="127.0.0.1:8400", **{name: "198.51.100.3"})


def test_a_page_of_another_origin_may_not_act() -> None:
    """A form of another site can post to loopback; it says where it comes from."""
    assert not opens("127.0.0.1", host="127.0.0.1:8400", origin="https://evil.example")
    assert not opens("127.0.0.1", host="127.0.0.1:8400", origin="null")
    assert not opens("127.0.0.1", host="127.0.0.1:8400", origin="http://127.0.0.1:9999")
    assert not opens("127.0.0.1", origin="https://evil.example")
    assert opens("127.0.0.1", host="127.0.0.1:8400", origin="http://127.0.0.1:8400")


def test_addresses_that_cannot_be_read_are_not_loopback() -> None:
    """Doubt is refused."""
    assert [is_loopback(one) for one in (None, "", "x", "::1%lo")] == [False, False, False, True]
    assert not is_loopback_host("[")


def test_the_bearer_of_a_header_is_its_token() -> None:
    """Other schemes have none."""
    assert bearer_of({"authorization": "Bearer  abc "}) == "abc"
    assert bearer_of({"authorization": "Basic abc"}) is None
    assert bearer_of({}) is None
