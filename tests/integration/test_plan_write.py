"""`trimtab plan --write`: files that can start, and a refusal before the plan where none can be written."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from plan_cli_kit import dense_config

from trimtab.interfaces.plan_cli import plan

TOKENS = ("--isl", 2000, "--osl", 300)
LOAD = ("--concurrency", 8)
QWEN = ("--model", "qwen3-32b", "--hardware", "H100:8")


def run(*words: object) -> Any:
    return CliRunner().invoke(plan, [str(word) for word in (*words, *TOKENS)])


def written(folder: Path, *words: object) -> dict[str, str]:
    """The texts of the files by their name."""
    done = run(*words, *LOAD, "--write", folder, "--json")
    assert done.exit_code == 0, done.stderr
    return {path.name: path.read_text() for path in folder.iterdir()}


def refused(folder: Path, *words: object) -> str:
    """The error, which comes before the plan and in place of any file."""
    done = run(*words, *LOAD, "--write", folder)
    assert (done.exit_code, folder.exists(), done.stdout) == (3, False, ""), done.stdout
    return str(done.stderr)


def option(text: str, name: str) -> str | None:
    """The value of an option of the command, None where it is not there."""
    words = text.splitlines()[-1].split()
    return words[words.index(name) + 1] if name in words else None


@pytest.mark.parametrize("named", ["folder", "config"])
def test_folder_of_a_checkpoint_is_what_the_server_gets(tmp_path: Path, named: str) -> None:
    """A config.json tells the model; what is started is its folder, mounted where pods look for it."""
    yaml = pytest.importorskip("yaml")
    (tmp_path / "made").mkdir()
    config = dense_config(tmp_path / "made", heads=32, kv_heads=8)
    texts = written(
        tmp_path / "out", "--model", config if named == "config" else config.parent, "--hardware", "H100"
    )  # fmt: skip
    assert option(texts["command.sh"], "--model") == str(config.parent)
    pod = next(iter(yaml.safe_load_all(texts["kubernetes.yaml"])))["spec"]["template"]["spec"]
    volume = next(each for each in pod["volumes"] if each["name"] == "model")
    mount = next(each for each in pod["containers"][0]["volumeMounts"] if each["name"] == "model")
    assert volume["hostPath"] == {"path": str(config.parent), "type": "Directory"}
    assert f"--model {mount['mountPath']} " in pod["containers"][0]["command"][-1]
    assert mount["readOnly"] is True
    assert option(texts["command.sh"], "--served-model-name") == "made"
    ray = yaml.safe_load(texts["ray-serve.yaml"])
    (model,) = ray["applications"][0]["args"]["llm_configs"]
    assert model["model_loading_config"]["model_source"] == str(config.parent)


@pytest.mark.parametrize(
    ("asked", "passed"),
    [
        ("8", "fp8"),
        ("FP8", "fp8"),
        ("fp8_e5m2", "fp8_e5m2"),
        ("bf16", None),
        ("16", None),
        ("bfloat16", None),
        ("auto", None),
        ("4", "nvfp4"),
        ("fp4", "nvfp4"),
        ("nvfp4", "nvfp4"),
    ],
)
def test_cache_precision_is_a_name_that_the_engine_has(
    tmp_path: Path, asked: str, passed: str | None
) -> None:
    """What has a meaning is translated; the model's own precision needs no option."""
    texts = written(tmp_path / "out", *QWEN, "--kv-precision", asked)
    assert option(texts["command.sh"], "--kv-cache-dtype") == passed


@pytest.mark.parametrize(
    ("words", "nearest"),
    [
        ((*QWEN, "--kv-precision", "int8"), "fp8"),
        ((*QWEN, "--kv-precision", "fp16"), "bf16"),
        (("--model", "qwen3-8b", "--hardware", "T4:4", "--kv-precision", "fp8"), "fp16"),
        (("--model", "qwen3-8b", "--hardware", "T4:4", "--kv-precision", "bf16"), "fp16"),
        (("--model", "deepseek-v3", "--hardware", "H200:8", "--kv-precision", "fp4"), "fp8"),
        (("--model", "smollm2-135m", "--hardware", "cpu", "--kv-precision", "fp4"), "bf16"),
        (("--model", "qwen3-8b", "--hardware", "MI300X", "--kv-precision", "fp4"), "fp8"),
    ],
)
def test_cache_precision_that_the_engine_lacks_is_refused(
    tmp_path: Path, words: tuple[str, ...], nearest: str
) -> None:
    """Before the plan, with what it has instead."""
    error = refused(tmp_path / "out", *words)
    assert error.startswith("Error: kv_precision: ")
    assert nearest in error.partition("nearest valid: ")[2]


