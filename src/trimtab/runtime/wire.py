"""What the gateway puts on the wire itself: headers that may pass, and errors in the form that OpenAI clients read."""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec
from aiohttp import web
from multidict import CIMultiDict

LABEL_HEADER: Final = "X-Trimtab-Label"
SESSION_HEADER: Final = "X-Trimtab-Session"
REPLICA_HEADER: Final = "x-trimtab-replica"
REQUEST_ID_HEADER: Final = "x-trimtab-request-id"
OWN_PREFIX: Final = "x-trimtab-"
RETRY_AFTER_S: Final = 1

HOP_BY_HOP: Final = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
# Of a request: said anew for the edited body, or already done by the server when the body arrived.
REQUEST_ONLY: Final = frozenset(
    {"host", "content-length", "content-encoding", "accept-encoding", "expect"}
)


class ApiError(Exception):
    """A request that ends here with an error of ours; `code` is stable, `message` is for people."""

    def __init__(self, status: int, kind: str, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.code = code
        self.message = message


def stopping() -> ApiError:
    """Return the error of a gateway that takes no more requests."""
    return ApiError(503, "server_error", "stopping", "the gateway is stopping")


def error_body(error: ApiError) -> bytes:
    """Return an error as OpenAI clients read it."""
    return msgspec.json.encode(
        {"error": {"message": error.message, "type": error.kind, "code": error.code}}
    )


def error_response(error: ApiError, headers: Mapping[str, str] | None = None) -> web.Response:
    """Return the whole response of an error; one that may pass later says when to come back."""
    said = dict(headers or {})
    if error.status == 503:
        said["Retry-After"] = str(RETRY_AFTER_S)
    return web.Response(
        status=error.status,
        body=error_body(error),
        headers=said,
        content_type="application/json",
    )


def error_event(error: ApiError) -> bytes:
    """Return an error as one server-sent event, for a stream that has begun."""
    return b"data: " + error_body(error) + b"\n\n"


def request_headers(headers: Iterable[tuple[str, str]], connection: str) -> dict[str, str]:
    """Return the headers that go upstream: hop-by-hop ones, ours and those about encoding stay here.

    `connection` is the Connection header, which may name more that end here. Equal names are joined.
    """
    ends_here = HOP_BY_HOP | REQUEST_ONLY | _named(connection)
    passed: CIMultiDict[str] = CIMultiDict()
    for name, value in headers:
        lower = name.lower()
        if lower in ends_here or lower.startswith(OWN_PREFIX):
            continue
        passed[name] = f"{passed[name]}, {value}" if name in passed else value
    # A compressed answer could not be read, and a proxy that compresses holds events back.
    passed["Accept-Encoding"] = "identity"
    return dict(passed)


def response_headers(
    headers: Iterable[tuple[str, str]], connection: str, *, request_id: str, replica: str
) -> CIMultiDict[str]:
    """Return the headers that go to the client, with the replica and the request's id added."""
    ends_here = HOP_BY_HOP | _named(connection) | {"content-length"}
    passed = CIMultiDict((name, value) for name, value in headers if name.lower() not in ends_here)
    passed[REPLICA_HEADER] = replica
    passed[REQUEST_ID_HEADER] = request_id
    return passed


def _named(connection: str) -> frozenset[str]:
    return frozenset(name.strip().lower() for name in connection.split(",") if name.strip())
