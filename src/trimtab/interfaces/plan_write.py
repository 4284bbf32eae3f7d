"""Writes what starts a chosen layout elsewhere: the command, Kubernetes manifests, a Ray Serve configuration."""

import importlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from trimtab.core.layout import PlanInputError
from trimtab.core.served import ModelShape
from trimtab.interfaces.plan_answer import PlanAnswer
from trimtab.planning.manifests import Deployment, Tree, command_of, kubernetes, ray_serve
from trimtab.runtime.served_sources import SourceError

COMMAND: Final = "command.sh"
KUBERNETES: Final = "kubernetes.yaml"
RAY_SERVE: Final = "ray-serve.yaml"
ONLINE: Final = frozenset({"fp8"})
"""Precisions into which vLLM brings a checkpoint of more bits itself; for others the checkpoint has them already."""

NAME_MAX: Final = 50
_RAY_TYPES: Final = frozenset({"A10G", "A100", "B200", "H100", "H200", "L4", "L40S", "T4", "V100"})


def write_launch(
    folder: Path,
    answer: PlanAnswer,
    model: ModelShape,
    *,
    text: str,
    engine: str,
    precision: str | None,
    kv_precision: str | None,
) -> tuple[Path, ...]:
    """Write the three files of the chosen layout, all or none, and return them.

    `text`: the model as it was asked for. Raises `PlanInputError` where there is nothing to write, `SourceError`.
    """
    if answer.chosen is None:
        raise PlanInputError("write", f"nothing meets the targets ({answer.because})")
    if engine != "vllm":
        raise PlanInputError("engine", f"what starts {engine} is not written", ("vllm",))
    device = answer.hardware.accelerator
    demand = answer.demand
    deployment = Deployment(
        name=_name(model.name),
        model=text,
        layout=answer.chosen.layout,
        devices_per_node=answer.hardware.devices,
        context_tokens=demand.context_tokens or demand.input_tokens + demand.output_tokens,
        precision=precision if precision in ONLINE else "",
        kv_dtype=kv_precision or "auto",
        resource="amd.com/gpu" if device.startswith("MI") else "nvidia.com/gpu",
        accelerator_type=word if (word := device.split()[0]) in _RAY_TYPES else "",
    )
    return _write(
        folder,
        {
            COMMAND: _script(deployment, answer, text, precision),
            KUBERNETES: _yaml(kubernetes(deployment)),
            RAY_SERVE: _yaml([ray_serve(deployment)]),
        },
    )


def _name(model: str) -> str:
    """Return a name that Kubernetes takes: lower-case letters, digits and dashes."""
    return re.sub("[^a-z0-9]+", "-", model.lower()).strip("-")[:NAME_MAX].strip("-") or "model"


def _script(deployment: Deployment, answer: PlanAnswer, text: str, precision: str | None) -> str:
    layout = deployment.layout
    notes = [
        f"One replica of {layout.label} on {answer.hardware.accelerator}; start {layout.replicas} of them.",
        f"The model is named as it was asked for: {text!r} is a folder, or a repository that can be reached.",
    ]
    if precision and precision not in ONLINE:
        notes.append(f"The checkpoint must be stored as {precision}: it is not converted here.")
    if deployment.nodes_per_replica > 1:
        notes.append(
            f"A replica takes {deployment.nodes_per_replica} nodes, joined by Ray before this."
        )
    head = "\n".join(f"# {note}" for note in notes)
    return f"#!/bin/sh\n{head}\nexec env {command_of(deployment)}\n"


def _yaml(documents: Sequence[Tree]) -> str:
    """Return documents as YAML; without a YAML writer as JSON, which every YAML reader takes."""
    # Copied through JSON, equal parts are apart: a writer would name one and refer to it elsewhere.
    documents = [msgspec.json.decode(msgspec.json.encode(each)) for each in documents]
    try:
        yaml: Any = importlib.import_module("yaml")
    except ImportError:
        return "".join(
            f"---\n{msgspec.json.format(msgspec.json.encode(each)).decode()}\n"
            for each in documents
        )
    return str(yaml.safe_dump_all(documents, sort_keys=False, explicit_start=True, width=1_000))


def _write(folder: Path, texts: dict[str, str]) -> tuple[Path, ...]:
    """Write all files beside where they belong, then put them there."""
    parts = {folder / name: folder / f".{name}.part" for name in texts}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if blocked := [path for path in parts if path.is_dir()]:
            raise SourceError(f"{blocked[0]} cannot be written: it is a folder")
        for (path, part), text in zip(parts.items(), texts.values(), strict=True):
            part.write_text(text, encoding="utf-8")
            part.chmod(0o755 if path.suffix == ".sh" else 0o644)
        for path, part in parts.items():
            part.replace(path)
    except OSError as error:
        for part in parts.values():
            part.unlink(missing_ok=True)
        raise SourceError(f"{folder} cannot be written: {error.strerror}") from error
    return tuple(parts)
