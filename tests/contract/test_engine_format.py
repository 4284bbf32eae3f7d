"""What every engine's format must make of what its real servers said (recorded: scripts/record_transcripts.py)."""

from pathlib import Path

import pytest

from trimtab.core.evidence import Evidence
from trimtab.core.ports import EngineFormat, EngineFormatError, EngineReport, StreamEvent
from trimtab.core.types import ErrorClass
from trimtab.engines.llamacpp import LlamaCppFormat, parse_slots
from trimtab.engines.sse import SSEParser

TRANSCRIPTS = Path(__file__).with_name("transcripts")
FORMATS: dict[str, EngineFormat] = {"llamacpp": LlamaCppFormat()}
# Folders of recorded requests; others hold start-up logs, measurements or pages alone.
RECORDED = sorted(path.parent for path in TRANSCRIPTS.glob("*/*/chat.http"))


@pytest.fixture(params=RECORDED, ids=lambda folder: f"{folder.parent.name}-{folder.name}")
def recorded(request: pytest.FixtureRequest) -> Path:
    """The transcripts of one version of one engine."""
    folder = request.param
    assert isinstance(folder, Path)
    return folder


def wire_format(folder: Path) -> EngineFormat:
    return FORMATS[folder.parent.name]


def answer(folder: Path, name: str) -> tuple[int, bytes]:
    head, _, body = (folder / f"{name}.http").read_bytes().partition(b"\n\n")
    return int(head.split()[1]), body


def events(folder: Path, name: str) -> list[StreamEvent]:
    parser = SSEParser()
    found = parser.feed(answer(folder, name)[1]) + parser.finish()
    assert all(event.complete for event in found)
    data = [event.data for event in found if event.data is not None]
    return [wire_format(folder).read_stream_event(each) for each in data]


def only_report(found: list[StreamEvent]) -> EngineReport:
    (report,) = [event.report for event in found if event.report is not None]
    return report


def test_every_known_format_was_recorded() -> None:
    """A format without a transcript is a guess."""
    assert {folder.parent.name for folder in RECORDED} == set(FORMATS)


@pytest.mark.parametrize("kind", ["chat", "completion"])
def test_stream_and_whole_answer_say_the_same(recorded: Path, kind: str) -> None:
    """Text, token counts and finish reason do not depend on how the answer came."""
    whole = wire_format(recorded).read_response(answer(recorded, kind)[1])
    assert whole.report is not None
    for name in (f"{kind}_stream", f"{kind}_stream_usage"):
        found = events(recorded, name)
        report = only_report(found)
        assert "".join(event.text for event in found) == whole.text != ""
        assert [e.finish_reason for e in found if e.finish_reason] == [whole.finish_reason]
        assert (report.prompt_tokens, report.output_tokens) == (
            whole.report.prompt_tokens,
            whole.report.output_tokens,
        )


@pytest.mark.parametrize("kind", ["chat", "completion"])
def test_stream_ends_with_the_terminator(recorded: Path, kind: str) -> None:
    """The last event is done, and only that one."""
    done = [event.done for event in events(recorded, f"{kind}_stream_usage")]
    assert done == [False] * (len(done) - 1) + [True]


def test_usage_chunk_that_nobody_asked_for_can_be_told(recorded: Path) -> None:
    """An event that is only usage carries no text and no finish reason, so it can be left out."""
    found = events(recorded, "chat_stream_usage")
    (usage,) = [event for event in found if event.usage_only]
    assert (usage.text, usage.finish_reason, usage.report is not None) == ("", None, True)
    assert [event.usage_only for event in events(recorded, "chat_stream")].count(True) == 0


def test_usage_inside_a_last_chunk_is_not_usage_only(recorded: Path) -> None:
    """A chunk with a choice must reach the client whatever else it carries."""
    found = events(recorded, "completion_stream_usage")
    assert [event.usage_only for event in found].count(True) == 0
    (last,) = [event for event in found if event.report is not None]
    assert last.finish_reason == "length"


def test_second_request_reports_its_cached_prefix(recorded: Path) -> None:
    """Delivered tokens come with the answer: none at first, all but one of the prompt then."""
    first = wire_format(recorded).read_response(answer(recorded, "chat")[1]).report
    second = only_report(events(recorded, "chat_stream_usage"))
    assert first is not None
    assert first.prompt_tokens is not None
    assert (first.cached_tokens, second.cached_tokens) == (0, first.prompt_tokens - 1)


def test_engine_times_prefill_and_decode(recorded: Path) -> None:
    """Both phases have a duration of more than nothing."""
    report = wire_format(recorded).read_response(answer(recorded, "chat")[1]).report
    assert report is not None
    assert min(report.prefill_ms or 0.0, report.decode_ms or 0.0) > 0.0


@pytest.mark.parametrize("name", ["speculating_chat", "speculating_stream"])
def test_speculating_engine_reports_drafted_and_accepted(recorded: Path, name: str) -> None:
    """Accepted tokens are some of the drafted ones."""
    found = (
        events(recorded, name)
        if name.endswith("stream")
        else [wire_format(recorded).read_response(answer(recorded, name)[1])]
    )
    report = only_report(found)
    assert report.drafted_tokens is not None
    assert report.accepted_tokens is not None
    assert 0 < report.accepted_tokens <= report.drafted_tokens


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("context_overflow", ErrorClass.CONTEXT_OVERFLOW),
        ("context_overflow_stream", ErrorClass.CONTEXT_OVERFLOW),
        ("bad_request", ErrorClass.BAD_REQUEST),
    ],
)
def test_recorded_errors_have_their_class(recorded: Path, name: str, expected: ErrorClass) -> None:
    """A prompt that is too long is told apart from any other bad request."""
    status, body = answer(recorded, name)
    assert (status, wire_format(recorded).classify_error(status, body)) == (400, expected)


@pytest.mark.parametrize("name", ["metrics", "speculating_metrics"])
def test_real_metrics_leave_nothing_unknown(recorded: Path, name: str) -> None:
    """Every name that is declared is exported by the recorded version."""
    text = answer(recorded, name)[1].decode()
    readings = wire_format(recorded).read_metrics(text, source="r0", at_s=1.0)
    assert [reading for reading in readings if not isinstance(reading, Evidence)] == []


def test_counters_add_up_to_the_requests_that_were_made(recorded: Path) -> None:
    """Six answers of four tokens were generated before the page was read."""
    text = answer(recorded, "metrics")[1].decode()
    values = {
        reading.name: reading.value
        for reading in wire_format(recorded).read_metrics(text, source="r0", at_s=1.0)
        if isinstance(reading, Evidence)
    }
    assert values["tokens_predicted_total"] == 24.0
    assert values["requests_processing"] == 0.0
    assert values["drafted_tokens_total"] == 0.0


def test_recorded_slots_are_read(recorded: Path) -> None:
    """Both slots, their context, and what they hold."""
    slots = parse_slots(answer(recorded, "slots")[1])
    assert [(slot.id, slot.n_ctx, slot.is_processing) for slot in slots] == [
        (0, 256, False),
        (1, 256, False),
    ]
    assert all(slot.n_prompt_tokens > 0 for slot in slots)


def test_cut_off_answers_are_typed_errors(recorded: Path) -> None:
    """Every beginning of a real answer is an error of the format and nothing else."""
    body = answer(recorded, "chat")[1]
    for length in range(len(body) - 1):
        with pytest.raises(EngineFormatError):
            wire_format(recorded).read_response(body[:length])
