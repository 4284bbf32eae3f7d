"""What the formats of all engines share: error bodies and the making of readings."""

import msgspec

from trimtab.core.evidence import Evidence, Reading, Unknown, Window
from trimtab.core.ports import EngineFormatError
from trimtab.core.types import ErrorClass


class ErrorDetail(msgspec.Struct, frozen=True):
    """What an OpenAI-compatible server says about an error. `code` is a number or a word, by server."""

    message: str = ""
    type: str | None = None
    code: int | str | None = None
    n_prompt_tokens: int | None = None
    n_ctx: int | None = None


class ErrorBody(msgspec.Struct, frozen=True):
    """The body around it."""

    error: ErrorDetail


def read_error(body: bytes) -> ErrorDetail | None:
    """Return the error a body speaks of, None if it is not of the usual shape."""
    try:
        return msgspec.json.decode(body, type=ErrorBody).error
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def class_of_status(status: int) -> ErrorClass:
    """Return the class of error that a status alone tells; raises ValueError below 400."""
    if status < 400:
        raise ValueError(f"status {status} is no error")
    match status:
        case 429 | 503:
            return ErrorClass.OVERLOADED
        case 408 | 504:
            return ErrorClass.UPSTREAM_TIMEOUT
        case _ if status < 500:
            return ErrorClass.BAD_REQUEST
        case _:
            return ErrorClass.UPSTREAM_STATUS


def decode(data: bytes, what: str) -> object:
    """Decode JSON; raises `EngineFormatError` that names `what`, and never quotes the data."""
    try:
        found: object = msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise EngineFormatError(f"{what} is not valid JSON") from error
    return found


def reading(
    name: str,
    value: float | None,
    *,
    unit: str,
    source: str,
    at_s: float,
    reason: str = "not exported by this engine",
    note: str = "",
) -> Reading:
    """Return a value read at one moment as evidence, or `Unknown` with the reason if there is none."""
    if value is None:
        return Unknown(name, reason)
    return Evidence(
        id=f"{source}/{name}@{at_s:.3f}",
        name=name,
        value=value,
        unit=unit,
        source=source,
        window=Window(at_s, at_s),
        note=note,
    )
