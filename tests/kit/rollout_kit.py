"""Lever records, request records and synthetic traffic for tests of rollouts."""

import math
import random
from collections.abc import Callable

import msgspec
from events_kit import lever_record

from trimtab.core.gate import GateSpec, Metric
from trimtab.core.lever import Comparison, LeverRecord, RampPlan
from trimtab.core.record import Drafting, RequestRecord, Tokens
from trimtab.core.traffic import CandidatePlan, TrafficPlan, expose
from trimtab.core.types import Arm, ErrorClass, Technique
from trimtab.rollout.answer import ArmExtras
from trimtab.rollout.defaults import gain_gate, harm_gates, safety_gates
from trimtab.rollout.look import Judge
from trimtab.rollout.machine import RUNNING, Look, Rollout, advance, begin

LEVER_GATES = (
    gain_gate(Metric.TTFT_MS),
    *harm_gates(Metric.TTFT_MS),
    *harm_gates(Metric.TPOT_MS),
    *safety_gates(),
)
RAMP = RampPlan(
    peak_cycle_s=24.0,
    peak_is="a compressed peak of 24 s",
    comparison=Comparison.SWITCHBACK,
    block_s=6.0,
    edge_s=1.0,
    # Small samples: each gate's own alpha decides.
    harm_alpha=None,
)
EXTRAS = ArmExtras(memory_bytes_baseline=1e9, memory_bytes_candidate=1e9, outputs_n=20, floor_n=20)


def lever(
    *gates: GateSpec,
    ramp: RampPlan = RAMP,
    technique: Technique = Technique.PREFIX_CACHING,
) -> LeverRecord:
    return msgspec.structs.replace(
        lever_record(), gates=gates or LEVER_GATES, ramp=ramp, technique=technique
    )


def served(
    block: int | None,
    arm: Arm,
    *,
    number: int = 0,
    ttft: float | None = 100.0,
    tpot: float | None = 20.0,
    gap: float | None = None,
    prompt: int = 500,
    delivered: int = 100,
    output: int = 50,
    batch: int | None = 2,
    at: float | None = None,
    error: ErrorClass = ErrorClass.NONE,
    aborted: bool = False,
    looping: bool | None = None,
    label: str | None = "coding",
    slice_: str | None = None,
    drafted: int | None = None,
    accepted: int | None = None,
    replica: str = "r0",
) -> RequestRecord:
    began = at if at is not None else float((block or 0) * 10 + number)
    e2e = (ttft or 0.0) + (tpot or 0.0) * output
    return RequestRecord(
        request_id=f"{block}-{arm.value}-{number}-{began}",
        arrived_at_s=began,
        finished_at_s=began + e2e / 1000.0,
        endpoint="/v1/chat/completions",
        stream=True,
        arm=arm,
        lever=lever_record().name,
        slice=slice_,
        block=block,
        replica=replica,
        label=label,
        ttft_ms=ttft,
        tpot_ms=tpot,
        e2e_ms=e2e or None,
        chunk_gap_ms_max=gap if gap is not None else tpot,
        tokens=Tokens(prompt=prompt, output=output, delivered=delivered, predicted=delivered),
        drafting=Drafting(drafted=drafted, accepted=accepted),
        batch_at_admission=batch,
        concurrency_at_admission=batch,
        temperature=0.0,
        status=200 if error is ErrorClass.NONE else 502,
        error=error,
        client_aborted=aborted,
        looping=looping,
    )


def pairs(
    units: int,
    make: Callable[[int, Arm, int], RequestRecord],
    *,
    per_block: int = 3,
) -> list[RequestRecord]:
    """Records of `units` pairs of blocks, `per_block` requests in each."""
    return [
        make(2 * unit + place, arm, number)
        for unit in range(units)
        for place, arm in enumerate((Arm.BASELINE, Arm.CANDIDATE))
        for number in range(per_block)
    ]


