"""Public cases of expert parallelism through the command: when it pays, and what must be measured before."""

import importlib.util
from typing import Any

import pytest
from plan_cli_kit import planned

needs_tables = pytest.mark.skipif(
    importlib.util.find_spec("aiconfigurator_core") is None,
    reason="kernel tables: the extra [plan] is not installed",
)

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


WIDE = (
    "--model",
    "deepseek-v3",
    "--hardware",
    "H200:8x8",
    "--node-link",
    "ib400",
    "--isl",
    2000,
    "--osl",
    500,
)


def times(*words: object, **sizes: int) -> dict[str, Any]:
    """What is expected of one layout on eight nodes."""
    options = {"attention_dp": "--dp", "moe_ep": "--ep"}
    fixed = [word for name, size in sizes.items() for word in (options[name], size)]
    return dict(planned(*WIDE, *words, *fixed).layout(**sizes)["expected"])


@needs_tables
@pytest.mark.parametrize("size", [16, 32, 64])
def test_prompt_of_one_stream_is_computed_once_however_wide_the_group(size: int) -> None:
    """63 idle groups bring the experts nothing: the first token comes as soon as on eight devices."""
    wide = times("--collective", "deepep", "--concurrency", 1, attention_dp=size, moe_ep=size)
    node = times("--concurrency", 1, attention_dp=8)
    assert wide["prefill_ms"] < 1.2 * node["prefill_ms"]
    assert wide["ttft_ms"]["value"] < 1.2 * node["ttft_ms"]["value"]


@needs_tables
@pytest.mark.parametrize("size", [16, 32, 64])
def test_wide_group_at_a_large_batch_is_no_absurd_choice(size: int) -> None:
    """4,000 tokens a step on 64 devices: within twice of nodes that share nothing, and it holds more."""
    load = ("--concurrency", 4000, "--collective", "deepep", "--expert-skew", 1.2)
    wide = times(*load, "--replicas", 64 // size, attention_dp=size, moe_ep=size)
    node = times("--concurrency", 4000, "--replicas", 8, attention_dp=8)
    assert wide["tpot_ms"]["value"] < 2.0 * node["tpot_ms"]["value"]
    assert wide["ttft_ms"]["value"] < 2.5 * node["ttft_ms"]["value"]


@needs_tables
@pytest.mark.parametrize("skews", [(1.0, 1.2), (1.2, 1.5), (1.0, 1.5)])
def test_load_of_the_busiest_rank_lengthens_steps(skews: tuple[float, float]) -> None:
    """Each step waits for it, so the time per token follows the measured load."""
    load = ("--collective", "deepep", "--concurrency", 4000)
    low, high = (
        times(*load, "--expert-skew", skew, attention_dp=16, moe_ep=16)["tpot_ms"]["value"]
        for skew in skews
    )
    assert 1.05 * low < high < skews[1] / skews[0] * low


@needs_tables
@pytest.mark.parametrize("size", [16, 32, 64])
def test_kind_of_exchange_changes_times(size: int) -> None:
    """Over a network every token to every rank takes several times what tokens to their experts take."""
    found = {
        kind: times(
            "--collective", kind, "--concurrency", 4000, "--expert-skew", 1.2,
            attention_dp=size, moe_ep=size,
        )
        for kind in ("deepep", "all-reduce")
    }  # fmt: skip
    assert found["all-reduce"]["tpot_ms"]["value"] > 1.5 * found["deepep"]["tpot_ms"]["value"]
    shares = {kind: each["communication_share"] for kind, each in found.items()}
    assert shares["all-reduce"] > 2 * shares["deepep"]
    assert any("all-to-all" in note for note in found["deepep"]["notes"])


@pytest.mark.parametrize("collective", ["deepep", "pplx", "all-to-all"])
def test_named_all_to_all_is_not_used_without_attention_groups(collective: str) -> None:
    """Every rank holds every token there, and the answer says so."""
    found = planned(
        "--model", "deepseek-v3", "--hardware", "B200:8", *LOAD, "--expert-skew", 1.2,
        "--collective", collective, "--concurrency", 2000, "--tp", 8, "--ep", 8,
    )  # fmt: skip
    assert "all-reduce" in found.rules(tp=8, moe_ep=8)["experts_summed"]["text"]
    assert not found.layout(tp=8, moe_ep=8)["canary"]


@pytest.mark.parametrize("node_link", [(), ("--node-link", "unknown")])
def test_named_exchange_over_a_link_nobody_knows_is_said_to_be_without_effect(
    node_link: tuple[str, ...],
) -> None:
    """A formula without a rate would be a guess."""
    found = planned(
        "--model", "deepseek-v3", "--hardware", "H200:8x2", *node_link, *LOAD, *EVEN, "--concurrency", 2000,
    )  # fmt: skip
    assert any(
        "engine's default exchange, not the one named" in each for each in found.answer["unknown"]
    )


@pytest.mark.parametrize(
    "told", [("--expert-skew", 1.5), ("--collective", "all-reduce"), ("--collective", "deepep")]
)
def test_facts_of_experts_change_times_of_a_device_without_tables_too(
    told: tuple[object, ...],
) -> None:
    """The roofline is taken apart in the same way."""
    load = ("--model", "deepseek-v3", "--hardware", "MI300X:8", *LOAD, "--concurrency", 2000,
            "--dp", 8, "--ep", 8)  # fmt: skip
    plain, known = planned(*load), planned(*load, *told)
    before, after = (each.layout(attention_dp=8, moe_ep=8)["expected"] for each in (plain, known))
    assert before["source"] == after["source"] == "roofline"
    assert after["tpot_ms"]["value"] != before["tpot_ms"]["value"]
