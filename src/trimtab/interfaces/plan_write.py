"""Writes what starts a chosen layout elsewhere: the command, Kubernetes manifests, a Ray Serve configuration.

What can be known before the plan is checked before it (`check_words`, `writing_of`), so that nobody reads a plan to
learn at its end that there are no files.
"""

import importlib
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from trimtab.core.layout import PlanInputError
from trimtab.engines.vllm import bind_threads
from trimtab.interfaces.plan_answer import LayoutAnswer, PlanAnswer
from trimtab.interfaces.plan_checkpoint import Checkpoint, checkpoint_of, model_type_of
from trimtab.interfaces.plan_inputs import Words, kv_bits_of
from trimtab.interfaces.plan_measure import KV_HEADROOM, is_local
from trimtab.planning.launch_words import (
    AUTO,
    Maker,
    Quantization,
    Server,
    dtype_of,
    kv_dtype_of,
    quantization_of,
    server_of,
    unknown_of_cache,
)
from trimtab.planning.longest import (
    TRUSTED_SHARE,
    CacheRoom,
    Longest,
    longest_request,
    stream_bytes,
)
from trimtab.planning.manifests import (
    TOKEN_SECRET,
    CpuRoom,
    Deployment,
    Tree,
    command_of,
    kubernetes,
    ray_serve,
)
from trimtab.planning.memory import STORED_KV_BITS
from trimtab.planning.plan_ask import Ask
from trimtab.runtime.hardware import has_wide_vectors, usable_cpus
from trimtab.runtime.served_known import read_model
from trimtab.runtime.served_sources import SourceError
from trimtab.runtime.vllm_launcher import PROCESS_BYTES

COMMAND: Final = "command.sh"
KUBERNETES: Final = "kubernetes.yaml"
RAY_SERVE: Final = "ray-serve.yaml"
WRITTEN: Final = "vllm"
"""The engine whose servers are written."""

NAME_MAX: Final = 50
_RAY_TYPES: Final = frozenset({"A10G", "A100", "B200", "H100", "H200", "L4", "L40S", "T4", "V100"})


class Writing(msgspec.Struct, frozen=True, kw_only=True):
    """What the files hold whatever layout is chosen: the checkpoint, the kind of server, and its types."""

    ask: Ask
    checkpoint: Checkpoint
    server: Server
    dtype: str
    kv_dtype: str
    kv_bits: float
    quantization: Quantization
    context_of: str


def check_words(words: Words) -> None:
    """Refuse an engine or a model that nothing is written for, before anything is read; raises `PlanInputError`."""
    if words.engine != WRITTEN:
        raise PlanInputError("engine", f"what starts {words.engine} is not written", (WRITTEN,))
    checkpoint_of(words.model)


def writing_of(words: Words, ask: Ask) -> Writing:
    """Return what is written for any layout; raises `PlanInputError` for what vLLM cannot start, `SourceError`."""
    is_cpu = is_local(words.hardware)
    if is_cpu and ask.cluster.nodes > 1:
        raise PlanInputError("hardware", "servers on CPUs are written for one node", ("cpu:2",))
    server = server_of(ask.accelerator.name, is_cpu=is_cpu, wide_vectors=has_wide_vectors())
    dtype = dtype_of(server, words.precision or "", model_type_of(words.model))
    asked = words.kv_precision or AUTO
    return Writing(
        ask=ask,
        checkpoint=checkpoint_of(words.model),
        server=server,
        dtype=dtype,
        kv_dtype=kv_dtype_of(asked, dtype=dtype, server=server, model=ask.model),
        kv_bits=kv_bits_of(words) or STORED_KV_BITS,
        quantization=quantization_of(read_model(words.model), words.precision or "", server),
        context_of="as --context asks" if words.context else "as the longest of the trace",
    )


def write_launch(folder: Path, answer: PlanAnswer, writing: Writing) -> tuple[Path, ...]:
    """Write the files of the chosen layout, all or none, and return them.

    Raises `PlanInputError` where there is nothing to write, `SourceError`.
    """
    if answer.chosen is None:
        raise PlanInputError("write", f"nothing meets the targets ({answer.because})")
    room = _room(answer, answer.chosen, writing)
    longest = longest_request(
        writing.ask.model,
        answer.chosen.layout,
        answer.demand,
        room,
        asked_by=writing.context_of,
    )
    deployment = _deployment(answer, answer.chosen, writing, room, longest)
    notes = _notes(writing, longest)
    texts = {
        COMMAND: _script(deployment, answer, notes),
        KUBERNETES: _yaml(kubernetes(deployment), [*notes, *_notes_of_pods(deployment)]),
    }
    if deployment.cpu is None:
        texts[RAY_SERVE] = _yaml([ray_serve(deployment)], notes)
    return _write(folder, texts)


def _room(answer: PlanAnswer, chosen: LayoutAnswer, writing: Writing) -> CacheRoom:
    """Return the room for the cache of a rank; the ranks of this machine's CPUs share its memory."""
    memory = chosen.memory
    kv_bytes = memory.kv_bytes
    if writing.server.maker is Maker.CPU:
        taken = sum(part.bytes for part in memory.parts)
        kv_bytes = memory.usable_bytes / answer.hardware.devices - taken
    return CacheRoom(kv_bytes=kv_bytes, device_bytes=memory.device_bytes, kv_bits=writing.kv_bits)


