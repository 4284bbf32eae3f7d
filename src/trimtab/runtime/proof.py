"""What the controller keeps of the lever that is being proven, and what it asks of others about it."""

from typing import Protocol

import msgspec

from trimtab.core.gate import GateResult
from trimtab.core.lever import LeverRecord
from trimtab.core.types import RolloutState
from trimtab.rollout.answer import ArmExtras
from trimtab.rollout.machine import Rollout

FROZEN = "promotions are frozen: unfreeze, or make the ledger writable again"

ENDED = frozenset(
    {RolloutState.ADOPTED, RolloutState.ROLLED_BACK, RolloutState.DISABLED, RolloutState.EXPIRED}
)


class Proof(msgspec.Struct, kw_only=True):
    """The lever that is being proven, as the shell follows it. `verifies`: it was adopted before."""

    record: LeverRecord
    policy: str | None
    rollout: Rollout
    replicas: tuple[str, ...]
    proposed_id: str
    last_event_id: str
    results: tuple[GateResult, ...] = ()
    looks: int = 0
    verifies: bool = False


class ControlError(RuntimeError):
    """A lever cannot be started now; the message says why and what to do."""


class AfterAdoption(Protocol):
    """Diagnoses the whole system again; returns why the lever failed, or None if its payers keep headroom."""

    def __call__(self, record: LeverRecord, *, cause_id: str) -> str | None:
        """Return the reason to take the lever back, or None."""
        ...


class Extras(Protocol):
    """Supplies what gates need beside request records: memory by arm, output equality."""

    def __call__(self, record: LeverRecord, replicas: tuple[str, ...]) -> ArmExtras:
        """Return the extras of the lever being proven."""
        ...
