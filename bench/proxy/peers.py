"""How each proxy is started in front of engines, with settings that put no limit below what is measured.

Routers run with the policy that costs them least unless a name says another (`vllm-router:cache_aware`, which asks a
worker to render every prompt); trimtab runs as it comes, with its prefix index and its ledger.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench.peer_envs import program

NOFILE: Final = 16_384
STREAMS_MAX: Final = 8_192


@dataclass(frozen=True)
class Start:
    """What starts a proxy: its command, what it needs of the environment, and where it says that it is ready."""

    command: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    ready: str = "/v1/models"


def start_of(name: str, engines: Sequence[str], port: int, spare_port: int, folder: Path) -> Start:
    """Return how a proxy by its name here is started in front of engines; files go to `folder`.

    A router's name may say its policy: `sglang-router:round_robin`. Raises `PeerError` where its environment is
    not made.
    """
    kind, _, policy = name.partition(":")
    match kind:
        case "trimtab":
            return trimtab(engines, port, folder)
        case "vllm-router":
            return vllm_router(engines, port, spare_port, policy or "round_robin")
        case "sglang-router":
            return sglang_router(engines, port, spare_port, policy or "round_robin")
        case "nginx":
            return nginx(engines, port, folder)
        case "litellm":
            return litellm(engines, port, folder)
        case "bare":
            return bare(engines, port)
        case _:
            raise ValueError(f"no proxy is called {name!r}")


def bare(engines: Sequence[str], port: int) -> Start:
    """Start the floor: two protocols on a loop that hand each other bytes."""
    engine_port = engines[0].rpartition(":")[2]
    return Start((sys.executable, "-m", "bench.proxy.bare", str(port), engine_port))


def trimtab(engines: Sequence[str], port: int, folder: Path) -> Start:
    """Start `trimtab up --attach` with its ledger in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "trimtab.toml"
    config.write_text(f"[gateway]\nstreams_max = {STREAMS_MAX}\n")
    command: tuple[str, ...] = (sys.executable, "-m", "trimtab.interfaces.cli", "up")
    command += ("--config", str(config), "--port", str(port))
    command += ("--ledger", str(folder / "ledger.sqlite"))
    for url in engines:
        command += ("--attach", url)
    return Start(command, {"XDG_STATE_HOME": str(folder / "state")}, ready="/healthz")


def vllm_router(engines: Sequence[str], port: int, spare_port: int, policy: str) -> Start:
    """Start vLLM's router."""
    folder = program("vllm-router").parent
    command: tuple[str, ...] = (
        str(folder / "vllm-router"),
        "--worker-urls",
        *engines,
        "--policy",
        policy,
    )
    command += ("--host", "127.0.0.1", "--port", str(port))
    command += ("--prometheus-host", "127.0.0.1", "--prometheus-port", str(spare_port))
    command += ("--max-concurrent-requests", str(STREAMS_MAX), "--log-level", "error")
    return Start(command, ready="/health")


def sglang_router(engines: Sequence[str], port: int, spare_port: int, policy: str) -> Start:
    """Start SGLang's router."""
    command: tuple[str, ...] = (str(program("sglang-router")), "-m", "sglang_router.launch_router")
    command += ("--worker-urls", *engines, "--policy", policy)
    command += ("--host", "127.0.0.1", "--port", str(port))
    command += ("--prometheus-host", "127.0.0.1", "--prometheus-port", str(spare_port))
    command += ("--max-concurrent-requests", str(STREAMS_MAX), "--log-level", "error")
    return Start(command, ready="/health")


NGINX_CONFIG: Final = """\
daemon off;
master_process on;
worker_processes 1;
worker_rlimit_nofile {nofile};
pid {folder}/nginx.pid;
error_log {folder}/nginx-error.log error;
events {{ worker_connections {streams}; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    client_max_body_size 32m;
    client_body_buffer_size 1m;
    keepalive_requests 1000000;
    upstream engines {{
        {servers}
        keepalive {streams};
        keepalive_requests 1000000;
    }}
    server {{
        listen 127.0.0.1:{port} backlog=4096;
        location / {{
            proxy_pass http://engines;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_buffering off;
            proxy_read_timeout 600s;
        }}
    }}
}}
"""


def nginx(engines: Sequence[str], port: int, folder: Path) -> Start:
    """Start nginx as a plain proxy that does not buffer."""
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "nginx.conf"
    servers = "\n        ".join(f"server {url.removeprefix('http://')};" for url in engines)
    config.write_text(
        NGINX_CONFIG.format(
            nofile=NOFILE, streams=STREAMS_MAX, folder=folder, servers=servers, port=port
        )
    )
    return Start((str(program("nginx")), "-c", str(config), "-e", f"{folder}/nginx-start.log"))


def litellm(engines: Sequence[str], port: int, folder: Path) -> Start:
    """Start LiteLLM's proxy with one worker; its configuration is JSON, which is YAML."""
    folder.mkdir(parents=True, exist_ok=True)
    models = [
        {
            "model_name": "fake",
            "litellm_params": {
                "model": "openai/fake",
                "api_base": f"{url}/v1",
                "api_key": "none",
            },
        }
        for url in engines
    ]
    config = folder / "litellm.yaml"
    config.write_text(json.dumps({"model_list": models}))
    path = str(program("litellm").parent / "litellm")
    command: tuple[str, ...] = (path, "--config", str(config))
    command += ("--host", "127.0.0.1", "--port", str(port), "--num_workers", "1")
    quiet = {
        "LITELLM_LOG": "ERROR",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_TELEMETRY": "False",
        # without keys, as the others run here
        "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
        "PYTHONPATH": "",
    }
    return Start(command, quiet, ready="/health/liveliness")
