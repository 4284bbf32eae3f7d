"""vLLM's log is read for what a start took, and kept without what a request said."""

import pytest

from trimtab.engines.vllm import VllmLaunch
from trimtab.engines.vllm_effective import ServedModel, differences, read_cache, read_models
from trimtab.engines.vllm_log import (
    RankMemory,
    StartReport,
    keepable_line,
    last_error,
    read_start_log,
    start_stage,
)

GIB = 2**30
SECRET = "the patient's name is"

OLD_GPU = """\
INFO 03-01 10:30:55 model_runner.py:1115] Loading model weights took 2.8797 GB
INFO 03-01 10:30:57 worker.py:267] model weights take 2.88GiB; non_torch_memory takes 0.05GiB; \
PyTorch activation peak memory takes 1.40GiB; the rest of the memory reserved for KV Cache is 15.52GiB.
INFO 03-01 10:30:57 executor_base.py:110] # CUDA blocks: 36332, # CPU blocks: 9362
INFO 03-01 10:30:57 executor_base.py:115] Maximum concurrency for 4096 tokens per request: 141.92x
"""
NEW_GPU = """\
(EngineCore pid=7) INFO 11-30 00:25:39 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: \
model='m', speculative_config=None, dtype=torch.float16, max_seq_len=8192, tensor_parallel_size=2, \
pipeline_parallel_size=1, data_parallel_size=1, quantization=fp8, kv_cache_dtype=fp8, seed=0, \
enable_prefix_caching=True, enable_chunked_prefill=True, pooler_config=None
(Worker_TP0 pid=8) INFO 11-30 00:25:41 [gpu_model_runner.py:5149] Model loading took 7.51 GiB memory and 5.8 seconds
(Worker_TP1 pid=9) INFO 11-30 00:25:41 [gpu_model_runner.py:5149] Model loading took 7.49 GiB memory and 5.8 seconds
(Worker_TP0 pid=8) INFO 11-30 00:25:45 [gpu_worker.py:759] Available KV cache memory: 58.25 GiB
(Worker_TP1 pid=9) INFO 11-30 00:25:45 [gpu_worker.py:759] Available KV cache memory: 58.26 GiB
(EngineCore pid=7) INFO 11-30 00:25:45 [kv_cache_utils.py:2327] GPU KV cache size: 954,352 tokens, \
Maximum concurrency for 8,192 tokens per request: 116.50x
(Worker_TP0 pid=8) INFO 11-30 00:25:50 [gpu_model_runner.py:6581] Graph capturing finished in 20 secs, took 0.55 GiB
(Worker_TP0 pid=8) INFO 11-30 00:25:51 [gpu_worker.py:1020] Free memory on device (78.5/79.11 GiB) on startup. \
Actual usage is 8.01 GiB for consumed memory (weights + non-torch), 1.25 GiB for peak activation, and 0.56 GiB \
for CUDAGraph memory. Current kv cache memory in use is 58.25 GiB.
(EngineCore pid=7) INFO 11-30 00:25:52 [core.py:386] init engine (profile, create kv cache, warmup model) \
took 31.20 s (compilation: 9.10 s)
"""


def gib(amount: float) -> int:
    return round(amount * GIB)


def test_every_term_of_the_old_wording_is_read() -> None:
    """Weights, activation, the rest, KV cache, blocks and concurrency of vLLM before its second engine."""
    report = read_start_log(OLD_GPU)
    assert report.ranks == (
        RankMemory(
            process="",
            weights=gib(2.88),
            activation_peak=gib(1.40),
            other=gib(0.05),
            kv_cache=gib(15.52),
        ),
    )
    assert (report.kv_blocks, report.concurrency_max, report.concurrency_tokens) == (
        36332,
        141.92,
        4096,
    )


def test_ranks_keep_apart_and_their_sizes_add_up() -> None:
    """Each process tells of its own memory; what the whole server takes is their sum."""
    report = read_start_log(NEW_GPU)
    assert [rank.process for rank in report.ranks] == ["Worker_TP0", "Worker_TP1"]
    assert report.weights_bytes == gib(7.51) + gib(7.49)
    assert report.kv_cache_bytes == gib(58.25) + gib(58.26)
    first = report.ranks[0]
    assert (first.consumed, first.activation_peak, first.graphs) == (
        gib(8.01),
        gib(1.25),
        gib(0.56),
    )


def test_workers_of_one_name_are_told_apart_by_their_process() -> None:
    """Data-parallel ranks are all called Worker."""
    line = (
        "(Worker pid={}) INFO 11-30 00:26:05 [x.py:1] Weights of this rank: {} bytes in 2 tensors"
    )
    report = read_start_log("\n".join(line.format(pid, size) for pid, size in ((8, 5), (7, 6))))
    assert [(rank.process, rank.weights) for rank in report.ranks] == [("Worker", 6), ("Worker", 5)]
    assert report.weights_bytes == 11


def test_engine_wide_facts_and_settings_are_read() -> None:
    """Capacity and what the engine says it runs, under the names of a launch."""
    report = read_start_log(NEW_GPU)
    assert (report.version, report.kv_tokens, report.concurrency_max, report.init_s) == (
        "0.32.0",
        954_352,
        116.5,
        31.2,
    )
    wanted = {"dtype": "float16", "quantization": "fp8", "kv_dtype": "fp8", "speculation": "None"}
    assert {name: report.settings[name] for name in wanted} == wanted


@pytest.mark.parametrize("text", ["", "\n\n", "Traceback\n  File x\nKeyError: 'GiB'", "GiB " * 99])
def test_log_that_says_nothing_gives_an_empty_report(text: str) -> None:
    """Absent is None, never 0."""
    report = read_start_log(text)
    assert report == StartReport()
    assert (report.weights_bytes, report.kv_cache_bytes) == (None, None)


