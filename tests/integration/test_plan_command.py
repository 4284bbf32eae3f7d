"""`trimtab plan` from its words to its exit code: errors, formats, loads and calibration."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from plan_cli_kit import dense_config, measured_table, planned

from trimtab.interfaces.plan_cli import plan

LLAMA = ("--model", "llama-3.1-8b", "--hardware", "H100:8")
LOAD = ("--isl", 1000, "--osl", 200)


@pytest.mark.parametrize(
    ("words", "field", "nearest"),
    [
        (("--model", "llama-3.1-8c", "--hardware", "H100"), "model", "llama-3.1-8b"),
        (("--model", "llama-3.1-8b", "--hardware", "H1OO:8"), "hardware", "H100"),
        (("--model", "llama-3.1-8b", "--hardware", "H100:0"), "hardware", "1"),
        (("--model", "llama-3.1-8b", "--hardware", "H100:8:2"), "hardware", "H100:8"),
        ((*LLAMA, "--price", "-2"), "price", "0"),
        ((*LLAMA, "--link", "nvlnk"), "link", "NVLink"),
        ((*LLAMA, "--node-link", "ib4oo"), "node_link", "InfiniBand"),
        ((*LLAMA, "--precision", "fp9"), "precision", "fp8"),
        ((*LLAMA, "--kv-precision", "fp9"), "kv_precision", "fp8"),
        ((*LLAMA, "--prefix-share", "1.5"), "prefix_share", "1"),
        ((*LLAMA, "--context", "500000"), "context", "131072"),
        ((*LLAMA, "--prefix-share", "half"), "prefix_share", "0.5"),
        ((*LLAMA, "--prefix-share", "trace"), "prefix_share", "--trace"),
        ((*LLAMA, "--draft-acceptance", "0.7"), "draft_acceptance", "--draft-tokens"),
        ((*LLAMA, "--collective", "deepeep"), "collective", "deepep"),
        ((*LLAMA, "--expert-skew", "0.5"), "expert_skew", "1"),
        ((*LLAMA, "--concurrency", "0"), "concurrency", "1"),
        ((*LLAMA, "--tpot-ms", "-1"), "tpot_ms", "1"),
        ((*LLAMA, "--tpot-ms", "nan"), "tpot_ms", "1"),
        ((*LLAMA, "--rate", "inf"), "rate", "1000000000"),
        ((*LLAMA, "--price", "nan"), "price", "0"),
        ((*LLAMA, "--price", "1e308"), "price", "1000000000"),
        ((*LLAMA, "--draft-tokens", "1000000"), "draft_tokens", "64"),
        ((*LLAMA, "--draft-tokens", "-1"), "draft_tokens", "0"),
        ((*LLAMA, "--measure", "--url", "TP2=http://"), "url", "TP2=http://host:8000"),
        ((*LLAMA, "--measure", "--url", "TP2=http://host:port"), "url", "TP2=http://host:8000"),
        ((*LLAMA, "--ep", "2"), "ep", "1"),
        ((*LLAMA, "--tp", "3"), "tp", "2 or 4"),
        ((*LLAMA, "--tp", "8", "--replicas", "2"), "hardware", "16 devices"),
    ],
)
def test_nonsense_names_the_option_and_the_nearest_valid_value(
    words: tuple[str, ...], field: str, nearest: str
) -> None:
    """One line, exit code 3, no traceback."""
    found = planned(*words, *LOAD)
    assert (found.code, len(found.error.splitlines())) == (3, 1), found.error
    assert found.error.startswith(f"Error: {field}: ")
    assert nearest in found.error.partition("nearest valid: ")[2]


@pytest.mark.parametrize("count", ["num_hidden_layers", "num_attention_heads", "hidden_size"])
def test_zero_counts_in_a_configuration_are_refused_by_name(tmp_path: Path, count: str) -> None:
    """A model with zero layers is no model."""
    path = dense_config(tmp_path, heads=8, kv_heads=8)
    path.write_text(json.dumps(json.loads(path.read_text()) | {count: 0}))
    found = planned("--model", path, "--hardware", "H100", *LOAD)
    assert found.code == 3
    assert count in found.error
    assert "nearest valid: 1" in found.error


@pytest.mark.parametrize("words", [(), ("--model", "llama-3.1-8b"), ("--hardware", "H100")])
def test_missing_options_are_wrong_usage(words: tuple[str, ...]) -> None:
    """A plan needs a model and hardware."""
    assert planned(*words, *LOAD).code == 2


def test_nothing_that_meets_the_targets_ends_with_1_and_names_the_nearest() -> None:
    """A tenth of a millisecond a token cannot be had; the layout that comes nearest is shown first."""
    found = planned(*LLAMA, *LOAD, "--concurrency", 8, "--tpot-ms", 0.1)
    assert (found.code, found.answer["found"], found.answer["chosen"]) == (1, False, None)
    assert found.answer["layouts"][0]["standing"] == "misses"
    assert "comes nearest" in found.answer["because"]


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_every_byte_of_a_rank_is_accounted_for(engine: str) -> None:
    """The parts, what is left for KV and what is kept free are the device, for every engine."""
    words = ("--concurrency", 8, "--engine", engine)
    memory = planned(*LLAMA, *LOAD, *words).answer["chosen"]["memory"]
    taken = sum(part["bytes"] for part in memory["parts"]) + memory["kv_bytes"]
    assert taken == pytest.approx(memory["usable_bytes"])
    assert taken + memory["kept"]["bytes"] == pytest.approx(memory["device_bytes"])
    assert all(part["because"] for part in memory["parts"])


def test_without_a_load_all_accelerators_are_used() -> None:
    """The goal is throughput, and the load that was found is stated."""
    found = planned(*LLAMA, *LOAD, "--tpot-ms", 30)
    assert (found.code, found.answer["goal"]) == (0, "throughput")
    assert found.answer["chosen"]["devices"] == 8
    assert found.answer["capacity"]["whole"] > 8


def test_rate_is_shared_by_replicas_and_keeps_their_targets() -> None:
    """A higher rate never takes fewer accelerators."""
    counts = []
    for rate in (1, 20, 60):
        found = planned(*LLAMA, *LOAD, "--rate", rate, "--tpot-ms", 40, "--ttft-ms", 1000)
        assert found.code in (0, 1)
        counts.append(found.answer["layouts"][0]["devices"])
    assert counts == sorted(counts)


def test_precision_changes_bytes() -> None:
    """FP8 weights are about half of 16-bit ones."""
    sizes = [
        sum(
            part["bytes"]
            for part in planned(*LLAMA, *LOAD, "--tp", 1, "--precision", name).answer["chosen"][
                "memory"
            ]["parts"]
            if part["name"].startswith("weights")
        )
        for name in ("bf16", "fp8")
    ]
    assert 0.5 < sizes[1] / sizes[0] < 0.6


def test_measured_run_is_taken_as_it_was_measured(tmp_path: Path) -> None:
    """The very run that was measured is not estimated, and what lies beside it is corrected."""
    table = measured_table(tmp_path, {(1, 8): 55.0}, model="llama-3.1-8b", system="h100_sxm")
    words = (*LLAMA, *LOAD, "--tp", 1, "--replicas", 1, "--measured", table)
    [measured] = planned(*words, "--concurrency", 8).answer["layouts"][:1]
    assert (measured["tpot_ms"]["value"], measured["source"]) == (pytest.approx(55.0), "measured")
    bare = planned(*words[:-2], "--concurrency", 10).answer["layouts"][0]["tpot_ms"]["value"]
    near = planned(*words, "--concurrency", 10).answer["layouts"][0]["tpot_ms"]["value"]
    assert bare < near


def test_table_of_another_model_is_refused_with_what_it_has(tmp_path: Path) -> None:
    """Rows of another model would correct nothing."""
    table = measured_table(tmp_path, {(1, 8): 20.0}, model="qwen2.5-32b", system="h100_sxm")
    found = planned(*LLAMA, *LOAD, "--measured", table)
    assert found.code == 3
    assert "h100_sxm/vllm/qwen2.5-32b" in found.error


def test_benchmark_file_with_its_layout_corrects_a_plan(tmp_path: Path) -> None:
    """What vLLM's own client wrote is read as one run of the layout named."""
    result = {
        "completed": 80, "max_concurrency": 8, "total_input_tokens": 80_000,
        "total_output_tokens": 16_000, "mean_ttft_ms": 90.0, "mean_tpot_ms": 31.0,
        "model_id": "llama-3.1-8b", "duration": 60.0,
    }  # fmt: skip
    path = tmp_path / "result.json"
    path.write_text(json.dumps(result))
    found = planned(
        *LLAMA, *LOAD, "--tp", 2, "--replicas", 1, "--concurrency", 8, "--measured", f"TP2={path}"
    )
    assert found.code == 0, found.error
    assert found.answer["chosen"]["tpot_ms"]["value"] == pytest.approx(31.0)


