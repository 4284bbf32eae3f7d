"""What starts a layout elsewhere: one command in every form, with the fields that each kind of manifest must have."""

import re
from typing import Any

import pytest

from trimtab.core.layout import Layout, PlanInputError
from trimtab.planning.launch_words import Maker, Server
from trimtab.planning.manifests import CpuRoom, Deployment, command_of, kubernetes, ray_serve


def deployment(layout: Layout, **fields: Any) -> Deployment:
    return Deployment(
        **{
            "name": "qwen3-32b",
            "model": "Qwen/Qwen3-32B",
            "layout": layout,
            "devices_per_node": 8,
            "context_tokens": 8192,
        }
        | fields
    )


def test_command_names_every_size_of_the_layout() -> None:
    """What is not 1 is passed, what is 1 is left to the engine."""
    command = command_of(deployment(Layout(tp=4, pp=2, replicas=3), quantization="fp8"))
    assert "--tensor-parallel-size 4" in command
    assert "--pipeline-parallel-size 2" in command
    assert "--data-parallel-size" not in command
    assert "--quantization fp8" in command
    assert "--gpu-memory-utilization 0.9" in command


def test_command_of_a_pod_may_fetch_and_meet_others() -> None:
    """What keeps a local launch on loopback and offline does not go along."""
    command = command_of(deployment(Layout(tp=2)))
    assert re.search("OFFLINE|LOOPBACK|HOST_IP", command) is None
    assert "--host 0.0.0.0" in command


