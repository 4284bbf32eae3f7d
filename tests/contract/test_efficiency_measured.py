"""The report on runs of real vLLM servers: what it says of ranks on real collectives, and that it says it again."""

from pathlib import Path

import msgspec
import pytest

from trimtab.interfaces.efficiency_cli import Answer
from trimtab.planning.efficiency import Step, Verdict, efficiency_report

FOLDER = Path(__file__).parent / "transcripts" / "vllm" / "0.32"
NAMES = ("made-llama", "made-llama-pp2", "made-moe", "made-llama-all", "made-moe-2")


def recorded(name: str) -> Answer:
    return msgspec.json.decode((FOLDER / f"efficiency-{name}.json").read_bytes(), type=Answer)


def step(name: str, **sizes: int) -> Step:
    wanted = {"tp": 1, "pp": 1, "attention_dp": 1, "moe_ep": 1} | sizes
    return next(
        one
        for one in recorded(name).report.steps
        if all(getattr(one.larger, field) == size for field, size in wanted.items())
    )


@pytest.mark.parametrize("name", NAMES)
def test_report_is_what_its_runs_say(name: str) -> None:
    """The recorded runs give the recorded report, whatever order they come in within a layout's own rounds."""
    answer = recorded(name)
    assert efficiency_report(answer.runs) == answer.report


@pytest.mark.parametrize("name", NAMES)
def test_prompts_had_the_tokens_asked_for(name: str) -> None:
    """What the server counted is within two percent of the load: layouts are compared at what the report says."""
    answer = recorded(name)
    counted = [run.input_tokens for run in answer.runs if run.input_tokens is not None]
    assert len(counted) == len(answer.runs)
    assert max(abs(count / answer.load.input_tokens - 1.0) for count in counted) <= 0.02


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("made-llama", {"tp": 2}),
        ("made-llama-pp2", {"pp": 2}),
        ("made-moe", {"tp": 2}),
        ("made-llama-all", {"tp": 2}),
        ("made-llama-all", {"pp": 2}),
        ("made-moe-2", {"tp": 2}),
        ("made-moe-2", {"tp": 2, "moe_ep": 2}),
    ],
)
def test_ranks_are_seen_in_their_exchange_both_ways(name: str, sizes: dict[str, int]) -> None:
    """The trace shows time in exchange, and it is no more than everything that did not divide."""
    found = step(name, **sizes)
    assert found.traced_share is not None
    assert found.traced_share > 0.0
    assert found.excess_share.high is not None
    assert found.traced_share < found.excess_share.high


@pytest.mark.parametrize("sizes", [{"tp": 2}, {"pp": 2}, {"attention_dp": 2}])
def test_two_ranks_of_a_small_model_bring_less_than_two_replicas(sizes: dict[str, int]) -> None:
    """Two cores do not twice the work of one, so a replica is what the report asks for."""
    found = step("made-llama", **sizes)
    assert found.verdict is Verdict.ADD_REPLICA
    assert "2 replicas of one device on the same 2 would give 2.0 times the work" in found.because


def test_single_rank_has_no_collective() -> None:
    """The reading that must be zero is zero."""
    shares = {
        run.communication_share for run in recorded("made-llama").runs if run.accelerators == 1
    }
    assert shares == {0.0}


def test_experts_over_two_cores_reverse_the_gain() -> None:
    """Small batches of a small mixture: more exchange than with tensor parallel ranks, and both are slower."""
    report = recorded("made-moe").report
    tensor, expert = step("made-moe", tp=2), step("made-moe", tp=2, moe_ep=2)
    assert (report.reverses_at, expert.verdict) == (2, Verdict.GO_BACK)
    assert (expert.traced_share or 0.0) > (tensor.traced_share or 0.0) > 0.0
    assert "go back to one device" in expert.because


@pytest.mark.parametrize("sizes", [{"tp": 2}, {"pp": 2}, {"attention_dp": 2}])
def test_each_rank_says_how_busy_it_was(sizes: dict[str, int]) -> None:
    """Two ranks, both busy part of the time, read from their own traces."""
    found = step("made-llama-all", **sizes)
    assert [sign for sign in found.signs if sign.startswith("ranks were busy")]


def test_data_parallel_ranks_of_a_dense_model_exchange_nothing() -> None:
    """They are copies that share a front end."""
    assert step("made-llama-all", attention_dp=2).traced_share == 0.0
