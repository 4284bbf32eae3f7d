"""What a vLLM server is started with: one frozen description in, its exact command and environment out.

Written against vLLM 0.32. Only options that were seen to work are offered; `engines.vllm_checks` says which
combinations are refused. Options that are left at their default are not passed, so that the command shows what
differs; what vLLM then chose is in its start-up log (`engines.vllm_log`).
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final

import msgspec

NAME: Final = "vllm"
VERSION: Final = "0.32.0"
LOOPBACK: Final = "127.0.0.1"
ENTRY_POINT: Final = "vllm.entrypoints.openai.api_server"
WEIGHTS_PLUGIN: Final = "trimtab_vllm_weights"
REPAIRS_PLUGIN: Final = "trimtab_vllm_repairs"
TRANSFER_PLUGIN: Final = "trimtab_vllm_transfer"


class Device(StrEnum):
    """What the server computes on."""

    CPU = "cpu"
    GPU = "gpu"


class Execution(StrEnum):
    """How the model's graph runs: op by op, traced but not compiled, or compiled (minutes at the first start)."""

    EAGER = "eager"
    TRACED = "traced"
    COMPILED = "compiled"


class KvRole(StrEnum):
    """Whether a server hands KV to others or takes it from them, over NIXL."""

    NONE = "none"
    BOTH = "kv_both"
    PRODUCER = "kv_producer"
    CONSUMER = "kv_consumer"


class KvFailure(StrEnum):
    """What a server does where KV that it was to fetch does not come: end the request, or compute the prompt."""

    FAIL = "fail"
    RECOMPUTE = "recompute"


class NgramSpeculation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Drafts looked up in the prompt. `depth_by_batch`: rows (first batch, last batch, draft tokens)."""

    draft_tokens: int = 5
    match_tokens_max: int = 4
    match_tokens_min: int = 2
    depth_by_batch: tuple[tuple[int, int, int], ...] = ()


class VllmLaunch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One vLLM server, whole. None and 0 leave a choice to vLLM; `kv_cache_bytes` is per rank.

    `model`: a folder with config.json and weights. `threads`: CPUs per rank in vLLM's own notation, such as `0-1` or
    `0|1` (`bind_threads` makes it); ranks count data-parallel first, then pipeline, then tensor. `side_channel_port`:
    where a server with a KV role is asked for its KV; one per server, on loopback. `kv_lease_s`: how long it keeps KV
    that nobody fetches; `kv_failure`: what it does where KV does not come. `kv_events`: a ZeroMQ endpoint.
    `trace_folder`: where each rank leaves its profiler trace once POST /start_profile and /stop_profile are asked.
    """

    model: str
    served_name: str
    port: int
    host: str = LOOPBACK
    device: Device = Device.CPU
    dtype: str = "bfloat16"
    context_tokens: int = 4096
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    data_parallel: int = 1
    expert_parallel: bool = False
    execution: Execution | None = None
    threads: str = ""
    kv_cache_bytes: int = 0
    kv_blocks: int = 0
    block_tokens: int = 0
    memory_share: float = 0.0
    sequences_max: int = 0
    batched_tokens_max: int = 0
    prefix_caching: bool = True
    chunked_prefill: bool = True
    speculation: NgramSpeculation | None = None
    quantization: str = ""
    kv_dtype: str = "auto"
    kv_role: KvRole = KvRole.NONE
    side_channel_port: int = 0
    kv_lease_s: int = 0
    kv_failure: KvFailure = KvFailure.FAIL
    kv_events: str = ""
    developer_endpoints: bool = False
    trace_folder: str = ""
    seed: int = 0

    @property
    def ranks(self) -> int:
        """How many worker processes the server has."""
        return self.tensor_parallel * self.pipeline_parallel * self.data_parallel

    @property
    def chosen_execution(self) -> Execution:
        """How the graph runs: as asked for, else the quickest start that works with the layout on this device."""
        if self.execution is not None:
            return self.execution
        if self.device is Device.GPU:
            return Execution.COMPILED
        # Without a trace nothing warms up, and a pipeline's stages allocate what they receive into while they do.
        return Execution.TRACED if self.pipeline_parallel > 1 else Execution.EAGER

    @property
    def layout(self) -> str:
        """A short name such as `tp2`, `pp2`, `dp2` or `tp2-ep`; `single` for one rank."""
        sizes = (
            ("tp", self.tensor_parallel),
            ("pp", self.pipeline_parallel),
            ("dp", self.data_parallel),
        )
        parts = [f"{name}{size}" for name, size in sizes if size > 1]
        parts += ["ep"] if self.expert_parallel else []
        return "-".join(parts) or "single"

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://{self.host}:{self.port}"


