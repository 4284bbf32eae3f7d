"""What is known to fail is refused before it costs a start."""

import msgspec
import pytest

from trimtab.core.served import ModelShape
from trimtab.engines.vllm import Device, Execution, KvRole, NgramSpeculation, VllmLaunch
from trimtab.engines.vllm_checks import Refusal, check_launch

PLAIN = VllmLaunch(model="/models/m", served_name="m", port=8000)
SMOLLM2 = ModelShape(name="smollm2", source="test", layers=30, heads=9, kv_heads=3)
LLAMA = ModelShape(name="llama", source="test", layers=8, heads=8, kv_heads=4)
MOE = ModelShape(name="moe", source="test", layers=6, heads=8, kv_heads=4, experts=8)
LATENT = ModelShape(name="mla", source="test", layers=27, heads=16, kv_heads=1, latent_kv=True)


def refusals(shape: ModelShape | None = None, **changes: object) -> list[Refusal]:
    launch = msgspec.structs.replace(PLAIN, **changes)
    return [problem.refusal for problem in check_launch(launch, shape)]


@pytest.mark.parametrize(
    ("shape", "changes", "expected"),
    [
        (SMOLLM2, {"tensor_parallel": 2}, [Refusal.HEADS, Refusal.KV_HEADS]),
        (LLAMA, {"tensor_parallel": 16}, [Refusal.HEADS]),
        (LLAMA, {"pipeline_parallel": 9}, [Refusal.LAYERS]),
        (LLAMA, {"tensor_parallel": 2, "expert_parallel": True}, [Refusal.EXPERTS]),
        (MOE, {"expert_parallel": True}, [Refusal.EXPERTS]),
        (MOE, {"data_parallel": 2, "expert_parallel": True}, [Refusal.DATA_PARALLEL_EXPERTS]),
        (
            LLAMA,
            {"pipeline_parallel": 2, "execution": Execution.EAGER},
            [Refusal.EAGER_PIPELINE],
        ),
        (LLAMA, {"kv_dtype": "int8_per_token_head"}, [Refusal.KV_TYPE]),
        (LLAMA, {"kv_dtype": "fp8_per_token_head"}, [Refusal.KV_TYPE]),
        (LLAMA, {"kv_dtype": "turboquant_4bit_nc"}, [Refusal.KV_TYPE]),
        (LLAMA, {"quantization": "mxfp8"}, [Refusal.QUANTIZATION]),
        (LLAMA, {"quantization": "experts_int8"}, [Refusal.QUANTIZATION]),
        (LLAMA, {"threads": "0|1"}, [Refusal.THREAD_GROUPS]),
        (LLAMA, {"kv_role": KvRole.BOTH}, [Refusal.SIDE_CHANNEL]),
        (LLAMA, {"kv_events": "tcp://*:5557"}, [Refusal.KV_EVENTS]),
        (LLAMA, {"tensor_parallel": 0, "port": 0}, [Refusal.SIZE, Refusal.SIZE]),
        (
            LLAMA,
            {"data_parallel": 2, "speculation": NgramSpeculation(depth_by_batch=((1, 9, 2),))},
            [Refusal.DEPTH_TABLE],
        ),
    ],
)
def test_launch_that_cannot_work_is_refused_for_its_reason(
    shape: ModelShape, changes: dict[str, object], expected: list[Refusal]
) -> None:
    """Each known failure has a reason of its own, and nothing else is blamed."""
    assert expected == refusals(shape, **changes)


@pytest.mark.parametrize(
    ("shape", "changes"),
    [
        (SMOLLM2, {}),
        (SMOLLM2, {"tensor_parallel": 3, "threads": "0|1|0"}),
        (LLAMA, {"tensor_parallel": 2}),
        (LLAMA, {"tensor_parallel": 8}),
        (LLAMA, {"pipeline_parallel": 2}),
        (LLAMA, {"data_parallel": 2, "threads": "0|1"}),
        (MOE, {"tensor_parallel": 2, "expert_parallel": True}),
        (MOE, {"quantization": "experts_int8"}),
        (LATENT, {"tensor_parallel": 16}),
        (LLAMA, {"kv_dtype": "fp8", "quantization": "fp8_per_channel", "threads": "auto"}),
        (LLAMA, {"kv_role": KvRole.PRODUCER, "side_channel_port": 5600}),
        (LLAMA, {"kv_events": "tcp://127.0.0.1:5557"}),
        (LLAMA, {"speculation": NgramSpeculation(depth_by_batch=((1, 9, 2),))}),
    ],
)
def test_launch_that_works_is_not_refused(shape: ModelShape, changes: dict[str, object]) -> None:
    """Copied KV heads, latent KV and all layouts that were seen to run pass."""
    assert refusals(shape, **changes) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"kv_dtype": "int8_per_token_head"},
        {"quantization": "fp8"},
        {"pipeline_parallel": 2, "execution": Execution.EAGER},
        {"data_parallel": 2, "expert_parallel": True},
    ],
)
def test_what_fails_on_a_cpu_is_left_to_a_gpu(changes: dict[str, object]) -> None:
    """The failures were seen on CPUs; of GPUs they say nothing."""
    assert refusals(MOE, device=Device.GPU, **changes) == []


def test_unknown_shape_is_not_held_against_a_launch() -> None:
    """What cannot be read is not checked."""
    assert refusals(None, tensor_parallel=2, pipeline_parallel=99) == []


def test_refusal_names_the_nearest_layouts_that_work() -> None:
    """A reader learns what to type instead."""
    launch = msgspec.structs.replace(PLAIN, tensor_parallel=2)
    texts = [problem.text for problem in check_launch(launch, SMOLLM2)]
    assert texts[0] == "9 heads do not divide among tensor_parallel 2: use 1 or 3"
