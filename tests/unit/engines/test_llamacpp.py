"""llama.cpp's own: launch knobs, readings, error classes."""

import pytest

from trimtab.core.evidence import Evidence, Unknown
from trimtab.core.ports import EngineFormatError, Placement
from trimtab.core.revision import Model, Revision, Speculation, SpeculationMethod
from trimtab.core.types import ErrorClass
from trimtab.engines.llamacpp import METRIC_NAMES, LlamaCppFormat

FORMAT = LlamaCppFormat()
PLACEMENT = Placement(
    replica="r0", host="127.0.0.1", port=9, threads=3, cpus=(), slot_dir="/s", log_path="/l"
)


def revision(**changes: object) -> Revision:
    model = Model(path="/m.gguf", sha256="0" * 64, name="m")
    return Revision(engine="llamacpp", engine_version="1", model=model).replace(**changes)


def test_slots_share_the_context() -> None:
    """The engine divides its context among the slots, so it gets slots times the context of one."""
    args = FORMAT.launch_args(revision(slots=4, context_tokens=1000, chunk_tokens=128), PLACEMENT)
    assert {name: args[name] for name in ("n_parallel", "n_ctx", "n_batch", "n_ubatch")} == {
        "n_parallel": 4,
        "n_ctx": 4000,
        "n_batch": 128,
        "n_ubatch": 128,
    }


def test_compute_batch_has_a_maximum() -> None:
    """A large prefill chunk is computed in batches of 512."""
    assert FORMAT.launch_args(revision(chunk_tokens=2048), PLACEMENT)["n_ubatch"] == 512


def test_placement_and_model_reach_the_engine() -> None:
    """Port, host, threads, slot folder and model name are the placement's and the model's."""
    args = FORMAT.launch_args(revision(), PLACEMENT)
    names = ("port", "hostnames", "cpuparams.n_threads", "cpuparams_batch.n_threads")
    assert [args[name] for name in names] == [9, ["127.0.0.1"], 3, 3]
    assert (args["slot_save_path"], args["model_alias"]) == ("/s/", ["m"])


@pytest.mark.parametrize(
    ("speculation", "expected"),
    [
        (Speculation(), {"types": ["NONE"]}),
        (
            Speculation(method=SpeculationMethod.NGRAM_SIMPLE, match_tokens=6, draft_tokens_max=8),
            {"types": ["NGRAM_SIMPLE"], "ngram_simple.size_n": 6, "ngram_simple.size_m": 8},
        ),
        (
            Speculation(method=SpeculationMethod.NGRAM_MAP_K, match_tokens=6),
            {"types": ["NGRAM_MAP_K"], "ngram_map_k.size_n": 6},
        ),
        (
            Speculation(method=SpeculationMethod.NGRAM_MOD, match_tokens=8, draft_tokens_max=16),
            {
                "types": ["NGRAM_MOD"],
                "ngram_mod.n_match": 8,
                "ngram_mod.n_max": 16,
                "ngram_mod.n_min": 4,
            },
        ),
    ],
)
def test_speculation_knobs(speculation: Speculation, expected: dict[str, object]) -> None:
    """Each method has its own knobs; what is left open stays at the engine's default."""
    args = FORMAT.launch_args(revision(speculation=speculation), PLACEMENT)
    found = {
        name.removeprefix("speculative."): value
        for name, value in args.items()
        if name.startswith("speculative.")
    }
    assert found == expected


def test_drafts_of_all_slots_must_fit_into_one_step() -> None:
    """The engine would abort in service, when all slots draft at once; the error names what to change."""
    drafting = Speculation(
        method=SpeculationMethod.NGRAM_SIMPLE, match_tokens=8, draft_tokens_max=8
    )
    fits = revision(speculation=drafting, slots=28, chunk_tokens=256)
    assert FORMAT.launch_args(fits, PLACEMENT)["n_parallel"] == 28
    with pytest.raises(EngineFormatError, match=r"engine\.chunk_tokens"):
        FORMAT.launch_args(fits.replace(slots=29), PLACEMENT)


@pytest.mark.parametrize("change", [{"kv_type": "q3"}, {"layout": "tp2"}])
def test_revision_that_cannot_run_is_refused(change: dict[str, object]) -> None:
    """An unknown precision or layout is an error, never a default."""
    with pytest.raises(EngineFormatError):
        FORMAT.launch_args(revision(**change), PLACEMENT)


def test_absent_metric_is_unknown() -> None:
    """A page without a metric gives no zero."""
    text = "llamacpp:requests_processing 2\n"
    readings = {r.name: r for r in FORMAT.read_metrics(text, source="r0", at_s=1.0)}
    assert tuple(readings) == METRIC_NAMES
    found = readings.pop("requests_processing")
    assert isinstance(found, Evidence)
    assert (found.value, found.unit, found.source) == (2.0, "requests", "r0")
    assert all(isinstance(reading, Unknown) for reading in readings.values())


