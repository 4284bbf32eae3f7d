"""Rules that read servers of others: what binds, whether that is well, what to do first, and what not to do.

Law: KV memory binds where the cache is full while requests wait or are preempted, whatever share of time that takes,
because nothing else can be admitted. Otherwise the dominant phase is the one that surely causes most of request time:
at least 40% of it, and five points more than any other could have at most.
Regimes: idle, stale and saturated servers look alike in single gauges and are told apart first. What is missing makes
the answer "cannot tell" and names the flag or scrape that would tell.
Failure mode: time that an engine spends outside its own phases is blamed on the phase in which it passes.
"""

import re

from trimtab.core.evidence import Evidence, Readings
from trimtab.core.findings import Diagnosis, Finding, PhaseFinding
from trimtab.core.types import Phase, Resource
from trimtab.diagnosis.corroboration import confidence_of, unknowns
from trimtab.diagnosis.diagnose import DOMINANT_LEAD_MIN, DOMINANT_SHARE_MIN, REQUESTS_MIN
from trimtab.diagnosis.served_advice import Activity, Binding, ServedAdvice
from trimtab.diagnosis.served_facts import ServedFacts
from trimtab.diagnosis.served_names import ServedName
from trimtab.diagnosis.served_rules_activity import activity_of, at_of, without_idle_moment
from trimtab.diagnosis.served_rules_budgets import budgets_served
from trimtab.diagnosis.served_rules_ceilings import ceilings_served
from trimtab.diagnosis.served_rules_checks import corroborate_served, ruled_out_served
from trimtab.diagnosis.served_rules_costs import Costs, costs_of
from trimtab.diagnosis.served_rules_health import health_of, not_to_do, outcome_of, would_tell
from trimtab.diagnosis.served_rules_judgements import judgements_of
from trimtab.diagnosis.served_rules_phases import (
    bind_served,
    kv_full,
    kv_used,
    preempts_now,
    requests_counted,
    requests_seen,
    samples_of,
)
from trimtab.diagnosis.served_rules_proposals import Weighed, proposals_of
from trimtab.diagnosis.served_rules_time import Times, times_of
from trimtab.diagnosis.served_rules_warnings import warnings_of

_NEEDED = (
    ServedName.RUNNING_MEAN,
    ServedName.WAITING_MEAN,
    ServedName.KV_USED_SHARE_MAX,
    ServedName.PREEMPTIONS_PER_S,
    ServedName.QUEUE_SHARE,
    ServedName.PREFILL_SHARE,
    ServedName.DECODE_SHARE,
    ServedName.TTFT_MS_MEAN,
    ServedName.TPOT_MS_MEAN,
    ServedName.PREFIX_HIT_SHARE,
    ServedName.OUTPUT_TOKENS_PER_S,
    ServedName.COMPUTED_PROMPT_TOKENS_PER_S,
    ServedName.GPU_MEMORY_USED_SHARE,
)


def advise_served(
    readings: Readings, facts: ServedFacts, *, at_s: float | None = None, scope: str = "served"
) -> ServedAdvice:
    """Return the diagnosis with what follows from it.

    `at_s`: now, on the clock of the readings' windows; None takes the end of the latest window, and then nothing is
    stale. `scope` says of what, and goes into the diagnosis' id.
    """
    costs = costs_of(readings, facts)
    times = times_of(readings, costs)
    activity, why_activity = activity_of(readings, times, at_s)
    before = without_idle_moment(readings) if activity is Activity.IDLE else None
    idle_now = activity is Activity.IDLE and before is None
    if before is not None:
        readings = before
        costs = costs_of(readings, facts)
        times = times_of(readings, costs)
    moment = " (idle at the only scrape)" if before is not None else ""
    silent = why_activity if activity is Activity.STALE or idle_now else ""
    diagnosis = _diagnosed(readings, facts, times, costs, (silent, moment), at_s, scope)
    binding = _binding(diagnosis)
    healthy, because = health_of(readings, facts, times, costs, activity, binding)
    weighed = Weighed(
        readings=readings,
        facts=facts,
        times=times,
        costs=costs,
        binding=binding,
        ceilings={each.technique: each for each in diagnosis.ceilings},
    )
    proposals = proposals_of(weighed)
    return ServedAdvice(
        diagnosis=diagnosis,
        outcome=outcome_of(healthy, binding),
        activity=activity,
        binding=binding,
        healthy=healthy,
        healthy_because=because,
        warnings=warnings_of(
            readings, facts, costs, why_activity if activity is Activity.STALE else ""
        ),
        not_to_do=not_to_do(weighed),
        proposals=proposals,
        judgements=judgements_of(readings, facts),
        would_tell=would_tell(readings, facts, times, costs),
    )


def diagnose_served(
    readings: Readings, facts: ServedFacts, *, at_s: float | None = None, scope: str = "served"
) -> Diagnosis:
    """Return the diagnosis alone."""
    return advise_served(readings, facts, at_s=at_s, scope=scope).diagnosis


