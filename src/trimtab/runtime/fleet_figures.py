"""The replicas of a system as its /metrics page shows them."""

from collections.abc import Callable, Collection, Iterator, Sequence

from trimtab.runtime.attach import AttachedFleet
from trimtab.runtime.fleet import ReplicaInfo
from trimtab.runtime.metrics import ReplicaFigures
from trimtab.runtime.probes import Probes


def figures_of(
    infos: Sequence[ReplicaInfo],
    probes: Probes | AttachedFleet,
    *,
    ready: Collection[str],
    in_flight: Callable[[str], int],
) -> Iterator[ReplicaFigures]:
    """Yield every replica with what its engine said last; what is stale or untold is unknown.

    `ready`: those that take new requests.
    """
    for info in infos:
        readings = probes.readings(info.id)
        # The slots of our llama.cpp replicas hold finished prompts: that is cache, not load.
        load = None if isinstance(probes, Probes) else probes.load(info.id)[0]
        yield ReplicaFigures(
            replica=info.id,
            ready=info.id in ready,
            in_flight=in_flight(info.id),
            restarts=info.crashes,
            running=readings.value("requests_processing"),
            waiting=readings.value("requests_deferred"),
            kv_used_share=None if load is None else load.kv_used_share,
            age_s=probes.age_s(info.id),
        )
