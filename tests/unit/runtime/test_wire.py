"""Headers and errors that the gateway puts on the wire."""

import json

import pytest

from trimtab.runtime.wire import (
    ApiError,
    Headers,
    error_event,
    error_response,
    request_headers,
    response_headers,
)


def pairs(*given: tuple[str, str]) -> Headers:
    return Headers([(name.encode(), value.encode()) for name, value in given])


ERROR = ApiError(503, "server_error", "overloaded", 'too "many"\nrequests')


def test_error_has_the_form_that_openai_clients_read() -> None:
    """message, type and code, in a body and in an event; an event is one line."""
    said = {"error": {"message": ERROR.message, "type": "server_error", "code": "overloaded"}}
    event = error_event(ERROR)
    response = error_response(ERROR)
    assert isinstance(response.body, bytes)
    assert (json.loads(response.body), json.loads(event[6:])) == (said, said)
    assert (event[:6], event[-2:], event.count(b"\n")) == (b"data: ", b"\n\n", 2)


@pytest.mark.parametrize(("status", "says_when"), [(503, True), (400, False), (502, False)])
def test_only_what_may_pass_says_when_to_come_back(status: int, says_when: bool) -> None:
    """Retry-After stands on 503 and on nothing else."""
    response = error_response(ApiError(status, "t", "c", "m"), {"x-a": "b"})
    assert (("Retry-After" in response.headers), response.headers["x-a"]) == (says_when, "b")


def test_request_headers_that_end_here_do_not_pass() -> None:
    """Hop-by-hop headers, those that Connection names, sizes, keys and ours stay; equal names are joined."""
    given = pairs(
        ("Host", "h"),
        ("Connection", "close, X-Mine"),
        ("x-mine", "1"),
        ("Keep-Alive", "5"),
        ("Content-Length", "7"),
        ("Accept-Encoding", "gzip"),
        ("X-Trimtab-Label", "edit"),
        ("x-trimtab-anything", "edit"),
        ("Upgrade", "h2c"),
        ("X-Other", "1"),
        ("x-other", "2"),
        ("Authorization", "Bearer k"),
        ("Cookie", "a=1"),
        ("Content-Type", "application/json"),
    )
    assert request_headers(given) == [
        (b"X-Other", b"1, 2"),
        (b"Content-Type", b"application/json"),
        (b"Accept-Encoding", b"identity"),
    ]


def test_response_headers_pass_but_for_the_hop() -> None:
    """Equal names stay apart (cookies), the size is said anew, replica and id are added."""
    given = pairs(
        ("Set-Cookie", "a=1"),
        ("Set-Cookie", "b=2"),
        ("Transfer-Encoding", "chunked"),
        ("Content-Length", "5"),
        ("Connection", "X-Hop"),
        ("X-Hop", "1"),
        ("X-Trimtab-Replica", "spoofed"),
    )
    assert response_headers(given, request_id="q", replica="r0") == [
        (b"Set-Cookie", b"a=1"),
        (b"Set-Cookie", b"b=2"),
        (b"x-trimtab-replica", b"r0"),
        (b"x-trimtab-request-id", b"q"),
    ]
