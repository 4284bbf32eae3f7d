"""`trimtab efficiency` on two real vLLM servers: real collectives, both readings of them, and nothing left running."""

import json
import subprocess
import sys
from typing import Any

import pytest

pytestmark = [pytest.mark.engine_vllm, pytest.mark.timeout(900)]

LINE = (
    "efficiency", "single", "tp2", "--rounds", "1", "--requests", "1", "--concurrency", "2",
    "--isl", "64", "--osl", "16", "--kv-cache", "64", "--json",
)  # fmt: skip


@pytest.fixture(scope="module")
def answer() -> dict[str, Any]:
    """What the command printed for the shortest pair of layouts, one round each."""
    line = [sys.executable, "-m", "trimtab.interfaces.cli", *LINE]
    done = subprocess.run(line, capture_output=True, text=True, timeout=380, check=False)
    # 1 says that the second rank made it slower, which on a busy machine it may
    assert done.returncode in (0, 1), done.stderr
    return dict(json.loads(done.stdout))


def test_two_ranks_are_compared_with_one_on_the_same_load(answer: dict[str, Any]) -> None:
    """One step from one CPU to two, with the tokens asked for; one pair of runs tells no spread."""
    (step,) = answer["report"]["steps"]
    assert (step["accelerators"], step["larger"]["tp"], step["pairs"]) == ([1, 2], 2, 1)
    assert 0.0 < step["efficiency"]["value"] < 2.0
    assert step["verdict"] == "measure_more"
    for run in answer["runs"]:
        assert run["requests"] == 2
        assert run["input_tokens"] == pytest.approx(64, rel=0.2)


def test_collectives_are_seen_in_the_traces_of_the_ranks(answer: dict[str, Any]) -> None:
    """One process has none, two talk; how busy each rank was is read from the same traces."""
    shares = {run["accelerators"]: run["communication_share"] for run in answer["runs"]}
    assert shares[1] == 0.0
    assert 0.0 < shares[2] < 1.0
    (ranks,) = [run["ranks"] for run in answer["runs"] if run["accelerators"] == 2]
    assert len(ranks["busy_shares"]) == 2
    (step,) = answer["report"]["steps"]
    assert any("ranks were busy" in sign for sign in step["signs"])
