"""What can be known of a vLLM launch before it costs a start: each refusal says which, why and what to do instead.

Most of these start without a word and fail at the first request, or answer with garbage; they were tried with
vLLM 0.32 on CPUs. Divisibility follows vLLM's own rules: query heads must divide among tensor-parallel ranks; KV
heads must divide among them, or the ranks among the KV heads (each is then copied).
"""

from collections.abc import Iterator
from enum import StrEnum
from typing import Final

import msgspec

from trimtab.core.served import ModelShape
from trimtab.engines.vllm import Device, Execution, KvRole, VllmLaunch

GARBAGE_KV_TYPES: Final = frozenset(
    {"int8_per_token_head", "fp8_per_token_head", "turboquant_4bit_nc"}
)
"""KV precisions that start on a CPU and answer with garbage: 11 to 13 nats per token instead of 2."""

FAILING_QUANTIZATIONS: Final = frozenset(
    {"fp8", "fp8_per_tensor", "fp8_per_block", "mxfp8", "torchao", "inc"}
)
"""Quantizations at load that fail on a CPU."""

IDLE_QUANTIZATIONS: Final = frozenset({"int8_per_channel_weight_only", "experts_int8"})
"""Quantizations that are accepted and change nothing on a dense model."""


class Refusal(StrEnum):
    """Why a launch is refused before it starts."""

    SIZE = "size"
    HEADS = "heads"
    KV_HEADS = "kv_heads"
    LAYERS = "layers"
    EXPERTS = "experts"
    CONTEXT = "context"
    THREAD_GROUPS = "thread_groups"
    EAGER_PIPELINE = "eager_pipeline"
    DATA_PARALLEL_EXPERTS = "data_parallel_experts"
    DEPTH_TABLE = "depth_table"
    KV_TYPE = "kv_type"
    QUANTIZATION = "quantization"
    SIDE_CHANNEL = "side_channel"
    KV_EVENTS = "kv_events"


class LaunchProblem(msgspec.Struct, frozen=True):
    """One reason against a launch; `text` names what is wrong and the nearest choice that works."""

    refusal: Refusal
    text: str


def check_launch(launch: VllmLaunch, shape: ModelShape | None = None) -> tuple[LaunchProblem, ...]:
    """Return everything that speaks against a launch, empty if nothing does.

    `shape` is the model's; what it does not say is not checked.
    """
    found = [*_sizes(launch), *_known_failures(launch), *_kv_links(launch)]
    if shape is not None:
        found += [*_divisions(launch, shape), *_model_limits(launch, shape)]
    return tuple(found)


def _sizes(launch: VllmLaunch) -> Iterator[LaunchProblem]:
    names = ("tensor_parallel", "pipeline_parallel", "data_parallel", "context_tokens")
    for name in names:
        if getattr(launch, name) < 1:
            yield LaunchProblem(
                Refusal.SIZE, f"{name} is {getattr(launch, name)}: at least 1 is needed"
            )
    if not 0 < launch.port < 65536:
        yield LaunchProblem(Refusal.SIZE, f"port is {launch.port}: 1 to 65535 is needed")


def _known_failures(launch: VllmLaunch) -> Iterator[LaunchProblem]:
    speculation = launch.speculation
    if speculation is not None and speculation.depth_by_batch and launch.data_parallel > 1:
        yield LaunchProblem(
            Refusal.DEPTH_TABLE,
            "draft depth by batch is ignored with data parallelism: start separate replicas, or one fixed depth",
        )
    if launch.device is not Device.CPU:
        return
    if launch.pipeline_parallel > 1 and launch.chosen_execution is Execution.EAGER:
        yield LaunchProblem(
            Refusal.EAGER_PIPELINE,
            "a pipeline that runs op by op ends the engine at the first request on a CPU: use traced execution",
        )
    if launch.data_parallel > 1 and launch.expert_parallel:
        yield LaunchProblem(
            Refusal.DATA_PARALLEL_EXPERTS,
            "experts over data-parallel ranks do not run on a CPU: use tensor_parallel with expert_parallel",
        )
    if launch.kv_dtype in GARBAGE_KV_TYPES:
        yield LaunchProblem(
            Refusal.KV_TYPE,
            f"kv_dtype {launch.kv_dtype} starts on a CPU and answers with garbage: use auto or fp8",
        )
    if launch.quantization in FAILING_QUANTIZATIONS:
        yield LaunchProblem(
            Refusal.QUANTIZATION,
            f"quantization {launch.quantization} fails on a CPU: use fp8_per_channel, or a checkpoint that is "
            "quantized already",
        )
    if launch.threads and launch.threads not in {"auto", "nobind"}:
        yield from _thread_groups(launch)