def test_access_log_of_a_gateway_corrects_a_plan(tmp_path: Path) -> None:
    """What a gateway wrote of a replica's live requests counts like a benchmark of its layout."""
    lines = [
        {
            "time": f"2026-11-30T10:00:{number:02d}.000+00:00", "request_id": str(number),
            "endpoint": "/v1/completions", "status": 200, "error": "none", "stream": True,
            "replica": "tp2", "prompt_tokens": 1000, "cached_tokens": 0, "output_tokens": 200, "ttft_ms": 90.0,
            "tpot_ms": 31.0, "e2e_ms": 6259.0,
        }
        for number in range(40)
    ]  # fmt: skip
    path = tmp_path / "access.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines))
    words = (*LLAMA, *LOAD, "--tp", 2, "--replicas", 1, "--concurrency", 5.54)
    before = planned(*words)
    found = planned(*words, "--measured", f"TP2={path}")
    assert found.code == 0, found.error
    assert found.answer["chosen"]["tpot_ms"]["value"] == pytest.approx(31.0)
    assert before.answer["chosen"]["tpot_ms"]["value"] != pytest.approx(31.0)


def test_page_is_whole_and_escapes_what_it_shows(tmp_path: Path) -> None:
    """One file without references; a model's name cannot bring markup along."""
    folder = tmp_path / "a<b>c"
    folder.mkdir()
    dense_config(folder, heads=32, kv_heads=8)
    page = tmp_path / "out" / "plan.html"
    words = ["--model", str(folder), "--hardware", "H100:2", "--isl", "1000", "--osl", "200"]
    done = CliRunner().invoke(plan, [*words, "--tpot-ms", "50", "--html", str(page)])
    text = page.read_text()
    assert done.exit_code == 0, done.output
    assert "<b>c" not in text
    assert "src=" not in text
    assert text.count("<section") == 7
    assert "What each device adds" in done.output