def test_counted_bytes_go_before_rounded_ones() -> None:
    """Our plugin's line on a CPU is exact."""
    line = "(Worker_TP1 pid=5) INFO 11-30 00:26:05 [x.py:1] Weights of this rank: 269 bytes in 2 tensors"
    assert read_start_log(line).ranks == (RankMemory(process="Worker_TP1", weights=269),)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            f"(APIServer pid=1) ERROR 11-30 00:26:05 [serving.py:1] Bad prompt: {SECRET}",
            "ERROR 11-30 00:26:05 [serving.py:1]",
        ),
        (
            f"(EngineCore pid=1) ERROR 11-30 00:26:05 [core.py:9] ValueError: {SECRET}",
            "ValueError",
        ),
        (f"pydantic.errors.ValidationError: {SECRET}", "pydantic.errors.ValidationError"),
        (f'  File "/a/b.py", line 12, in {SECRET}', '  File "/a/b.py", line 12'),
        (f"    call({SECRET})", None),
        (f"(APIServer pid=1) INFO 11-30 00:26:05 [logger.py:4] Received request: {SECRET}", None),
        (f"{SECRET} loggers.py INFO", None),
        (
            "(APIServer pid=1) INFO 11-30 00:26:05 [loggers.py:4] Engine 000: 1.0 tokens/s",
            "(APIServer pid=1) INFO 11-30 00:26:05 [loggers.py:4] Engine 000: 1.0 tokens/s",
        ),
        (f"Fatal Python error: Aborted {SECRET}", "Fatal Python error: Aborted"),
    ],
)
def test_no_line_of_a_serving_server_carries_a_prompt(line: str, expected: str | None) -> None:
    """Of complaints stays what, when and where; what they quote does not."""
    assert expected == keepable_line(line)


def test_last_error_is_the_cause_and_not_what_followed() -> None:
    """Lines after an error that are no error do not hide it."""
    lines = [
        "(EngineCore pid=1) ERROR 11-30 00:26:05 [core.py:9] ValueError: heads (9) must divide",
        "(APIServer pid=1) INFO 11-30 00:26:05 [launcher.py:9] shutting down",
    ]
    assert last_error(lines) == "ValueError: heads (9) must divide"
    assert last_error(["all is well"]) == ""


def test_error_of_a_worker_is_told_and_not_the_line_that_points_at_it() -> None:
    """As vLLM 0.32 ends on a CPU without AVX-512 that is asked for a KV cache of 8 bits."""
    said = "FP8 KV cache on CPU requires x86 with AVX-512 or AMX."
    core = "(EngineCore pid=1) ERROR 11-30 23:34:01 [core.py:1510] RuntimeError: Worker failed with error"
    lines = [
        f"(Worker pid=2) ERROR 11-30 23:34:01 [multiproc_executor.py:1063] NotImplementedError: {said}",
        f"{core} '{said}', please check the stack trace above for the root cause",
        "    raise RuntimeError(",
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
    ]
    assert last_error(lines) == said
    assert last_error(lines[3:]).startswith("RuntimeError: Engine core initialization failed")


def test_stage_of_a_start_is_told_in_words() -> None:
    """Progress follows the log; other lines say nothing of it."""
    lines = [*NEW_GPU.splitlines(), "INFO:     Application startup complete."]
    assert [start_stage(line) for line in (lines[0], lines[1], lines[-1])] == [
        "starting the engine",
        None,
        "answering",
    ]


def test_what_runs_otherwise_than_asked_for_is_named() -> None:
    """Requested and effective are compared, and what the server does not say is not held against it."""
    launch = VllmLaunch(model="m", served_name="m", port=1, context_tokens=8192, tensor_parallel=2)
    report = read_start_log(NEW_GPU)
    found = differences(launch, report, ServedModel("m", 4096, "m"))
    assert found == (
        "dtype: asked for bfloat16, runs float16",
        "context_tokens: asked for 8192, runs 4096",
        "kv_dtype: asked for auto, runs fp8",
    )
    assert differences(launch, StartReport(), ServedModel("m")) == ()


def test_data_parallel_ranks_are_counted_by_their_metrics() -> None:
    """Each rank's log says that it is alone; the page has a label for each."""
    launch = VllmLaunch(model="m", served_name="m", port=1, data_parallel=2)
    alone = StartReport(settings={"data_parallel": "1"})
    found = [differences(launch, alone, ServedModel("m"), engines) for engines in (1, 2, None)]
    assert found == [("data_parallel: asked for 2, runs 1",), (), ()]


def test_capacity_and_open_requests_are_read_from_metrics() -> None:
    """Requests of all ranks add up; block counts are one engine's."""
    page = (
        'vllm:cache_config_info{block_size="128",num_gpu_blocks="91",x="}"} 1.0\n'
        'vllm:num_requests_running{engine="0",model_name="m"} 2.0\n'
        'vllm:num_requests_running{engine="1",model_name="m"} 1.0\n'
        'vllm:num_requests_waiting{engine="0",model_name="m"} 3.0\n'
        'vllm:num_requests_waiting_by_reason{reason="capacity"} 3.0\n'
    )
    assert read_cache(page.encode()) == {
        "kv_blocks": 91,
        "block_tokens": 128,
        "requests": 6,
        "engines": 2,
    }
    assert read_cache(b"") == {"requests": 0}


def test_served_model_is_read_from_its_list() -> None:
    """The first one counts; other keys are ignored."""
    body = b'{"data":[{"id":"m","root":"/x","max_model_len":4096,"owned_by":"vllm"}]}'
    assert read_models(body) == ServedModel("m", 4096, "/x")
