"""What a prefill replica's answer means where it is no 200."""

import pytest

from trimtab.core.handover import HandOverCause
from trimtab.runtime.prefill_answers import refusal, retry_after_s
from trimtab.runtime.wire import Headers


@pytest.mark.parametrize(
    ("said", "told_s"),
    [
        (b"30", 30.0),
        (b" 7 ", 7.0),
        (b"0", None),
        (b"-3", None),
        (b"1.5", None),
        (b"9" * 40, None),
        (b"\xb2", None),
        (b"Wed, 21 Oct 2026 07:28:00 GMT", None),
    ],
)
def test_retry_after_is_read_as_whole_seconds(said: bytes, told_s: float | None) -> None:
    """Anything else says nothing, and never raises."""
    assert retry_after_s(Headers([(b"Retry-After", said)])) == told_s
    assert retry_after_s(Headers([])) is None


@pytest.mark.parametrize(("status", "unavailable"), [(503, True), (400, False)])
def test_answer_becomes_the_cause_of_a_hand_over(status: int, unavailable: bool) -> None:
    """The prompt stays where it is decoded in any case; whether to ask again is told beside."""
    error = refusal("p", "/v1/completions", status, Headers([(b"retry-after", b"4")]))
    assert (error.cause, error.is_unavailable) == (HandOverCause.PREFILL_REFUSED, unavailable)
    assert error.retry_after_s == 4.0
    assert str(status) in str(error)
