"""Marks adopted levers "to verify again" when one that they share with changes, and has them proven again.

In mode act the proof begins by itself as soon as no other lever is being proven; otherwise a person starts it.
"""

from collections.abc import Callable

import msgspec

from trimtab.core.events import VerificationDue
from trimtab.core.lever import LeverRecord
from trimtab.core.ports import LedgerSink
from trimtab.core.types import Mode, RolloutState
from trimtab.levers.catalog import routing_policy_of
from trimtab.rollout.interactions import meeting
from trimtab.runtime.controller import Controller
from trimtab.runtime.proof import ControlError
from trimtab.runtime.trigger_watch import TriggerShell


class Verifier:
    """Knows which levers are due. `due`: the event that says why, by lever, in the order they became due."""

    def __init__(
        self,
        *,
        controller: Controller,
        triggers: Callable[[], TriggerShell],
        sink: LedgerSink,
        baseline_policy: str,
        mode: Mode,
    ) -> None:
        self._controller = controller
        self._triggers = triggers
        self._sink = sink
        self._baseline_policy = baseline_policy
        self._mode = mode
        self.due: dict[str, str] = {}

    def changed(self, record: LeverRecord, to: RolloutState, cause_id: str) -> None:
        """Mark every adopted lever that meets the one that changed.

        A lever that passed when it was verified again did not change: it is on as it was.
        """
        self.due.pop(record.name, None)
        proof = self._controller.proof
        passed = proof is not None and proof.verifies and proof.record.name == record.name
        if passed and to is RolloutState.ADOPTED:
            return
        for name, adopted in self._triggers().adopted.items():
            both = meeting(record, adopted.record)
            if name == record.name or both is None or name in self.due:
                continue
            due = VerificationDue(
                lever=name,
                changed=record.name,
                moved_to=to,
                budgets=both.budgets,
                phases=both.phases,
                cuts=both.cuts,
            )
            self.due[name] = self._sink.append(due, cause_id=cause_id, durable=True)

    def tick(self) -> None:
        """Begin the next verification if it may begin by itself and nothing else is being proven."""
        if self._mode is not Mode.ACT or self._controller.frozen or not self._controller.has_ended:
            return
        adopted = self._triggers().adopted
        ready = [name for name in self.due if name in adopted and adopted[name].is_on]
        if ready and self._controller.proof is None and self._sink.healthy:
            self.begin(ready[0])

    def begin(self, name: str, reason: str = "") -> None:
        """Prove an adopted lever again; raises `ControlError` where it is off, unknown, or another is being proven."""
        triggers = self._triggers()
        lever = triggers.adopted.get(name)
        if lever is None or not lever.is_on:
            known = ", ".join(n for n, each in triggers.adopted.items() if each.is_on)
            raise ControlError(f"{name!r} is not on; levers that are: {known or 'none'}")
        # What was taken off the lever stays off while it is proven again.
        without = tuple(dict.fromkeys((*lever.without, *sorted(lever.cuts_off, key=str))))
        self._controller.verify(
            msgspec.structs.replace(lever.record, without=without),
            routing_policy_of(lever.record),
            baseline_policy=self._baseline_policy,
            cause_id=self.due.get(name, lever.cause_id),
            reason=reason,
        )
        self.due.pop(name, None)
        triggers.let_be(name)