def _thread_groups(launch: VllmLaunch) -> Iterator[LaunchProblem]:
    groups = launch.threads.count("|") + 1
    if groups != launch.ranks:
        yield LaunchProblem(
            Refusal.THREAD_GROUPS,
            f"threads {launch.threads!r} has {groups} groups and layout {launch.layout} has {launch.ranks} ranks: "
            "give one group per rank, divided by |",
        )


def _kv_links(launch: VllmLaunch) -> Iterator[LaunchProblem]:
    if launch.kv_role is not KvRole.NONE and not 0 < launch.side_channel_port < 65536:
        yield LaunchProblem(
            Refusal.SIDE_CHANNEL,
            f"side_channel_port is {launch.side_channel_port}: a server with a KV role needs one of its own",
        )
    # vLLM binds what has a star in it, on every address of the host, and connects to anything else.
    if "*" in launch.kv_events:
        yield LaunchProblem(
            Refusal.KV_EVENTS,
            f"kv_events {launch.kv_events!r} would publish token ids on every address: bind on this side and give "
            "tcp://127.0.0.1:PORT, or use an ipc:// path",
        )


def _divisions(launch: VllmLaunch, shape: ModelShape) -> Iterator[LaunchProblem]:
    size = launch.tensor_parallel
    if size > 1 and shape.heads is not None and shape.heads % size:
        yield LaunchProblem(
            Refusal.HEADS,
            f"{shape.heads} heads do not divide among tensor_parallel {size}: use {_divisors(shape.heads, size)}",
        )
    kv_heads = None if shape.latent_kv else shape.kv_heads
    if size > 1 and kv_heads is not None and kv_heads % size and size % kv_heads:
        yield LaunchProblem(
            Refusal.KV_HEADS,
            f"{kv_heads} KV heads and tensor_parallel {size} do not divide either way: use "
            f"{_divisors(kv_heads, size)}",
        )
    if shape.layers is not None and launch.pipeline_parallel > shape.layers:
        yield LaunchProblem(
            Refusal.LAYERS,
            f"pipeline_parallel {launch.pipeline_parallel} is more than the {shape.layers} layers: use at most "
            f"{shape.layers}",
        )


def _model_limits(launch: VllmLaunch, shape: ModelShape) -> Iterator[LaunchProblem]:
    if launch.expert_parallel and shape.experts is None:
        yield LaunchProblem(
            Refusal.EXPERTS, f"{shape.name} has no experts to spread: leave expert_parallel off"
        )
    if launch.expert_parallel and launch.tensor_parallel * launch.data_parallel < 2:
        yield LaunchProblem(
            Refusal.EXPERTS, "expert_parallel over one rank spreads nothing: use tensor_parallel 2"
        )
    if launch.quantization in IDLE_QUANTIZATIONS and shape.experts is None:
        yield LaunchProblem(
            Refusal.QUANTIZATION,
            f"quantization {launch.quantization} changes nothing on a dense model: leave it out",
        )


def _divisors(count: int, near: int) -> str:
    """Name the divisors of a count below and above a number that is none, the nearest that would work."""
    found = [number for number in range(1, count + 1) if count % number == 0]
    below = max(number for number in found if number < near)
    above = min((number for number in found if number > near), default=None)
    return str(below) if above is None else f"{below} or {above}"
