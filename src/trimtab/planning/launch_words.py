"""What a plan's words mean to a vLLM server on a kind of device: types of activations and cache, quantisation, image.

A word that has a meaning is translated into the engine's name; one that the engine lacks on that device is refused with
the nearest that it has, before anything is planned.

Sources, vLLM 0.32: `CacheDType` (config/cache.py); bfloat16 from compute capability 8.0 (platforms/cuda.py); models
that overflow at float16 (`_FLOAT16_NOT_SUPPORTED_MODELS`, config/model.py); an FP8 cache needs FlashInfer from 8.0 or
Triton from 8.9, NVFP4 FlashInfer and heads that are not of 64 before Blackwell (v1/attention/backends/flashinfer.py,
triton_attn.py), CPUs hold FP8 with AVX-512, and of latent attention the model's own type only (cpu_attn.py,
mla/cpu_mla.py); FP8 of weights needs 7.5 (layers/quantization/fp8.py). Capabilities: NVIDIA, "CUDA GPU Compute
Capability".
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import msgspec

from trimtab.core.layout import PlanInputError
from trimtab.core.served import EngineKind, ModelShape
from trimtab.engines.kv_types import KvDevice, judge_kv_type
from trimtab.engines.vllm import VERSION
from trimtab.planning.precision import find_precision, stored_bits, with_precision

AUTO: Final = "auto"
BFLOAT16: Final = "bfloat16"
FLOAT16: Final = "float16"
FLOAT32: Final = "float32"

_CAPABILITIES: Final[Mapping[str, float]] = {"V100 SXM2 32GB": 7.0, "T4": 7.5}
"""Of devices before 8.0; every other one of the table has at least that."""

_BFLOAT16_FROM: Final = 8.0
_CACHE_FROM: Final = 8.0
_FP8_WEIGHTS_FROM: Final = 7.5
_BLACKWELL: Final = ("B200", "B300", "GB200", "GB300")
_OVERFLOWING: Final = frozenset({"gemma2", "gemma3", "gemma3_text", "glm4"})
_HEAD_MISREAD: Final = 64
_UNQUANTISED_BITS: Final = 16.0

_CACHE: Final[Mapping[str, str]] = {
    "auto": AUTO, "16": AUTO, "bf16": BFLOAT16, "bfloat16": BFLOAT16, "fp16": FLOAT16, "float16": FLOAT16,
    "8": "fp8", "fp8": "fp8", "fp8_e4m3": "fp8_e4m3", "fp8_e5m2": "fp8_e5m2",
    "4": "nvfp4", "fp4": "nvfp4", "nvfp4": "nvfp4",
}  # fmt: skip
"""Words of `--kv-precision` to names of the engine. It has no plain int8: integers are kept per token and head there,
which answered with garbage where it was tried.
"""


class Maker(StrEnum):
    """Whose device a server runs on, which decides its image and what Kubernetes calls it."""

    CPU = "cpu"
    NVIDIA = "nvidia"
    AMD = "amd"


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """The kind of device of a server. `device`: its name in the table of accelerators, or this machine's CPU.

    `wide_vectors`: of a CPU, that it has AVX-512.
    """

    device: str
    maker: Maker
    wide_vectors: bool = True

    @property
    def capability(self) -> float:
        """NVIDIA's compute capability, or the least that every other device of the table has."""
        return _CAPABILITIES.get(self.device, _BFLOAT16_FROM)

    @property
    def image(self) -> str:
        """The image of the engine's makers for it."""
        names = {Maker.CPU: "vllm-openai-cpu", Maker.NVIDIA: "vllm-openai", Maker.AMD: "vllm-openai-rocm"}  # fmt: skip
        return f"vllm/{names[self.maker]}:v{VERSION}"

    @property
    def resource(self) -> str:
        """What Kubernetes counts it by; empty for CPUs, which are counted with their memory."""
        names = {Maker.CPU: "", Maker.NVIDIA: "nvidia.com/gpu", Maker.AMD: "amd.com/gpu"}
        return names[self.maker]


def server_of(device: str, *, is_cpu: bool, wide_vectors: bool = True) -> Server:
    """Return the kind of server on a device of the table, or on CPUs with or without AVX-512."""
    if is_cpu:
        return Server(device=device, maker=Maker.CPU, wide_vectors=wide_vectors)
    return Server(device=device, maker=Maker.AMD if device.startswith("MI") else Maker.NVIDIA)


