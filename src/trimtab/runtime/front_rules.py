"""What the front takes from a client and what it refuses beyond the parser's own strictness."""

import re
from typing import Final

import msgspec

from trimtab.runtime.wire import ApiError, Headers

AHEAD_MAX: Final = 16
HEADERS_MAX: Final = 200
LINGER_S: Final = 2.0

FAILED: Final = ApiError(500, "server_error", "internal_error", "the gateway failed; see its log")

_PAGE = re.compile(rb"[A-Z]+ /(?!v1/)[!-~]* HTTP/1\.[01]\r\n")
_ABSOLUTE = re.compile(rb"https?://[^/?#]*(/[!-~]*)$", re.IGNORECASE)
# A replica may read these as another path than the one that was let pass.
_CROOKED = re.compile(rb"/\.{1,2}(?:/|$)|//|\\|%2e|%2f|%5c|%00|#", re.IGNORECASE)


class FrontLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What a client may send, in bytes, and how long it may take, in seconds."""

    head_bytes_max: int
    body_bytes_max: int
    head_s: float
    body_idle_s: float
    keep_alive_s: float


def is_page(data: bytes) -> bool:
    """Return whether a connection's first line asks for something outside /v1; what is no request is ours to refuse."""
    return _PAGE.match(data) is not None


def path_of(target: bytes) -> bytes:
    """Return path and query of a request's target, which may name the server too."""
    absolute = _ABSOLUTE.match(target)
    return target if absolute is None else absolute[1]


def wrong_head(version: bytes, headers: Headers, target: bytes) -> ApiError | None:
    """Return why a head that the parser let pass is refused all the same."""
    if version not in (b"1.0", b"1.1"):
        return ApiError(505, "invalid_request_error", "http_version", "HTTP/1.1 is spoken here")
    if not target.startswith(b"/v1/"):
        return malformed("a page is asked for on a connection of its own, or after the answer")
    if _CROOKED.search(target.partition(b"?")[0]):
        return malformed("the path has dots, empty parts or coded slashes")
    coding = headers.all(b"transfer-encoding")
    if coding and (version == b"1.0" or [one.strip().lower() for one in coding] != [b"chunked"]):
        return malformed("the only transfer coding is chunked")
    if version == b"1.1" and len(headers.all(b"host")) != 1:
        return malformed("a request names its host once")
    return None


def malformed(why: str) -> ApiError:
    """Return the error of bytes that are no request."""
    return ApiError(400, "invalid_request_error", "malformed_request", f"no valid request: {why}")


def head_too_large(limits: FrontLimits) -> ApiError:
    """Return the error of a head over its limit."""
    return ApiError(
        431,
        "invalid_request_error",
        "headers_too_large",
        f"the request's head is longer than {limits.head_bytes_max} bytes or {HEADERS_MAX} lines",
    )


def body_too_large(limits: FrontLimits) -> ApiError:
    """Return the error of a body over its limit."""
    return ApiError(
        413,
        "invalid_request_error",
        "request_too_large",
        f"the request body is longer than {limits.body_bytes_max} bytes",
    )


def too_slow(what: str, limit_s: float) -> ApiError:
    """Return the error of a client that stops in the middle of a request."""
    return ApiError(
        408, "invalid_request_error", "too_slow", f"the {what} did not come within {limit_s:g} s"
    )
