"""The replicas of a system as its /metrics page shows them."""

from collections.abc import Callable, Iterator, Sequence

from trimtab.core.types import ReplicaState
from trimtab.runtime.attach import AttachedFleet
from trimtab.runtime.fleet import ReplicaInfo
from trimtab.runtime.metrics import ReplicaFigures
from trimtab.runtime.probes import Probes


def figures_of(
    infos: Sequence[ReplicaInfo],
    probes: Probes | AttachedFleet,
    in_flight: Callable[[str], int],
) -> Iterator[ReplicaFigures]:
    """Yield every replica with what its engine said last; what is stale or untold is unknown."""
    for info in infos:
        readings = probes.readings(info.id)
        # The slots of our llama.cpp replicas hold finished prompts: that is cache, not load.
        load = None if isinstance(probes, Probes) else probes.load(info.id)[0]
        yield ReplicaFigures(
            replica=info.id,
            ready=info.state is ReplicaState.READY,
            in_flight=in_flight(info.id),
            restarts=info.crashes,
            running=readings.value("requests_processing"),
            waiting=readings.value("requests_deferred"),
            kv_used_share=None if load is None else load.kv_used_share,
            age_s=probes.age_s(info.id),
        )