@pytest.mark.parametrize(
    ("hardware", "dtype"),
    [("T4:4", "float16"), ("V100:4", "float16"), ("A100:2", "bfloat16"), ("H100:2", "bfloat16")],
)
def test_type_of_activations_is_one_that_the_device_has(
    tmp_path: Path, hardware: str, dtype: str
) -> None:
    """Below compute capability 8.0 there is no bfloat16, in any of the files."""
    texts = written(tmp_path / "out", "--model", "llama-2-7b", "--hardware", hardware)
    assert option(texts["command.sh"], "--dtype") == dtype
    assert f"--dtype {dtype}" in texts["kubernetes.yaml"]
    assert f"dtype: {dtype}" in texts["ray-serve.yaml"]


def test_model_that_needs_bfloat16_is_refused_where_there_is_none(tmp_path: Path) -> None:
    """Gemma overflows at float16, and the server would not start."""
    error = refused(tmp_path / "out", "--model", "gemma-2-2b", "--hardware", "T4:4")
    assert error.startswith("Error: hardware: ")
    assert "bfloat16" in error


@pytest.mark.parametrize("asked", ["fp8", "FP8", "float8", "8bit"])
def test_precision_by_any_of_its_names_is_made_by_the_server(tmp_path: Path, asked: str) -> None:
    """A checkpoint of 16 bit becomes FP8 as it is loaded, however FP8 was spelt."""
    texts = written(tmp_path / "out", *QWEN, "--precision", asked)
    assert option(texts["command.sh"], "--quantization") == "fp8"
    assert "must be stored" not in texts["command.sh"]


@pytest.mark.parametrize(
    ("model", "precision"), [("qwen3-32b-fp8", "fp8"), ("deepseek-r1", "fp8"), ("gpt-oss-20b", "mxfp4")]
)  # fmt: skip
def test_precision_that_is_stored_already_needs_no_option(
    tmp_path: Path, model: str, precision: str
) -> None:
    """An option would have to name the very method of the checkpoint."""
    hardware = ("--hardware", "H200:8", "--precision", precision)
    texts = written(tmp_path / "out", "--model", model, *hardware)
    assert option(texts["command.sh"], "--quantization") is None
    assert "must be stored" not in texts["command.sh"]


def test_precision_that_a_server_does_not_make_is_said(tmp_path: Path) -> None:
    """Four bits come with the checkpoint."""
    texts = written(tmp_path / "out", *QWEN, "--precision", "w4a16")
    assert option(texts["command.sh"], "--quantization") is None
    assert "must be stored as w4a16" in texts["command.sh"]


def test_longest_request_is_the_context_that_was_asked_for(tmp_path: Path) -> None:
    """With --context nothing is guessed."""
    texts = written(tmp_path / "out", *QWEN, "--context", 5000)
    assert option(texts["command.sh"], "--max-model-len") == "5000"
    assert "max_model_len: 5000" in texts["ray-serve.yaml"]
    assert "--context" in texts["command.sh"]


def test_longest_request_is_the_models_own_where_its_cache_holds_one(tmp_path: Path) -> None:
    """The mean is no limit: half of the requests are longer."""
    texts = written(tmp_path / "out", *QWEN, "--tp", 8)
    assert option(texts["command.sh"], "--max-model-len") == "40960"
    assert "2,300" in texts["command.sh"]


def test_longest_request_is_what_the_cache_holds_where_the_models_own_is_too_long(
    tmp_path: Path,
) -> None:
    """A server does not start with a limit beyond its cache, so the limit keeps to the memory of the plan."""
    done = run(*QWEN[:2], "--hardware", "H100", *LOAD, "--tp", 1, "--write", tmp_path, "--json")
    assert done.exit_code == 0, done.stderr
    text = (tmp_path / "command.sh").read_text()
    longest = int(option(text, "--max-model-len") or 0)
    held = json.loads(done.stdout)["chosen"]["memory"]["kv_tokens"]
    assert 2300 < longest < held < 40960
    assert "--context" in text


def test_speculation_that_the_plan_counts_is_said_to_be_missing(tmp_path: Path) -> None:
    """Which drafts there are is not known, so they cannot be written."""
    texts = written(tmp_path / "out", *QWEN, "--draft-tokens", 3, "--draft-acceptance", 0.7)
    assert all("add --speculative-config" in text for text in texts.values())


