"""Puts together what was measured: readings of a window, a diagnosis of it, and the situation levers are assessed on.

Every diagnosis and its readings become events; nothing is decided on a number that the ledger does not hold.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from trimtab.core.budgets import payers_that_bind
from trimtab.core.cost import CostModel, SpeculationTable
from trimtab.core.decision import FleetView
from trimtab.core.events import BudgetsRead, Diagnosed, LeversAssessed, Measured
from trimtab.core.evidence import Evidence, Reading, Readings, Window
from trimtab.core.findings import Diagnosis
from trimtab.core.handover import HandOver
from trimtab.core.lever import Assessment, Lever, LeverRecord, RampPlan, Situation
from trimtab.core.ports import Clock, LedgerSink
from trimtab.core.record import RequestRecord
from trimtab.core.revision import Revision
from trimtab.core.types import Mode
from trimtab.diagnosis.diagnose import diagnose
from trimtab.diagnosis.from_hand_overs import readings_from_hand_overs
from trimtab.diagnosis.from_probes import (
    fleet_readings,
    readings_from_probes,
    readings_from_processes,
    readings_from_views,
)
from trimtab.diagnosis.from_records import readings_from_records
from trimtab.diagnosis.names import FleetFacts, Name, merged
from trimtab.levers.attached import on_attached
from trimtab.levers.choice import choose

PAYER_WINDOW_MIN_S: Final = 10.0
"""Over how long a share of time is to be read, in seconds, before it takes back a lever that passed its gates."""


class ProcessSample(msgspec.Struct, frozen=True):
    """Every replica at one moment of the wall clock: CPU seconds, resident bytes, what its engine said last."""

    at_s: float
    cpu_s: Mapping[str, float | None]
    memory_bytes: Mapping[str, int | None]
    engine: Mapping[str, Readings]


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """What stays the same from one look to the next."""

    fleet: FleetFacts
    revision: Revision
    cost: CostModel
    speculation: SpeculationTable | None
    ramp: RampPlan
    mode: Mode
    owner: str
    target_gain: float
    attached: bool = False
    """Whether the replicas are servers of others, which trimtab cannot restart."""

    prefill_replicas: int = 0
    prefill_restarts: bool = False


class Looked(msgspec.Struct, frozen=True, kw_only=True):
    """A diagnosis with the readings it was made from and the event that holds it."""

    readings: Readings
    diagnosis: Diagnosis
    event_id: str


class Situations:
    """Looks at the system and records what it saw."""

    def __init__(self, sink: LedgerSink, clock: Clock) -> None:
        self._sink = sink
        self._clock = clock

    def look(
        self,
        scope: str,
        standing: Standing,
        records: Sequence[RequestRecord],
        *,
        views: Sequence[FleetView],
        before: ProcessSample,
        after: ProcessSample,
        cause_id: str | None,
        hand_overs: Sequence[HandOver] = (),
    ) -> Looked:
        """Diagnose the window between two process samples; records, views and hand-overs are those of the window."""
        window = Window(before.at_s, after.at_s)
        prefix = f"{scope.replace(' ', '-')}-{after.at_s:.0f}"
        engines = [
            readings_from_probes(
                before.engine.get(replica, Readings()), now, id_prefix=f"{prefix}-{replica}"
            )
            for replica, now in after.engine.items()
        ]
        readings = merged(
            _without_moments(fleet_readings(engines, id_prefix=prefix)),
            readings_from_records(records, window=window, id_prefix=prefix, fleet=standing.fleet),
            readings_from_hand_overs(hand_overs, window=window, id_prefix=prefix),
            readings_from_views(views, window=window, id_prefix=prefix),
            readings_from_processes(
                before.cpu_s,
                after.cpu_s,
                after.memory_bytes,
                fleet=standing.fleet,
                window=window,
                id_prefix=prefix,
            ),
        )
        measured = self._sink.append(Measured(readings=readings, what=scope), cause_id=cause_id)
        diagnosis = diagnose(
            readings,
            standing.cost,
            standing.fleet,
            now_s=self._clock.wall_s(),
            scope=scope,
            speculation=standing.speculation,
        )
        event_id = self._sink.append(
            Diagnosed(diagnosis=diagnosis, scope=scope), cause_id=measured, durable=True
        )
        return Looked(readings=readings, diagnosis=diagnosis, event_id=event_id)

    def situation(
        self,
        looked: Looked,
        standing: Standing,
        *,
        adopted: tuple[str, ...],
        refused: tuple[str, ...],
    ) -> Situation:
        """Return what the levers are assessed on."""
        return Situation(
            diagnosis=looked.diagnosis,
            readings=looked.readings,
            cost=standing.cost,
            speculation=standing.speculation,
            revision=standing.revision,
            replicas=standing.fleet.replicas,
            target_gain=standing.target_gain,
            now_s=self._clock.wall_s(),
            ramp=standing.ramp,
            mode=standing.mode,
            owner=standing.owner,
            adopted=adopted,
            refused=refused,
            attached=standing.attached,
            prefill_replicas=standing.prefill_replicas,
            prefill_restarts=standing.prefill_restarts,
        )

    def choose(
        self, situation: Situation, levers: Mapping[str, Lever], *, cause_id: str
    ) -> tuple[Assessment | None, str, str]:
        """Assess every lever and choose the narrowest fitting one; returns it, the reason, and the event's id."""
        assessments = tuple(lever.assess(situation) for lever in levers.values())
        if situation.attached:
            assessments = on_attached(assessments)
        open_ones = [
            each
            for each in assessments
            if each.lever not in (*situation.adopted, *situation.refused)
        ]
        chosen, because = choose(
            open_ones, situation.target_gain, budgets=situation.diagnosis.budgets
        )
        event = LeversAssessed(
            assessments=assessments,
            chosen=None if chosen is None else chosen.lever,
            because=because,
        )
        return chosen, because, self._sink.append(event, cause_id=cause_id, durable=True)

    def read_budgets(
        self, when: str, lever: str | None, diagnosis: Diagnosis, *, cause_id: str | None
    ) -> str:
        """Record the four budgets of a diagnosis."""
        return self._sink.append(
            BudgetsRead(when=when, lever=lever, budgets=diagnosis.budgets), cause_id=cause_id
        )

    def predict_budgets(
        self, record: LeverRecord, diagnosis: Diagnosis, *, cause_id: str | None
    ) -> str:
        """Record the four budgets as a lever is predicted to leave them."""
        return self._sink.append(
            BudgetsRead(
                when="predicted", lever=record.name, budgets=diagnosis.budgets.after(record.moves)
            ),
            cause_id=cause_id,
        )


def _without_moments(readings: Readings) -> Readings:
    """Leave out what a probe says of the second before it: of a window only the process table tells the CPU time."""
    return Readings(tuple(item for item in readings.items if item.name != Name.CPU_BUSY_SHARE))


def _lasted(reading: Reading | None) -> bool:
    """Say whether a reading is of a moment by its nature (bytes held) or was taken over long enough."""
    if not isinstance(reading, Evidence):
        return True
    return reading.window.length_s == 0 or reading.window.length_s >= PAYER_WINDOW_MIN_S


def payers_reason(record: LeverRecord, diagnosis: Diagnosis) -> str | None:
    """Return why a lever failed although it gained: its paying budget binds now; None if it keeps headroom.

    A share of time that was read over less than `PAYER_WINDOW_MIN_S` does not count: one prompt fills a second.
    """
    binding = tuple(
        budget
        for budget in payers_that_bind(diagnosis.budgets, record.moves)
        if _lasted(diagnosis.budgets.use(budget).reading)
    )
    if not binding:
        return None
    names = ", ".join(budget.value for budget in binding)
    return f"the paying budget binds after adoption: {names}"
