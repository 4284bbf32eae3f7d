"""Real vLLM servers on this machine's CPUs: start, one answer, metrics, layouts, and an end that leaves nothing."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from trimtab.core.served import Counter, EngineKind, Gauge
from trimtab.engines.served import read_sample
from trimtab.engines.vllm import VllmLaunch
from trimtab.runtime.clock import SystemClock
from trimtab.runtime.vllm_env import find_environment
from trimtab.runtime.vllm_guard import group_pids
from trimtab.runtime.vllm_launcher import VllmLauncher

pytestmark = [pytest.mark.engine_vllm, pytest.mark.timeout(900)]

SMOLLM2_BYTES = 2 * 134_515_008
"""Its parameters in bfloat16; the output matrix is the input embedding."""

START_TIMEOUT_S = 300
GONE_WITHIN_S = 20


@contextmanager
def command(*options: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """Run `trimtab engine vllm` with JSON out; yield its process and what it said once the server answered."""
    line = [sys.executable, "-m", "trimtab.interfaces.cli", "engine", "vllm", "--json", *options]
    line += ["--timeout", str(START_TIMEOUT_S), "--kv-cache", "256"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, json.loads(process.stdout.readline())
        finally:
            process.kill()


def ask(url: str, path: str, body: dict[str, object] | None = None) -> bytes:
    data = None if body is None else json.dumps(body).encode()
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(url + path, data=data, headers=headers)
    with urllib.request.urlopen(request, timeout=120) as response:
        return bytes(response.read())


def complete(url: str, model: str) -> dict[str, Any]:
    body = {"model": model, "prompt": "The capital of France is", "max_tokens": 8, "temperature": 0}
    return dict(json.loads(ask(url, "/v1/completions", body)))


def await_gone(group: int) -> tuple[int, ...]:
    """Return what is left of a process group after a while."""
    deadline = time.monotonic() + GONE_WITHIN_S
    while group_pids(group) and time.monotonic() < deadline:
        time.sleep(0.05)
    return group_pids(group)


def test_server_starts_answers_is_measured_and_ends_whole() -> None:
    """The command describes what runs; its metrics are read; Ctrl-C leaves no process."""
    with command("--model", "smollm2") as (process, said):
        answer = complete(said["url"], "smollm2")
        page = ask(said["url"], "/metrics")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
        assert await_gone(said["pid"]) == ()
    assert answer["choices"][0]["text"].startswith(" Paris")
    sample = read_sample(page, source="test", at_s=1.0)
    rank = sample.ranks[0]
    assert sample.engine is EngineKind.VLLM
    assert rank.counters[Counter.OUTPUT_TOKENS] == 8
    assert rank.counters[Counter.PROMPT_TOKENS] == answer["usage"]["prompt_tokens"]
    assert rank.gauges[Gauge.RUNNING] == 0
    report = said["report"]
    assert (said["differences"], said["model"]["max_model_len"]) == ([], 4096)
    assert [one["kv_cache"] for one in report["ranks"]] == [256 * 2**20]
    # Tables of rotary positions come on top: half a percent.
    assert [one["weights"] / SMOLLM2_BYTES for one in report["ranks"]] == pytest.approx([1], 0.01)
    assert report["kv_tokens"] == report["kv_blocks"] * 128
    names = {one["name"] for one in said["processes"]}
    assert {"VLLM::EngineCore", "VLLM::Worker"} <= names


def test_experts_run_over_two_ranks_and_die_with_a_killed_command() -> None:
    """The repair keeps the first request from ending the engine; SIGKILL of the command leaves no rank behind."""
    with command("--model", "made-moe", "--tp", "2", "--ep") as (process, said):
        first, second = (complete(said["url"], "made-moe") for _ in range(2))
        assert len(group_pids(said["pid"])) > 4
        os.kill(process.pid, signal.SIGKILL)
        process.wait(10)
        assert await_gone(said["pid"]) == ()
    assert first["usage"]["completion_tokens"] == 8
    assert first["choices"][0]["text"] == second["choices"][0]["text"]
    ranks = said["report"]["ranks"]
    assert [rank["process"] for rank in ranks] == ["Worker_TP0_EP0", "Worker_TP1_EP1"]
    assert ranks[0]["weights"] == ranks[1]["weights"] > 0


async def test_pipeline_runs_over_two_ranks() -> None:
    """Each stage holds its part of the layers; the launcher's stop leaves none of them."""
    launch = VllmLaunch(
        model="made-llama", served_name="m", port=0, pipeline_parallel=2, kv_cache_bytes=2**27
    )
    async with VllmLauncher(
        clock=SystemClock(), environment=find_environment(), start_timeout_s=START_TIMEOUT_S
    ) as launcher:
        running = await launcher.start(launch)
        answer = complete(running.url, "m")
        assert await launcher.drain("vllm", timeout_s=5)
        names = {process.name for process in launcher.memory("vllm")}
        await launcher.stop("vllm")
    assert answer["usage"]["completion_tokens"] == 8
    assert running.differences == ()
    assert {"VLLM::Worker_PP0", "VLLM::Worker_PP1"} <= names
    assert running.pid is not None
    assert group_pids(running.pid) == ()
