"""Bodies that clients compress: taken apart before they are read, within the limit of a body."""

import zlib
from typing import Final

from trimtab.runtime.wire import ApiError, Headers

_GZIP_OR_ZLIB: Final = 32 + zlib.MAX_WBITS
_CODINGS: Final = frozenset({b"gzip", b"x-gzip", b"deflate"})


def decoded_body(body: bytes, headers: Headers, *, bytes_max: int) -> bytes:
    """Return a body as it was before its Content-Encoding; raises `ApiError`.

    400 for what is not what it says, 413 where it would be longer than `bytes_max`, 415 for a coding other than gzip
    and deflate.
    """
    coding = b",".join(headers.all(b"content-encoding")).strip().lower()
    if not coding or coding == b"identity":
        return body
    if coding not in _CODINGS:
        raise ApiError(
            415,
            "invalid_request_error",
            "unsupported_encoding",
            "a body is sent as it is, or with gzip or deflate",
        )
    inflater = zlib.decompressobj(_GZIP_OR_ZLIB)
    try:
        plain = inflater.decompress(body, bytes_max + 1)
    except zlib.error as error:
        raise _broken(coding) from error
    if len(plain) > bytes_max:
        raise ApiError(
            413,
            "invalid_request_error",
            "request_too_large",
            f"the request body is longer than {bytes_max} bytes",
        )
    if not inflater.eof or inflater.unused_data:
        raise _broken(coding)
    return plain


def _broken(coding: bytes) -> ApiError:
    return ApiError(
        400, "invalid_request_error", "bad_request", f"the body is not whole {coding.decode()}"
    )
