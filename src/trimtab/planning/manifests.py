"""A layout as what starts it elsewhere: the exact vLLM command, Kubernetes manifests, a Ray Serve configuration.

One replica within a node is a pod of a Deployment; one over several nodes is a group of a LeaderWorkerSet, whose
leader and workers meet over Ray. Values are plain trees that any YAML writer takes. Nothing here was started by this
project on such machines: the command is the launcher's own (which does start servers where it can), the manifests are
checked against the schemas of their kinds.

Sources: Kubernetes API reference (apps/v1, v1); LeaderWorkerSet API v1 (leaderworkerset.x-k8s.io); vLLM documentation,
"Using Kubernetes" and "LWS"; Ray Serve documentation, "Serving LLMs" (`ray.serve.llm:build_openai_app`).
"""

import shlex
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from trimtab.core.layout import Layout, PlanInputError
from trimtab.engines.vllm import Device, VllmLaunch, launch_command
from trimtab.engines.vllm_checks import check_launch
from trimtab.planning.launch_words import Maker, Server

PORT: Final = 8000
SHARED_MEMORY: Final = "/dev/shm"
RAY_PORT: Final = 6379
READY_S: Final = 1800
"""How long a model may take to load before the pod counts as failed."""
MODELS: Final = "/models"
"""Where a pod has the folder of a checkpoint."""
TOKEN_SECRET: Final = "hf-token"
_GIB: Final = 1 << 30

Tree = dict[str, Any]


class CpuRoom(msgspec.Struct, frozen=True, kw_only=True):
    """What a server on CPUs is given. Bytes of the cache of a rank, and of a whole replica with its processes.

    `threads`: CPUs of each rank on this machine, in vLLM's notation.
    """

    kv_cache_bytes: int
    memory_bytes: int
    threads: str


