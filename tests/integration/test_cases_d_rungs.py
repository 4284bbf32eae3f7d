"""A rung judged, chosen, written as a lever record and rolled out: harm in one kind of traffic, too little evidence."""

import random

import msgspec
import pytest
from case_kit import Case, chance, counts, is_candidate, spread
from events_kit import REVISION

from trimtab.core.lever import TriggerSignal
from trimtab.core.record import RequestRecord
from trimtab.core.revision import Model
from trimtab.core.types import RolloutState, Verdict
from trimtab.engines.gguf_tensors import Group, TensorKind
from trimtab.interfaces.quantize_lever import lever_record
from trimtab.quality.eval_scores import EvalAnswer, EvalOutcome
from trimtab.quality.ladder import Rung, RungResult, Speed, Stage, choose, ratio_of
from trimtab.quality.loss import TextScore
from trimtab.quality.paired import Direction, Margin, PairedResult, compare_right
from trimtab.quality.quantized import Plan, Quantized
from trimtab.quality.rung_results import Measured, RungFacts, result_of
from trimtab.rollout.short_record import Known, complete, parse_record
from trimtab.runtime.quality_pair import loss_gates, loss_margin

S = RolloutState
ITEMS = Margin(value=0.02, unit="of the items", direction=Direction.HIGHER_IS_BETTER)
EVALS = "evals, support"
TEXTS = ("code", "prose")


def texts(harm: dict[str, float], seed: int = 1) -> list[TextScore]:
    """512 positions of each kind of text; each position costs so many nats more than the original's, with noise."""
    found = []
    for kind in TEXTS:
        rng = random.Random(f"{kind} {seed}")
        base = [2.0 + rng.gauss(0.0, 1.0) for _ in range(512)]
        rough = random.Random(f"{kind} {seed} rung")
        losses = tuple(
            one + harm[kind] + rough.gauss(0.0, 0.02 if harm[kind] else 0.0) for one in base
        )
        found.append(TextScore(kind=kind, name=kind, first_position=64, losses=losses))
    return found


ORIGINAL_TEXTS = texts(dict.fromkeys(TEXTS, 0.0))


def rung_of(
    name: str, harm: dict[str, float], score: float, evals: PairedResult | None = None
) -> RungResult:
    """A rung measured: its texts against the original's, its time and cost as a part of the original's."""
    original = name == "f16"
    rounds = [1.0, 1.02, 0.98, 1.01, 0.99, 1.0]
    ratio = ratio_of(rounds, [score * one for one in (1.0, 1.01, 0.99, 1.0, 1.02, 0.98)])
    gates = loss_gates(ORIGINAL_TEXTS, texts(harm), loss_margin(0.02))
    return result_of(
        Measured(
            rung=Rung(
                name=name,
                stages=(Stage.ORIGINAL,) if original else (Stage.WEIGHTS,),
                kinds={} if original else {Group.FFN_UP: TensorKind.Q4_0},
            ),
            facts=RungFacts(
                effective={},
                bits_per_weight=16.0 if original else 4.5,
                file_bytes=270_000_000 if original else 92_000_000,
                kv_bytes_per_token=23_040.0,
            ),
            kinds=TEXTS,
            evals=() if evals is None else (EVALS,),
            quality=gates if evals is None else {**gates, EVALS: evals},
            speed=Speed(ttft_ms=ratio, tpot_ms=ratio, tokens_per_s={4: ratio}, score=ratio),
        )
    )


def answer_of(*rungs: RungResult, items: int = 0) -> Quantized:
    """The whole answer of a walk over these rungs."""
    choice = choose(rungs, kv_binds=False)
    stays = choice.rung == "f16"
    return Quantized(
        engine="llamacpp/1",
        model="model.gguf",
        model_sha256="0" * 64,
        original="f16.gguf",
        original_note="the file as it was given",
        plan=Plan(
            positions=dict.fromkeys(TEXTS, 512),
            blocks=dict.fromkeys(TEXTS, 16),
            block_tokens=32,
            margin_nats=0.02,
            spread_max=dict.fromkeys(TEXTS, 0.025),
            free_prompts=0,
            eval_items=items,
            eval_items_total=items,
            rounds=6,
            concurrencies=(4,),
        ),
        repeats_exactly=True,
        repeat_spread=0.0,
        sensitivity=None,
        results=rungs,
        choice=choice,
        confirmation=None,
        artifact=None if stays else "q4.gguf",
        lever_record=None,
        kv_binds=False,
        notes=(),
        machine="here",
        took_s=1.0,
        items=tuple(EvalOutcome(str(at), EVALS, EvalAnswer((True,))) for at in range(items)),
    )


