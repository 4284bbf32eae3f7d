"""All levers by name: the one place where they are listed."""

from trimtab.core.lever import Lever, LeverRecord
from trimtab.levers.disaggregation import SplitRoles
from trimtab.levers.parallelism import ParallelLayout
from trimtab.levers.prefill_chunking import SmallerPrefillChunk
from trimtab.levers.prefix_caching import PrefixAffineRouting
from trimtab.levers.quantization import LowerPrecision
from trimtab.levers.replicas import AddReplica
from trimtab.levers.speculation import NgramSpeculation


def catalog() -> dict[str, Lever]:
    """Return every lever by its name."""
    levers: tuple[Lever, ...] = (
        PrefixAffineRouting(),
        NgramSpeculation(),
        SmallerPrefillChunk(),
        LowerPrecision(),
        AddReplica(),
        SplitRoles(),
        ParallelLayout(),
    )
    return {lever.name: lever for lever in levers}


def routing_policy_of(record: LeverRecord) -> str | None:
    """Return the routing policy that a lever swaps in, None for a lever that is not about routing."""
    return record.policy or (
        # Records written before they named their policy.
        PrefixAffineRouting.policy if record.name == PrefixAffineRouting.name else None
    )
