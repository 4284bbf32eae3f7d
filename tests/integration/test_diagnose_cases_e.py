"""Parallel layouts, where model, device and the servers' pages tell what decides them, through the public command.

Each case comes with other numbers, with another model or engine, with a needed fact missing, and with a silent one.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from engine_pages import tgi, trtllm
from scrape_kit import Hist, Load, Told, diagnose, facts, invoke, judgement, lever, vllm

SIZE = "tensor parallel degree"
HEADS = "heads over ranks"
EXPERTS = "expert parallel"
RUNS = Load(running=8, waiting=0, kv=0.3)


def judged(folder: Path, text: str, *options: str) -> Told:
    """Judge a layout without any source."""
    ran = invoke(*facts(folder, f"[layout]\n{text}"), *options, "--json")
    assert ran.stdout.startswith("{"), ran.output
    return Told(ran.exit_code, json.loads(ran.stdout), ran.stdout)


def subjects(told: Told) -> set[str]:
    """What is judged at all."""
    return {each["subject"] for each in told.answer["judgements"]}


def of_model(name: str, device: str = "") -> tuple[str, ...]:
    """Options that name a model and a device."""
    return ("--model", name, *(("--hardware", device) if device else ()))


NVLINK = 'accelerators = 8\nlink = "nvlink"\n'
FOR_MANY = 'goal = "throughput"\n'
FOR_ONE = 'goal = "latency"\ntpot_ms_target = 17\n'
MEASURED = (
    "measured = [{tensor_parallel = 4, tpot_ms = 20}, {tensor_parallel = 8, tpot_ms = 15.9}]\n"
)
LOST = 'link = "pcie without peer access"\n'


@pytest.mark.parametrize(
    ("text", "options", "answer", "choice"),
    [
        (NVLINK + FOR_MANY, of_model("Qwen2.5-32B", "A100 SXM 40GB"),
         "replicas of a smaller layout", "4 replicas of TP2"),
        (NVLINK + FOR_MANY, of_model("Llama-3.1-8B", "H100"),
         "replicas of a smaller layout", "8 replicas of TP1"),
        (NVLINK + FOR_MANY, of_model("Llama-3.1-70B", "H200"),
         "replicas of a smaller layout", "4 replicas of TP2"),
        (NVLINK + FOR_ONE + MEASURED, of_model("Qwen2.5-32B", "A100 SXM 40GB"), "tensor parallel", "TP8"),
        ("accelerators = 2\n" + FOR_MANY + LOST, of_model("Qwen2.5-14B", "L40S"),
         "no tensor parallel", "2 replicas of TP1"),
        ("accelerators = 2\n" + FOR_MANY + LOST, of_model("Qwen2.5-14B", "RTX 4090"),
         "tensor parallel", "TP2"),
        ("accelerators = 4\n" + FOR_MANY, of_model("DeepSeek-R1", "H200"), "reject", ""),
        (NVLINK + FOR_MANY, of_model("Llama-3.1-8B"), None, ""),
        (FOR_MANY, of_model("Llama-3.1-8B", "H100"), None, ""),
        (NVLINK + FOR_ONE, of_model("Qwen2.5-32B", "A100 SXM 40GB"), None, ""),
    ],
    ids=["32B on 40 GB", "8B on 80 GB", "70B on 141 GB", "single stream", "no peer access", "needs two", "does not fit",
         "no device", "no count", "nothing measured"],
)  # fmt: skip
def test_fit_is_worked_out_from_model_and_device(
    tmp_path: Path, text: str, options: tuple[str, ...], answer: str | None, choice: str
) -> None:
    """The fewest devices with room beside the weights; replicas of that, unless one stream needs more."""
    found = judgement(judged(tmp_path, text, *options), SIZE)
    assert (found["answer"], found["choice"]) == (answer, choice)


def test_fit_that_a_person_tells_stands(tmp_path: Path) -> None:
    """What was tried counts more than what was worked out."""
    told = judged(tmp_path, NVLINK + FOR_MANY + "fits_on = 4\n", *of_model("Llama-3.1-8B", "H100"))
    assert judgement(told, SIZE)["choice"] == "2 replicas of TP4"


def test_model_and_device_alone_raise_no_layout(tmp_path: Path) -> None:
    """Silence: nobody asked for a layout."""
    told = diagnose(tmp_path, vllm(RUNS), options=of_model("Llama-3.1-8B", "H100"))
    assert not {SIZE, HEADS, EXPERTS} & subjects(told)


def config(folder: Path, **fields: Any) -> str:
    """A folder with a config.json as makers of models publish it."""
    told: Mapping[str, Any] = {
        "model_type": "llama", "num_hidden_layers": 4, "hidden_size": 3584, "num_attention_heads": 28,
        "num_key_value_heads": 4, "intermediate_size": 4096, "vocab_size": 32000, "tie_word_embeddings": False,
        "torch_dtype": "bfloat16", **fields,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(told))
    return str(folder)


@pytest.mark.parametrize(
    ("fields", "text", "answer", "choice"),
    [
        ({}, "accelerators = 8\n", "divides the heads", "TP4 x 2"),
        ({}, "tensor_parallel = 8\n", "reject", "4"),
        ({}, "tensor_parallel = 14\n", "reject", "4, 28"),
        ({}, "tensor_parallel = 14\nkv_replication = true\n", "divides the heads", "TP14 x 1"),
        ({"num_attention_heads": 52, "num_key_value_heads": 52, "hidden_size": 6656}, "tensor_parallel = 3\n",
         "reject", "2, 4"),
        ({"num_attention_heads": 48, "num_key_value_heads": 8, "hidden_size": 6144}, "accelerators = 16\n",
         "divides the heads", "TP16 x 1"),
        ({"num_attention_heads": 64, "num_key_value_heads": 8, "hidden_size": 8192},
         "tensor_parallel = 16\ntensor_parallel_now = 8\n", "saves no KV", ""),
        ({"num_attention_heads": 64, "num_key_value_heads": 8, "hidden_size": 8192},
         "tensor_parallel = 8\ntensor_parallel_now = 4\n", "divides the heads", ""),
    ],
    ids=["28 heads", "28 over 8", "28 over 14", "KV dealt unevenly", "52 over 3", "48 heads", "beyond KV heads",
         "up to KV heads"],
)  # fmt: skip
def test_heads_of_a_config_decide_the_sizes(
    tmp_path: Path, fields: dict[str, Any], text: str, answer: str, choice: str
) -> None:
    """The model's own file tells heads and KV heads."""
    found = judgement(judged(tmp_path, text, "--model", config(tmp_path, **fields)), HEADS)
    assert (found["answer"], found["choice"]) == (answer, choice)


