"""One request's measurement becomes one record: what is unknown says why."""

import msgspec
import pytest

from trimtab.core.ports import EngineReport, RequestFacts, StreamEvent
from trimtab.core.record import RequestRecord
from trimtab.core.types import Constraint, ErrorClass
from trimtab.runtime.recorder import OUTPUT_CHARS_KEPT_MAX, Measurement
from trimtab.runtime.secret import Secret

SECRET = Secret(bytes(32))
REPORT = EngineReport(
    prompt_tokens=100,
    cached_tokens=60,
    output_tokens=5,
    prefill_ms=30.0,
    decode_ms=40.0,
    drafted_tokens=4,
    accepted_tokens=3,
    finish_reason="stop",
)


def measure(
    *texts: tuple[float, str], report: EngineReport | None = REPORT, **facts: object
) -> Measurement:
    """Return a request that arrived at 10 s and had these texts at these times, with a report at the last."""
    seen = Measurement("q", "/v1/chat/completions", at_s=1000.0, mono_s=10.0)
    asked = RequestFacts(
        model=None,
        stream=True,
        wants_usage=False,
        temperature=None,
        max_tokens=None,
        constraint=Constraint.FREE,
        segments=(),
    )
    seen.facts = msgspec.structs.replace(asked, **facts)
    seen.status = 200
    for at_s, text in texts:
        seen.saw(StreamEvent(text=text), mono_s=at_s, secret=SECRET)
    if report is not None:
        seen.saw(StreamEvent(report=report), mono_s=texts[-1][0], secret=SECRET)
        seen.saw(StreamEvent(done=True), mono_s=texts[-1][0], secret=SECRET)
    return seen


def record_of(seen: Measurement, *, mono_s: float = 10.5) -> RequestRecord:
    return seen.record(mono_s=mono_s, segments=(), hardware="h", topology="t")


def test_stream_is_cut_into_phases_that_add_up() -> None:
    """TTFT is the first text, queue what is left of it before the engine's prefill, decode the rest."""
    record = record_of(measure((10.1, "a"), (10.15, "b"), (10.3, "c")))
    phases = record.phases
    assert (record.ttft_ms, record.e2e_ms) == (pytest.approx(100), pytest.approx(300))
    assert (phases.queue_ms, phases.prefill_ms, phases.decode_ms) == (
        pytest.approx(70),
        30,
        pytest.approx(200),
    )
    assert record.tpot_ms == pytest.approx(200 / 4)
    assert (record.chunks, record.chunk_gap_ms_max, record.chunk_gap_ms_mean) == (
        3,
        pytest.approx(150),
        pytest.approx(100),
    )
    assert (record.arrived_at_s, record.finished_at_s) == (1000.0, pytest.approx(1000.3))
    assert record.drafting.accepted_per_step == 2.5
    assert (record.tokens.computed, record.finish_reason) == (40, "stop")


def test_answer_in_one_piece_takes_the_engines_decode_time() -> None:
    """Without a stream there is no first token to see: TTFT is unknown, TPOT comes from the engine."""
    record = record_of(measure((10.2, "whole"), stream=False))
    assert (record.ttft_ms, record.tpot_ms, record.unknown["ttft_ms"]) == (
        None,
        10.0,
        "not a stream",
    )
    assert record.phases.queue_ms == pytest.approx(200 - 40 - 30)


@pytest.mark.parametrize(
    ("tokens", "choices", "reason"),
    [
        (1, 1, "fewer than two tokens"),
        (9, 2, "several choices in one answer"),
        (None, 1, "the engine did not report it"),
    ],
)
def test_tpot_that_cannot_be_told_says_why(tokens: int | None, choices: int, reason: str) -> None:
    """One token has no time per token after the first; several choices share one count."""
    report = EngineReport(output_tokens=tokens)
    record = record_of(measure((10.1, "a"), (10.2, "b"), report=report, n=choices))
    assert (record.tpot_ms, record.unknown["tpot_ms"]) == (None, reason)
    assert record.tokens.output_estimated == (tokens is None)


def test_queue_is_never_negative() -> None:
    """An engine that says its prefill took longer than the first token did leaves no queue."""
    report = msgspec.structs.replace(REPORT, prefill_ms=500.0)
    assert record_of(measure((10.1, "a"), report=report)).phases.queue_ms == 0.0


def test_first_failure_counts() -> None:
    """A stream that broke is not an abort when the client then leaves, nor the other way round."""
    broken = measure((10.1, "a"), report=None)
    broken.failed(200, ErrorClass.STREAM_TRUNCATED)
    broken.aborted()
    left = measure((10.1, "a"), report=None)
    left.aborted()
    left.failed(200, ErrorClass.STREAM_TRUNCATED)
    assert [(r.error, r.client_aborted, r.status) for r in map(record_of, (broken, left))] == [
        (ErrorClass.STREAM_TRUNCATED, False, 200),
        (ErrorClass.CLIENT_ABORT, True, 499),
    ]


def test_client_that_left_after_the_end_mark_was_served() -> None:
    """The end mark was the last thing to say."""
    seen = measure((10.1, "a"))
    seen.aborted()
    assert (record_of(seen).ok, record_of(seen).client_aborted) == (True, False)


def test_output_of_an_unreported_stream_is_estimated_by_its_chunks() -> None:
    """Counts of a cut stream are marked as estimates, and say what else is unknown for the same reason."""
    seen = measure((10.1, "a"), (10.2, "b"), report=None)
    seen.aborted()
    record = record_of(seen)
    assert (record.tokens.output, record.tokens.output_estimated) == (2, True)
    assert record.unknown["tokens.delivered"] == "the request ended: client_abort"


def test_text_is_bounded_and_gone_after_the_record() -> None:
    """At most 64 KiB of output are kept; the hash is of all of it; nothing is left in the measurement."""
    half = "ab" * OUTPUT_CHARS_KEPT_MAX
    seen = measure((10.1, half), (10.2, half))
    assert sum(len(text) for text in seen._text) == OUTPUT_CHARS_KEPT_MAX
    record = record_of(seen)
    assert (record.output_hash, seen._text) == (SECRET.digest((half + half).encode()), [])


def test_request_that_was_never_read_has_a_record_too() -> None:
    """What ends before it is understood has its status, its time, and reasons for all the rest."""
    seen = Measurement("q", "/v1/completions", at_s=1000.0, mono_s=10.0)
    seen.failed(413, ErrorClass.BAD_REQUEST)
    record = record_of(seen)
    assert (record.status, record.ok, record.e2e_ms, record.replica) == (
        413,
        False,
        pytest.approx(500),
        None,
    )
    assert record.unknown["tokens.predicted"] == "not routed"
    assert record.unknown["ttft_ms"] == "the request ended: bad_request"
