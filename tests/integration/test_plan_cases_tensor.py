"""Public cases of tensor parallelism through the command: more ranks and less speed, heads that do not divide."""

from pathlib import Path

import pytest
from plan_cli_kit import dense_config, measured_table, planned

LOAD = ("--isl", 1000, "--osl", 200)

# One 32B model on eight devices: time per token of TP2, TP4, TP8 with 1 and with 16 streams.
MODEL = "qwen2.5-32b"
SPEEDS = {
    (2, 1): 27.8, (2, 16): 30.3,
    (4, 1): 20.0, (4, 16): 24.2,
    (8, 1): 15.9, (8, 16): 21.1,
}  # fmt: skip


@pytest.fixture
def speeds(tmp_path: Path) -> Path:
    """The measured times as a table."""
    return measured_table(tmp_path, SPEEDS, model=MODEL, system="a100_sxm")


@pytest.mark.parametrize(
    ("hardware", "expected"), [("A100:8", "TP2 x4"), ("A100:4", "TP2 x2"), ("A100:8x2", "TP2 x8")]
)
def test_throughput_within_40_ms_is_replicas_of_the_pair_it_fits(
    speeds: Path, hardware: str, expected: str
) -> None:
    """Without a load the goal is throughput: pairs make most, larger ranks would only spend communication."""
    found = planned(
        "--model", MODEL, "--hardware", hardware, "--link", "nvlink", *LOAD, "--measured", speeds,
        "--tpot-ms", 40,
    )  # fmt: skip
    assert (found.code, found.answer["goal"]) == (0, "throughput")
    assert found.answer["chosen"]["label"] == expected


@pytest.mark.parametrize(("concurrency", "replicas"), [(16, 1), (32, 2), (64, 4)])
def test_known_load_takes_no_more_devices_than_its_pairs(
    speeds: Path, concurrency: int, replicas: int
) -> None:
    """16 streams a pair were measured within 40 ms, so so many pairs are enough."""
    found = planned(
        "--model", MODEL, "--hardware", "A100:8", "--link", "nvlink", *LOAD, "--measured", speeds,
        "--tpot-ms", 40, "--concurrency", concurrency,
    )  # fmt: skip
    assert found.code == 0
    assert found.answer["chosen"]["devices"] <= 2 * replicas
    assert found.answer["chosen"]["layout"]["tp"] <= 2


@pytest.mark.parametrize(
    ("target", "expected"), [(17, "TP8"), (21, "TP4"), (29, "TP2")], ids=["17 ms", "21 ms", "29 ms"]
)
def test_single_stream_target_takes_the_ranks_that_it_needs(
    speeds: Path, target: float, expected: str
) -> None:
    """15.9, 20 and 27.8 ms were measured at one stream; what each device then makes is stated."""
    found = planned(
        "--model", MODEL, "--hardware", "A100:8", "--link", "nvlink", *LOAD, "--measured", speeds,
        "--concurrency", 1, "--tpot-ms", target,
    )  # fmt: skip
    chosen = found.answer["chosen"]
    assert (found.code, chosen["label"], chosen["source"]) == (0, expected, "measured")
    assert chosen["output_tokens_per_s_device"] > 0
    rows = {each["devices"]: each for each in found.answer["growth"]}
    assert rows[8]["output_tokens_per_s_device"] < rows[4]["output_tokens_per_s_device"]


@pytest.mark.parametrize("model", ["llama-2-13b", "qwen2.5-14b", "config"])
def test_without_peer_access_a_model_that_fits_one_device_is_not_cut(
    tmp_path: Path, model: str
) -> None:
    """13B on two devices joined by PCIe without peer access: no tensor parallelism, whatever the target."""
    path = dense_config(tmp_path, heads=40, kv_heads=40, layers=40, wide=13_824)
    found = planned(
        "--model", path if model == "config" else model, "--hardware", "A100:2",
        "--link", "pcie4-nop2p", *LOAD, "--concurrency", 4, "--tpot-ms", 60,
    )  # fmt: skip
    assert found.answer["chosen"]["layout"]["tp"] == 1
    assert found.rules(tp=2)["tensor_no_peer"]["force"] == "forbids"
    assert found.layout(tp=2)["standing"] == "forbidden"


@pytest.mark.parametrize(("model", "devices"), [("qwen2.5-7b", 8), ("qwen2-7b", 8), ("config", 14)])
def test_28_heads_with_4_kv_heads_go_over_1_2_and_4_ranks(
    tmp_path: Path, model: str, devices: int
) -> None:
    """7 divides the query heads alone, 8 divides neither; TP4 twice uses eight devices."""
    path = dense_config(tmp_path, heads=28, kv_heads=4, layers=28)
    found = planned(
        "--model", model if model.startswith("qwen2.5") else path,
        "--hardware", f"H100:{devices}", *LOAD, "--concurrency", 8,
    )  # fmt: skip
    sizes = {each["layout"]["tp"] for each in found.answer["layouts"]}
    assert {size for size in sizes if size <= 8} == {1, 2, 4}
    assert "KV heads unevenly" in found.impossible("TP7")["because"]
    assert found.impossible("TP8")["nearest"][0] == "TP4 x2"


@pytest.mark.parametrize(("kv_heads", "before", "after"), [(8, 8, 16), (4, 4, 8), (2, 2, 4)])
def test_ranks_beyond_kv_heads_save_no_kv(
    tmp_path: Path, kv_heads: int, before: int, after: int
) -> None:
    """A rank's KV per token stays as it is, and the group's doubles."""
    path = dense_config(tmp_path, heads=64, kv_heads=kv_heads, layers=40, wide=16_384)
    found = planned("--model", path, "--hardware", "H200:16", *LOAD, "--concurrency", 8)
    memory = {tp: found.layout(tp=tp)["memory"] for tp in (before, after)}
    assert memory[before]["kv_bytes_per_token_rank"] == memory[after]["kv_bytes_per_token_rank"]
    assert (
        memory[after]["kv_bytes_per_token_replica"]
        == 2 * memory[before]["kv_bytes_per_token_replica"]
    )
    assert found.rules(tp=after)["kv_copied"]["numbers"] == {"kv_copies": 2.0}


@pytest.mark.parametrize("model", ["deepseek-v3", "deepseek-r1", "kimi-k2"])
def test_latent_kv_over_eight_ranks_is_held_eight_times(model: str) -> None:
    """Every rank needs it whole; attention data parallelism is proposed, which holds each request's once."""
    found = planned("--model", model, "--hardware", "B200:8", *LOAD, "--concurrency", 64)
    copied = found.rules(tp=8)["kv_copied"]
    assert copied["numbers"] == {"kv_copies": 8.0}
    assert "attention data parallelism" in copied["text"]
    assert "attention_groups" in found.rules(attention_dp=8)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "tp", "nearest"),
    [(52, 4, 3, "2 or 4"), (7, 7, 2, "1 or 7"), (40, 8, 3, "2 or 4")],
)
def test_ranks_that_do_not_divide_the_heads_are_refused_with_the_nearest(
    tmp_path: Path, heads: int, kv_heads: int, tp: int, nearest: str
) -> None:
    """The error names the option and the sizes next to it."""
    path = dense_config(tmp_path, heads=heads, kv_heads=kv_heads)
    found = planned("--model", path, "--hardware", "H100:8", *LOAD, "--concurrency", 1, "--tp", tp)
    assert found.code == 3
    assert found.error.startswith(f"Error: tp: {heads} heads do not divide over {tp} ranks")
    assert f"nearest valid: {nearest}" in found.error
