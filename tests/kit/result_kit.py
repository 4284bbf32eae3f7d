"""A tune's result as a real run gives it, for tests of the report."""

import random

from events_kit import MOVES, diagnosis, gates_evaluated

from trimtab.core.budgets import BudgetUse
from trimtab.core.record import Drafting, RequestRecord, Tokens
from trimtab.core.stats_types import Interval
from trimtab.core.types import Budget
from trimtab.runtime.result import (
    BudgetsAt,
    LedgerInfo,
    LeverResult,
    Measured,
    ScopedDiagnosis,
    TimelinePoint,
    TriggerResult,
    TuneResult,
    distributions,
    summarise,
)

ROUTING = "prefix_affine_routing"
SPECULATION = "ngram_speculation"


def records(seed: int, n: int, *, ttft_ms: float, tpot_ms: float) -> list[RequestRecord]:
    """Requests of a run with latencies around the given ones."""
    rng = random.Random(seed)
    found = []
    for number in range(n):
        prompt, output = rng.randint(200, 1800), rng.randint(8, 120)
        delivered = int(prompt * rng.choice((0.1, 0.3, 0.8, 0.9)))
        arrived = number * 0.4
        ttft = ttft_ms * rng.lognormvariate(0, 0.6)
        tpot = tpot_ms * rng.lognormvariate(0, 0.25)
        found.append(
            RequestRecord(
                request_id=f"q{number}",
                arrived_at_s=arrived,
                finished_at_s=arrived + (ttft + tpot * output) / 1000,
                endpoint="chat",
                stream=True,
                replica=f"r{number % 2}",
                label=rng.choice(("edit", "ask", "review")),
                ttft_ms=ttft,
                tpot_ms=tpot,
                e2e_ms=ttft + tpot * output,
                chunk_gap_ms_max=tpot * 3,
                tokens=Tokens(prompt=prompt, delivered=delivered, output=output),
                drafting=Drafting(drafts=10, drafted=30, accepted=12),
                batch_at_admission=rng.randint(1, 6),
                temperature=rng.choice((0.0, 0.7)),
                status=200,
            )
        )
    return found


def uses(compute: float, memory: float | None = 0.31) -> tuple[BudgetUse, ...]:
    """The four budgets; quality was not measured."""
    return (
        BudgetUse(budget=Budget.COMPUTE, used_share=compute, basis="busy time of the threads"),
        BudgetUse(budget=Budget.MEMORY, used_share=memory, basis="resident memory of the host's"),
        BudgetUse(budget=Budget.COMMUNICATION, used_share=0.0, basis="no KV is moved"),
        BudgetUse(budget=Budget.QUALITY, used_share=None, basis="not measured"),
    )


def levers() -> tuple[LeverResult, ...]:
    """One lever adopted, one refused for a cut, one not chosen."""
    chain = (
        "Diagnosis (baseline): prefill is bound by compute (confidence 90%, n=120 requests over 60 s).\n"
        "  prefill: 70% of time, mean 800 ms",
        f"Proposed {ROUTING} (prefix caching).\n  premise: 61% of prompt tokens are lost",
        "Look 3 (canary, 10% in the slice): pass.",
    )
    effect = Measured(
        metric="ttft_ms",
        cut="all traffic",
        ratio=0.58,
        interval=Interval(0.5, 0.7, 0.9),
        n_baseline=140,
        n_candidate=150,
        n_units=9,
        predicted_ratio=0.6,
        predicted_low=0.4,
        predicted_high=0.8,
    )
    return (
        LeverResult(
            name=ROUTING,
            technique="prefix_caching",
            premise="61% of prompt tokens are computed although another replica holds them",
            premise_holds=True,
            predicted_gain_share=0.35,
            verdict="adopted",
            because="all required gates passed over a full peak cycle",
            moves=MOVES,
            measured=(effect,),
            gates=gates_evaluated().results,
            cuts_kept=("all traffic",),
            chain=chain,
        ),
        LeverResult(
            name=SPECULATION,
            technique="speculation",
            premise="decode is bound by memory bandwidth <and> the batch is below 4",
            premise_holds=True,
            predicted_gain_share=None,
            verdict="adopted for cuts",
            because="gained for edits only",
            cuts_kept=("label=edit",),
            cuts_refused={"label=ask": "no gain shown: 1.02 (90% interval 0.9 to 1.15)"},
            measured=(
                Measured(
                    metric="tpot_ms",
                    cut="label=edit",
                    ratio=0.8,
                    interval=None,
                    n_baseline=30,
                    n_candidate=28,
                    n_units=4,
                ),
            ),
        ),
        LeverResult(
            name="weight_quantization",
            technique="quantization",
            premise="decode is bound by memory bandwidth",
            premise_holds=True,
            predicted_gain_share=0.2,
            verdict="not available",
            because="no second artifact of the model is here",
        ),
    )