def dtype_of(server: Server, precision: str, model_type: str) -> str:
    """Return the type of activations: float32 or float16 where weights are asked for so, float16 where there is no
    bfloat16.

    Raises `PlanInputError` for a model that overflows at the only type that the device has.
    """
    if precision and find_precision(precision).name == "fp32":
        return FLOAT32
    absent = server.maker is Maker.NVIDIA and server.capability < _BFLOAT16_FROM
    if not absent and precision.lower() not in ("fp16", FLOAT16):
        return BFLOAT16
    if model_type not in _OVERFLOWING:
        return FLOAT16
    if absent:
        raise PlanInputError(
            "hardware",
            f"{server.device} has no bfloat16, and {model_type} overflows at float16: vLLM does not start it",
            ("A10", "L4"),
        )
    raise PlanInputError(
        "precision", f"{model_type} overflows at float16: vLLM does not start it", ("bf16",)
    )


def kv_dtype_of(asked: str, *, dtype: str, server: Server, model: ModelShape) -> str:
    """Return the engine's name of a cache precision, "auto" for the type of activations.

    Raises `PlanInputError` for what the engine does not hold on such a device, with what it does.
    """
    name = _CACHE.get(asked.lower())
    same = {BFLOAT16: "bf16", FLOAT16: "fp16"}.get(dtype, AUTO)
    if name in (AUTO, dtype):
        return AUTO
    if name in (BFLOAT16, FLOAT16):
        why = f"vLLM keeps the cache in the type it computes in, which is {dtype}"
        raise PlanInputError("kv_precision", f"{asked!r} is not that: {why}", (same,))
    narrow = () if _why_no_narrow(server, model) else ("fp8", "fp8_e5m2")
    if name is None:
        raise PlanInputError("kv_precision", f"vLLM holds no cache in {asked!r}", (*narrow, same))
    why_not = _why_no_narrow(server, model)
    if not why_not and name == "nvfp4":
        why_not = _why_no_nvfp4(server, model)
    if why_not:
        raise PlanInputError("kv_precision", f"{asked!r}: {why_not}", (*narrow, same))
    return name


def _why_no_narrow(server: Server, model: ModelShape) -> str:
    if server.maker is Maker.NVIDIA and server.capability < _CACHE_FROM:
        return f"vLLM narrows no cache on {server.device}"
    if server.maker is Maker.CPU and model.latent_kv:
        return "vLLM on CPUs keeps latent attention's cache in the model's own type"
    if server.maker is Maker.CPU and not server.wide_vectors:
        return f"vLLM on CPUs narrows the cache with AVX-512 only, which {server.device} has not"
    return ""


def _why_no_nvfp4(server: Server, model: ModelShape) -> str:
    if server.maker is not Maker.NVIDIA:
        return f"vLLM holds no 4-bit cache on {server.maker} devices"
    if model.latent_kv:
        return "vLLM holds latent attention's cache in no plain 4-bit type"
    if model.head_size == _HEAD_MISREAD and not server.device.startswith(_BLACKWELL):
        return f"vLLM misreads a 4-bit cache of heads of {_HEAD_MISREAD} on {server.device}"
    return ""


def unknown_of_cache(kv_dtype: str, server: Server) -> str:
    """Say what is not known of a cache type on a device, empty where it was seen to work."""
    device = KvDevice.CPU if server.maker is Maker.CPU else KvDevice.ACCELERATOR
    return judge_kv_type(EngineKind.VLLM.value, kv_dtype, device).unknown


class Quantization(msgspec.Struct, frozen=True, kw_only=True):
    """How weights come to a precision: `option`, the engine's own at load, or `stored`, what the checkpoint must be."""

    option: str = ""
    stored: str = ""


def quantization_of(stored: ModelShape, asked: str, server: Server) -> Quantization:
    """Return how a checkpoint comes to the precision asked for; nothing is needed where it is stored so.

    vLLM makes FP8 of weights of 16 bit as it loads them, and nothing else of what is narrow already. Raises
    `PlanInputError` where the device has no FP8 of weights.
    """
    if not asked:
        return Quantization()
    wanted = find_precision(asked)
    if with_precision(stored, asked) is stored:
        return Quantization()
    if wanted.name != "fp8" or stored_bits(stored) < _UNQUANTISED_BITS:
        return Quantization(stored=wanted.name)
    if server.maker is Maker.CPU:
        # Scales per tensor end a server on CPUs.
        return Quantization(option="fp8_per_channel")
    if server.maker is Maker.NVIDIA and server.capability < _FP8_WEIGHTS_FROM:
        raise PlanInputError("precision", f"vLLM makes no FP8 on {server.device}", ("fp16",))
    return Quantization(option="fp8")
