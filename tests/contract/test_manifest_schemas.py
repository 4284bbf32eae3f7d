"""Manifests against the published schemas of their kinds, offline: no unknown field, no wrong type, nothing missing."""

import itertools
from typing import Any

import kubernetes_validate
import pytest

from trimtab.core.layout import Layout
from trimtab.planning.launch_words import Maker, Server
from trimtab.planning.manifests import CpuRoom, Deployment, kubernetes

KUBERNETES = "1.31"
GROUP_FIELDS = {
    "replicas",
    "leaderWorkerTemplate",
    "rolloutStrategy",
    "startupPolicy",
    "networkConfig",
}
TEMPLATE_FIELDS = {
    "leaderTemplate",
    "workerTemplate",
    "size",
    "restartPolicy",
    "subGroupPolicy",
    "volumeClaimTemplates",
}
RESTARTS = {"Default", "RecreateGroupOnPodRestart", "None"}
"""Fields and values of leaderworkerset.x-k8s.io/v1, whose schema comes with its controller and not with Kubernetes."""

LAYOUTS = (
    Layout(),
    Layout(tp=8, replicas=3),
    Layout(tp=2, attention_dp=4, moe_ep=8),
    Layout(tp=8, pp=2),
    Layout(tp=16, replicas=2),
)


def manifests(layout: Layout, **fields: Any) -> list[dict[str, Any]]:
    made = {
        "name": "deepseek-v3",
        "model": "deepseek-ai/DeepSeek-V3",
        "layout": layout,
        "devices_per_node": 8,
        "context_tokens": 8192,
    }
    return kubernetes(Deployment(**(made | fields)))


def assert_valid(manifest: dict[str, Any]) -> None:
    kubernetes_validate.validate(manifest, KUBERNETES, strict=True)


SERVERS: dict[str, dict[str, Any]] = {
    "nvidia": {},
    "amd": {"server": Server(device="MI300X", maker=Maker.AMD)},
    "folder": {"model": "/srv/checkpoints/made", "is_folder": True},
}
CPUS: dict[str, Any] = {
    "server": Server(device="a CPU", maker=Maker.CPU),
    "cpu": CpuRoom(kv_cache_bytes=3 << 28, memory_bytes=(5 << 30) + 1, threads="0|1"),
}


@pytest.mark.parametrize(("layout", "server"), list(itertools.product(LAYOUTS, SERVERS)), ids=str)
def test_every_manifest_is_what_its_schema_says(layout: Layout, server: str) -> None:
    """Deployments and Services whole; of a LeaderWorkerSet its pods, as pods."""
    for manifest in manifests(layout, **SERVERS[server]):
        if manifest["kind"] != "LeaderWorkerSet":
            assert_valid(manifest)
            continue
        template = manifest["spec"]["leaderWorkerTemplate"]
        for name in ("leaderTemplate", "workerTemplate"):
            metadata = {"name": "pod", **template[name]["metadata"]}
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}
            assert_valid(pod | {"spec": template[name]["spec"]})


def test_server_on_cpus_is_what_the_schema_says_and_asks_for_no_gpu() -> None:
    """CPUs and whole GiB of memory, no less than it takes."""
    app, service = manifests(Layout(tp=2, replicas=2), **CPUS)
    assert_valid(app)
    assert_valid(service)
    (container,) = app["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"] == {"cpu": "2", "memory": "6Gi"}
    assert container["image"].startswith("vllm/vllm-openai-cpu:")


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_every_pod_that_loads_weights_has_their_folder(layout: Layout) -> None:
    """Workers read their part of the checkpoint too, and each mount has its volume."""
    spec = manifests(layout, **SERVERS["folder"])[0]["spec"]
    group = spec.get("leaderWorkerTemplate")
    pods = [group["leaderTemplate"], group["workerTemplate"]] if group else [spec["template"]]
    for pod in (each["spec"] for each in pods):
        volumes = {each["name"]: each for each in pod["volumes"]}
        mounts = {each["name"] for each in pod["containers"][0]["volumeMounts"]}
        assert mounts == set(volumes) == {"shared-memory", "model"}
        assert volumes["model"]["hostPath"]["path"] == "/srv/checkpoints/made"


def test_group_has_the_fields_of_its_kind_only() -> None:
    """What the controller's schema does not name would be dropped or refused."""
    group = manifests(Layout(tp=8, pp=4, replicas=2))[0]
    assert set(group) == {"apiVersion", "kind", "metadata", "spec"}
    assert set(group["spec"]) <= GROUP_FIELDS
    template = group["spec"]["leaderWorkerTemplate"]
    assert set(template) <= TEMPLATE_FIELDS
    assert (template["size"], template["restartPolicy"] in RESTARTS) == (4, True)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_devices_asked_for_are_those_of_the_layout(layout: Layout) -> None:
    """Replicas x pods x devices of a pod are the devices of the plan, none idle and none missing."""
    manifest = manifests(layout)[0]
    spec = manifest["spec"]
    template = spec.get("leaderWorkerTemplate")
    pods = template["size"] if template else 1
    pod = template["workerTemplate"] if template else spec["template"]
    limits = pod["spec"]["containers"][0]["resources"]["limits"]
    assert spec["replicas"] * pods * int(limits["nvidia.com/gpu"]) == layout.devices


def test_schema_finds_a_field_that_is_misspelt() -> None:
    """The check itself can fail."""
    app = manifests(Layout())[0]
    app["spec"]["template"]["spec"]["containers"][0]["portz"] = []
    with pytest.raises(kubernetes_validate.ValidationError):
        assert_valid(app)
