"""A simulated request as the record that gates, triggers and reports are computed from."""

from trimtab.core.record import Drafting, Phases, RequestRecord, Tokens
from trimtab.core.types import Arm, ErrorClass
from trimtab.sim.fleet_parts import Flight
from trimtab.sim.records import Outcome

_STATUS = {Outcome.FINISHED: 200, Outcome.SHED: 503, Outcome.FAILED: 502}
_ERRORS = {
    Outcome.FINISHED: ErrorClass.NONE,
    Outcome.SHED: ErrorClass.OVERLOADED,
    Outcome.FAILED: ErrorClass.UPSTREAM_CONNECT,
}


def record_of_request(now_s: float, flight: Flight, outcome: Outcome) -> RequestRecord:
    """Return the record of a request that ended now; what did not happen stays None."""
    routed, job, arrival = flight.routed, flight.job, flight.arrival
    exposure = None if routed is None else routed.exposure
    admission = None if routed is None else routed.admission
    ok = outcome is Outcome.FINISHED and job is not None
    first_s = job.first_token_s if ok and job is not None else None
    gaps = arrival.output_tokens - 1
    tpot_ms = (now_s - first_s) * 1000.0 / gaps if first_s is not None and gaps > 0 else None
    return RequestRecord(
        request_id=str(flight.row),
        arrived_at_s=arrival.at_s,
        finished_at_s=now_s,
        endpoint="simulated",
        stream=True,
        arm=Arm.BASELINE if exposure is None else exposure.arm,
        lever=None if exposure is None else exposure.lever,
        slice=None if exposure is None else exposure.slice,
        block=None if exposure is None else exposure.block,
        policy="" if exposure is None else exposure.policy,
        replica=None if routed is None or routed.replica is None else routed.replica.id,
        session=arrival.session,
        label=arrival.label or None,
        phases=Phases(),
        ttft_ms=None if first_s is None else (first_s - arrival.at_s) * 1000.0,
        tpot_ms=tpot_ms,
        e2e_ms=(now_s - arrival.at_s) * 1000.0 if ok else None,
        tokens=_tokens(flight, ok=ok),
        drafting=_drafting(flight, ok=ok),
        batch_at_admission=None if admission is None else admission.batch,
        concurrency_at_admission=None if admission is None else admission.concurrency,
        temperature=0.0,
        status=_STATUS[outcome],
        error=_ERRORS[outcome],
    )


def _tokens(flight: Flight, *, ok: bool) -> Tokens:
    routed, job, arrival = flight.routed, flight.job, flight.arrival
    decision = None if routed is None else routed.decision
    return Tokens(
        prompt=arrival.input_tokens,
        predicted=None if decision is None else decision.predicted_cached_tokens,
        captured=flight.captured,
        delivered=job.cached_tokens if ok and job is not None else None,
        held_best=None if decision is None else decision.held_best_tokens,
        output=arrival.output_tokens if ok else None,
    )


def _drafting(flight: Flight, *, ok: bool) -> Drafting:
    """Return the draft counts at the rate that the answer ended with; nothing where nothing was drafted."""
    job, gaps = flight.job, flight.arrival.output_tokens - 1
    if not ok or job is None or job.drafted <= 0.0 or gaps <= 0:
        return Drafting()
    steps = gaps / job.tokens_per_step
    return Drafting(
        drafts=round(steps),
        drafted=round(steps * job.drafted),
        accepted=round(gaps - steps),
        accepted_per_step=job.tokens_per_step,
    )
