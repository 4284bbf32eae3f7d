"""What a vLLM server says of itself over HTTP, and where that differs from what was asked for."""

import re
from typing import Final

import msgspec

from trimtab.core.ports import EngineFormatError
from trimtab.engines.vllm import Execution, VllmLaunch
from trimtab.engines.vllm_log import StartReport

_INFO: Final = re.compile(r"^vllm:cache_config_info\{(?P<labels>.*)\} ", re.MULTILINE)
_BLOCKS: Final = re.compile(r'\bnum_gpu_blocks="(\d+)"')
_BLOCK_TOKENS: Final = re.compile(r'\bblock_size="(\d+)"')
_ENGINE: Final = re.compile(r'^vllm:num_requests_running\{.*\bengine="(\d+)"', re.MULTILINE)
_REQUESTS: Final = re.compile(
    r"^vllm:num_requests_(?:running|waiting)\{.*\} ([\d.e+]+)$", re.MULTILINE
)


class ServedModel(msgspec.Struct, frozen=True, rename={"context_tokens": "max_model_len"}):
    """A model as the server lists it: the name clients use, its context, and where its files lie."""

    id: str
    context_tokens: int | None = None
    root: str | None = None


class _Models(msgspec.Struct, frozen=True):
    data: tuple[ServedModel, ...]


def read_models(body: bytes) -> ServedModel:
    """Read the first model of a /v1/models answer; raises `EngineFormatError`."""
    try:
        models = msgspec.json.decode(body, type=_Models)
    except msgspec.MsgspecError as error:
        raise EngineFormatError(f"no list of models ({error})") from error
    if not models.data:
        raise EngineFormatError("an empty list of models")
    return models.data[0]


def read_cache(body: bytes) -> dict[str, int]:
    """Read from /metrics: `kv_blocks` and `block_tokens` of one engine, `requests` in all of them, waiting or not.

    `engines`: how many there are, one per data-parallel rank.
    """
    text = body.decode("utf-8", "replace")
    found = {"requests": round(sum(float(value) for value in _REQUESTS.findall(text)))}
    if engines := set(_ENGINE.findall(text)):
        found["engines"] = len(engines)
    if (info := _INFO.search(text)) is not None:
        for name, pattern in (("kv_blocks", _BLOCKS), ("block_tokens", _BLOCK_TOKENS)):
            if (match := pattern.search(info["labels"])) is not None:
                found[name] = int(match[1])
    return found


def differences(
    launch: VllmLaunch, report: StartReport, model: ServedModel, engines: int | None = None
) -> tuple[str, ...]:
    """Return, in words, what a server runs otherwise than asked for; what it does not say is not compared.

    `engines`: how many /metrics tells of. Each logs a configuration of its own, in which it is the only one.
    """
    asked: dict[str, object] = {
        "dtype": launch.dtype,
        "context_tokens": launch.context_tokens,
        "tensor_parallel": launch.tensor_parallel,
        "pipeline_parallel": launch.pipeline_parallel,
        "data_parallel": launch.data_parallel,
        "quantization": launch.quantization or None,
        "kv_dtype": launch.kv_dtype,
        "seed": launch.seed,
        "prefix_caching": launch.prefix_caching,
        "chunked_prefill": launch.chunked_prefill,
        "enforce_eager": launch.chosen_execution is Execution.EAGER,
        "speculation": None if launch.speculation is None else "ngram",
    }
    # A checkpoint that is quantized already names its own method.
    if not launch.quantization:
        del asked["quantization"]
    said = dict(report.settings)
    if model.context_tokens is not None:
        said["context_tokens"] = str(model.context_tokens)
    said.pop("data_parallel", None)
    if engines is not None:
        said["data_parallel"] = str(engines)
    found = [
        f"{name}: asked for {wanted}, runs {said[name]}"
        for name, wanted in asked.items()
        if name in said and said[name] != str(wanted)
    ]
    blocks = launch.kv_blocks
    if blocks and report.kv_blocks is not None and report.kv_blocks != blocks:
        found.append(f"kv_blocks: asked for {blocks}, runs {report.kv_blocks}")
    return tuple(found)
