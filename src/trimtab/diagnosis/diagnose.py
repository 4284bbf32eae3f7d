"""The diagnosis: per phase its binding resource, the dominant bottleneck with its causes, ceilings and budgets.

Law: the dominant phase is the one that *causes* most of the time of all requests, not the one in which most of it
passes: a queue behind a prefill and a decode stalled by one count for the prefill.
Regimes: with few requests, unknown phases, no phase that causes 40% of the time, or two within five points of each
other, nothing is named dominant. Failure mode: causes inside an engine that its phase times do not show (a slow
tokenizer, a throttled core) are blamed on the phase in which they pass; the check of observed against calibrated
cost is what finds them.
"""

import re

from trimtab.core.cost import CostModel, SpeculationTable
from trimtab.core.evidence import Evidence, Readings
from trimtab.core.findings import Diagnosis, Finding, PhaseFinding
from trimtab.core.types import Phase, Resource
from trimtab.diagnosis.binding import bind_phases
from trimtab.diagnosis.budget_use import budgets_of
from trimtab.diagnosis.causes import Causes, split_causes
from trimtab.diagnosis.ceilings import ceilings_of
from trimtab.diagnosis.corroboration import confidence_of, corroborate, ruled_out, unknowns
from trimtab.diagnosis.names import FleetFacts, Name

DOMINANT_SHARE_MIN = 0.40
"""A phase that causes less of the time of all requests is not called dominant."""

DOMINANT_LEAD_MIN = 0.05
"""The dominant phase leads the next by at least this share."""

REQUESTS_MIN = 10
"""With fewer requests nothing is called dominant."""

_NEEDED = (
    Name.QUEUE_SHARE,
    Name.PREFILL_SHARE,
    Name.DECODE_SHARE,
    Name.QUEUE_BEHIND_PREFILL_SHARE,
    Name.DECODE_BESIDE_PREFILL_SHARE,
    Name.DELIVERED_SHARE,
    Name.SKIPPED_TOKENS_LOST,
    Name.DELIVERED_OVER_PREDICTED,
    Name.DECODE_BATCH_MEAN,
    Name.TPOT_GROWTH_PER_STREAM,
    Name.KV_RUNNING_SHARE_P95,
    Name.CPU_BUSY_SHARE,
    Name.MEMORY_RESIDENT_BYTES,
)


def diagnose(
    readings: Readings,
    cost: CostModel | None,
    fleet: FleetFacts,
    *,
    now_s: float,
    scope: str,
    speculation: SpeculationTable | None = None,
) -> Diagnosis:
    """Say what binds, how sure that is, and what could be gained; unknown stays unknown.

    `scope` says of what (baseline, after a lever, burst) and goes into the id. Without a cost model decode's
    resource is unknown. Without a table the ceiling of speculation is all of decode.
    """
    causes = split_causes(readings, cost)
    phases = bind_phases(readings, causes, cost)
    requests = readings.value(Name.REQUESTS) or 0.0
    dominant, why_none = _dominant(phases, causes, requests)
    missing = unknowns(readings, _NEEDED)
    supports: tuple[Finding, ...] = ()
    contradicts: tuple[Finding, ...] = ()
    confidence = 0.0
    if dominant is None or causes is None:
        missing = (Finding(text=why_none), *missing)
    else:
        supports, contradicts = corroborate(*dominant, readings, causes, cost)
        confidence = confidence_of(len(supports), len(contradicts), requests)
    return Diagnosis(
        id=f"diagnosis-{_slug(scope)}-{now_s:.3f}",
        at_s=now_s,
        window_s=_window_s(readings),
        samples=int(requests),
        phases=phases,
        dominant_phase=None if dominant is None else dominant[0],
        dominant_resource=None if dominant is None else dominant[1],
        confidence=confidence,
        supports=supports,
        contradicts=contradicts,
        ruled_out=ruled_out(readings),
        unknown=missing,
        ceilings=ceilings_of(readings, causes, cost, fleet, speculation),
        budgets=budgets_of(readings, fleet),
        evidence=tuple(item.id for item in readings.items if isinstance(item, Evidence)),
    )


def _dominant(
    phases: tuple[PhaseFinding, ...], causes: Causes | None, requests: float
) -> tuple[tuple[Phase, Resource] | None, str]:
    """Return the dominant (phase, resource), or None with the reason."""
    if causes is None:
        return None, "nothing is called dominant: the time by phase is unknown"
    if requests < REQUESTS_MIN:
        return None, (
            f"nothing is called dominant: {requests:.0f} requests are too few, {REQUESTS_MIN} are needed"
        )
    resources = {phase.phase: phase.resource for phase in phases}
    capacity = resources[Phase.QUEUE] is Resource.MEMORY_CAPACITY
    # A queue for KV memory is not the prefill's symptom, whatever ran meanwhile.
    behind = causes.queued_behind_prefill if capacity else 0.0
    ranked = sorted(
        (
            (causes.by_prefill - behind, Phase.PREFILL),
            (causes.by_decode, Phase.DECODE),
            (causes.by_admission + behind, Phase.QUEUE),
            (causes.transfer, Phase.TRANSFER),
        ),
        reverse=True,
    )
    (share, phase), (next_share, next_phase) = ranked[0], ranked[1]
    if share < DOMINANT_SHARE_MIN:
        return None, (
            f"nothing dominates: {phase.value} causes most, {share:.0%} of request time, "
            f"less than {DOMINANT_SHARE_MIN:.0%}"
        )
    if share - next_share < DOMINANT_LEAD_MIN:
        return None, (
            f"nothing dominates: {phase.value} ({share:.1%}) and {next_phase.value} ({next_share:.1%}) "
            "are too close to call"
        )
    resource = resources[phase]
    if resource is None:
        return None, f"{phase.value} dominates with {share:.0%}, but what binds it is unknown"
    return (phase, resource), ""


def _window_s(readings: Readings) -> float:
    lengths = [item.window.length_s for item in readings.items if isinstance(item, Evidence)]
    return max(lengths, default=0.0)


def _slug(scope: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", scope.lower()).strip("-") or "all"
