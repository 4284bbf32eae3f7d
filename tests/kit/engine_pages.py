"""Pages of further engines from the loads of `scrape_kit`: vLLM's first engine, TGI, TensorRT-LLM, Dynamo."""

from collections.abc import Mapping
from typing import Any

from scrape_kit import LENGTHS, SECONDS, STEPS, VLLM, Load, page_of

VLLM_V0: Mapping[str, tuple[Any, str]] = {
    **{
        field: VLLM[field]
        for field in ("running", "waiting", "preemptions", "prompt_tokens", "output_tokens")
    },
    "kv": ("gauge", "vllm:gpu_cache_usage_perc"),
    "hit_gauge": ("gauge", "vllm:gpu_prefix_cache_hit_rate"),
    "output_gauge": ("gauge", "vllm:avg_generation_throughput_toks_per_s"),
    "ttft": VLLM["ttft"],
    "queue": (SECONDS, "vllm:time_in_queue_requests"),
    "chunk_gap": (STEPS, "vllm:time_per_output_token_seconds"),
    "e2e": VLLM["e2e"],
    "finished": VLLM["finished"],
}
TGI: Mapping[str, tuple[Any, str]] = {
    "running": ("gauge", "tgi_batch_current_size"),
    "waiting": ("gauge", "tgi_queue_size"),
    "finished": ("counter", "tgi_request_success"),
    "e2e": (SECONDS, "tgi_request_duration"),
    "queue": (SECONDS, "tgi_request_queue_duration"),
    "tpot": (STEPS, "tgi_request_mean_time_per_token_duration"),
    "prompt_length": (LENGTHS, "tgi_request_input_length"),
    "output_length": (LENGTHS, "tgi_request_generated_tokens"),
}
TRTLLM: Mapping[str, tuple[Any, str]] = {
    "running": ("gauge", "trtllm_num_requests_running"),
    "waiting": ("gauge", "trtllm_num_requests_waiting"),
    "kv": ("gauge", "trtllm_kv_cache_utilization"),
    "prompt_tokens": ("counter", "trtllm_prompt_tokens_total"),
    "hits": ("counter", "trtllm_prompt_cached_tokens_total"),
    "output_tokens": ("counter", "trtllm_generation_tokens_total"),
    "finished": ("counter", "trtllm_request_success_total"),
    "ttft": (SECONDS, "trtllm_time_to_first_token_seconds"),
    "queue": (SECONDS, "trtllm_request_queue_time_seconds"),
    "prefill": (SECONDS, "trtllm_request_prefill_time_seconds"),
    "decode": (SECONDS, "trtllm_request_decode_time_seconds"),
    "e2e": (SECONDS, "trtllm_e2e_request_latency_seconds"),
    "tpot": (STEPS, "trtllm_time_per_output_token_seconds"),
    "drafted": ("counter", "trtllm_spec_decode_num_draft_tokens_total"),
    "accepted": ("counter", "trtllm_spec_decode_num_accepted_tokens_total"),
    "transfer": (SECONDS, "trtllm_kv_transfer_latency_seconds"),
    "transfer_bytes": ((2.0**20, 2.0**25, 2.0**30), "trtllm_kv_transfer_bytes"),
}
DYNAMO: Mapping[str, tuple[Any, str]] = {
    "in_flight": ("gauge", "dynamo_frontend_inflight_requests"),
    "waiting": ("gauge", "dynamo_frontend_queued_requests"),
    "output_tokens": ("counter", "dynamo_frontend_output_tokens_total"),
    "finished": ("counter", 'dynamo_frontend_requests_total{status="success"}'),
    "ttft": (SECONDS, "dynamo_frontend_time_to_first_token_seconds"),
    "tpot": (STEPS, "dynamo_frontend_inter_token_latency_seconds"),
    "e2e": (SECONDS, "dynamo_frontend_request_duration_seconds"),
    "prompt_length": (LENGTHS, "dynamo_frontend_input_sequence_tokens"),
    "output_length": (LENGTHS, "dynamo_frontend_output_sequence_tokens"),
}


class _Told:
    """A load with what only some engines say, worked out from its fields."""

    def __init__(self, load: Load) -> None:
        self._load = load

    def __getattr__(self, field: str) -> Any:
        load = self._load
        if field == "hit_gauge":
            return None if load.hits is None or not load.queries else load.hits / load.queries
        if field == "in_flight":
            return None if load.running is None else load.running + (load.waiting or 0.0)
        return getattr(load, field)


def _labelled(names: Mapping[str, tuple[Any, str]], label: str, loads: tuple[Load, ...]) -> str:
    several = len(loads) > 1
    labels = [
        f'{label},dp_rank="{rank}"'.lstrip(",") if several else label for rank in range(len(loads))
    ]
    told: list[tuple[str, Any]] = [
        (text, _Told(load)) for text, load in zip(labels, loads, strict=True)
    ]
    return page_of(names, told)


def vllm_v0(load: Load) -> str:
    """A page of vLLM before its second engine: a hit rate without counters, an older name for KV usage."""
    more = '# TYPE vllm:cpu_cache_usage_perc gauge\nvllm:cpu_cache_usage_perc{model_name="m"} 0.0\n'
    return _labelled(VLLM_V0, 'model_name="m"', (load,)) + more


def tgi(load: Load) -> str:
    """A page of text-generation-inference, which labels nothing and tells neither TTFT nor KV usage."""
    return _labelled(TGI, "", (load,))


def trtllm(*ranks: Load) -> str:
    """A page of TensorRT-LLM's server."""
    return _labelled(TRTLLM, 'model_name="m",engine_type="trt"', ranks)


def dynamo(load: Load) -> str:
    """A page of Dynamo's front end: requests in flight include those that wait, nothing of KV usage."""
    return _labelled(DYNAMO, 'model="m"', (load,))
