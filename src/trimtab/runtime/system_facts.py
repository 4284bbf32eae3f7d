"""What a system says of itself for records, diagnoses and the ledger: settings, topology, the fleet's facts."""

from collections.abc import Callable, Sequence

import msgspec

from trimtab.core.config import Config
from trimtab.core.evidence import Readings
from trimtab.core.revision import Revision
from trimtab.diagnosis.names import FleetFacts
from trimtab.runtime.fleet import ReplicaInfo
from trimtab.runtime.probes import ProcessReader
from trimtab.runtime.situation import ProcessSample


def flat_settings(config: Config) -> dict[str, str | int | float | bool]:
    """Return every setting that is one value as `section.key`, and the addresses of attached servers as one text."""
    flat: dict[str, str | int | float | bool] = {
        f"{section}.{name}": value
        for section, fields in msgspec.to_builtins(config).items()
        for name, value in fields.items()
        if isinstance(value, str | int | float | bool)
    }
    return {**flat, "fleet.attached": ", ".join(each.url for each in config.fleet.attached)}


def topology_of(replicas: int, *, attached: bool = False) -> str:
    """Return what serves, in words."""
    return f"{replicas} attached servers" if attached else f"{replicas} replicas on one host"


def sample_of(
    replicas: Sequence[str],
    processes: ProcessReader,
    readings: Callable[[str], Readings],
    *,
    at_s: float,
) -> ProcessSample:
    """Return CPU seconds, resident bytes and latest engine readings of every replica."""
    return ProcessSample(
        at_s,
        {replica: processes.cpu_s(replica) for replica in replicas},
        {replica: processes.memory_bytes(replica) for replica in replicas},
        {replica: readings(replica) for replica in replicas},
    )


def facts_of(
    infos: Sequence[ReplicaInfo],
    baseline: Revision,
    processes: ProcessReader,
    config: Config,
    *,
    free_bytes: int | None,
) -> FleetFacts:
    """Return what is known of a fleet without measuring it. `free_bytes`: what is left of its machine's memory."""
    resident = sum(processes.memory_bytes(info.id) or 0 for info in infos)
    return FleetFacts(
        replicas=len(infos),
        slots=baseline.slots,
        context_tokens=baseline.context_tokens,
        threads=sum(info.threads for info in infos) / len(infos) if infos else 1.0,
        memory_available_bytes=None if free_bytes is None else free_bytes + resident,
        travel_tokens=config.handover.mark_tokens(config.engine.chunk_tokens),
    )
