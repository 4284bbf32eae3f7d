"""Stands in for the interpreter of a vLLM environment: its arguments, its log's words, its pages.

Run as a script by a wrapper that `fake_environment` writes. The variable FAKE says what goes wrong. Like the real one
it has a child that outlives a killed parent; this one ignores SIGTERM too.
"""

import json
import os
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

HEAD = "(EngineCore pid=1) INFO 11-30 00:26:07"
SAYS = (
    "(APIServer pid=1) INFO 11-30 00:26:01 [api_utils.py:286] non-default args: {}",
    f"{HEAD} [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: dtype=torch.bfloat16, seed=0",
    "(Worker pid=2) INFO 11-30 00:26:07 [cpu_worker.py:260] Explicitly set (0.25/16.34) GiB for KV cache on node 0.",
    f"{HEAD} [kv_cache_utils.py:2327] CPU KV cache size: 11,648 tokens, Maximum concurrency for 4,096 tokens "
    "per request: 2.84x",
    f"{HEAD} [core.py:402] init engine (profile, create kv cache, warmup model) took 0.53 s",
)
STUBBORN = "import signal,time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"


class Answers(BaseHTTPRequestHandler):
    """The pages that a launcher asks for, and one that makes the server complain about a prompt."""

    context_tokens = 4096
    requests = 0

    def do_GET(self) -> None:
        pages = {
            "/health": "",
            "/v1/models": json.dumps(
                {"data": [{"id": "m", "max_model_len": self.context_tokens, "root": "/m"}]}
            ),
            "/metrics": 'vllm:cache_config_info{block_size="128",num_gpu_blocks="91"} 1.0\n'
            f'vllm:num_requests_running{{engine="0"}} {Answers.requests}.0\n',
        }
        self.reply(200 if self.path in pages else 404, pages.get(self.path, ""))

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"])).decode()
        if self.path == "/busy":
            Answers.requests = int(body)
        if self.path == "/end":
            os._exit(7)
        say(f"(APIServer pid=1) ERROR 11-30 00:26:05 [serving.py:1] {body}")
        self.reply(200, "{}")

    def reply(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        """Stay silent: what is printed is vLLM's log."""


def say(line: str) -> None:
    """Write a line of the log at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    port = int(sys.argv[sys.argv.index("--port") + 1])
    fault = os.environ.get("FAKE", "")
    for line in SAYS:
        say(line)
    if fault == "dies":
        say("(EngineCore pid=1) ERROR 11-30 00:26:05 [core.py:9] ValueError: no heads")
        sys.exit(3)
    if fault == "hangs":
        time.sleep(600)
    if fault == "shortens":
        Answers.context_tokens = 2048
    child = subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    ThreadingHTTPServer(("127.0.0.1", port), Answers).serve_forever()


def fake_environment(folder: Path) -> tuple[Path, Path]:
    """Write an interpreter that is this file, and a model folder; return both."""
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -I {__file__} "$@"\n')
    python.chmod(0o700)
    model = folder / "model"
    model.mkdir()
    shape = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 99}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128}
    (model / "config.json").write_text(json.dumps(shape | heads))
    return python, model


if __name__ == "__main__":
    main()
