"""What is told of a request to logs, traces and metrics: counts and names, never text."""

import json

import msgspec
import pytest
from events_kit import request
from prometheus_client.parser import text_string_to_metric_families

from trimtab.core.config import TelemetryConfig
from trimtab.core.events import RequestServed
from trimtab.core.prefix import PrefixIndex
from trimtab.core.record import RequestRecord, Tokens
from trimtab.core.types import ErrorClass
from trimtab.runtime.access_log import line_of
from trimtab.runtime.metrics import OTHER_ENDPOINT, GatewayMetrics, ReplicaFigures
from trimtab.runtime.otel import attributes_of


def served() -> RequestServed:
    """Return a request as the ledger knows it."""
    event = request(1)
    assert isinstance(event, RequestServed)
    return event


def record(**changes: object) -> RequestRecord:
    base = msgspec.structs.replace(
        served().record,
        request_id="r-1",
        endpoint="/v1/chat/completions",
        arrived_at_s=1_700_000_000.25,
        finished_at_s=1_700_000_002.25,
        status=200,
        error=ErrorClass.NONE,
        replica="a",
        ttft_ms=120.0,
        tpot_ms=10.5,
        e2e_ms=2000.0,
        tokens=Tokens(prompt=100, delivered=64, output=50, held_best=80),
    )
    return msgspec.structs.replace(base, **changes)


def test_log_line_says_what_was_measured_and_leaves_out_what_is_unknown() -> None:
    """One line of JSON with the time in UTC; unknown is no key, not null and not zero."""
    line = line_of(record(tpot_ms=None), None)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    said = json.loads(line)
    assert (said["time"], said["status"]) == ("2023-11-14T22:13:20.250+00:00", 200)
    assert (said["prompt_tokens"], said["cached_tokens"], said["ttft_ms"]) == (100, 64, 120.0)
    assert "tpot_ms" not in said


def test_log_line_holds_no_hash_of_a_prompt() -> None:
    """Not even a keyed one: who reads logs needs none."""
    said = line_of(record(prompt_hash="ab12", output_hash="cd34", session="se56"), None)
    assert [text in said for text in (b"ab12", b"cd34", b"se56")] == [False, False, False]


def test_estimated_usage_is_marked() -> None:
    """A reader must not bill by it."""
    tokens = Tokens(prompt=100, output=7, output_estimated=True)
    assert json.loads(line_of(record(tokens=tokens), None))["usage_estimated"] is True
    found = attributes_of(record(tokens=tokens), None, model="m", engine="vllm")
    assert found["trimtab.usage_estimated"] is True


def test_span_has_the_names_of_the_genai_conventions() -> None:
    """Tokens, model, operation, engine; times in seconds as the conventions have them."""
    event = served()
    found = attributes_of(record(max_tokens=64), event.decision, model="m", engine="vllm")
    assert event.decision is not None
    wanted = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "vllm",
        "gen_ai.request.model": "m",
        "gen_ai.request.max_tokens": 64,
        "gen_ai.usage.input_tokens": 100,
        "gen_ai.usage.output_tokens": 50,
        "gen_ai.usage.cache_read.input_tokens": 64,
        "gen_ai.response.time_to_first_chunk": 0.12,
        "http.response.status_code": 200,
        "trimtab.replica": "a",
        "trimtab.route.reason": event.decision.reason.value,
    }
    assert wanted == {name: found[name] for name in wanted}


def test_span_of_a_failure_names_its_class() -> None:
    """`error.type` is a closed set."""
    found = attributes_of(
        record(status=502, error=ErrorClass.STREAM_TRUNCATED), None, model="m", engine="tgi"
    )
    assert found["error.type"] == "stream_truncated"
    assert "gen_ai.response.model" not in found