def test_kv_beyond_the_heads_only_adds_copies(tmp_path: Path) -> None:
    """64 heads with 8 KV heads, TP8 to TP16: the KV of a rank stays, that of the group doubles."""
    text = "tensor_parallel = 16\ntensor_parallel_now = 8\n"
    numbers = judgement(judged(tmp_path, text, *of_model("Llama-3.1-70B")), HEADS)["numbers"]
    assert (numbers["kv_heads_per_rank"], numbers["kv_total_ratio"]) == (1, 2)


@pytest.mark.parametrize(
    ("model", "ranks", "copies"), [("DeepSeek-V3", 8, 8), ("DeepSeek-R1", 16, 16)]
)
def test_latent_kv_of_a_model_is_copied_to_every_rank(
    tmp_path: Path, model: str, ranks: int, copies: float
) -> None:
    """A model with a compressed KV says so itself: attention data-parallel."""
    found = judgement(judged(tmp_path, f"tensor_parallel = {ranks}\n", *of_model(model)), HEADS)
    assert (found["answer"], found["numbers"]["kv_copies"]) == ("attention data-parallel", copies)


@pytest.mark.parametrize("options", [of_model("DeepSeek-V3"), of_model("Llama-3.1-70B"), ()])
def test_ranks_that_nobody_tells_leave_heads_open(tmp_path: Path, options: tuple[str, ...]) -> None:
    """Over how many ranks is the question; without them no answer, without a model not even with them."""
    text = 'link = "nvlink"\n' if options else "tensor_parallel = 4\n"
    assert judgement(judged(tmp_path, text, *options), HEADS)["answer"] is None


CONFIGURED = '# TYPE trtllm_parallel_config_info gauge\ntrtllm_parallel_config_info{{tensor_parallel_size="{}"}} 1\n'


@pytest.mark.parametrize(("now", "answer"), [(8, "saves no KV"), (4, "divides the heads")])
def test_size_that_a_server_runs_with_is_read_from_its_page(
    tmp_path: Path, now: int, answer: str
) -> None:
    """TensorRT-LLM tells its layout: from 8 to 16 ranks saves nothing, from 4 to 8 does."""
    page = trtllm(RUNS) + CONFIGURED.format(now)
    options = (
        *facts(tmp_path, f"[layout]\ntensor_parallel = {2 * now}\n"),
        *of_model("Llama-3.1-70B"),
    )
    assert judgement(diagnose(tmp_path, page, options=options), HEADS)["answer"] == answer