class Traffic:
    """Requests with autocorrelated load, unequal sessions and a heavy tail, at `rate` per second."""

    def __init__(self, rng: random.Random, *, rate: float, spread: float, sessions: int) -> None:
        self._rng, self._rate, self._spread = rng, rate, spread
        self._sizes = [rng.gauss(0.0, 0.3) for _ in range(sessions)]
        self._load = 0.0
        self.at_s = 0.0

    def next(self) -> tuple[float, float, float]:
        """(place of the session, latency factor, load) of the next request."""
        rng = self._rng
        gap = rng.expovariate(self._rate)
        self.at_s += gap
        kept = 0.9**gap
        self._load = kept * self._load + rng.gauss(0.0, 0.4 * math.sqrt(1.0 - kept * kept))
        session = rng.randrange(len(self._sizes))
        noise = rng.gauss(0.0, self._spread)
        factor = math.exp(self._load + self._sizes[session] + noise)
        factor *= rng.paretovariate(1.2) if rng.random() < 0.05 else 1.0
        return session / len(self._sizes), factor, self._load


def roll_out(
    seed: int,
    *,
    ratio: float,
    record: LeverRecord | None = None,
    rate: float = 3.0,
    spread: float = 0.8,
    sessions: int = 24,
    limit_s: float = 600.0,
) -> tuple[Rollout, dict[str, float]]:
    """Run the real plan, gates and machine on synthetic traffic whose TTFT the lever multiplies by `ratio`.

    Returns the last rollout and when each state and share was entered.
    """
    record = record or lever()
    rng = random.Random(seed)
    traffic = Traffic(rng, rate=rate, spread=spread, sessions=sessions)
    rollout = begin(record, 0.0)
    plan = CandidatePlan(
        lever=record.name,
        share=rollout.share,
        policy="prefix_affine",
        replicas=(),
        comparison=record.ramp.comparison,
        started_at_s=float(seed),
        block_s=record.ramp.block_s,
        edge_s=record.ramp.edge_s,
    )
    started = msgspec.structs.replace(
        rollout,
        steps=(msgspec.structs.replace(rollout.steps[0], entered_at_s=float(seed)),),
        entered_at_s=float(seed),
        started_at_s=float(seed),
    )
    running: list[RequestRecord] = []
    judge = Judge(record)
    entered: dict[str, float] = {}
    rollout = started
    elapsed = 0.0
    while elapsed < limit_s and rollout.state in RUNNING:
        elapsed += record.ramp.block_s
        now_s = seed + elapsed
        while traffic.at_s < elapsed:
            running += _request(traffic, plan, rng, seed, ratio)
        for one in running:
            if one.finished_at_s <= now_s:
                judge.take(one)
        running = [one for one in running if one.finished_at_s > now_s]
        results, verdict = judge.look(rollout, plan, EXTRAS, now_s)
        after = advance(record, rollout, Look(verdict=verdict, results=results), now_s)
        if (after.state, after.share) != (rollout.state, rollout.share):
            entered[f"{after.state.value} {after.share:.2f}"] = elapsed
            plan = msgspec.structs.replace(plan, share=after.share)
        rollout = after
    return rollout, entered


def _request(
    traffic: Traffic, plan: CandidatePlan, rng: random.Random, seed: int, ratio: float
) -> list[RequestRecord]:
    place, factor, load = traffic.next()
    at_s = seed + traffic.at_s
    exposure = expose(
        TrafficPlan(policy="round_robin", candidate=plan),
        place=place,
        cuts=(),
        now_s=at_s,
        replicas=("r0", "r1"),
    )
    if exposure.block is None:
        return []
    gained = ratio if exposure.arm is Arm.CANDIDATE else 1.0
    return [
        served(
            exposure.block,
            exposure.arm,
            ttft=400.0 * factor * gained,
            tpot=25.0 * math.exp(rng.gauss(0.0, 0.2) + 0.3 * load),
            output=rng.randint(20, 60),
            prompt=rng.randint(600, 1500),
            batch=rng.randint(1, 6),
            at=at_s,
            slice_=exposure.slice,
        )
    ]