def test_trace_gives_lengths_and_its_busiest_minute(tmp_path: Path) -> None:
    """Two requests per second for a minute after one of one: the plan is for two."""
    lines = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    for at in range(180):
        for _ in range(2 if 60 <= at < 120 else 1):
            lines.append(f"2023-11-16 18:{at // 60:02d}:{at % 60:02d}.0000000,1500,100")
    path = tmp_path / "azure.csv"
    path.write_text("\n".join(lines) + "\n")
    found = planned(*LLAMA, "--trace", path, "--ttft-ms", 1000, "--price", 2)
    demand = found.answer["demand"]
    assert (demand["input_tokens"], demand["output_tokens"]) == (1500, 100)
    assert demand["rate_per_s"] == pytest.approx(2.0)
    assert found.answer["capacity"]["hours"]["replicas_max"] == 1
    assert found.answer["capacity"]["cost"]["per_million_output_tokens"] > 0


@pytest.mark.parametrize(
    ("trace", "target", "peak"),
    [
        ("AzureLLMInferenceTrace_code.csv", 5000, 10.53),
        ("AzureLLMInferenceTrace_conv.csv", 5000, 8.45),
        ("mooncake_conversation_trace.jsonl", 60_000, 4.12),
    ],
)
def test_public_traces_are_planned_for_their_busiest_minute(
    public_data: Path, trace: str, target: int, peak: float
) -> None:
    """Lengths, peak rate and the longest context come from the trace; no window needs more than the peak."""
    path = public_data / "traces" / trace
    found = planned(
        "--model", "llama-3.1-8b", "--hardware", "H100:8x8", "--trace", path, "--ttft-ms", target,
        "--tpot-ms", 200, "--price", 2,
    )  # fmt: skip
    assert found.code == 0, found.error or found.answer["because"]
    assert found.answer["demand"]["rate_per_s"] == pytest.approx(peak, rel=0.01)
    hours = found.answer["capacity"]["hours"]
    assert 1 <= hours["replicas_min"] <= hours["replicas_mean"] <= hours["replicas_max"]
    assert hours["replicas_max"] <= found.answer["chosen"]["layout"]["replicas"]


