"""Answers of the Prometheus API: the same samples, by target and time."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from trimtab.core.ports import EngineFormatError
from trimtab.core.served import Counter, EngineKind, Gauge, ServerSample
from trimtab.engines import prom_api
from trimtab.engines.prom_api import instant_query, read_api, window_query


def answer(*result: Mapping[str, Any], kind: str = "vector", **more: Any) -> bytes:
    data = {"resultType": kind, "result": list(result)}
    return json.dumps({"status": "success", "data": data, **more}).encode()


def read(body: bytes) -> tuple[ServerSample, ...]:
    return read_api(body, source="prom", at_s=99.0)


def series(name: str, **labels: str) -> dict[str, str]:
    return {"__name__": name, "job": "vllm", **labels}


def test_instant_vector_is_one_sample_a_target() -> None:
    """Targets keep apart by instance; the time is the answer's; target labels are not the engine's."""
    body = answer(
        *(
            {
                "metric": series("vllm:num_requests_running", instance=at, engine="0", pod="p"),
                "value": [7.5, value],
            }
            for at, value in (("b:1", "2"), ("a:1", "3"))
        )
    )
    found = [
        (one.source, one.at_s, one.ranks[0].rank, one.gauge_sum(Gauge.RUNNING))
        for one in read(body)
    ]
    assert found == [("prom vllm/a:1", 7.5, "0", 3.0), ("prom vllm/b:1", 7.5, "0", 2.0)]


def test_matrix_is_one_sample_a_time() -> None:
    """A series that begins later is absent before, and not zero."""
    body = answer(
        {
            "metric": series("vllm:generation_tokens_total", instance="a"),
            "values": [[10, "5"], [20, "9"]],
        },
        {"metric": series("vllm:num_preemptions_total", instance="a"), "values": [[20, "1"]]},
        kind="matrix",
    )
    found = [(one.at_s, dict(one.ranks[0].counters)) for one in read(body)]
    assert found == [
        (10.0, {Counter.OUTPUT_TOKENS: 5.0}),
        (20.0, {Counter.OUTPUT_TOKENS: 9.0, Counter.PREEMPTIONS: 1.0}),
    ]


def test_label_that_the_server_hid_is_put_back() -> None:
    """`exported_engine` is the engine's own label, `exported_instance` is not read."""
    metric = series(
        "vllm:num_requests_running", exported_engine="3", engine="x", exported_instance="i"
    )
    (sample,) = read(answer({"metric": metric, "value": [1, "4"]}))
    assert sample.ranks[0].rank == "3"


def test_targets_without_a_known_name_are_left_out_beside_known_ones() -> None:
    """The process start alone is every target's."""
    start = {"metric": series("process_start_time_seconds", instance="x"), "value": [1, "50"]}
    known = {"metric": series("tgi_queue_size", instance="y"), "value": [1, "2"]}
    assert [one.engine for one in read(answer(start, known))] == [EngineKind.TGI]
    assert [one.engine for one in read(answer(start))] == [EngineKind.UNKNOWN]


def test_time_that_cannot_be_is_that_of_the_question() -> None:
    """No answer moves a sample before the epoch or beyond any clock."""
    metric = series("tgi_queue_size")
    assert [
        read(answer({"metric": metric, "value": [at, "2"]}))[0].at_s for at in (-1e300, 1e300)
    ] == [99.0, 99.0]


def test_nothing_matched_is_no_sample() -> None:
    """An empty answer is empty."""
    assert read(answer()) == ()


def test_warnings_and_native_histograms_are_noted() -> None:
    """What the API says beside its answer, and what cannot be read, is passed on."""
    body = answer(
        {"metric": series("tgi_queue_size"), "value": [1, "2"]},
        {"metric": series("tgi_request_duration"), "histogram": [1, {"count": "3"}]},
        warnings=["slow"],
    )
    (sample,) = read(body)
    assert [note.text for note in sample.notes] == [
        "native histograms are on the server and were not read",
        "the API warns: slow",
    ]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"[]",
        b'{"status":"error","error":"bad query"}',
        b'{"status":"success"}',
        b'{"status":"success","data":{"resultType":"scalar","result":[1,"1"]}}',
        b'{"status":"success","data":{"resultType":"vector","result":[{"metric":{},"value":["x",1]}]}}',
        b'{"status":"success","data":{"resultType":"vector","result":{}}}',
        b"\xff\xfe",
        b"[" * 200_000,
        b'{"status":"success","data":{"resultType":"vector","result":' + b"[" * 200_000,
    ],
)
def test_what_is_no_answer_is_refused(body: bytes) -> None:
    """A typed error, with the API's own words where it has some."""
    with pytest.raises(EngineFormatError) as caught:
        read(body)
    assert ("bad query" in str(caught.value)) == (b"bad query" in body)


@pytest.mark.parametrize("limit", ["SERIES_MAX", "SAMPLES_MAX", "VALUES_MAX", "PAGE_BYTES_MAX"])
def test_answers_are_bounded(monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    """Each maximum refuses what is above it."""
    monkeypatch.setattr(prom_api, limit, 1)
    body = answer(
        *({"metric": series("tgi_queue_size", instance=i), "value": [1, "2"]} for i in "ab")
    )
    with pytest.raises(EngineFormatError):
        read(body)


@pytest.mark.parametrize("selector", ['job="vllm"', '{job="vllm"}', ' { job="vllm", } '])
def test_query_asks_for_known_names_of_the_selected_targets(selector: str) -> None:
    """The selector may come with or without braces."""
    query = instant_query(selector)
    assert query.startswith('{__name__=~"DCGM_FI_.+|')
    assert query.endswith('|process_start_time_seconds",job="vllm"}')


def test_window_is_a_range_of_whole_seconds() -> None:
    """No window asks for the newest values only."""
    assert window_query("", 59.6) == instant_query("") + "[60s]"
    assert window_query("", 0) == instant_query("{}")


@pytest.mark.parametrize("selector", ['job="a"} or {x="b"', 'up{job="a"}', "}{"])
def test_selector_is_not_a_way_to_another_query(selector: str) -> None:
    """What would leave the braces is refused."""
    with pytest.raises(EngineFormatError, match="selector"):
        instant_query(selector)