@pytest.mark.parametrize("text", ["<html>", "x{a=", "x 1e"])
def test_garbage_metrics_are_a_typed_error(text: str) -> None:
    """What is no page of metrics raises, so that nobody takes it for an idle engine."""
    with pytest.raises(EngineFormatError):
        FORMAT.read_metrics(text, source="r0", at_s=0.0)


def test_kv_gauge_is_made_from_the_slots() -> None:
    """Tokens held over tokens that fit, over all slots."""
    body = (
        b'[{"id":0,"n_ctx":100,"is_processing":true,"n_prompt_tokens":50},'
        b'{"id":1,"n_ctx":100,"is_processing":false}]'
    )
    values = {
        reading.name: reading.value
        for reading in FORMAT.read_slots(body, source="r0", at_s=0.0)
        if isinstance(reading, Evidence)
    }
    assert values == {
        "kv_tokens_held": 50.0,
        "kv_tokens_capacity": 200.0,
        "kv_used_share": 0.25,
        "slots_busy": 1.0,
        "slots_busy_share": 0.5,
    }


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (400, b'{"error":{"type":"exceed_context_size_error"}}', ErrorClass.CONTEXT_OVERFLOW),
        (400, b'{"error":{"type":"invalid_request_error"}}', ErrorClass.BAD_REQUEST),
        (404, b"", ErrorClass.BAD_REQUEST),
        (503, b'{"error":{"type":"unavailable_error"}}', ErrorClass.OVERLOADED),
        (429, b"\xff", ErrorClass.OVERLOADED),
        (504, b"{}", ErrorClass.UPSTREAM_TIMEOUT),
        (500, b"[]", ErrorClass.UPSTREAM_STATUS),
    ],
)
def test_error_classes(status: int, body: bytes, expected: ErrorClass) -> None:
    """The engine's own word counts first, then the status."""
    assert FORMAT.classify_error(status, body) == expected


def test_success_is_no_error() -> None:
    """A status below 400 has no error class to find."""
    with pytest.raises(ValueError, match="200"):
        FORMAT.classify_error(200, b"")


def test_timings_without_usage_make_a_report() -> None:
    """A stream whose client did not ask for usage still reports, from the engine's timings."""
    data = (
        b'{"choices":[{"finish_reason":"stop","delta":{}}],'
        b'"timings":{"cache_n":30,"prompt_n":2,"prompt_ms":5.5,"predicted_n":4,"predicted_ms":9}}'
    )
    event = FORMAT.read_stream_event(data)
    assert event.report is not None
    assert (event.report.prompt_tokens, event.report.cached_tokens) == (32, 30)
    assert (event.report.output_tokens, event.report.prefill_ms) == (4, 5.5)
    assert (event.usage_only, event.finish_reason) == (False, "stop")


def test_drafts_are_unknown_per_request() -> None:
    """The engine tells drafted and accepted tokens, never how many drafts they were."""
    data = b'{"choices":[],"usage":{},"timings":{"draft_n":8,"draft_n_accepted":5}}'
    report = FORMAT.read_stream_event(data).report
    assert report is not None
    assert (report.drafts, report.drafted_tokens, report.accepted_tokens) == (None, 8, 5)


def test_error_inside_a_stream_is_told() -> None:
    """An error event carries its message and no text."""
    event = FORMAT.read_stream_event(
        b'{"error":{"code":500,"message":"boom","type":"server_error"}}'
    )
    assert (event.error, event.text, event.done) == ("boom", "", False)


@pytest.mark.parametrize(
    "data", [b"", b"nonsense", b"[1]", b"\xff", b'{"choices":1}', b'{"timings":1}']
)
def test_garbage_event_is_a_typed_error(data: bytes) -> None:
    """Nothing but the format's own error comes out of garbage."""
    with pytest.raises(EngineFormatError):
        FORMAT.read_stream_event(data)


def test_terminator_ends_the_stream() -> None:
    """[DONE] is no JSON and carries nothing."""
    event = FORMAT.read_stream_event(b"[DONE]")
    assert (event.done, event.text, event.report) == (True, "", None)


def test_everything_generated_is_text() -> None:
    """Reasoning, content and tool calls are all output that was decoded."""
    data = (
        b'{"choices":[{"delta":{"reasoning_content":"hm ","content":"yes",'
        b'"tool_calls":[{"id":"1"}]}}]}'
    )
    assert FORMAT.read_stream_event(data).text == 'hm yes[{"id":"1"}]'
