"""What a fleet adds to a lever record that a person wrote: what it cannot read, what it costs, where models lie."""

import math
from collections.abc import Mapping
from typing import Final

from trimtab.core.config import FleetConfig
from trimtab.core.cuts import hidden
from trimtab.core.gate import Metric
from trimtab.core.lever import LeverRecordError
from trimtab.core.ports import LaunchError
from trimtab.core.revision import Model
from trimtab.engines import llamacpp
from trimtab.engines.kv_types import KvDevice
from trimtab.rollout.short_record import Known
from trimtab.runtime.ledger_reader import SqliteReader
from trimtab.runtime.model import check_model, find_model
from trimtab.runtime.model_folder import find_folder
from trimtab.runtime.supervisor import System

CPU_LABEL: Final = "cpu"
"""How `labels.accelerator` of an attached server begins that computes on CPUs."""
NOT_OURS: Final = "the servers are somebody else's, and their processes cannot be read"


def known_of(system: System) -> Known:
    """Return what this fleet knows; a model or the ledger may be read through, so it is not for the event loop."""
    levers = system.config.levers
    pairs = {
        (technique, cut): why
        for (technique, _, cut), why in (
            (pair.partition("+"), why) for pair, why in levers.not_combinable.items()
        )
    }
    return Known(
        absent={Metric.MEMORY_BYTES: NOT_OURS} if system.attached is not None else {},
        price_per_replica_hour=levers.price_per_replica_hour,
        not_combinable=pairs,
        peak_concurrency=lambda last_s: _busiest(system, last_s),
        kv_device=kv_device_of(system.config.fleet),
        find_model=lambda path: _find_model(path, system.baseline.engine),
        weights_of=_unseen_weights if system.attached is not None else _weights_of,
        hide=lambda cut: hidden(cut, system.secret.digest),
    )


def kv_device_of(fleet: FleetConfig) -> KvDevice:
    """Return what a fleet's replicas compute on, by the labels of attached servers; what is started here is on CPUs."""
    if not fleet.is_attached:
        return KvDevice.CPU
    told = {one.labels.accelerator.strip().lower() for one in fleet.attached}
    if any(one.startswith(CPU_LABEL) for one in told):
        # Where one of them runs on a CPU, what is garbage there is garbage in this fleet.
        return KvDevice.CPU
    # Those found later by `fleet.discover` say nothing of themselves.
    return KvDevice.UNKNOWN if "" in told or not told or fleet.discover else KvDevice.ACCELERATOR


def _busiest(system: System, last_s: float) -> int | None:
    with SqliteReader(system.config.ledger.path) as reader:
        return reader.busiest(system.clock.wall_s() - last_s)


def _find_model(path: str, engine: str) -> Model:
    """Return an artifact: a GGUF file where the fleet runs llama.cpp, else a folder of weights."""
    try:
        return find_model(path) if engine == llamacpp.NAME else find_folder(path)
    except LaunchError as error:
        raise LeverRecordError(f"$.revision.model: {error}") from error


def _unseen_weights(_: str) -> Mapping[str, float]:
    raise LeverRecordError(
        "$.revision.keep: the weights that an attached server runs are not seen, so nothing can be held against them; "
        "leave `keep` out, and read what was lowered from the report of `trimtab quantize`"
    )


def _weights_of(path: str) -> Mapping[str, float]:
    """Return the bits a weight of each tensor of a GGUF file."""
    try:
        table = check_model(path).table
    except LaunchError as error:
        raise LeverRecordError(f"$.revision.keep: {error}") from error
    if odd := [each for each in table if not each.size]:
        raise LeverRecordError(
            f"$.revision.keep: {path} holds {odd[0].name} in type {odd[0].kind}, whose size is not known"
        )
    return {each.name: 8.0 * each.size / math.prod(each.shape) for each in table}
