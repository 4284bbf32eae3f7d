"""Looks that go on from the last one answer what a look over everything answers."""

import os
import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_look import plain_look_at
from rollout_kit import LEVER_GATES, RAMP, lever

from trimtab.core.cuts import Cut, Dimension
from trimtab.core.gate import GateSpec, Metric, Question, Statistic
from trimtab.core.lever import Comparison, LeverRecord
from trimtab.core.record import Drafting, RequestRecord, Tokens
from trimtab.core.traffic import CandidatePlan, TrafficPlan, expose
from trimtab.core.types import Arm, ErrorClass, RolloutState, Technique
from trimtab.rollout.answer import ArmExtras
from trimtab.rollout.look import Judge
from trimtab.rollout.machine import Rollout, Step, begin

DEEP = os.environ.get("HYPOTHESIS_PROFILE") == "deep"
EVER = (RolloutState.CANARY, RolloutState.RAMPING, RolloutState.PROVING)
EDITS = Cut(Dimension.LABEL, "edit")
EXTRAS = ArmExtras(memory_bytes_baseline=1e9, memory_bytes_candidate=1.05e9, outputs_n=9, floor_n=9)


def gate(name: str, metric: Metric, question: Question, **more: object) -> GateSpec:
    """A gate that is asked in every state."""
    spec = GateSpec(name=name, metric=metric, question=question, margin=0.1, during=EVER)
    return msgspec.structs.replace(spec, **more)


GATES = (
    *LEVER_GATES,
    gate("any gain", Metric.TTFT_MS, Question.GAIN),
    gate("edits gain", Metric.TPOT_MS, Question.GAIN, cut=EDITS, required=False),
    gate("equal batches", Metric.TPOT_MS, Question.VETO, matched_batch=True),
    gate("throughput", Metric.OUTPUT_TOKENS_PER_S, Question.VETO),
    gate("own throughput", Metric.OUTPUT_TOKENS_PER_S, Question.NO_HARM, matched_batch=True),
    gate("computed", Metric.PROMPT_TOKENS_COMPUTED, Question.VETO, alpha=0.1),
    gate("errors of edits", Metric.ERROR_RATE, Question.VETO, cut=EDITS),
    gate("tail of edits", Metric.TPOT_MS, Question.VETO, statistic=Statistic.TAIL_P95, cut=EDITS),
)


class Course:
    """A rollout at random: its traffic, when it is looked at, when its slice grows."""

    def __init__(self, seed: int, comparison: Comparison, harm_alpha: float | None) -> None:
        self.rng = random.Random(seed)
        ramp = msgspec.structs.replace(RAMP, comparison=comparison, harm_alpha=harm_alpha)
        technique = self.rng.choice([Technique.SPECULATION, Technique.PREFIX_CACHING])
        self.record: LeverRecord = msgspec.structs.replace(
            lever(*GATES, technique=technique), ramp=ramp
        )
        self.rollout: Rollout = begin(self.record, 0.0)
        self.plan = CandidatePlan(
            lever=self.record.name,
            share=self.rollout.share,
            policy="prefix_affine",
            replicas=(),
            comparison=comparison,
            started_at_s=0.0,
            block_s=ramp.block_s,
            edge_s=ramp.edge_s,
        )
        self.harm = self.rng.choice([0.6, 1.0, 1.6])
        self.running: list[RequestRecord] = []

    def serve(self, at_s: float) -> None:
        """One request, which ends at once, or within a few blocks, or never."""
        met = expose(
            TrafficPlan(policy="round_robin", candidate=self.plan),
            place=self.rng.random(),
            cuts=(),
            now_s=at_s,
            replicas=("r0", "r1"),
        )
        takes_s = self.rng.choice([0.1, 1.0, 5.0, 20.0, 40.0])
        ratio = self.harm if met.arm is Arm.CANDIDATE else 1.0
        rng = self.rng
        self.running.append(
            RequestRecord(
                request_id=str(len(self.running)),
                arrived_at_s=round(at_s, 1),
                finished_at_s=at_s + takes_s,
                endpoint="/v1/chat/completions",
                stream=True,
                arm=met.arm,
                lever=met.lever,
                slice=met.slice,
                block=met.block,
                label=rng.choice(["edit", "chat"]),
                ttft_ms=rng.choice([None, 100.0 * ratio, rng.uniform(50.0, 500.0) * ratio]),
                tpot_ms=rng.choice([20.0, rng.uniform(10.0, 40.0)]) * ratio,
                e2e_ms=1000.0 * takes_s,
                tokens=Tokens(
                    prompt=rng.choice([None, 500]), output=50, delivered=rng.randint(0, 400)
                ),
                drafting=Drafting(),
                batch_at_admission=rng.choice([None, 1, 4]),
                status=200,
                looping=rng.choice([None, False, True]),
                error=rng.choice([ErrorClass.NONE] * 9 + [ErrorClass.UPSTREAM_STATUS]),
                client_aborted=rng.random() < 0.05,
            )
        )

    def grow(self, now_s: float) -> None:
        """The slice grows by one step, whatever the gates say."""
        shares, at = self.record.ramp.shares, self.rollout.share_index + 1
        if at == len(shares):
            return
        share = shares[at]
        state = RolloutState.PROVING if at == len(shares) - 1 else RolloutState.RAMPING
        steps = (*self.rollout.steps, Step(share=share, entered_at_s=now_s))
        self.rollout = msgspec.structs.replace(
            self.rollout, state=state, share_index=at, share=share, steps=steps
        )
        self.plan = msgspec.structs.replace(self.plan, share=share)


def check_every_look(seed: int, comparison: Comparison, harm_alpha: float | None) -> None:
    """Go through a course, and compare each look."""
    course = Course(seed, comparison, harm_alpha)
    rng, judge = course.rng, Judge(course.record)
    at_s, seen = 0.0, 0
    for _ in range(rng.randint(2, 14)):
        until_s = at_s + rng.choice([0.5, 6.0, 12.0, 25.0, 60.0])
        for arrival_s in sorted(
            rng.uniform(at_s, until_s) for _ in range(int(3 * (until_s - at_s)))
        ):
            course.serve(arrival_s)
        at_s = until_s
        ended = sorted(
            (one for one in course.running if one.finished_at_s <= at_s),
            key=lambda one: one.finished_at_s,
        )
        for one in ended[seen:]:
            judge.take(one)
        seen = len(ended)
        looked = judge.look(course.rollout, course.plan, EXTRAS, at_s)
        assert looked == plain_look_at(
            course.record, course.rollout, course.plan, ended, EXTRAS, at_s
        )
        if rng.random() < 0.4:
            course.grow(at_s)


@pytest.mark.parametrize("comparison", list(Comparison))
@pytest.mark.parametrize("harm_alpha", [None, 0.01, 0.3])
@settings(max_examples=25 if DEEP else 2, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_look_that_goes_on_answers_as_one_over_everything(
    seed: int, comparison: Comparison, harm_alpha: float | None
) -> None:
    """Late requests, growing shares, mixed pairs, missing values: every answer is equal, to the last digit."""
    check_every_look(seed, comparison, harm_alpha)
