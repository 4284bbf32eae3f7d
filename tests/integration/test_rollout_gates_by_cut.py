"""Every gate of a lever record is judged per cut: harm in one cut is seen there, whatever the average says."""

from collections.abc import Callable

import msgspec
import pytest
from case_kit import Answer, Case, chance, is_candidate, speculation, spread, verdict

from trimtab.core.record import RequestRecord, Tokens
from trimtab.core.types import Constraint, ErrorClass, RolloutState, Verdict
from trimtab.rollout.short_record import Known

S = RolloutState
PRICED = Known(price_per_replica_hour=2.0)

GATE = """
[[gates]]
name = "asked"
metric = "{metric}"
question = "veto"
margin = {margin}
cut = "label=long"
min_requests = 5
min_units = 2
during = ["canary", "ramping", "proving"]
required = false
"""

Harm = Callable[[RequestRecord], RequestRecord]


def tokens(one: RequestRecord, *, output: int = 50, delivered: int = 500) -> RequestRecord:
    told = Tokens(prompt=1000, output=output, delivered=delivered, predicted=delivered)
    return msgspec.structs.replace(one, tokens=told)


def slower(one: RequestRecord, factor: float) -> RequestRecord:
    """The same answer, so much later."""
    e2e = (one.e2e_ms or 0.0) * factor
    return msgspec.structs.replace(one, e2e_ms=e2e, finished_at_s=one.arrived_at_s + e2e / 1000.0)


HARMS: dict[str, tuple[float, Harm]] = {
    "ttft_ms": (0.1, lambda one: msgspec.structs.replace(one, ttft_ms=1.4 * (one.ttft_ms or 0.0))),
    "tpot_ms": (0.1, lambda one: msgspec.structs.replace(one, tpot_ms=1.4 * (one.tpot_ms or 0.0))),
    "chunk_gap_ms": (
        0.1,
        lambda one: msgspec.structs.replace(
            one, chunk_gap_ms_max=1.4 * (one.chunk_gap_ms_max or 0.0)
        ),
    ),
    "e2e_ms": (0.1, lambda one: slower(one, 1.4)),
    "output_tokens_per_s": (0.1, lambda one: slower(one, 4.0)),
    "unit_cost": (0.1, lambda one: slower(one, 4.0)),
    "prompt_tokens_computed": (0.1, lambda one: tokens(one, delivered=0)),
    "error_rate": (
        0.02,
        lambda one: (
            msgspec.structs.replace(one, error=ErrorClass.UPSTREAM_STATUS, status=502)
            if chance(one, "error") < 0.1
            else one
        ),
    ),
    "invalid_output_rate": (
        0.02,
        lambda one: msgspec.structs.replace(one, output_valid=chance(one, "valid") < 0.5),
    ),
}


def answering(harm: Harm, label: str = "long") -> Answer:
    """15% of the requests are `long`; there alone the candidate is harmed, elsewhere it gains."""

    def answer(one: RequestRecord) -> RequestRecord:
        mine = "long" if chance(one, "label") < 0.15 else "short"
        gained = 0.7 if is_candidate(one) and mine != label else 1.0
        one = msgspec.structs.replace(
            tokens(one),
            label=mine,
            constraint=Constraint.GRAMMAR,
            output_valid=True,
            ttft_ms=100.0 * spread(one, "ttft"),
            tpot_ms=20.0 * spread(one) * gained,
            chunk_gap_ms_max=30.0 * spread(one, "gap"),
            e2e_ms=1100.0 * spread(one, "e2e"),
        )
        one = msgspec.structs.replace(one, finished_at_s=one.arrived_at_s + one.e2e_ms / 1000.0)
        return harm(one) if is_candidate(one) and mine == label else one

    return answer


def priced(gates: str) -> Case:
    """A case in a fleet whose replicas have a price."""
    case = Case(speculation(gates=gates, cycle="150s"), PRICED)
    case.extras = msgspec.structs.replace(case.extras, price_baseline=2.0, price_candidate=2.0)
    return case


