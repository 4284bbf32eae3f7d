"""Prefix-affine routing's own gates on measured traffic: nothing is not adopted, a gain is.

Real requests, all served alike, are drawn again in whole stretches, so that the load's waves and the sessions' habits
stay; which arm a request belongs to is what the plan says, and what the lever did to it is the test's.
"""

import random
from pathlib import Path

import msgspec
from situations import PREFILL_BOUND, readings, situation

from trimtab.core.lever import Comparison, LeverRecord, RampPlan
from trimtab.core.record import RequestRecord, Tokens
from trimtab.core.traffic import CandidatePlan, TrafficPlan, expose
from trimtab.core.types import Arm, RolloutState
from trimtab.levers.prefix_caching import PrefixAffineRouting
from trimtab.policies.places import Places
from trimtab.rollout.answer import ArmExtras
from trimtab.rollout.look import Judge
from trimtab.rollout.machine import RUNNING, Look, Rollout, advance, begin

DATA = Path(__file__).parents[1] / "data" / "aa_records.json"
STRETCH_S = 30.0
LOOK_EVERY_S = 40.0
"""Bounds cover every prefix of the units, so that looking more often would not let more pass."""
LIMIT_S = 1500.0
RAMP = RampPlan(
    peak_cycle_s=100.0,
    peak_is="100 s of the recorded traffic",
    comparison=Comparison.SWITCHBACK,
    block_s=10.0,
    edge_s=1.0,
    # Small samples: each gate's own alpha decides.
    harm_alpha=None,
)
EXTRAS = ArmExtras(memory_bytes_baseline=1e9, memory_bytes_candidate=1e9, outputs_n=20, floor_n=20)


def lever() -> LeverRecord:
    """Prefix-affine routing as it proposes itself, on the ramp of this test."""
    of = situation(readings(**PREFILL_BOUND))
    chosen = PrefixAffineRouting()
    return chosen.propose(msgspec.structs.replace(of, ramp=RAMP), chosen.assess(of), "narrowest")


def recorded() -> list[RequestRecord]:
    """The measured requests in order of arrival."""
    data = msgspec.json.decode(DATA.read_bytes())
    return [_record(dict(zip(data["columns"], row, strict=True))) for row in data["rows"]]


def _record(row: dict[str, object]) -> RequestRecord:
    at_s, took_s = float(row["at_s"]), float(row["took_s"])  # type: ignore[arg-type]
    same = ("ttft_ms", "tpot_ms", "e2e_ms", "chunk_gap_ms_max", "label", "replica", "temperature")
    counts = ("prompt", "predicted", "delivered", "held_best", "output")
    return RequestRecord(
        request_id=f"{at_s}",
        arrived_at_s=at_s,
        finished_at_s=at_s + took_s,
        endpoint="/v1/chat/completions",
        stream=True,
        session=str(row["session"]),
        batch_at_admission=row["batch"],  # type: ignore[arg-type]
        concurrency_at_admission=row["concurrency"],  # type: ignore[arg-type]
        tokens=Tokens(**{name: row[name] for name in counts}),  # type: ignore[arg-type]
        status=200,
        **{name: row[name] for name in same},  # type: ignore[arg-type]
    )


def drawn_again(recorded: list[RequestRecord], rng: random.Random) -> list[RequestRecord]:
    """Stretches of the recording from places drawn at random, one after another; it wraps around."""
    length_s = recorded[-1].arrived_at_s + 1.0
    made: list[RequestRecord] = []
    for index in range(int(LIMIT_S / STRETCH_S)):
        start_s = rng.uniform(0.0, length_s)
        for one in recorded:
            within_s = (one.arrived_at_s - start_s) % length_s
            if within_s < STRETCH_S:
                at_s = index * STRETCH_S + within_s
                made.append(
                    msgspec.structs.replace(
                        one,
                        request_id=f"{index}-{one.request_id}",
                        arrived_at_s=at_s,
                        finished_at_s=at_s + one.finished_at_s - one.arrived_at_s,
                    )
                )
    return sorted(made, key=lambda one: one.arrived_at_s)


