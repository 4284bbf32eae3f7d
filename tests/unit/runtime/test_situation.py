"""What is decided is decided on recorded readings: each look is a chain of events."""

import msgspec
import pytest
from control_kit import HandClock, SpySink
from events_kit import REVISION, budgets, diagnosis, lever_record
from routing_kit import COST
from situations import FLEET, PREFILL_BOUND, readings, request, situation

from trimtab.core.budgets import Budgets, BudgetUse
from trimtab.core.events import BudgetsRead, Diagnosed, LeversAssessed, Measured
from trimtab.core.evidence import Evidence, Readings, Window
from trimtab.core.lever import Assessment, RampPlan, Situation
from trimtab.core.types import Budget, Mode
from trimtab.levers.catalog import catalog
from trimtab.levers.prefix_caching import PrefixAffineRouting
from trimtab.runtime.situation import (
    PAYER_WINDOW_MIN_S,
    ProcessSample,
    Situations,
    Standing,
    payers_reason,
)

STANDING = Standing(
    fleet=FLEET,
    revision=REVISION,
    cost=COST,
    speculation=None,
    ramp=RampPlan(),
    mode=Mode.ADVISE,
    owner="operator",
    target_gain=0.05,
)
LEVER = PrefixAffineRouting.name


class Insistent(PrefixAffineRouting):
    """A lever that does not know that it was tried already."""

    def assess(self, situation: Situation) -> Assessment:
        """Assess as if it were the first time."""
        return super().assess(msgspec.structs.replace(situation, adopted=(), refused=()))


class Bench:
    """Situations on a ledger in memory."""

    def __init__(self) -> None:
        self.clock = HandClock()
        self.sink = SpySink(self.clock)
        self.situations = Situations(self.sink, self.clock)


def sample(at_s: float, cpu_s: float) -> ProcessSample:
    cpu: dict[str, float | None] = {"r0": cpu_s, "r1": cpu_s}
    memory: dict[str, int | None] = {"r0": 1_000, "r1": 1_000}
    return ProcessSample(
        at_s=at_s, cpu_s=cpu, memory_bytes=memory, engine={"r0": Readings(), "r1": Readings()}
    )


def of(**changes: object) -> Situation:
    return msgspec.structs.replace(situation(readings(**PREFILL_BOUND)), **changes)


def test_look_is_readings_then_a_diagnosis_of_them() -> None:
    """The diagnosis is caused by the readings, and every id it cites is among them."""
    bench = Bench()
    looked = bench.situations.look(
        "baseline",
        STANDING,
        [request(float(at_s)) for at_s in range(30)],
        views=[],
        before=sample(0.0, 0.0),
        after=sample(30.0, 20.0),
        cause_id="S",
    )
    measured, diagnosed = bench.sink.read()
    assert isinstance(measured.event, Measured)
    assert isinstance(diagnosed.event, Diagnosed)
    assert (measured.cause_id, diagnosed.cause_id) == ("S", measured.id)
    assert (looked.event_id, looked.diagnosis) == (diagnosed.id, diagnosed.event.diagnosis)
    assert measured.event.readings == looked.readings
    known = {getattr(reading, "id", None) for reading in looked.readings.items}
    assert looked.diagnosis.evidence != ()
    assert set(looked.diagnosis.evidence) <= known


def test_two_looks_never_share_an_evidence_id() -> None:
    """Or a record could cite what was measured at another time."""
    bench = Bench()
    ids: list[str] = []
    for start_s in (0.0, 30.0):
        looked = bench.situations.look(
            "serving",
            STANDING,
            [request(start_s + number) for number in range(20)],
            views=[],
            before=sample(start_s, 0.0),
            after=sample(start_s + 30.0, 20.0),
            cause_id=None,
        )
        ids += [reading.id for reading in looked.readings.items if hasattr(reading, "id")]
    assert len(ids) == len(set(ids))


def test_choice_records_every_assessment_with_its_reason() -> None:
    """Of all levers, not only of the one chosen; it is caused by the diagnosis."""
    bench = Bench()
    chosen, because, event_id = bench.situations.choose(of(), catalog(), cause_id="D")
    (envelope,) = bench.sink.read()
    assert isinstance(envelope.event, LeversAssessed)
    assert (envelope.id, envelope.cause_id) == (event_id, "D")
    assert {each.lever for each in envelope.event.assessments} == set(catalog())
    assert chosen is not None
    assert (chosen.lever, envelope.event.chosen) == (LEVER, LEVER)
    assert envelope.event.because == because
    assert bench.sink.durable == ["levers_assessed"]