@pytest.mark.parametrize("metric", list(HARMS))
async def test_harm_in_one_cut_is_seen_there_and_takes_that_cut_alone(metric: str) -> None:
    """The average improves; the cut leaves with its reason and the rest goes on."""
    margin, harm = HARMS[metric]
    case = await priced(GATE.format(metric=metric, margin=margin)).start()
    for _ in range(15):
        await case.serve(10, answering(harm), per_s=24)
        if case.refused:
            break
    assert list(case.refused) == ["label=long"]
    assert case.refused["label=long"].startswith(("asked: ", "veto ", "valid outputs"))
    assert S.ROLLED_BACK not in case.moves
    plan = case.actuator.plan
    left = [] if plan.candidate is None else [str(cut) for cut in plan.candidate.without]
    left += [str(cut) for each in plan.preferences for cut in each.without]
    assert "label=long" in left


@pytest.mark.parametrize("also", [False, True])
async def test_cut_that_leaves_takes_its_harm_along(also: bool) -> None:
    """Long prompts have short answers, so that harm shows in both cuts: long prompts leave, and if it was their harm
    alone the rest goes on; where short answers of others are harmed too, the lever is stopped.
    """

    def answer(one: RequestRecord) -> RequestRecord:
        long = chance(one, "long") < 0.15
        brief = long or chance(one, "brief") < 0.15
        told = Tokens(prompt=3000 if long else 100, output=8 if brief else 80)
        ttft = 100.0 * spread(one, "ttft")
        if is_candidate(one) and (long or (also and brief)):
            ttft *= 1.6
        return msgspec.structs.replace(
            one, tokens=told, ttft_ms=ttft, tpot_ms=20.0 * spread(one), output_valid=None
        )

    case = await Case(speculation(cycle="150s")).start()
    for _ in range(15):
        await case.serve(10, answer, per_s=24)
        if S.ROLLED_BACK in case.moves:
            break
    assert (S.ROLLED_BACK in case.moves) == also
    if not also:
        assert list(case.refused) == ["input_tokens=1024-4096"]


LENIENT = "".join(
    f"""
[[gates]]
name = "{name}"
metric = "ttft_ms"
question = "veto"
margin = 10.0
{more}
"""
    for name, more in (
        ("ttft_ms canary", 'during = ["canary"]'),
        ("ttft_ms proving", 'during = ["proving"]'),
        ("ttft tail", 'statistic = "tail_p95"'),
    )
)
"""All traffic may wait eleven times as long for its first token: what is left are cuts that nobody declared."""


async def test_harm_in_a_cut_of_all_requests_stops_the_lever() -> None:
    """Every request is free text: without that cut nothing would be left, so it cannot leave alone."""

    def answer(one: RequestRecord) -> RequestRecord:
        ttft = 100.0 * spread(one, "ttft") * (1.6 if is_candidate(one) else 1.0)
        return msgspec.structs.replace(
            one, ttft_ms=ttft, tpot_ms=20.0 * spread(one), output_valid=None
        )

    case = await Case(speculation(gates=LENIENT, cycle="150s")).start()
    for _ in range(15):
        await case.serve(10, answer, per_s=24)
        if S.ROLLED_BACK in case.moves:
            break
    assert S.ROLLED_BACK in case.moves
    assert case.refused == {}


@pytest.mark.parametrize("only_long", [False, True])
async def test_harm_in_every_cut_of_a_dimension_stops_the_lever(only_long: bool) -> None:
    """Two labels and two lengths: where all are harmed alike no cut leaves, for together they are all traffic. Where
    both labels are harmed by long prompts alone, those leave and the rest goes on.
    """

    def answer(one: RequestRecord) -> RequestRecord:
        long = chance(one, "prompt") < 0.4
        harmed = is_candidate(one) and (long or not only_long)
        return msgspec.structs.replace(
            one,
            label="chat" if chance(one, "label") < 0.5 else "edit",
            tokens=Tokens(prompt=600 if long else 100, output=50),
            ttft_ms=100.0 * spread(one, "ttft") * (1.6 if harmed else 1.0),
            tpot_ms=20.0 * spread(one),
            output_valid=None,
        )

    case = await Case(speculation(gates=LENIENT, cycle="150s")).start()
    for _ in range(20):
        await case.serve(10, answer, per_s=24)
        if S.ROLLED_BACK in case.moves:
            break
    assert (S.ROLLED_BACK in case.moves) != only_long
    assert list(case.refused) == (["input_tokens=256-1024"] if only_long else [])