def _diagnosed(
    readings: Readings,
    facts: ServedFacts,
    times: Times,
    costs: Costs,
    silence: tuple[str, str],
    at_s: float | None,
    scope: str,
) -> Diagnosis:
    phases = bind_served(readings, facts, times, costs)
    dominant, why_none = _dominant(readings, phases, times, silence[0])
    missing = unknowns(readings, _NEEDED)
    supports: tuple[Finding, ...] = ()
    contradicts: tuple[Finding, ...] = ()
    confidence = 0.0
    samples = samples_of(readings)
    if dominant is None:
        missing = (Finding(text=f"{why_none}{silence[1]}"), *missing)
    else:
        supports, contradicts = corroborate_served(*dominant, readings, facts, times, costs)
        by_gauges = dominant[0] is Phase.QUEUE and (
            times.by_gauges or dominant[1] is Resource.MEMORY_CAPACITY
        )
        rests_on = max(samples, requests_seen(readings)) if by_gauges else samples
        confidence = confidence_of(len(supports), len(contradicts), rests_on)
    at = at_of(readings) if at_s is None else at_s
    slug = re.sub(r"[^a-z0-9]+", "-", scope.lower()).strip("-") or "all"
    lengths = [item.window.length_s for item in readings.items if isinstance(item, Evidence)]
    return Diagnosis(
        id=f"diagnosis-{slug}-{at:.3f}",
        at_s=at,
        window_s=max(lengths, default=0.0),
        samples=samples,
        phases=phases,
        dominant_phase=None if dominant is None else dominant[0],
        dominant_resource=None if dominant is None else dominant[1],
        confidence=confidence,
        supports=supports,
        contradicts=contradicts,
        ruled_out=ruled_out_served(readings, times),
        unknown=missing,
        ceilings=ceilings_served(readings, facts, times, costs),
        budgets=budgets_served(readings, facts, costs),
        evidence=tuple(item.id for item in readings.items if isinstance(item, Evidence)),
    )


def _binding(diagnosis: Diagnosis) -> Binding | None:
    if diagnosis.dominant_phase is None or diagnosis.dominant_resource is None:
        return None
    phase = diagnosis.phase(diagnosis.dominant_phase)
    return Binding(
        phase=diagnosis.dominant_phase,
        resource=diagnosis.dominant_resource,
        share=None if phase is None else phase.share,
        because="" if phase is None else phase.because,
    )


def _dominant(
    readings: Readings,
    phases: tuple[PhaseFinding, ...],
    times: Times,
    silent: str,
) -> tuple[tuple[Phase, Resource] | None, str]:
    """Return the dominant (phase, resource), or None with the reason; `silent` says why nothing may be named."""
    if silent:
        return None, f"nothing is called dominant: {silent}"
    if kv_full(readings) is not None:
        return (Phase.QUEUE, Resource.MEMORY_CAPACITY), ""
    if preempts_now(readings) and kv_used(readings) is None:
        return None, (
            "nothing is called dominant: requests are preempted, which is want of KV memory, and nobody tells how full "
            "the KV cache is"
        )
    counted = requests_counted(readings)
    if counted is not None and counted < REQUESTS_MIN:
        return None, (
            f"nothing is called dominant: {counted} requests are too few, {REQUESTS_MIN} are needed"
        )
    ranked, why = _ranked(times)
    if ranked is None:
        return None, why
    share, phase = ranked
    resource = next(found.resource for found in phases if found.phase is phase)
    if resource is None:
        because = next(found.because for found in phases if found.phase is phase)
        return (
            None,
            f"{phase.value} dominates with {share:.0%}, but what binds it is unknown: {because}",
        )
    return (phase, resource), ""


def _ranked(times: Times) -> tuple[tuple[float, Phase] | None, str]:
    """Return the phase that surely leads, or None with the reason."""
    if times.queue is None:
        return None, "nothing is called dominant: neither queue time nor waiting requests are told"
    causes = {
        Phase.QUEUE: times.queue,
        Phase.PREFILL: times.by_prefill,
        Phase.TRANSFER: times.transfer,
        Phase.DECODE: times.by_decode,
    }
    known = {phase: share for phase, share in causes.items() if share is not None}
    left = max(0.0, 1.0 - sum(known.values()))
    phase = max(known, key=lambda each: known[each])
    share = known[phase]
    rivals = {each: known.get(each, left) for each in causes if each is not phase}
    rival = max(rivals, key=lambda each: rivals[each])
    if share >= DOMINANT_SHARE_MIN and share - rivals[rival] >= DOMINANT_LEAD_MIN:
        return (share, phase), ""
    if rival not in known:
        return None, (
            f"nothing is called dominant: {phase.value} has {share:.0%} of request time, and {rival.value}, "
            f"which nobody tells, may have up to {left:.0%}"
        )
    return None, (
        f"nothing dominates: {phase.value} causes {share:.1%} of request time and {rival.value} {rivals[rival]:.1%}"
    )