def gained(one: RequestRecord, ratio: float) -> RequestRecord:
    """The request as a lever leaves it that multiplies what is computed, and the TTFT with it."""
    assert one.ttft_ms is not None, "every recorded request has one"
    saved_ms = (1.0 - ratio) * one.ttft_ms
    computed = one.tokens.computed or 0
    delivered = (one.tokens.delivered or 0) + round((1.0 - ratio) * computed)
    return msgspec.structs.replace(
        one,
        ttft_ms=one.ttft_ms - saved_ms,
        e2e_ms=(one.e2e_ms or 0.0) - saved_ms,
        finished_at_s=one.finished_at_s - saved_ms / 1000.0,
        tokens=msgspec.structs.replace(one.tokens, delivered=delivered),
    )


def roll_out(seed: int, ratio: float) -> Rollout:
    """The real plan, places, gates and machine over the traffic of one seed; returns the last rollout."""
    rng = random.Random(seed)
    waiting = drawn_again(recorded(), rng)[::-1]
    record, places = lever(), Places()
    began_s = float(seed)
    rollout = begin(record, began_s)
    plan = CandidatePlan(
        lever=record.name,
        share=rollout.share,
        policy="prefix_affine",
        replicas=(),
        comparison=record.ramp.comparison,
        # The order of arms is drawn from the time of the start: another one for each seed.
        started_at_s=began_s,
        block_s=record.ramp.block_s,
        edge_s=record.ramp.edge_s,
    )
    running: list[RequestRecord] = []
    judge = Judge(record)
    elapsed_s = 0.0
    while elapsed_s < LIMIT_S and rollout.state in RUNNING:
        elapsed_s += LOOK_EVERY_S
        while waiting and waiting[-1].arrived_at_s < elapsed_s:
            running.append(_serve(waiting.pop(), plan, places, ratio))
        now_s = began_s + elapsed_s
        for one in running:
            if one.finished_at_s <= elapsed_s:
                judge.take(one)
        running = [one for one in running if one.finished_at_s > elapsed_s]
        results, verdict = judge.look(rollout, plan, EXTRAS, now_s)
        rollout = advance(record, rollout, Look(verdict=verdict, results=results), now_s)
        plan = msgspec.structs.replace(plan, share=rollout.share)
    return rollout


def _serve(one: RequestRecord, plan: CandidatePlan, places: Places, ratio: float) -> RequestRecord:
    exposure = expose(
        TrafficPlan(policy="round_robin", candidate=plan),
        place=places.of(one.session or "", plan.lever),
        cuts=(),
        now_s=plan.started_at_s + one.arrived_at_s,
        replicas=("r0", "r1"),
    )
    met = gained(one, ratio) if exposure.arm is Arm.CANDIDATE else one
    return msgspec.structs.replace(
        met,
        arm=exposure.arm,
        lever=exposure.lever,
        slice=exposure.slice,
        block=exposure.block,
    )


def adopted(seeds: int, ratio: float) -> int:
    """In how many of the seeds the lever ends adopted."""
    ends = [roll_out(seed, ratio).state for seed in range(seeds)]
    return ends.count(RolloutState.ADOPTED)


def test_recording_is_of_real_requests() -> None:
    """Enough of them to draw from, in order of arrival, each complete."""
    seen = recorded()
    assert len(seen) >= 300
    assert seen == sorted(seen, key=lambda one: one.arrived_at_s)
    assert all(one.ok and one.ttft_ms and one.e2e_ms for one in seen)


def test_lever_that_changes_nothing_is_adopted_in_at_most_one_run_of_twenty() -> None:
    """A/A: both arms are the same recorded requests."""
    assert adopted(20, ratio=1.0) <= 1


def test_lever_that_halves_what_is_computed_is_adopted_in_most_runs() -> None:
    """The same traffic with half of TTFT and of the tokens computed: the gates are no wall."""
    assert adopted(12, ratio=0.5) > 6