class LaunchCommand(msgspec.Struct, frozen=True):
    """What to execute: the arguments, and the environment variables that go over the inherited ones."""

    argv: tuple[str, ...]
    env: dict[str, str]


def launch_command(
    launch: VllmLaunch, *, python: str = "python", plugins: str = ""
) -> LaunchCommand:
    """Return the command of a launch. `python`: the environment's interpreter; `plugins`: the folder of ours, if any.

    Plugins are for CPUs only: one logs the bytes of the weights, one repairs expert parallelism and one leaves a server
    that hands over KV its cores; the last two are loaded for that alone.
    """
    argv = [python, "-m", ENTRY_POINT, "--model", launch.model]
    argv += ["--served-model-name", launch.served_name]
    argv += ["--host", launch.host, "--port", str(launch.port)]
    argv += ["--max-model-len", str(launch.context_tokens), "--dtype", launch.dtype]
    argv += ["--seed", str(launch.seed)]
    argv += ["--enable-prompt-tokens-details", "--disable-uvicorn-access-log"]
    argv += _layout_arguments(launch)
    argv += _cache_arguments(launch)
    argv += _numbered(
        ("--max-num-seqs", launch.sequences_max),
        ("--max-num-batched-tokens", launch.batched_tokens_max),
    )
    argv += [] if launch.chunked_prefill else ["--no-enable-chunked-prefill"]
    if launch.quantization:
        argv += ["--quantization", launch.quantization]
    if launch.speculation is not None:
        argv += ["--speculative-config", _json(_speculation(launch.speculation))]
    if launch.trace_folder:
        argv += ["--profiler-config", _json(_profiler(launch.trace_folder))]
    return LaunchCommand(tuple(argv), _environment(launch, plugins))


def bind_threads(cpus: Sequence[int], ranks: int) -> str:
    """Return CPUs per rank in vLLM's notation: equal shares, or one each in turn where there are too few."""
    if not cpus or ranks < 1:
        raise ValueError("no CPUs or no ranks to bind")
    share = len(cpus) // ranks
    if share == 0:
        return "|".join(str(cpus[rank % len(cpus)]) for rank in range(ranks))
    groups = [cpus[rank * share : (rank + 1) * share] for rank in range(ranks)]
    return "|".join(",".join(str(cpu) for cpu in group) for group in groups)


def _layout_arguments(launch: VllmLaunch) -> list[str]:
    sizes = (
        ("--tensor-parallel-size", launch.tensor_parallel),
        ("--pipeline-parallel-size", launch.pipeline_parallel),
        ("--data-parallel-size", launch.data_parallel),
    )
    argv = _numbered(*((flag, size) for flag, size in sizes if size > 1))
    argv += ["--enable-expert-parallel"] if launch.expert_parallel else []
    match launch.chosen_execution:
        case Execution.EAGER:
            argv += ["--enforce-eager"]
        case Execution.TRACED:
            argv += ["-cc.mode=3", "-cc.backend=eager"]
        case Execution.COMPILED:
            pass
    return argv