def stepping(tokens: float) -> str:
    """A page of vLLM with a histogram of the tokens of its steps."""
    lines = Hist(1000, tokens).lines(
        "vllm:iteration_tokens_total", (1, 64, 512, 4096, 16384), 'engine="0",model_name="m"'
    )
    return vllm(RUNS) + "\n".join(lines) + "\n"


def tgi_steps(tokens: float) -> str:
    """A page of TGI with steps and the tokens that went through them."""
    load = RUNS.but(prompt_length=Hist(100, tokens * 5), output_length=Hist(100, tokens * 5))
    kind = "# TYPE tgi_batch_inference_count counter\n"
    return tgi(load) + kind + 'tgi_batch_inference_count{method="decode"} 1000\n'


ALL_TO_ALL = 'accelerators = 16\nexchange = "all-to-all"\nexpert_load_max_over_mean = {}\n'


@pytest.mark.parametrize(
    ("page", "model", "text", "answer"),
    [
        (stepping(16), "Mixtral-8x7B-v0.1", "accelerators = 8\n", "tensor parallel"),
        (tgi_steps(16), "Mixtral-8x7B-v0.1", "accelerators = 8\n", "tensor parallel"),
        (stepping(4000), "DeepSeek-V3", ALL_TO_ALL.format(1.2), "candidate for a canary"),
        (tgi_steps(4000), "DeepSeek-V3", ALL_TO_ALL.format(1.2), "candidate for a canary"),
        (stepping(4000), "DeepSeek-V3", ALL_TO_ALL.format(3.5), "balance the experts first"),
        (stepping(2000), "Qwen3-235B-A22B", ALL_TO_ALL.format(1.9), "balance the experts first"),
        (stepping(4000), "DeepSeek-V3", 'accelerators = 16\nexchange = "all-reduce"\n', "no communication saved"),
        (stepping(4000), "Mixtral-8x22B-v0.1", ALL_TO_ALL.format(1.1), "tensor parallel"),
        (vllm(RUNS), "DeepSeek-V3", ALL_TO_ALL.format(1.2), None),
        (stepping(4000), "DeepSeek-V3", ALL_TO_ALL.format(1.2).replace("accelerators = 16\n", ""), None),
        (stepping(4000), "DeepSeek-V3", 'accelerators = 16\nexchange = "all-to-all"\n', None),
    ],
    ids=["8 experts", "8 experts by TGI", "256 experts", "256 by TGI", "skewed", "128 skewed", "all-reduce",
         "8 experts on 16", "no steps told", "no count", "skew unknown"],
)  # fmt: skip
def test_experts_of_the_model_and_tokens_of_the_steps_decide_expert_parallel(
    tmp_path: Path, page: str, model: str, text: str, answer: str | None
) -> None:
    """The model tells its experts, the page the tokens of a step."""
    options = (*facts(tmp_path, f"[layout]\n{text}"), "--model", model)
    assert judgement(diagnose(tmp_path, page, options=options), EXPERTS)["answer"] == answer


def test_model_without_experts_raises_no_question_of_them(tmp_path: Path) -> None:
    """Silence for a dense model."""
    options = (*facts(tmp_path, "[layout]\naccelerators = 8\n"), *of_model("Llama-3.1-70B"))
    assert EXPERTS not in subjects(diagnose(tmp_path, stepping(4000), options=options))


@pytest.mark.parametrize(
    ("load", "target", "proposed"),
    [
        (
            RUNS.but(tpot=Hist(500, 0.036), queue=Hist(50, 0.001), e2e=Hist(50, 4.0), finished=50),
            "17",
            True,
        ),
        (
            RUNS.but(tpot=Hist(500, 0.012), queue=Hist(50, 0.001), e2e=Hist(50, 4.0), finished=50),
            "17",
            False,
        ),
        (RUNS.but(tpot=Hist(500, 0.036), waiting=300, finished=50), "17", False),
        (RUNS, "17", None),
        (RUNS.but(tpot=Hist(500, 0.036)), "", None),
    ],
    ids=["missed", "met", "queued", "TPOT unknown", "no target"],
)
@pytest.mark.parametrize("page", [vllm, trtllm])
def test_layout_is_proposed_only_for_a_target_of_single_streams(
    tmp_path: Path, page: Any, load: Load, target: str, proposed: bool | None
) -> None:
    """More ranks for a time per token that is missed; never for a queue, which replicas serve."""
    options = ("--tpot-ms", target) if target else ()
    told = diagnose(tmp_path, page(load), options=options)
    assert lever(told, "parallel_layout")["proposed"] is proposed
