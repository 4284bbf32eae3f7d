"""What `trimtab plan` says where nothing does, where it knows little, and of what it cannot judge."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from plan_cli_kit import planned

from trimtab.interfaces.plan_cli import plan

SIZES = ("--isl", 2000, "--osl", 500)
SMALL = ("--model", "qwen3-32b", "--hardware", "H100:2", *SIZES)


@pytest.mark.parametrize("streams", [200, 500, 1000])
def test_nothing_meets_but_what_would_do_is_said(streams: int) -> None:
    """How many streams these devices carry within the targets, and how many devices the load takes."""
    found = planned(*SMALL, "--concurrency", streams, "--tpot-ms", 20, "--ttft-ms", 1000)
    relief = found.answer["relief"]
    assert (found.code, found.answer["chosen"]) == (1, None)
    assert 1 <= relief["carries"] < streams
    assert relief["devices"] > 2
    less = planned(*SMALL, "--concurrency", relief["carries"], "--tpot-ms", 20, "--ttft-ms", 1000)
    assert less.code == 0


def test_devices_that_would_do_do() -> None:
    """Asked for that many, the plan meets the targets."""
    words = ("--concurrency", 60, "--tpot-ms", 20, "--ttft-ms", 1000)
    needed = planned(*SMALL, *words).answer["relief"]["devices"]
    more = planned(*SMALL, *words, "--hardware", f"H100:8x{-(-needed // 8)}")
    assert (more.code, more.answer["chosen"]["devices"] <= needed) == (0, True)


@pytest.mark.parametrize("target", [1, 2, 3])
def test_target_that_one_stream_misses_is_mended_by_no_number_of_replicas(target: int) -> None:
    """And that is what is said."""
    relief = planned(*SMALL, "--concurrency", 8, "--tpot-ms", target).answer["relief"]
    assert (relief["carries"], relief["devices"]) == (None, None)
    assert relief["because"].startswith("not even one stream meets the targets")


def test_model_that_does_not_fit_is_told_what_holds_it() -> None:
    """On more such nodes."""
    found = planned("--model", "llama-3.1-405b", "--hardware", "H100:4", *SIZES, "--concurrency", 1)
    held = found.answer["relief"]["devices"]
    assert found.code == 1
    assert held > 4
    words = ("--hardware", f"H100:4x{held // 4}", *SIZES, "--concurrency", 1)
    assert planned("--model", "llama-3.1-405b", *words).code == 0


def test_estimate_without_measured_kernels_is_less_sure_than_one_with() -> None:
    """A roofline may be off by twice either way, and its interval says so."""
    spans = {
        device: planned(
            "--model", "qwen3-32b", "--hardware", f"{device}:1", "--isl", 1000, "--osl", 200,
            "--concurrency", 4, "--tp", 1,
        ).layout()
        for device in ("MI300X", "H200")
    }  # fmt: skip
    ratio = {name: each["tpot_ms"]["high"] / each["tpot_ms"]["low"] for name, each in spans.items()}
    assert spans["MI300X"]["source"] == "roofline"
    assert ratio["MI300X"] > 3.5
    assert ratio["H200"] < 2.5 or spans["H200"]["source"] == "roofline"


def test_answer_of_one_token_is_not_judged_by_what_comes_after_it() -> None:
    """No token follows the first: the target is named as not judged."""
    found = planned(
        "--model", "qwen3-32b", "--hardware", "H100:2", "--isl", 2000, "--osl", 1,
        "--concurrency", 1, "--tpot-ms", 0.5,
    )  # fmt: skip
    assert found.code == 0
    assert any(
        each.startswith("tpot_ms: an answer of one token") for each in found.answer["unknown"]
    )


def test_arrivals_far_beyond_what_is_served_are_said_in_requests() -> None:
    """Not as a replica that is thousands of percent busy."""
    found = planned(*SMALL, "--rate", 5000, "--tpot-ms", 20)
    assert "requests per second come to a replica that serves" in found.answer["because"]
    assert "busy" not in found.answer["because"]


def test_cost_of_a_trace_is_told_for_its_busiest_minute_and_over_all_of_it(tmp_path: Path) -> None:
    """One busy minute and nine idle ones: the fleet is sized for the first and paid for through all."""
    times = [second / 4 for second in range(240)] + [60.0 + 10 * at for at in range(55)]
    rows = [
        {"timestamp": round(1000 * at), "input_length": 512, "output_length": 100, "hash_ids": [n]}
        for n, at in enumerate(times)
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ("--model", "qwen3-32b", "--hardware", "H100:4", "--trace", path, "--price", 2)
    cost = planned(*words).answer["capacity"]["cost"]
    most, over = cost["per_million_output_tokens"], cost["over_trace"]["per_million_output_tokens"]
    assert over > 4 * most
    shown = " ".join(CliRunner().invoke(plan, [str(word) for word in words]).stdout.split())
    assert f"In the trace's busiest window {most:.3g} a million output tokens" in shown
    assert f"Over the whole trace {over:.3g} a million output tokens" in shown


def test_trace_that_repeats_is_told_and_counted_when_asked(tmp_path: Path) -> None:
    """Two requests of the same blocks: the second's are in a cache that keeps them."""
    rows = [
        {"timestamp": 1000 * at, "input_length": 1024, "output_length": 100, "hash_ids": [1, 2]}
        for at in range(120)
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ("--model", "qwen3-32b", "--hardware", "H100:2", "--trace", path)
    without, counted = planned(*words), planned(*words, "--prefix-share", "trace")
    assert any(each.startswith("prefix_share: 99%") for each in without.answer["unknown"])
    assert counted.answer["demand"]["prefix_share"] == pytest.approx(119 / 120)
    first, second = (
        each.answer["layouts"][0]["expected"]["prefill_ms"] for each in (without, counted)
    )
    assert second < 0.5 * first