def _cache_arguments(launch: VllmLaunch) -> list[str]:
    argv = _numbered(
        ("--kv-cache-memory-bytes", launch.kv_cache_bytes),
        ("--num-gpu-blocks-override", launch.kv_blocks),
        ("--block-size", launch.block_tokens),
    )
    if launch.memory_share:
        argv += ["--gpu-memory-utilization", f"{launch.memory_share:g}"]
    argv += [] if launch.prefix_caching else ["--no-enable-prefix-caching"]
    if launch.kv_dtype != "auto":
        argv += ["--kv-cache-dtype", launch.kv_dtype]
    if launch.kv_role is not KvRole.NONE:
        transfer: dict[str, object] = {
            "kv_connector": "NixlConnector",
            "kv_role": str(launch.kv_role),
            "kv_buffer_device": "cpu" if launch.device is Device.CPU else "cuda",
        }
        if launch.kv_failure is not KvFailure.FAIL:
            transfer["kv_load_failure_policy"] = str(launch.kv_failure)
        if launch.kv_lease_s:
            transfer["kv_connector_extra_config"] = {"kv_lease_duration": launch.kv_lease_s}
        argv += ["--kv-transfer-config", _json(transfer)]
    if launch.kv_events:
        events = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": launch.kv_events,
        }
        argv += ["--kv-events-config", _json(events)]
    return argv


def _speculation(speculation: NgramSpeculation) -> dict[str, object]:
    config: dict[str, object] = {
        "method": "ngram",
        "num_speculative_tokens": speculation.draft_tokens,
        "prompt_lookup_max": speculation.match_tokens_max,
        "prompt_lookup_min": speculation.match_tokens_min,
    }
    if speculation.depth_by_batch:
        config["num_speculative_tokens_per_batch_size"] = [
            list(row) for row in speculation.depth_by_batch
        ]
    return config


def _profiler(folder: str) -> dict[str, object]:
    return {
        "profiler": "torch",
        "torch_profiler_dir": folder,
        # Stacks multiply the size of a trace, and the front end does none of the work that is looked for.
        "torch_profiler_with_stack": False,
        "ignore_frontend": True,
    }


def _environment(launch: VllmLaunch, plugins: str) -> dict[str, str]:
    env = {
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "NO_COLOR": "1",
        # Hashes of prefixes are then the same in every process and after every start.
        "PYTHONHASHSEED": str(launch.seed),
        "TRANSFORMERS_OFFLINE": "1",
        # Ranks of one host meet each other here, whatever addresses the host has.
        "VLLM_HOST_IP": LOOPBACK,
        "VLLM_LOOPBACK_IP": LOOPBACK,
        "VLLM_NO_USAGE_STATS": "1",
    }
    if launch.device is Device.CPU:
        env["VLLM_CPU_OMP_THREADS_BIND"] = launch.threads or "auto"
        if plugins:
            env["PYTHONPATH"] = plugins
            env["VLLM_PLUGINS"] = ",".join(_plugins(launch))
    if launch.kv_role is not KvRole.NONE:
        env["VLLM_NIXL_SIDE_CHANNEL_HOST"] = LOOPBACK
        env["VLLM_NIXL_SIDE_CHANNEL_PORT"] = str(launch.side_channel_port)
    if launch.developer_endpoints:
        env["VLLM_SERVER_DEV_MODE"] = "1"
    return env


def _plugins(launch: VllmLaunch) -> list[str]:
    repairs = [REPAIRS_PLUGIN] if launch.expert_parallel else []
    transfer = [TRANSFER_PLUGIN] if launch.kv_role is not KvRole.NONE else []
    return [WEIGHTS_PLUGIN, *repairs, *transfer]


def _numbered(*pairs: tuple[str, int]) -> list[str]:
    return [word for flag, value in pairs if value for word in (flag, str(value))]


def _json(value: Mapping[str, object]) -> str:
    return msgspec.json.encode(value).decode()