def samples(page: bytes) -> dict[str, float]:
    """Return every sample of a page by name and labels."""
    return {
        sample.name + "".join(f",{k}={v}" for k, v in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
    }


def test_metrics_count_in_base_units_under_the_field_s_names() -> None:
    """Seconds and tokens; what an engine reported as reused is apart."""
    metrics = GatewayMetrics(lambda: 3.0)
    metrics.observe(record(), None)
    found = samples(metrics.page())
    labels = ",arm=baseline,replica=a"
    assert found[f"trimtab_time_to_first_token_seconds_sum{labels}"] == pytest.approx(0.12)
    assert found[f"trimtab_e2e_request_latency_seconds_sum{labels}"] == pytest.approx(2.0)
    assert found["trimtab_prompt_tokens_total,replica=a"] == 100.0
    assert found["trimtab_prompt_tokens_cached_total,replica=a"] == 64.0
    assert found["trimtab_prompt_tokens_lost_total,replica=a"] == 16.0
    assert found["trimtab_generation_tokens_total,replica=a"] == 50.0
    assert found["trimtab_requests_in_flight"] == 3.0


def test_path_of_a_client_makes_no_series() -> None:
    """Clients choose paths; a flood of them would fill the page."""
    metrics = GatewayMetrics(lambda: 0.0)
    for number in range(3):
        metrics.observe(record(endpoint=f"/v1/made-up-{number}"), None)
    name = f"trimtab_requests_total,endpoint={OTHER_ENDPOINT},error=none,replica=a,status=200"
    found = samples(metrics.page())
    assert found[name] == 3.0
    assert not any("made-up" in each for each in found)


def test_page_says_how_full_the_prefix_index_is() -> None:
    """Whoever sets its bound sees how much of it is used and how much it costs; without an index there is no series."""
    metrics, index = GatewayMetrics(lambda: 0.0), PrefixIndex(15, 16)
    none = samples(metrics.page())
    metrics.index.stats = index.stats
    for prompt in (tuple(range(10)), tuple(range(10, 20))):
        index.record("a", prompt)
    found = samples(metrics.page())
    names = ("blocks", "blocks_max", "blocks_evicted_total")
    assert [found[f"trimtab_prefix_index_{name}"] for name in names] == [15.0, 15.0, 5.0]
    assert not any("prefix_index" in name for name in none)


def test_unknown_figure_of_a_replica_gives_no_series() -> None:
    """A gauge that is 0 while nobody knows would read as idle."""
    metrics = GatewayMetrics(lambda: 0.0)
    known = ReplicaFigures(
        replica="a", ready=True, in_flight=2, restarts=1, running=7, kv_used_share=0.5, age_s=0.2
    )
    metrics.show_fleet(
        lambda: (known, ReplicaFigures(replica="b", ready=False, in_flight=0, restarts=0))
    )
    found = samples(metrics.page())
    assert found["trimtab_replica_num_requests_running,replica=a"] == 7.0
    assert found["trimtab_replica_kv_cache_usage_ratio,replica=a"] == 0.5
    assert found["trimtab_replica_restarts_total,replica=a"] == 1.0
    assert found["trimtab_replica_ready,replica=b"] == 0.0
    assert "trimtab_replica_num_requests_running,replica=b" not in found
    assert "trimtab_replica_num_requests_waiting,replica=a" not in found


def test_traces_are_off_by_default() -> None:
    """Nothing leaves the machine that nobody asked for."""
    assert (TelemetryConfig().otlp_endpoint, TelemetryConfig().access_log) == ("", "")


def test_replica_that_left_takes_its_series_with_it() -> None:
    """Where addresses come and go, the page must not grow for ever; the others' series stay."""
    metrics = GatewayMetrics(lambda: 0.0)
    for replica in ("a", "b"):
        metrics.observe(record(replica=replica), served().decision)
    metrics.forget("a")
    found = samples(metrics.page())
    assert [each for each in found if "replica=a" in each] == []
    assert found["trimtab_generation_tokens_total,replica=b"] == 50.0
    assert any(each.startswith("trimtab_routing_decisions_total") for each in found)
    metrics.observe(record(replica="a"), None)
    assert samples(metrics.page())["trimtab_generation_tokens_total,replica=a"] == 50.0
