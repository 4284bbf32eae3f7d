"""What `trimtab plan --write` writes for CPUs, started: the command of a shell, and the command of a pod."""

import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from trimtab.interfaces.plan_cli import plan
from trimtab.runtime.launcher import free_ports
from trimtab.runtime.vllm_env import find_environment

pytestmark = [pytest.mark.engine_vllm, pytest.mark.timeout(900)]

START_TIMEOUT_S = 300
MEAN = ("--isl", "200", "--osl", "40", "--concurrency", "2")


@contextmanager
def started(line: str, port: int) -> Iterator[None]:
    """Run a written command on a loopback port until it answers; end all its processes afterwards."""
    python = find_environment("").python
    env = os.environ | {"PATH": f"{python.parent}:{os.environ['PATH']}", "HF_HUB_OFFLINE": "1"}
    line = line.replace("--port 8000", f"--port {port}").replace("0.0.0.0", "127.0.0.1")
    with subprocess.Popen(
        ["/bin/sh", "-c", line], env=env, start_new_session=True, stdout=subprocess.DEVNULL
    ) as process:
        try:
            deadline = time.monotonic() + START_TIMEOUT_S
            while not healthy(port):
                assert process.poll() is None, f"ended with {process.returncode}"
                assert time.monotonic() < deadline, "did not answer"
                time.sleep(0.5)
            yield
        finally:
            os.killpg(process.pid, signal.SIGTERM)


def healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def completed(port: int, model: str, prompt: str) -> dict[str, Any]:
    body = {"model": model, "prompt": prompt, "max_tokens": 4, "temperature": 0}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions",
        data=json.dumps(body).encode(),
        headers={"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as response:
        return dict(json.loads(response.read()))


@pytest.mark.parametrize("form", ["shell", "pod"])
def test_written_command_starts_and_takes_more_than_the_mean(tmp_path: Path, form: str) -> None:
    """As it stands but for its port; in a pod the checkpoint is where the pod mounts it."""
    yaml = pytest.importorskip("yaml")
    folder = find_environment("").model("smollm2")
    words = ("--model", str(folder / "config.json"), "--hardware", "cpu", "--write", str(tmp_path))
    done = CliRunner().invoke(plan, [*words, *MEAN])
    assert done.exit_code == 0, done.stderr
    line = (tmp_path / "command.sh").read_text()
    if form == "pod":
        app = next(iter(yaml.safe_load_all((tmp_path / "kubernetes.yaml").read_text())))
        (container,) = app["spec"]["template"]["spec"]["containers"]
        line = container["command"][-1].replace("/models/smollm2", str(folder))
    (port,) = free_ports(1)
    with started(line, port):
        answer = completed(port, "smollm2", "one " * 600)
    assert answer["usage"]["completion_tokens"] == 4
    assert answer["usage"]["prompt_tokens"] > 240