@pytest.mark.parametrize("how", ["adopted", "refused"])
def test_lever_that_is_adopted_or_refused_is_assessed_but_not_chosen(how: str) -> None:
    """Even where its premise still holds and it does not say so itself."""
    bench = Bench()
    levers = {LEVER: Insistent()}
    assert bench.situations.choose(of(), levers, cause_id="D")[0] is not None
    chosen, _, _ = bench.situations.choose(of(**{how: (LEVER,)}), levers, cause_id="D")
    last = bench.sink.read()[-1].event
    assert isinstance(last, LeversAssessed)
    assert [each.lever for each in last.assessments] == [LEVER]
    assert (chosen, last.chosen) == (None, None)


def test_situation_carries_what_stands_and_what_was_seen() -> None:
    """The levers see one moment of one fleet."""
    bench = Bench()
    looked = bench.situations.look(
        "x", STANDING, [], views=[], before=sample(0, 0), after=sample(9, 0), cause_id=None
    )
    found = bench.situations.situation(looked, STANDING, adopted=("a",), refused=("b",))
    assert (found.diagnosis, found.readings) == (looked.diagnosis, looked.readings)
    assert (found.replicas, found.revision, found.mode) == (2, REVISION, Mode.ADVISE)
    assert (found.adopted, found.refused, found.now_s) == (("a",), ("b",), bench.clock.wall_s())


def test_budgets_are_recorded_as_read_and_as_predicted() -> None:
    """The prediction is the reading moved by what the record says; what has no size is unknown."""
    bench = Bench()
    seen = diagnosis("dg-1", "ev-1")
    bench.situations.read_budgets("before", None, seen, cause_id="D")
    bench.situations.predict_budgets(lever_record(), seen, cause_id="D")
    before, predicted = (envelope.event for envelope in bench.sink.read())
    assert isinstance(predicted, BudgetsRead)
    assert before == BudgetsRead(when="before", lever=None, budgets=seen.budgets)
    assert (predicted.when, predicted.lever) == ("predicted", lever_record().name)
    assert predicted.budgets.use(Budget.COMPUTE).used_share == pytest.approx(0.6)
    assert predicted.budgets.use(Budget.MEMORY).used_share is None


def test_paying_budget_that_binds_is_the_reason_to_take_back() -> None:
    """Memory pays for this lever; compute, which it relieves, may bind as it likes."""
    seen = diagnosis("dg-1", "ev-1")

    def memory_at(share: float | None) -> str | None:
        use = BudgetUse(budget=Budget.MEMORY, used_share=share, basis="test")
        others = tuple(each for each in budgets(0.99).uses if each.budget is not Budget.MEMORY)
        after = msgspec.structs.replace(seen, budgets=Budgets((*others, use)))
        return payers_reason(lever_record(), after)

    assert memory_at(0.96) == "the paying budget binds after adoption: memory"
    assert memory_at(0.80) is None
    assert memory_at(None) is None


def busy(length_s: float) -> Evidence:
    """What a probe says of CPU time over the seconds before it."""
    return Evidence(
        id=f"r0/cpu_busy_share@{length_s}",
        name="cpu_busy_share",
        value=0.99,
        unit="share",
        source="r0",
        window=Window(30.0 - length_s, 30.0),
    )


def test_moment_of_full_cpu_is_no_paying_budget_that_binds() -> None:
    """A second in which one prompt, or the calibration, was computed took back what had passed its gates."""
    seen = diagnosis("dg-1", "ev-1")
    [spent] = [move for move in lever_record().moves if move.spends]
    record = msgspec.structs.replace(
        lever_record(), moves=(msgspec.structs.replace(spent, budget=Budget.COMPUTE),)
    )

    def compute_over(length_s: float) -> str | None:
        use = BudgetUse(
            budget=Budget.COMPUTE, used_share=0.99, basis="test", reading=busy(length_s)
        )
        others = tuple(each for each in budgets(0.5).uses if each.budget is not Budget.COMPUTE)
        after = msgspec.structs.replace(seen, budgets=Budgets((*others, use)))
        return payers_reason(record, after)

    assert compute_over(1.0) is None
    assert compute_over(PAYER_WINDOW_MIN_S - 0.1) is None
    assert compute_over(30.0) == "the paying budget binds after adoption: compute"


def test_cpu_time_of_a_window_is_the_process_tables_alone() -> None:
    """Without two samples it is unknown, whatever a probe said of the second before it."""
    bench = Bench()
    now = msgspec.structs.replace(sample(30.0, 20.0), engine={"r0": Readings((busy(1.0),))})
    alone, over = (
        bench.situations.look(
            "adopting",
            STANDING,
            [],
            views=[],
            before=before,
            after=now,
            cause_id=None,
        ).diagnosis.budgets.use(Budget.COMPUTE)
        for before in (now, sample(0.0, 0.0))
    )
    assert alone.used_share is None
    assert over.used_share == pytest.approx(40.0 / (FLEET.threads * 2 * 30.0))
