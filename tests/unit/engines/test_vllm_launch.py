"""A launch of vLLM becomes exactly one command."""

import msgspec
import pytest

from trimtab.engines.vllm import (
    Device,
    Execution,
    KvFailure,
    KvRole,
    NgramSpeculation,
    VllmLaunch,
    bind_threads,
    launch_command,
)

PLAIN = VllmLaunch(model="/models/m", served_name="m", port=8000)
ALWAYS = (
    *("python", "-m", "vllm.entrypoints.openai.api_server", "--model", "/models/m"),
    *("--served-model-name", "m", "--host", "127.0.0.1", "--port", "8000"),
    *("--max-model-len", "4096", "--dtype", "bfloat16", "--seed", "0"),
    *("--enable-prompt-tokens-details", "--disable-uvicorn-access-log"),
)


def more(**changes: object) -> tuple[str, ...]:
    """Return what a launch's command has beyond what every command has."""
    argv = launch_command(msgspec.structs.replace(PLAIN, **changes)).argv
    assert argv[: len(ALWAYS)] == ALWAYS
    return argv[len(ALWAYS) :]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ("--enforce-eager",)),
        ({"tensor_parallel": 2}, ("--tensor-parallel-size", "2", "--enforce-eager")),
        (
            {"pipeline_parallel": 2},
            ("--pipeline-parallel-size", "2", "-cc.mode=3", "-cc.backend=eager"),
        ),
        ({"data_parallel": 2}, ("--data-parallel-size", "2", "--enforce-eager")),
        (
            {"tensor_parallel": 2, "expert_parallel": True},
            ("--tensor-parallel-size", "2", "--enable-expert-parallel", "--enforce-eager"),
        ),
        ({"execution": Execution.COMPILED}, ()),
        ({"device": Device.GPU}, ()),
        (
            {"kv_cache_bytes": 1024, "kv_blocks": 7, "block_tokens": 32},
            (
                *("--enforce-eager", "--kv-cache-memory-bytes", "1024"),
                *("--num-gpu-blocks-override", "7", "--block-size", "32"),
            ),
        ),
        (
            {"device": Device.GPU, "memory_share": 0.85},
            ("--gpu-memory-utilization", "0.85"),
        ),
        (
            {"prefix_caching": False, "chunked_prefill": False, "kv_dtype": "fp8"},
            (
                *("--enforce-eager", "--no-enable-prefix-caching", "--kv-cache-dtype", "fp8"),
                "--no-enable-chunked-prefill",
            ),
        ),
        (
            {"sequences_max": 8, "batched_tokens_max": 512, "quantization": "fp8_per_channel"},
            (
                *("--enforce-eager", "--max-num-seqs", "8", "--max-num-batched-tokens", "512"),
                *("--quantization", "fp8_per_channel"),
            ),
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_only_what_differs_from_the_default_is_passed(
    changes: dict[str, object], expected: tuple[str, ...]
) -> None:
    """A command shows what was chosen; everything else is vLLM's own choice."""
    assert expected == more(**changes)


def test_speculation_is_one_json_value_with_its_depth_table() -> None:
    """The table's rows keep their order, and without a table there is no key for it."""
    plain = NgramSpeculation(draft_tokens=3)
    table = NgramSpeculation(depth_by_batch=((1, 4, 4), (5, 256, 0)))
    told = [msgspec.json.decode(more(speculation=each)[-1]) for each in (plain, table)]
    base = {"method": "ngram", "prompt_lookup_max": 4, "prompt_lookup_min": 2}
    assert told == [
        base | {"num_speculative_tokens": 3},
        base
        | {
            "num_speculative_tokens": 5,
            "num_speculative_tokens_per_batch_size": [[1, 4, 4], [5, 256, 0]],
        },
    ]


def test_kv_role_brings_its_connector_and_a_side_channel_on_loopback() -> None:
    """Others fetch KV over the side channel: it must not be reachable from elsewhere."""
    launch = msgspec.structs.replace(PLAIN, kv_role=KvRole.BOTH, side_channel_port=5600)
    command = launch_command(launch)
    transfer = msgspec.json.decode(command.argv[command.argv.index("--kv-transfer-config") + 1])
    assert transfer == {
        "kv_connector": "NixlConnector",
        "kv_role": "kv_both",
        "kv_buffer_device": "cpu",
    }
    assert command.env["VLLM_NIXL_SIDE_CHANNEL_HOST"] == "127.0.0.1"
    assert command.env["VLLM_NIXL_SIDE_CHANNEL_PORT"] == "5600"
    assert "VLLM_NIXL_SIDE_CHANNEL_PORT" not in launch_command(PLAIN).env


def test_lease_and_failure_of_kv_are_passed_where_they_differ() -> None:
    """A prefill server's lease, and a decode server that computes what did not come."""
    launch = msgspec.structs.replace(
        PLAIN,
        kv_role=KvRole.BOTH,
        side_channel_port=5600,
        kv_lease_s=5,
        kv_failure=KvFailure.RECOMPUTE,
    )
    argv = launch_command(launch).argv
    transfer = msgspec.json.decode(argv[argv.index("--kv-transfer-config") + 1])
    assert transfer["kv_connector_extra_config"] == {"kv_lease_duration": 5}
    assert transfer["kv_load_failure_policy"] == "recompute"


def test_kv_events_go_to_the_endpoint_that_was_named() -> None:
    """The endpoint is passed as it is; whether it is safe is for the checks."""
    argv = more(kv_events="tcp://127.0.0.1:5557")
    config = msgspec.json.decode(argv[argv.index("--kv-events-config") + 1])
    assert config == {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": "tcp://127.0.0.1:5557",
    }


def test_repairs_are_loaded_on_a_cpu_alone_and_where_they_are_needed() -> None:
    """No other server runs with changed code; the plugin that only counts weights comes with every CPU."""
    experts = msgspec.structs.replace(PLAIN, tensor_parallel=2, expert_parallel=True)
    pair = msgspec.structs.replace(PLAIN, kv_role=KvRole.BOTH)
    launches = (PLAIN, experts, pair, msgspec.structs.replace(experts, kv_role=KvRole.BOTH))
    on_gpu = [msgspec.structs.replace(launch, device=Device.GPU) for launch in launches]
    loaded = [
        launch_command(launch, plugins="/plugins").env.get("VLLM_PLUGINS")
        for launch in (*launches, *on_gpu)
    ]
    assert loaded == [
        "trimtab_vllm_weights",
        "trimtab_vllm_weights,trimtab_vllm_repairs",
        "trimtab_vllm_weights,trimtab_vllm_transfer",
        "trimtab_vllm_weights,trimtab_vllm_repairs,trimtab_vllm_transfer",
        *[None] * 4,
    ]


def test_nothing_is_fetched_and_nothing_is_reported_home() -> None:
    """A server runs from files at hand and tells nobody of it."""
    env = launch_command(PLAIN).env
    names = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "VLLM_NO_USAGE_STATS", "DO_NOT_TRACK")
    assert [env.get(name) for name in names] == ["1"] * 4


@pytest.mark.parametrize(
    ("cpus", "ranks", "expected"),
    [
        ((0, 1), 1, "0,1"),
        ((0, 1), 2, "0|1"),
        ((2, 3, 5, 7, 9), 2, "2,3|5,7"),
        ((0, 1), 3, "0|1|0"),
    ],
)
def test_ranks_get_equal_shares_of_the_cpus(
    cpus: tuple[int, ...], ranks: int, expected: str
) -> None:
    """Equal ranks wait for each other, so a remainder is left free; too few CPUs are taken in turn."""
    assert expected == bind_threads(cpus, ranks)


def test_binding_without_cpus_is_an_error() -> None:
    """There is no share of nothing."""
    with pytest.raises(ValueError, match="no CPUs"):
        bind_threads((), 2)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "single"),
        ({"tensor_parallel": 2, "expert_parallel": True}, "tp2-ep"),
        ({"tensor_parallel": 2, "pipeline_parallel": 3, "data_parallel": 4}, "tp2-pp3-dp4"),
    ],
)
def test_layout_has_a_short_name(changes: dict[str, object], expected: str) -> None:
    """Sizes of one are left out."""
    assert expected == msgspec.structs.replace(PLAIN, **changes).layout