def timeline() -> tuple[TimelinePoint, ...]:
    """Stages, two rollouts, a trigger and its recovery."""
    stage = [("baseline", 0), ("prove routing", 70), ("prove speculation", 210), ("burst", 400)]
    moves = [
        (ROUTING, 70, "canary", 0.10, None),
        (ROUTING, 110, "ramping", 0.25, "pass"),
        (ROUTING, 130, "ramping", 0.50, "pass"),
        (ROUTING, 150, "proving", 0.95, "pass"),
        (ROUTING, 200, "adopted", 1.0, "pass"),
        (SPECULATION, 215, "canary", 0.10, None),
        (SPECULATION, 280, "ramping", 0.25, "hold"),
        (SPECULATION, 380, "adopted", 0.5, "pass"),
    ]
    points = [TimelinePoint(at_s=at, lane="stage", what=name) for name, at in stage]
    points += [
        TimelinePoint(at_s=at, lane=lane, what=what, share=share, verdict=verdict, detail="because")
        for lane, at, what, share, verdict in moves
    ]
    points += [
        TimelinePoint(at_s=420, lane=SPECULATION, what="trigger fired", verdict="fail", detail="5"),
        TimelinePoint(at_s=455, lane=SPECULATION, what="trigger recovered", verdict="pass"),
    ]
    return tuple(sorted(points, key=lambda point: point.at_s))


def result() -> TuneResult:
    """A whole result."""
    baseline = records(1, 140, ttft_ms=2400, tpot_ms=44)
    final = records(2, 150, ttft_ms=1100, tpot_ms=38)
    return TuneResult(
        version="0.1.0",
        started_at_s=1_800_000_000.0,
        duration_s=540.0,
        machine="2 cores, 8 GB, Linux",
        workload="coding",
        settings={"seed": 1, "replicas": 2, "rate_per_s": 2.5, "command": "trimtab tune"},
        baseline=summarise("baseline", baseline),
        final=summarise("final", final),
        diagnoses=(
            ScopedDiagnosis(scope="baseline", diagnosis=diagnosis("dg-1", "ev-1")),
            ScopedDiagnosis(scope=f"after {ROUTING}", diagnosis=diagnosis("dg-2")),
        ),
        budgets=(
            BudgetsAt(when="before", lever=None, uses=uses(0.96)),
            BudgetsAt(when="predicted", lever=ROUTING, uses=uses(0.7)),
            BudgetsAt(when="after", lever=ROUTING, uses=uses(0.74)),
            BudgetsAt(when="predicted", lever=SPECULATION, uses=uses(0.85, None)),
            BudgetsAt(when="after", lever=SPECULATION, uses=uses(0.82)),
        ),
        levers=levers(),
        triggers=(
            TriggerResult(
                lever=SPECULATION,
                trigger="batch over break-even",
                because="verification costs more than it saves from batch 4 on",
                value=5.2,
                threshold=4.0,
                fired_at_s=420.0,
                action="routing keeps requests off the speculating replica",
                recovered_at_s=455.0,
                held_share_before=0.81,
                held_share_after=0.79,
                n_before=40,
                n_after=60,
                kv_tokens_saved=1254,
                kv_tokens_restored=1254,
            ),
        ),
        timeline=timeline(),
        distributions=distributions(baseline, final),
        ledger=LedgerInfo(
            path="out/ledger.sqlite", events=2412, head_hash="ab" * 32, verified=True
        ),
        notes=("The peak cycle is the workload's own compressed peak of 30 s.",),
    )
