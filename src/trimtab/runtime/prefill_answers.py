"""What a prefill replica's answer means where it is no 200: why the hand-over ends, and when to ask again."""

from trimtab.core.handover import HandOverCause, HandOverError
from trimtab.policies.prefill_refusals import is_unavailable
from trimtab.runtime.wire import Headers


def refusal(replica: str, path: str, status: int, headers: Headers) -> HandOverError:
    """Return the error of a prompt that a replica did not compute."""
    return HandOverError(
        HandOverCause.PREFILL_REFUSED,
        f"{replica} answered {path} with {status}",
        is_unavailable=is_unavailable(status),
        retry_after_s=retry_after_s(headers),
    )


def retry_after_s(headers: Headers) -> float | None:
    """Return Retry-After in seconds, None where it is not said, or said as a date: clocks of others may be off."""
    said = (headers.raw(b"retry-after") or b"").strip()
    # More digits than a year of seconds has are no answer of a server, and may be too long to be a number.
    return float(said) if said.isdigit() and 0 < len(said) <= 8 and int(said) > 0 else None