def _deployment(
    answer: PlanAnswer, chosen: LayoutAnswer, writing: Writing, room: CacheRoom, longest: Longest
) -> Deployment:
    word = answer.hardware.accelerator.split()[0]
    is_cpu = writing.server.maker is Maker.CPU
    checkpoint = writing.checkpoint
    return Deployment(
        name=_name(Path(checkpoint.name).name if checkpoint.is_folder else writing.ask.model.name),
        model=checkpoint.name,
        is_folder=checkpoint.is_folder,
        layout=chosen.layout,
        devices_per_node=answer.hardware.devices,
        context_tokens=longest.tokens,
        server=writing.server,
        dtype=writing.dtype,
        kv_dtype=writing.kv_dtype,
        quantization=writing.quantization.option,
        cpu=_cpu_room(chosen, writing, room, longest) if is_cpu else None,
        accelerator_type=word if word in _RAY_TYPES else "",
    )


def _cpu_room(chosen: LayoutAnswer, writing: Writing, room: CacheRoom, longest: Longest) -> CpuRoom:
    """Return the cache of a rank on CPUs, which holds the longest request and twice the planned load where it can.

    Raises `PlanInputError` where the machine has fewer CPUs than a replica has ranks, or too little memory.
    """
    layout, demand = chosen.layout, writing.ask.demand
    ranks, cpus = layout.devices_per_replica, usable_cpus()
    if ranks > len(cpus):
        few = f"{layout.label} needs {ranks} CPUs and this machine has {len(cpus)}"
        raise PlanInputError("hardware", few, (f"cpu:{len(cpus)}",))
    mean = demand.input_tokens + demand.output_tokens
    batch = chosen.expected.batch / layout.attention_dp if chosen.expected else 1.0
    # Whole blocks, and one that vLLM keeps for itself, take more than the tokens alone.
    one = stream_bytes(writing.ask.model, layout, longest.tokens, room) / TRUSTED_SHARE
    load = KV_HEADROOM * batch * stream_bytes(writing.ask.model, layout, mean, room)
    if one > room.kv_bytes:
        short = f"{layout.label}: this machine's memory does not hold a request of {longest.tokens:,} tokens"
        raise PlanInputError("hardware", f"{short} beside the weights of all ranks", ("cpu:1",))
    kv_bytes = math.ceil(max(one, min(load, room.kv_bytes)))
    taken = sum(part.bytes for part in chosen.memory.parts)
    # As the launcher counts them: one of each rank, an engine for each group, the server's own.
    processes = ranks + layout.attention_dp + 1
    return CpuRoom(
        kv_cache_bytes=kv_bytes,
        memory_bytes=math.ceil(ranks * (taken + kv_bytes) + processes * PROCESS_BYTES),
        threads=bind_threads(cpus[:ranks], ranks),
    )


def _name(model: str) -> str:
    """Return a name that Kubernetes takes for a service: lower-case letters, digits, dashes, a letter first."""
    plain = re.sub("[^a-z0-9]+", "-", model.lower()).strip("-") or "model"
    return (plain if plain[0].isalpha() else f"m-{plain}")[:NAME_MAX].strip("-")


def _notes(writing: Writing, longest: Longest) -> list[str]:
    """Return what holds for every file."""
    quantization, unknown = writing.quantization, unknown_of_cache(writing.kv_dtype, writing.server)
    notes = [
        *writing.checkpoint.notes,
        f"A request may have {longest.tokens:,} tokens, input and output: {longest.because}.",
    ]
    if quantization.option:
        notes.append("Weights are brought to FP8 by the server as it loads them.")
    if quantization.stored:
        notes.append(
            f"The checkpoint must be stored as {quantization.stored}: the server does not convert it."
        )
    if drafts := writing.ask.demand.draft_tokens:
        notes.append(
            f"The plan counts {drafts} drafted tokens a step; no drafts are set up here: add --speculative-config."
        )
    return [*notes, *([f"{unknown}."] if unknown else [])]


def _notes_of_pods(deployment: Deployment) -> list[str]:
    if deployment.is_folder:
        return ["Each node needs the folder at the same path; a shared volume may take its place."]
    return [
        f"Where the repository is closed: kubectl create secret generic {TOKEN_SECRET} --from-literal=token=..."
    ]


def _script(deployment: Deployment, answer: PlanAnswer, notes: Sequence[str]) -> str:
    layout = deployment.layout
    replica = msgspec.structs.replace(layout, replicas=1)
    where = "CPUs of this machine" if deployment.cpu else answer.hardware.accelerator
    first = [f"One replica of {replica.label} on {where}; start {layout.replicas} of them."]
    if deployment.nodes_per_replica > 1:
        first.append(
            f"A replica takes {deployment.nodes_per_replica} nodes, joined by Ray before this."
        )
    if deployment.cpu and layout.replicas > 1:
        first.append("Each needs CPUs (VLLM_CPU_OMP_THREADS_BIND) and a port of its own.")
    return f"#!/bin/sh\n{_comments([*first, *notes])}exec env {command_of(deployment)}\n"


def _comments(notes: Sequence[str]) -> str:
    return "".join(f"# {note}\n" for note in notes)


def _yaml(documents: Sequence[Tree], notes: Sequence[str]) -> str:
    """Return documents as YAML after notes; without a YAML writer as JSON, which every YAML reader takes."""
    # Copied through JSON, equal parts are apart: a writer would name one and refer to it elsewhere.
    documents = [msgspec.json.decode(msgspec.json.encode(each)) for each in documents]
    try:
        yaml: Any = importlib.import_module("yaml")
    except ImportError:
        return _comments(notes) + "".join(
            f"---\n{msgspec.json.format(msgspec.json.encode(each)).decode()}\n"
            for each in documents
        )
    text = yaml.safe_dump_all(documents, sort_keys=False, explicit_start=True, width=10_000)
    return f"{_comments(notes)}{text}"


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
