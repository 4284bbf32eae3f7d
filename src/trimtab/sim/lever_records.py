"""The lever record that a simulated rollout proves: of a file, or made from what the scenario says.

Gates are those of `rollout.defaults`, which a lever declares unless it has reasons of its own. Gates on what a
simulation has nothing of (texts, memory, gaps between chunks) are left out and named, never passed.
"""

from typing import Final

import msgspec

from trimtab.core.budgets import BudgetMove
from trimtab.core.gate import Metric
from trimtab.core.lever import (
    Bottleneck,
    ExpectedEffect,
    LeverRecord,
    QualityExposure,
    RampPlan,
    TriggerSignal,
    TriggerSpec,
    check_record,
)
from trimtab.core.types import Budget, Mode, Phase, Resource, Technique
from trimtab.rollout.defaults import gain_gate, harm_gates, safety_gates
from trimtab.rollout.movement import comparison_of, narrowness_of, reverse_of
from trimtab.sim.sections import RolloutSection

NOT_SIMULATED: Final = frozenset(
    {Metric.MEMORY_BYTES, Metric.OUTPUT_DIFFERENCE, Metric.CHUNK_GAP_MS}
)
EXPIRES_S: Final = 30 * 86_400.0
_TRIGGER_TPOT_OFF, _TRIGGER_TPOT_ON = 1.5, 1.1

_SAID: Final = "as the scenario says"


def record_of(section: RolloutSection) -> LeverRecord:
    """Return a complete lever record for what a scenario rolls out; raises `LeverRecordError`."""
    by_routing = section.policy is not None
    metric = Metric(section.gain)
    others = [one for one in (Metric.TTFT_MS, Metric.TPOT_MS) if one is not metric]
    matched = not by_routing
    gates = (
        gain_gate(metric, margin=section.margin, matched_batch=matched),
        *(gate for one in others for gate in harm_gates(one, matched_batch=matched)),
        *safety_gates(),
    )
    return check_record(
        LeverRecord(
            name=section.lever,
            technique=Technique.PREFIX_CACHING if by_routing else _technique(section),
            bottleneck=Bottleneck(
                phase=Phase.PREFILL if metric is Metric.TTFT_MS else Phase.DECODE,
                resource=Resource.COMPUTE,
                share=None,
                diagnosis=_SAID,
                evidence=(_SAID,),
            ),
            premise=_SAID,
            condition="all requests",
            moves=(
                BudgetMove(budget=Budget.COMPUTE, spends=True, delta_share=None, because=_SAID),
            ),
            expected=(
                ExpectedEffect(
                    metric=metric,
                    ratio=1.0 - section.margin,
                    low=0.05,
                    high=1.0,
                    because="the least gain that is worth it",
                ),
            ),
            failure_modes=("harm in a cut that was not thought of",),
            gates=gates,
            quality_gate="none: a simulation makes no text",
            triggers=(_trigger(),),
            reverse=reverse_of(live=by_routing),
            ramp=_ramp(section),
            mode=Mode.ACT,
            owner="the scenario",
            created_at_s=0.0,
            expires_at_s=EXPIRES_S,
            narrowness=narrowness_of(QualityExposure.NONE, live=by_routing),
            chosen_because=_SAID,
        )
    )


def _ramp(section: RolloutSection) -> RampPlan:
    return RampPlan(
        shares=section.shares,
        peak_cycle_s=section.peak_cycle_s,
        peak_is=f"{section.peak_cycle_s:g} s",
        comparison=comparison_of(live=section.policy is not None),
        block_s=section.block_s,
        edge_s=section.edge_s,
    )


def _technique(section: RolloutSection) -> Technique:
    candidate = section.candidate
    if candidate is not None and candidate.speculation is not None:
        return Technique.SPECULATION
    return Technique.PREFILL_CHUNKING


def _trigger() -> TriggerSpec:
    return TriggerSpec(
        name="tpot-worse",
        signal=TriggerSignal.NET_TPOT_RATIO,
        off_at=_TRIGGER_TPOT_OFF,
        on_at=_TRIGGER_TPOT_ON,
        off_when_above=True,
        ticks=2,
        min_samples=10,
        lockout_s=60.0,
        because="answers come slower than without the lever at the same batch",
    )


def simulated(record: LeverRecord) -> tuple[LeverRecord, tuple[str, ...]]:
    """Return the record with the gates that a simulation can answer, in virtual time, and the names of the others.

    Raises `LeverRecordError` if no gain is left to ask.
    """
    kept = tuple(gate for gate in record.gates if gate.metric not in NOT_SIMULATED)
    dropped = tuple(gate.name for gate in record.gates if gate.metric in NOT_SIMULATED)
    lasts_s = record.expires_at_s - record.created_at_s
    changed = msgspec.structs.replace(
        record, gates=kept, created_at_s=0.0, expires_at_s=lasts_s, revision=None
    )
    return check_record(changed), dropped
