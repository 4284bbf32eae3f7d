"""Public cases of expert parallelism through the command: when it pays, and what must be measured before."""

import pytest
from plan_cli_kit import planned

LOAD = ("--isl", 1000, "--osl", 200)
EVEN = ("--expert-skew", 1.2, "--collective", "deepep")


@pytest.mark.parametrize("concurrency", [4, 16, 64])
def test_small_batch_of_few_experts_is_tensor_parallel(concurrency: int) -> None:
    """8 experts, top 2, at most 64 tokens a step, fast link: no expert parallelism."""
    found = planned(
        "--model", "mixtral-8x7b", "--hardware", "H100:8", "--link", "nvlink", *LOAD, *EVEN,
        "--concurrency", concurrency, "--tpot-ms", 25,
    )  # fmt: skip
    assert found.code == 0
    assert found.answer["chosen"]["layout"]["moe_ep"] == 1
    assert not found.answer["chosen"]["canary"]
    serving = found.labels("chosen", "next", "meets", "misses")
    assert [label for label in serving if "EP" in label] == []


@pytest.mark.parametrize("skew", [1.0, 1.2, 1.5])
def test_large_batch_of_many_experts_with_even_load_is_a_canary(skew: float) -> None:
    """256 experts, top 8, 4,000 tokens a step on 16 devices with an all-to-all."""
    found = planned(
        "--model", "deepseek-v3", "--hardware", "B200:8x2", "--node-link", "ib400", *LOAD,
        "--expert-skew", skew, "--collective", "deepep", "--concurrency", 4000,
    )  # fmt: skip
    assert found.code == 0
    canaries = [each for each in found.answer["layouts"] if each["canary"]]
    assert canaries
    assert all(each["layout"]["moe_ep"] > 1 for each in canaries)
    assert found.answer["chosen"]["canary"]


@pytest.mark.parametrize("skew", [1.8, 2.5, 3.5])
def test_skewed_experts_block_expert_parallelism(skew: float) -> None:
    """The busiest rank sets the step: blocked until balanced, with the straggler factor."""
    found = planned(
        "--model", "deepseek-v3", "--hardware", "B200:8x2", "--node-link", "ib400", *LOAD,
        "--expert-skew", skew, "--collective", "deepep", "--concurrency", 4000,
    )  # fmt: skip
    serving = found.labels("chosen", "next", "meets", "misses")
    assert [label for label in serving if "EP" in label] == []
    rule = found.rules(attention_dp=16, moe_ep=16)["experts_skewed"]
    assert (rule["force"], rule["numbers"]) == ("forbids", {"straggler_factor": skew})


@pytest.mark.parametrize("collective", ["all-reduce", "naive", "allgather_reducescatter"])
def test_experts_that_exchange_by_all_reduce_save_no_communication(collective: str) -> None:
    """Every rank gets every token, as with tensor parallelism: never a canary, never chosen before it."""
    found = planned(
        "--model", "deepseek-v3", "--hardware", "B200:8", *LOAD, "--expert-skew", 1.2,
        "--collective", collective, "--concurrency", 1000,
    )  # fmt: skip
    rule = found.rules(tp=8, moe_ep=8)["experts_nothing_saved"]
    assert "no communication saved" in rule["text"]
    assert found.answer["chosen"]["layout"]["moe_ep"] == 1
    assert [each["label"] for each in found.answer["layouts"] if each["canary"]] == []


@pytest.mark.parametrize("given", [(), ("--expert-skew", 1.2), ("--collective", "deepep")])
def test_facts_of_experts_that_nobody_gave_are_said_to_be_unknown(
    given: tuple[object, ...],
) -> None:
    """Without a measured load or a known exchange no expert layout is a canary."""
    found = planned(
        "--model", "deepseek-v3", "--hardware", "B200:8x2", *LOAD, *given, "--concurrency", 4000
    )
    named = {each.split(":")[0] for each in found.answer["unknown"]}
    lacking = {"expert_skew", "collective"} - {
        str(word).strip("-").replace("-", "_") for word in given
    }
    assert lacking <= named
    assert [each["label"] for each in found.answer["layouts"] if each["canary"]] == []