def test_known_name_gets_its_owner(tmp_path: Path) -> None:
    """The repository is what a server can fetch; the pod may be given a token for it."""
    texts = written(tmp_path / "out", *QWEN)
    assert option(texts["command.sh"], "--model") == "Qwen/Qwen3-32B"
    assert "model_source: Qwen/Qwen3-32B" in texts["ray-serve.yaml"]
    assert "HF_TOKEN" in texts["kubernetes.yaml"]


def test_variant_that_was_taken_is_said(tmp_path: Path) -> None:
    """Several repositories share the shape of a name."""
    texts = written(tmp_path / "out", "--model", "gemma-3-27b", "--hardware", "H100:8")
    assert option(texts["command.sh"], "--model") == "google/gemma-3-27b-it"
    assert "variant" in texts["command.sh"]


def test_name_without_a_known_owner_is_to_be_replaced(tmp_path: Path) -> None:
    """It is said in every file and not only in one."""
    words = ("--model", "llama-3.1-8b-instruct-w4a16", "--hardware", "H100:8")
    texts = written(tmp_path / "out", *words)
    assert all("replace llama-3.1-8b-instruct-w4a16" in text for text in texts.values())


def test_file_that_the_engine_does_not_load_is_refused(tmp_path: Path) -> None:
    """vLLM reads folders; of a GGUF file that is said before the plan."""
    gguf = tmp_path / "a.gguf"
    gguf.write_bytes(b"GGUF")
    error = refused(tmp_path / "out", "--model", gguf, "--hardware", "H100")
    assert error.startswith("Error: model: ")


@pytest.mark.parametrize("engine", ["trtllm", "sglang"])
def test_engine_that_is_not_written_is_refused_before_the_plan(tmp_path: Path, engine: str) -> None:
    """Nobody reads a page of plan to learn at its end that there are no files."""
    error = refused(tmp_path / "out", *QWEN, "--engine", engine)
    assert error.startswith("Error: engine: ")
    assert "vllm" in error.partition("nearest valid: ")[2]


def test_server_on_cpus_has_what_cpus_need(tmp_path: Path) -> None:
    """Its own image, a cache in bytes, threads, CPUs and memory; nothing of GPUs and no file for Ray."""
    yaml = pytest.importorskip("yaml")
    words = ("--model", "smollm2-135m", "--hardware", "cpu", "--context", 4096)
    texts = written(tmp_path / "out", *words)
    assert sorted(texts) == ["command.sh", "kubernetes.yaml"]
    command = texts["command.sh"]
    assert "VLLM_CPU_OMP_THREADS_BIND=" in command
    assert int(option(command, "--kv-cache-memory-bytes") or 0) > 4096 * 23_000
    assert option(command, "--gpu-memory-utilization") is None
    pod = next(iter(yaml.safe_load_all(texts["kubernetes.yaml"])))["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    resources = container["resources"]
    assert container["image"].startswith("vllm/vllm-openai-cpu:")
    assert (resources["limits"]["cpu"], set(resources["limits"])) == ("1", {"cpu", "memory"})
    assert resources["limits"] == resources["requests"]
    assert "OMP_NUM_THREADS=1" in container["command"][-1]
    assert "nvidia" not in texts["kubernetes.yaml"]


def test_fp8_on_cpus_is_the_kind_that_works_there(tmp_path: Path) -> None:
    """`fp8` ends a server on CPUs; scales per channel work."""
    words = ("--model", "smollm2-135m", "--hardware", "cpu", "--precision", "fp8")
    texts = written(tmp_path / "out", *words)
    assert option(texts["command.sh"], "--quantization") == "fp8_per_channel"


def test_several_nodes_of_cpus_are_refused(tmp_path: Path) -> None:
    """Ranks of several hosts were never started, and nothing is written that was not."""
    words = ("--model", "smollm2-360m", "--hardware", "cpu:1x2")
    assert refused(tmp_path / "out", *words).startswith("Error: hardware: ")


def test_accelerators_of_another_maker_have_their_image(tmp_path: Path) -> None:
    """A CUDA image finds no device on an MI300X."""
    texts = written(tmp_path / "out", "--model", "qwen3-32b", "--hardware", "MI300X:8")
    assert "vllm/vllm-openai-rocm:" in texts["kubernetes.yaml"]
    assert "amd.com/gpu" in texts["kubernetes.yaml"]