def rolled_out(text: str) -> Case:
    """The record as the command wrote it, its ramp shortened, on two replicas."""
    quick = (
        '\n[ramp]\nshares = [0.5]\npeak_cycle = "24s"\nblock = "6s"\nedge = "1s"\nwarm_up = "0s"\n'
    )
    other = Model(path="q4.gguf", sha256="4" * 64, name="q4")
    known = Known(find_model=lambda path: other)
    return Case(text + quick, known)


def served_as(one: RequestRecord) -> RequestRecord:
    """A quarter of the traffic is code, the rest prose; the candidate gives tokens in two thirds of the time."""
    label = "code" if chance(one, "label") < 0.25 else "prose"
    tpot = 20.0 * spread(one) * (0.65 if is_candidate(one) else 1.0)
    return msgspec.structs.replace(
        one, label=label, tpot_ms=tpot, ttft_ms=100.0 * spread(one, "ttft")
    )


@pytest.mark.parametrize(("good", "bad"), [("prose", "code"), ("code", "prose")])
@pytest.mark.parametrize("harm", [0.06, 0.3, 1.2])
async def test_rung_is_refused_for_the_kind_that_it_harms_and_serves_the_other(
    good: str, bad: str, harm: float
) -> None:
    """Judged by kind, chosen for one, written with that slice, adopted for it; the other stays with the original."""
    rung = rung_of("q4_0", {good: 0.001, bad: harm}, 0.6)
    assert rung.kinds == {good: Verdict.PASS, bad: Verdict.FAIL}
    found = answer_of(rung_of("f16", dict.fromkeys(TEXTS, 0.0), 1.0), rung)
    assert (found.choice.rung, found.choice.refused_for) == ("q4_0", (bad,))
    text = lever_record(found)
    assert text is not None
    case = await rolled_out(text).start()
    assert [str(cut) for cut in case.record.cuts] == [f"label={good}"]
    met: set[tuple[str | None, str | None]] = set()

    def answer(one: RequestRecord) -> RequestRecord:
        answered = served_as(one)
        met.add((answered.label, answered.arm.value))
        return answered

    await case.serve(150, answer, until=S.ADOPTED)
    assert case.state is S.ADOPTED
    assert (good, "candidate") in met
    assert (bad, "candidate") not in met


@pytest.mark.parametrize(
    ("n", "worse", "better"), [(50, 2, 1), (50, 0, 0), (198, 6, 5), (100, 4, 4)]
)
def test_rung_whose_benchmark_is_inconclusive_is_held(n: int, worse: int, better: int) -> None:
    """Texts pass and it is fast: too few items to tell leave the original in place, and say how many would do."""
    base = [True] * worse + [False] * better + [True] * (n - worse - better)
    rung = [False] * worse + [True] * better + [True] * (n - worse - better)
    judged = compare_right(base, rung, ITEMS)
    assert judged.verdict is Verdict.HOLD
    assert judged.needed is not None
    assert judged.needed > n
    held = rung_of("q4_0", dict.fromkeys(TEXTS, 0.001), 0.6, judged)
    assert held.verdict is Verdict.HOLD
    assert EVALS in held.because
    found = answer_of(rung_of("f16", dict.fromkeys(TEXTS, 0.0), 1.0), held, items=n)
    assert found.choice.rung == "f16"
    assert lever_record(found) is None


async def test_rung_with_evals_is_adopted_only_with_their_scores() -> None:
    """With evals the record has a gate on them: nothing is adopted before they are scored."""
    judged = compare_right([True] * 1319, [True] * 1319, ITEMS)
    passed = rung_of("q4_0", dict.fromkeys(TEXTS, 0.001), 0.6, judged)
    found = answer_of(rung_of("f16", dict.fromkeys(TEXTS, 0.0), 1.0), passed, items=1319)
    text = lever_record(found)
    assert text is not None
    unscored = await rolled_out(text).start()
    await unscored.serve(60, served_as, until=S.ADOPTED)
    assert unscored.state is S.CANARY
    assert "no evaluation of this revision was scored" in unscored.result("quality_loss").reason
    scored = await rolled_out(text).start()
    scored.score(counts("input_tokens=256-1024", 1319, 1319, 1319))
    await scored.serve(150, served_as, until=S.ADOPTED)
    assert scored.state is S.ADOPTED


def test_record_goes_off_where_another_precision_runs() -> None:
    """What was measured is what must run: a mismatch of the effective precision takes it back."""
    found = answer_of(
        rung_of("f16", dict.fromkeys(TEXTS, 0.0), 1.0),
        rung_of("q4_0", dict.fromkeys(TEXTS, 0.001), 0.6),
    )
    text = lever_record(found)
    assert text is not None
    short = parse_record(text, source="lever.toml")
    other = Model(path="q4.gguf", sha256="4" * 64, name="q4")
    record = complete(
        short, baseline=REVISION, now_s=1.0, known=Known(find_model=lambda path: other)
    )
    signals = {each.signal: each for each in record.triggers}
    assert signals[TriggerSignal.EFFECTIVE_MISMATCH].off_at == 0.0