def test_one_node_is_a_deployment_with_its_replicas() -> None:
    """Each pod asks for the devices of a replica, and the selector finds its pods."""
    app, service = kubernetes(deployment(Layout(tp=2, replicas=4)))
    pod = app["spec"]["template"]
    container = pod["spec"]["containers"][0]
    assert (app["kind"], app["apiVersion"], app["spec"]["replicas"]) == ("Deployment", "apps/v1", 4)
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "2"}
    assert app["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    assert container["command"][-1].startswith("exec env ")


def test_several_nodes_are_a_group_of_a_leader_and_workers() -> None:
    """Sixteen devices in nodes of eight: groups of two pods, and the service finds leaders only."""
    group, service = kubernetes(deployment(Layout(tp=8, pp=2, replicas=2)))
    template = group["spec"]["leaderWorkerTemplate"]
    leader = template["leaderTemplate"]
    assert group["kind"] == "LeaderWorkerSet"
    assert group["apiVersion"] == "leaderworkerset.x-k8s.io/v1"
    assert (group["spec"]["replicas"], template["size"]) == (2, 2)
    assert service["spec"]["selector"].items() <= leader["metadata"]["labels"].items()
    assert "--distributed-executor-backend ray" in leader["spec"]["containers"][0]["command"][-1]
    worker = template["workerTemplate"]["spec"]["containers"][0]
    assert "$(LWS_LEADER_ADDRESS)" in worker["command"][-1]
    assert worker["resources"]["limits"] == {"nvidia.com/gpu": "8"}


def test_attention_groups_over_nodes_are_placed_by_ray_too() -> None:
    """Groups within a node need nothing; over nodes the engine must be told who places them."""
    apart = command_of(deployment(Layout(tp=2, attention_dp=8, moe_ep=16)))
    together = command_of(deployment(Layout(tp=2, attention_dp=4, moe_ep=8)))
    assert "--data-parallel-backend ray" in apart
    assert "ray" not in together


@pytest.mark.parametrize("layout", [Layout(tp=1), Layout(tp=8), Layout(tp=8, pp=4, replicas=2)])
def test_pods_have_the_shared_memory_that_ranks_meet_in(layout: Layout) -> None:
    """The 64 MiB that a container has by itself end ranks with a bus error."""
    for manifest in kubernetes(deployment(layout)):
        if manifest["kind"] == "Service":
            continue
        text = str(manifest)
        assert text.count("/dev/shm") >= 1
        assert text.count("'emptyDir': {'medium': 'Memory'}") >= 1


def test_ray_serves_the_same_sizes() -> None:
    """The configuration names the application builder, the model and the sizes of the launch."""
    layout = Layout(tp=4, attention_dp=2, moe_ep=8, replicas=3)
    (app,) = ray_serve(deployment(layout, accelerator_type="H100"))["applications"]
    (model,) = app["args"]["llm_configs"]
    engine = model["engine_kwargs"]
    assert app["import_path"] == "ray.serve.llm:build_openai_app"
    assert (engine["tensor_parallel_size"], engine["data_parallel_size"]) == (4, 2)
    assert engine["enable_expert_parallel"] is True
    assert model["deployment_config"]["num_replicas"] == 3
    assert model["accelerator_type"] == "H100"


def test_layout_that_the_engine_cannot_start_is_refused() -> None:
    """Experts over half of the ranks exist in other engines only."""
    with pytest.raises(PlanInputError, match="over all ranks"):
        command_of(deployment(Layout(tp=8, moe_tp=2, moe_ep=4)))


def on_cpus(layout: Layout, **fields: Any) -> Deployment:
    return deployment(
        layout,
        server=Server(device="a CPU", maker=Maker.CPU),
        cpu=CpuRoom(kv_cache_bytes=1 << 29, memory_bytes=4 << 30, threads="0|1"),
        **fields,
    )


def test_server_on_cpus_has_its_cache_and_threads_and_no_share_of_a_gpu() -> None:
    """The command binds ranks to this machine's CPUs; a pod has others, so there each rank has one thread."""
    replica = on_cpus(Layout(tp=2))
    command = command_of(replica)
    assert "VLLM_CPU_OMP_THREADS_BIND='0|1'" in command
    assert "--kv-cache-memory-bytes 536870912" in command
    assert "--gpu-memory-utilization" not in command
    pod = kubernetes(replica)[0]["spec"]["template"]["spec"]["containers"][0]["command"][-1]
    assert "VLLM_CPU_OMP_THREADS_BIND=nobind" in pod
    assert "OMP_NUM_THREADS=1" in pod


@pytest.mark.parametrize(
    ("layout", "fields", "why"),
    [
        (Layout(tp=2, moe_ep=2), {}, "experts over CPUs"),
        (Layout(tp=2), {"quantization": "fp8"}, "fails on a CPU"),
        (Layout(tp=1), {}, "2 groups"),
    ],
)
def test_what_does_not_run_on_cpus_is_refused(
    layout: Layout, fields: dict[str, Any], why: str
) -> None:
    """As the launcher refuses it, and experts for want of its repair in the engine's image."""
    with pytest.raises(PlanInputError, match=why):
        command_of(on_cpus(layout, **fields))


def test_ray_serves_accelerators_only() -> None:
    """Nothing is written that was never seen to work."""
    with pytest.raises(PlanInputError, match="accelerators"):
        ray_serve(on_cpus(Layout(tp=2)))


def test_folder_is_mounted_and_the_pod_starts_what_is_mounted() -> None:
    """The command of a shell names the folder itself."""
    replica = deployment(Layout(), model="/srv/made", is_folder=True)
    assert "--model /srv/made " in command_of(replica)
    pod = kubernetes(replica)[0]["spec"]["template"]["spec"]
    assert "--model /models/qwen3-32b " in pod["containers"][0]["command"][-1]
    assert "env" not in pod["containers"][0]


def test_type_of_activations_is_in_every_form() -> None:
    """A device without bfloat16 is served at float16 wherever it is started."""
    replica = deployment(Layout(tp=4), dtype="float16")
    (app,) = ray_serve(replica)["applications"]
    assert app["args"]["llm_configs"][0]["engine_kwargs"]["dtype"] == "float16"
    assert "--dtype float16" in command_of(replica)
