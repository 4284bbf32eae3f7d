"""What the gateway puts on the wire itself: headers that may pass, heads, and errors as OpenAI clients read them.

Headers are bytes on the data path and stay what they were: names keep their spelling, values their bytes.
"""

import random
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Final, TypeAlias

import msgspec
from aiohttp import web

from trimtab.core.types import ErrorClass

LABEL_HEADER: Final = "X-Trimtab-Label"
SESSION_HEADER: Final = "X-Trimtab-Session"
REPLICA_HEADER: Final = "x-trimtab-replica"
REQUEST_ID_HEADER: Final = "x-trimtab-request-id"
OWN_PREFIX: Final = b"x-trimtab-"
RETRY_AFTER_S: Final = 1
SAYS_WHEN: Final = frozenset({429, 503})

HOP_BY_HOP: Final = frozenset(
    {
        b"connection",
        b"http2-settings",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
# Of a request: said anew by the gateway.
REQUEST_ONLY: Final = frozenset({b"host", b"content-length", b"accept-encoding", b"expect"})
# A client's keys are for the gateway; what a replica gets is the gateway's own.
CLIENT_KEYS: Final = frozenset({b"authorization", b"x-api-key", b"api-key", b"cookie"})

_ENDS_AT_US: Final = HOP_BY_HOP | REQUEST_ONLY | CLIENT_KEYS
_ANSWER_ENDS_AT_US: Final = HOP_BY_HOP | {b"content-length"}

Pairs: TypeAlias = list[tuple[bytes, bytes]]
JSON_TYPE: Final = (b"Content-Type", b"application/json")


class Headers:
    """The headers of one message in their order; names compare without case."""

    __slots__ = ("_first", "pairs")

    def __init__(self, pairs: Pairs) -> None:
        self.pairs = pairs
        self._first: dict[bytes, bytes] | None = None

    def raw(self, name: bytes) -> bytes | None:
        """Return the first value of a name given in lower case, None if there is none."""
        if self._first is None:
            self._first = {}
            for one, value in self.pairs:
                self._first.setdefault(one.lower(), value)
        return self._first.get(name)

    def get(self, name: str) -> str | None:
        """Return the first value of a name as text; bytes that are no UTF-8 are kept as surrogates."""
        value = self.raw(name.lower().encode("latin-1"))
        return None if value is None else value.decode("utf-8", "surrogateescape")

    def all(self, name: bytes) -> list[bytes]:
        """Return every value of a name given in lower case."""
        return [value for one, value in self.pairs if one.lower() == name]


class ApiError(Exception):
    """A request that ends here with an error of ours; `code` is stable, `message` is for people.

    `retry_after_s`: when to come back, for 429 and 503; None says the usual second.
    """

    def __init__(
        self,
        status: int,
        kind: str,
        code: str,
        message: str,
        *,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.code = code
        self.message = message
        self.retry_after_s = retry_after_s

    @property
    def said_after_s(self) -> int | None:
        """Return what Retry-After says in whole seconds, None where it is not said."""
        if self.status not in SAYS_WHEN:
            return None
        wanted = RETRY_AFTER_S if self.retry_after_s is None else self.retry_after_s
        return max(RETRY_AFTER_S, int(-(-wanted // 1)))


def stopping() -> ApiError:
    """Return the error of a gateway that takes no more requests."""
    return ApiError(503, "server_error", "stopping", "the gateway is stopping")


def too_long(limit_s: float) -> ApiError:
    """Return the error of a request that took longer than any may."""
    return ApiError(
        504, "upstream_error", "total_timeout", f"the request was not done within {limit_s:g} s"
    )


def error_body(error: ApiError) -> bytes:
    """Return an error as OpenAI clients read it."""
    return msgspec.json.encode(
        {"error": {"message": error.message, "type": error.kind, "code": error.code}}
    )


def error_headers(error: ApiError, request_id: str | None = None) -> Pairs:
    """Return the headers of an error's answer; one that may pass later says when to come back."""
    said: Pairs = [JSON_TYPE]
    if request_id is not None:
        said.append((REQUEST_ID_HEADER.encode(), request_id.encode()))
    if error.said_after_s is not None:
        said.append((b"Retry-After", b"%d" % error.said_after_s))
    if error.status == 401:
        said.append((b"WWW-Authenticate", b"Bearer"))
    return said


def error_response(error: ApiError, headers: Mapping[str, str] | None = None) -> web.Response:
    """Return an error as the answer of a page."""
    said = dict(headers or {})
    if error.said_after_s is not None:
        said["Retry-After"] = str(error.said_after_s)
    return web.Response(
        status=error.status,
        body=error_body(error),
        headers=said,
        content_type="application/json",
    )


def error_event(error: ApiError) -> bytes:
    """Return an error as one server-sent event, for a stream that has begun."""
    return b"data: " + error_body(error) + b"\n\n"


def request_headers(headers: Headers, *, drop: Iterable[bytes] = ()) -> Pairs:
    """Return the headers that go upstream, equal names joined.

    Hop-by-hop ones, ours, keys and those that the gateway says anew end here, and what `drop` names in lower case.
    """
    ends_here = _ENDS_AT_US.union(drop, _named(headers))
    passed: dict[bytes, tuple[bytes, bytes]] = {}
    for name, value in headers.pairs:
        lower = name.lower()
        if lower in ends_here or lower.startswith(OWN_PREFIX):
            continue
        before = passed.get(lower)
        passed[lower] = (name, value) if before is None else (before[0], before[1] + b", " + value)
    # A compressed answer could not be read, and a proxy that compresses holds events back.
    return [*passed.values(), (b"Accept-Encoding", b"identity")]


def response_headers(
    headers: Headers, *, request_id: str, replica: str, drop: Iterable[bytes] = ()
) -> Pairs:
    """Return the headers that go to the client, with the replica and the request's id added, `drop` left out."""
    ends_here = _ANSWER_ENDS_AT_US.union(drop, _named(headers))
    passed = [
        pair
        for pair in headers.pairs
        if (lower := pair[0].lower()) not in ends_here and not lower.startswith(OWN_PREFIX)
    ]
    passed.append((REPLICA_HEADER.encode(), replica.encode()))
    passed.append((REQUEST_ID_HEADER.encode(), request_id.encode()))
    return passed


def _named(headers: Headers) -> frozenset[bytes]:
    """Return what the Connection headers name: it ends here too."""
    if headers.raw(b"connection") is None:
        return frozenset()
    listed = b",".join(headers.all(b"connection")).lower().split(b",")
    return frozenset(name.strip() for name in listed)


def request_head(method: bytes, target: bytes, host: bytes, headers: Pairs) -> bytes:
    """Return a request's head; the caller says length and connection among the headers."""
    return b"%b %b HTTP/1.1\r\nHost: %b\r\n%b\r\n" % (method, target, host, _lines(headers))


def response_head(status: int, headers: Pairs, *, version: bytes = b"1.1") -> bytes:
    """Return a response's head; the caller says length and connection among the headers."""
    return b"HTTP/%b %d %b\r\n%b\r\n" % (version, status, _phrase(status), _lines(headers))


def _lines(headers: Pairs) -> bytes:
    return b"".join(b"%b: %b\r\n" % pair for pair in headers)


def _phrase(status: int) -> bytes:
    try:
        return HTTPStatus(status).phrase.encode()
    except ValueError:
        return b"Status"


_RANDOM: Final = random.Random()
"""Seeded by the machine. Ids of requests are no secrets, and asking the machine for each costs a call of its own."""


def random_id() -> str:
    """Return the id of a new request."""
    return f"{_RANDOM.getrandbits(64):016x}"


AT_THE_DOOR: Final = frozenset(
    {ErrorClass.UNAUTHENTICATED, ErrorClass.LIMITED, ErrorClass.BAD_REQUEST}
)
"""Errors of requests that were not let in."""


def class_of_error(error: ApiError) -> ErrorClass:
    """Return the class of an error that the gateway itself answers with."""
    match error.status:
        case 401:
            return ErrorClass.UNAUTHENTICATED
        case 429:
            return ErrorClass.LIMITED
        case 503:
            return ErrorClass.OVERLOADED
        case _:
            return ErrorClass.BAD_REQUEST
