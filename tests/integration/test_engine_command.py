"""`trimtab engine vllm` and `make engine-vllm`: what they print, and how they end. No vLLM runs here."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from fake_vllm import fake_environment

from trimtab.runtime import vllm_env
from trimtab.runtime.vllm_guard import group_pids

ROOT = Path(__file__).resolve().parents[2]
TRIMTAB = (sys.executable, "-m", "trimtab.interfaces.cli", "engine", "vllm")


@pytest.fixture
def fake(tmp_path: Path) -> list[str]:
    """The options that take a server which is none."""
    python, model = fake_environment(tmp_path)
    return ["--python", str(python), "--model", str(model)]


def run(*command: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, env=os.environ | env, text=True, capture_output=True, check=False, timeout=60
    )


def test_server_is_described_as_json_until_interrupted(fake: list[str]) -> None:
    """One object on stdout, progress on stderr; Ctrl-C ends the whole group and is no failure."""
    with subprocess.Popen(
        [*TRIMTAB, *fake, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        said = json.loads(process.stdout.readline())
        process.send_signal(signal.SIGINT)
        rest, progress = process.communicate(timeout=60)
    assert (process.returncode, rest, group_pids(said["pid"])) == (0, "", ())
    assert (said["model"]["id"], said["report"]["kv_tokens"]) == ("m", 11648)
    assert "sizing the KV cache" in progress


def test_server_is_described_in_words(fake: list[str]) -> None:
    """Address, layout, KV cache and memory, a fact a line; what vLLM does not say is left out."""
    with subprocess.Popen(
        [*TRIMTAB, *fake], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        lines = []
        while not lines or not lines[-1].startswith("Ctrl-C"):
            lines.append(process.stdout.readline())
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert lines[0].startswith("m answers at http://127.0.0.1:")
    assert lines[1:4] == [
        "layout    single, bfloat16\n",
        "KV cache  11,648 tokens in 91 blocks: 2.84 requests of 4,096 tokens at once\n",
        "Worker    KV cache 256 MiB\n",
    ]


def test_interrupted_start_ends_it(fake: list[str]) -> None:
    """Ctrl-C while the server starts is no failure either, and stops it."""
    with subprocess.Popen(
        [*TRIMTAB, *fake, "--json"],
        env=os.environ | {"FAKE": "hangs"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        process.stderr.readline()
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=60)
    assert (process.returncode, said) == (0, "")


def test_server_that_ends_by_itself_is_a_failure(fake: list[str]) -> None:
    """Its exit code and last error are said."""
    done = run(*TRIMTAB, *fake, FAKE="dies")
    assert done.returncode == 1
    assert "ended with exit code 3 before it answered: ValueError: no heads" in done.stderr
    assert "Traceback" not in done.stderr


def test_command_is_printed_and_nothing_started(fake: list[str], tmp_path: Path) -> None:
    """What is printed is what would run, variables first."""
    done = run(*TRIMTAB, *fake, "--pp", "2", "--port", "8123", "--command")
    assert done.returncode == 0
    assert f"{tmp_path}/python -m vllm.entrypoints.openai.api_server" in done.stdout
    assert "--port 8123" in done.stdout
    assert "--pipeline-parallel-size 2 -cc.mode=3 -cc.backend=eager" in done.stdout
    assert done.stdout.startswith("DO_NOT_TRACK=1 ")


@pytest.mark.parametrize(
    ("words", "passed"), [((), "--dtype bfloat16 "), (("--dtype", "float32"), "--dtype float32 ")]
)
def test_precision_that_was_asked_for_is_passed_on(
    fake: list[str], words: tuple[str, ...], passed: str
) -> None:
    """The default is bfloat16."""
    done = run(*TRIMTAB, *fake, *words, "--command")
    assert done.returncode == 0
    assert passed in done.stdout


def test_refused_layout_is_one_line(fake: list[str]) -> None:
    """The nearest layout that works is named, and there is no traceback."""
    done = run(*TRIMTAB, *fake, "--tp", "3")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "4 heads do not divide among tensor_parallel 3: use 2 or 4" in done.stderr


def test_absent_environment_is_one_line(tmp_path: Path) -> None:
    """It says what to type."""
    done = run(*TRIMTAB, XDG_CACHE_HOME=str(tmp_path))
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "make engine-vllm makes it" in done.stderr


def test_whole_environment_is_not_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second call only says where everything lies."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    environment, checkpoints = vllm_env.environment_folder(), vllm_env.checkpoints_folder()
    checkpoints.mkdir(parents=True)
    environment.mkdir()
    (environment / vllm_env.WHOLE).touch()
    script = str(ROOT / "scripts" / "make_vllm_env.py")
    done = run(sys.executable, script)
    assert (done.returncode, done.stdout) == (
        0,
        f"vLLM is ready in {environment}, its models in {checkpoints}.\n",
    )
    assert run(sys.executable, script, "--where").stdout == f"{environment}\n{checkpoints}\n"