def test_measured_file_that_says_nothing_is_refused_with_what_would_do(tmp_path: Path) -> None:
    """A label that is no layout, and a result without its layout, are told from a file that is missing."""
    path = tmp_path / "result.json"
    path.write_text("{}")
    label = planned(*LLAMA, *LOAD, "--measured", f"FOO={path}")
    assert (label.code, label.error.startswith("Error: measured: 'FOO' names no layout")) == (
        3,
        True,
    )
    bare = planned(*LLAMA, *LOAD, "--measured", path)
    assert (bare.code, str(path) in bare.error, "TP4=FILE" in bare.error) == (3, True, True)


def test_devices_add_work_to_a_replica_at_a_rate_too() -> None:
    """At one rate every size does the same work; what devices add is told at the streams then in flight."""
    rows = planned(*LLAMA, *LOAD, "--rate", 8).answer["growth"]
    assert [each["devices"] for each in rows] == [1, 2, 4, 8]
    assert all(each["adds_tokens_per_s"] > 0 for each in rows[1:])
    assert 0.5 < rows[1]["efficiency"] <= 1.0


@pytest.mark.parametrize(
    ("words", "field"),
    [
        (("--expert-skew", 1.5), "expert_skew"),
        (("--collective", "deepep"), "collective"),
        (("--node-link", "ib400"), "node_link"),
    ],
)
def test_fact_that_nothing_depends_on_is_said_to_be_unused(
    words: tuple[object, ...], field: str
) -> None:
    """A dense model has no experts and one node no neighbour: the answer is that without the fact, and says so."""
    plain, told = (planned(*LLAMA, *LOAD, "--concurrency", 8, *more) for more in ((), words))
    assert told.answer["chosen"] == plain.answer["chosen"]
    assert told.answer["hardware"]["node_link"] is None
    (said,) = [each for each in told.answer["unknown"] if each.startswith(f"{field}:")]
    assert "not used" in said


def test_validation_refuses_what_it_does_not_use(tmp_path: Path) -> None:
    """A model beside a table would seem to be validated."""
    done = CliRunner().invoke(plan, ["--validate", str(tmp_path / "t.csv"), "--model", "qwen3-32b"])
    assert done.exit_code == 2
    assert "--model" in done.stderr


def test_target_that_an_answer_of_one_token_is_not_judged_by_is_not_denied() -> None:
    """One was given: it is said to judge nothing, not that there is none."""
    found = planned(*LLAMA, "--isl", 1000, "--osl", 1, "--rate", 2, "--tpot-ms", 5)
    assert "no target to judge an answer of one token by" in found.answer["because"]


def test_file_that_is_called_gguf_and_is_none_is_no_json(tmp_path: Path) -> None:
    """It is told by what a GGUF file begins with."""
    path = tmp_path / "m.gguf"
    for content, told in ((b"", "is empty"), (b"GGUG" + bytes(60), "begins with")):
        path.write_bytes(content)
        found = planned("--model", path, "--hardware", "H100:2", *LOAD)
        assert (found.code, "JSON" in found.error, told in found.error) == (3, False, True)