class Deployment(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be deployed. `devices_per_node`: accelerators of a node, or CPUs.

    `model`: a repository, or where `is_folder` the whole path of a folder. `cpu`: of a server on CPUs, with which it
    must come. `accelerator_type`: Ray's name of the accelerator, empty for any.
    """

    name: str
    model: str
    layout: Layout
    devices_per_node: int
    context_tokens: int
    server: Server = Server(device="", maker=Maker.NVIDIA)
    dtype: str = "bfloat16"
    quantization: str = ""
    kv_dtype: str = "auto"
    memory_share: float = 0.9
    is_folder: bool = False
    cpu: CpuRoom | None = None
    accelerator_type: str = ""

    @property
    def nodes_per_replica(self) -> int:
        """Nodes that one replica takes."""
        return -(-self.layout.devices_per_replica // self.devices_per_node)


def launch_of(deployment: Deployment) -> VllmLaunch:
    """Return the launch of one replica; raises `PlanInputError` for a layout that vLLM cannot start.

    vLLM spreads experts over all ranks of a stage or over none.
    """
    layout, cpu = deployment.layout, deployment.cpu
    if layout.moe_ep > 1 and layout.moe_tp > 1:
        raise PlanInputError(
            "ep",
            f"{layout.label}: vLLM spreads experts over all ranks of a stage or over none",
            (str(layout.tp * layout.attention_dp), "1"),
        )
    if cpu is not None and layout.moe_ep > 1:
        raise PlanInputError(
            "ep", f"{layout.label}: vLLM's own image does not spread experts over CPUs", ("1",)
        )
    launch = VllmLaunch(
        model=deployment.model,
        served_name=deployment.name,
        host="0.0.0.0",
        port=PORT,
        device=Device.GPU if cpu is None else Device.CPU,
        dtype=deployment.dtype,
        context_tokens=deployment.context_tokens,
        tensor_parallel=layout.tp,
        pipeline_parallel=layout.pp,
        data_parallel=layout.attention_dp,
        expert_parallel=layout.moe_ep > 1,
        memory_share=deployment.memory_share if cpu is None else 0.0,
        kv_cache_bytes=0 if cpu is None else cpu.kv_cache_bytes,
        threads="" if cpu is None else cpu.threads,
        quantization=deployment.quantization,
        kv_dtype=deployment.kv_dtype,
    )
    if problems := check_launch(launch):
        raise PlanInputError("write", "; ".join(problem.text for problem in problems))
    return launch


def command_of(deployment: Deployment) -> str:
    """Return the command of one replica as a shell takes it, environment first."""
    return _command(deployment, launch_of(deployment), {})


def _pod_command(deployment: Deployment) -> str:
    """Return the command as a pod takes it: the checkpoint where it is mounted, and the CPUs that the pod is given.

    Which CPUs those are is not known before, so ranks are not bound and each has the threads of its share.
    """
    launch, env = launch_of(deployment), {}
    if deployment.is_folder:
        launch = msgspec.structs.replace(launch, model=_mount_path(deployment))
    if deployment.cpu is not None:
        launch = msgspec.structs.replace(launch, threads="nobind")
        env = {"OMP_NUM_THREADS": "1"}
    return _command(deployment, launch, env)


def _command(deployment: Deployment, launch: VllmLaunch, more: Mapping[str, str]) -> str:
    command = launch_command(launch, python="python3")
    # In a pod the model may be fetched, and ranks of several nodes meet by their own addresses.
    left_out = {"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "VLLM_HOST_IP", "VLLM_LOOPBACK_IP"}
    env = [
        f"{name}={shlex.quote(value)}"
        for name, value in sorted({**command.env, **more}.items())
        if name not in left_out
    ]
    return " ".join([*env, shlex.join([*command.argv, *_over_nodes(deployment)])])


def _over_nodes(deployment: Deployment) -> list[str]:
    """Return what a replica over several nodes needs besides: ranks are placed by Ray, groups of attention too."""
    if deployment.nodes_per_replica == 1:
        return []
    groups = ["--data-parallel-backend", "ray"] if deployment.layout.attention_dp > 1 else []
    return ["--distributed-executor-backend", "ray", *groups]


def kubernetes(deployment: Deployment) -> list[Tree]:
    """Return the manifests: a Deployment or a LeaderWorkerSet, and the Service before it."""
    if deployment.nodes_per_replica == 1:
        return [_deployment(deployment), _service(deployment, {"app": deployment.name})]
    labels = {"app": deployment.name, "role": "leader"}
    return [_worker_set(deployment), _service(deployment, labels)]


def _deployment(deployment: Deployment) -> Tree:
    labels = {"app": deployment.name}
    container = _container(deployment, deployment.layout.devices_per_replica)
    container["command"] = ["/bin/sh", "-c", f"exec env {_pod_command(deployment)}"]
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": deployment.name, "labels": labels},
        "spec": {
            "replicas": deployment.layout.replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": _pod(deployment, container)},
        },
    }


def _worker_set(deployment: Deployment) -> Tree:
    """One group per replica: the leader starts Ray and the server, the workers join it."""
    nodes = deployment.nodes_per_replica
    leader, worker = (_container(deployment, deployment.devices_per_node) for _ in range(2))
    alive = "import ray; ray.init(address='auto'); print(sum(n['Alive'] for n in ray.nodes()))"
    leader["command"] = [
        "/bin/sh",
        "-c",
        f"ray start --head --port={RAY_PORT} && "
        f'until [ "$(python3 -c "{alive}" 2>/dev/null)" -ge {nodes} ]; do sleep 2; done && '
        f"exec env {_pod_command(deployment)}",
    ]
    worker["command"] = [
        "/bin/sh",
        "-c",
        f"until ray start --address=$(LWS_LEADER_ADDRESS):{RAY_PORT} --block; do sleep 2; done",
    ]
    del worker["ports"], worker["readinessProbe"], worker["startupProbe"]
    labels = {"app": deployment.name, "role": "leader"}
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": deployment.name, "labels": {"app": deployment.name}},
        "spec": {
            "replicas": deployment.layout.replicas,
            "leaderWorkerTemplate": {
                "size": nodes,
                "restartPolicy": "RecreateGroupOnPodRestart",
                "leaderTemplate": {
                    "metadata": {"labels": labels},
                    "spec": _pod(deployment, leader),
                },
                "workerTemplate": {
                    "metadata": {"labels": {"app": deployment.name, "role": "worker"}},
                    "spec": _pod(deployment, worker),
                },
            },
        },
    }


def _container(deployment: Deployment, devices: int) -> Tree:
    probe = {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": 10}
    mounts: list[Tree] = [{"name": "shared-memory", "mountPath": SHARED_MEMORY}]
    if deployment.is_folder:
        mounts.append({"name": "model", "mountPath": _mount_path(deployment), "readOnly": True})
    container: Tree = {
        "name": "vllm",
        "image": deployment.server.image,
        "ports": [{"name": "http", "containerPort": PORT}],
        "resources": {
            "limits": _resources(deployment, devices),
            "requests": _resources(deployment, devices),
        },
        "startupProbe": {**probe, "failureThreshold": READY_S // 10},
        "readinessProbe": {**probe, "failureThreshold": 3},
        "volumeMounts": mounts,
    }
    if not deployment.is_folder:
        # Some makers give their repositories to those only who show who they are.
        secret = {"name": TOKEN_SECRET, "key": "token", "optional": True}
        container["env"] = [{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": secret}}]
    return container


def _resources(deployment: Deployment, devices: int) -> Tree:
    if deployment.cpu is None:
        return {deployment.server.resource: str(devices)}
    memory = -(-deployment.cpu.memory_bytes // _GIB)
    return {"cpu": str(devices), "memory": f"{memory}Gi"}


def _mount_path(deployment: Deployment) -> str:
    return f"{MODELS}/{deployment.name}"


def _pod(deployment: Deployment, container: Tree) -> Tree:
    volumes: list[Tree] = [{"name": "shared-memory", "emptyDir": {"medium": "Memory"}}]
    if deployment.is_folder:
        folder = {"path": deployment.model, "type": "Directory"}
        volumes.append({"name": "model", "hostPath": folder})
    return {"containers": [container], "volumes": volumes}


def _service(deployment: Deployment, selector: Mapping[str, str]) -> Tree:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": deployment.name, "labels": {"app": deployment.name}},
        "spec": {
            "selector": dict(selector),
            "ports": [{"name": "http", "port": PORT, "targetPort": "http"}],
        },
    }


def ray_serve(deployment: Deployment) -> Tree:
    """Return a Ray Serve configuration that serves the same layout; `serve run` takes its YAML."""
    if deployment.cpu is not None:
        raise PlanInputError("hardware", "a Ray Serve configuration is written for accelerators")
    launch = launch_of(deployment)
    engine: Tree = {
        "dtype": launch.dtype,
        "tensor_parallel_size": launch.tensor_parallel,
        "pipeline_parallel_size": launch.pipeline_parallel,
        "max_model_len": launch.context_tokens,
        "gpu_memory_utilization": launch.memory_share,
        "kv_cache_dtype": launch.kv_dtype,
    }
    if launch.data_parallel > 1:
        engine["data_parallel_size"] = launch.data_parallel
    if launch.expert_parallel:
        engine["enable_expert_parallel"] = True
    if launch.quantization:
        engine["quantization"] = launch.quantization
    model: Tree = {
        "model_loading_config": {"model_id": deployment.name, "model_source": deployment.model},
        "engine_kwargs": engine,
        "deployment_config": {"num_replicas": deployment.layout.replicas},
    }
    if deployment.accelerator_type:
        model["accelerator_type"] = deployment.accelerator_type
    return {
        "applications": [
            {
                "name": deployment.name,
                "route_prefix": "/",
                "import_path": "ray.serve.llm:build_openai_app",
                "args": {"llm_configs": [model]},
            }
        ]
    }