@pytest.mark.parametrize("metric", list(HARMS))
async def test_no_harm_in_a_cut_is_a_pass_there(metric: str) -> None:
    """Harm in the other requests is not harm in these."""
    margin, _ = HARMS[metric]
    case = await priced(GATE.format(metric=metric, margin=margin)).start()
    await case.serve(50, answering(lambda one: one))
    found, _ = verdict(case, "asked")
    assert found is Verdict.PASS
    assert case.result("asked").cut == "label=long"


@pytest.mark.parametrize("unknown", ["tpot_ms", "ttft_ms", "chunk_gap_ms_max"])
async def test_gate_that_cannot_be_evaluated_is_an_error_unless_declared_absent(
    unknown: str,
) -> None:
    """Nothing was measured: error, which pauses; declared absent in the record it is not asked at all."""
    metric = unknown.removesuffix("_max")
    gate = GATE.format(metric=metric, margin=0.1).replace('cut = "label=long"\n', "")
    gate = gate.replace("required = false", "required = true")

    def answer(one: RequestRecord) -> RequestRecord:
        return msgspec.structs.replace(one, **{unknown: None})

    case = await Case(speculation(gates=gate)).start()
    await case.serve(40, answer, until=S.PAUSED)
    assert case.state is S.PAUSED
    found, reason = verdict(case, "asked")
    assert (found, "could be measured" in reason) == (Verdict.ERROR, True)
    other = "e2e_ms" if metric != "e2e_ms" else "tpot_ms"
    declared = f'absent = {{ {metric} = "this engine does not stream" }}\n'
    quiet = await Case(speculation(more=declared, metric=other)).start()
    await quiet.serve(40, answer)
    assert S.PAUSED not in quiet.moves
    assert metric not in {each.metric.value for each in quiet.results}


@pytest.mark.parametrize("bad_b", [0, 1])
async def test_zero_baseline_uses_exact_counts(bad_b: int) -> None:
    """No error before and a few since: a difference of counts, never a ratio to zero."""
    seen = {"n": 0}

    def answer(one: RequestRecord) -> RequestRecord:
        fails = is_candidate(one) and chance(one, "error") < 0.25
        if not is_candidate(one) and seen["n"] < bad_b:
            seen["n"] += 1
            fails = True
        if not fails:
            return one
        return msgspec.structs.replace(one, error=ErrorClass.UPSTREAM_STATUS, status=502)

    case = await Case(speculation()).start()
    await case.serve(24, answer, until=S.ROLLED_BACK)
    assert case.state is S.ROLLED_BACK
    errors = case.result("errors")
    assert errors.verdict is Verdict.FAIL
    assert errors.interval is not None
    assert -1.0 <= errors.interval.low <= errors.interval.high <= 1.0


async def test_unit_cost_says_what_a_million_tokens_cost_in_each_arm() -> None:
    """From the price of a replica's hour, the candidate's own where its record names one."""
    text = speculation(more="price_per_replica_hour = 4.0\n", cycle="24s", shares="[0.5, 0.95]")
    case = await Case(text, PRICED).start()
    case.extras = msgspec.structs.replace(
        case.extras, price_baseline=2.0, price_candidate=case.record.price_per_replica_hour
    )
    await case.serve(60, answering(lambda one: one))
    gate = case.result("unit cost")
    assert "per million output tokens: baseline " in gate.reason
    assert gate.value == pytest.approx(2.0, rel=0.2)
