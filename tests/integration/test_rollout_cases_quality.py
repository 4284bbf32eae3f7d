"""Cases C3, D1, D3 and D4: quality, entered through a lever record, request records and scored items."""

import msgspec
import pytest
from case_kit import (
    Case,
    chance,
    counts,
    held,
    is_candidate,
    kv_at_eight_bits,
    other_weights,
    pairs_line,
    speculation,
    spread,
    verdict,
)

from trimtab.core.lever import LeverRecordError
from trimtab.core.quality_scores import CutScores
from trimtab.core.record import RequestRecord, Tokens
from trimtab.core.types import Arm, Constraint, RolloutState, Verdict
from trimtab.rollout.quality import items_needed, mcnemar_p
from trimtab.rollout.score_file import read_scores
from trimtab.rollout.short_record import Known

S = RolloutState


def faster(one: RequestRecord, ratio: float = 0.7) -> RequestRecord:
    """TPOT as the candidate has it; TTFT alike."""
    tpot = 20.0 * spread(one) * (ratio if is_candidate(one) else 1.0)
    return msgspec.structs.replace(one, tpot_ms=tpot, ttft_ms=100.0 * spread(one, "ttft"))


def prompt(one: RequestRecord, tokens: int) -> RequestRecord:
    """The same with a prompt of that many tokens."""
    told = Tokens(prompt=tokens, output=50, delivered=0, predicted=0)
    return msgspec.structs.replace(one, tokens=told)


# C3: structured output quietly ignored with speculation


@pytest.mark.parametrize(
    ("constraint", "share", "valid"),
    [
        (Constraint.JSON_SCHEMA, 0.06, 0.91),
        (Constraint.JSON_OBJECT, 0.06, 0.91),
        (Constraint.JSON_SCHEMA, 0.20, 0.80),
    ],
)
async def test_invalid_json_takes_speculation_off_for_its_requests_alone(
    constraint: Constraint, share: float, valid: float
) -> None:
    """Free text gains 30%, outputs that had to be JSON break: those requests leave, the rest is adopted."""

    def answer(one: RequestRecord) -> RequestRecord:
        one = faster(one)
        if chance(one, "constraint") >= share:
            return one
        bound = valid if is_candidate(one) else 0.998
        is_valid = chance(one, "valid") < bound
        return msgspec.structs.replace(one, constraint=constraint, output_valid=is_valid)

    case = await Case(speculation(cycle="120s")).start()
    await case.serve(700, answer, per_s=30, until=S.ADOPTED)
    cut = f"constraint={constraint.value}"
    assert case.state is S.ADOPTED
    assert list(case.refused) == [cut]
    assert "of the outputs are valid" in case.refused[cut]
    (kept,) = case.actuator.plan.preferences
    assert [str(each) for each in kept.without] == [cut]
    assert S.ROLLED_BACK not in case.moves


async def test_after_adoption_requests_of_the_lost_cut_stay_on_the_baseline() -> None:
    """A request with a schema never meets the candidate's replica again; one of free text does."""
    cut = "constraint=json_schema"
    case = await Case(speculation(more=f'without = ["{cut}"]\n')).start()

    def answer(one: RequestRecord) -> RequestRecord:
        schema = chance(one, "constraint") < 0.3
        constraint = Constraint.JSON_SCHEMA if schema else Constraint.FREE
        return msgspec.structs.replace(faster(one), constraint=constraint)

    await case.serve(300, answer, until=S.ADOPTED)
    seen: list[RequestRecord] = []

    def watched(one: RequestRecord) -> RequestRecord:
        seen.append(answer(one))
        return seen[-1]

    await case.serve(5, watched)
    met = {(one.constraint, one.replica) for one in seen if one.lever or one.replica != "r0"}
    assert (Constraint.FREE, "r1") in met
    assert (Constraint.JSON_SCHEMA, "r1") not in met


@pytest.mark.parametrize(
    ("technique_and_cut", "more", "refused"),
    [
        (("speculation", "constraint=json_schema"), "", True),
        (("speculation", "constraint=json_object"), "", True),
        (("speculation", "constraint=json_schema"), 'slice = ["constraint=json_schema"]\n', True),
        (
            ("speculation", "constraint=json_schema"),
            'without = ["constraint=json_schema"]\n',
            False,
        ),
        (("speculation", "constraint=json_schema"), 'slice = ["constraint=free"]\n', False),
        (("quantization", "constraint=json_schema"), "", False),
    ],
)
def test_what_the_engine_cannot_combine_is_refused_before_any_traffic(
    technique_and_cut: tuple[str, str], more: str, refused: bool
) -> None:
    """Unless the record leaves that cut out, or is about another technique."""
    known = Known(not_combinable={technique_and_cut: "the engine drops the schema"})
    if not refused:
        assert Case(speculation(more=more), known).record.technique.value == "speculation"
        return
    with pytest.raises(LeverRecordError, match=r"\$\.without lacks .*the engine drops the schema"):
        Case(speculation(more=more), known)


# D1: fine at short length, broken at long


@pytest.mark.parametrize(("long_baseline", "long_candidate"), [(91, 13), (88, 40), (95, 70)])
async def test_cache_precision_is_refused_for_long_prompts_and_allowed_below(
    long_baseline: int, long_candidate: int
) -> None:
    """The bucket that is ruined leaves with its reason; the lever is adopted for the others."""
    case = await Case(kv_at_eight_bits()).start()
    case.score(
        counts("input_tokens=1024-4096", 100, 81, 81)
        + counts("input_tokens=4096-16384", 100, 79, 78)
        + counts("input_tokens=65536+", 100, long_baseline, long_candidate)
    )
    lengths = (2000, 8000, 80_000)

    def answer(one: RequestRecord) -> RequestRecord:
        return prompt(faster(one), lengths[int(3 * chance(one, "length"))])

    await case.serve(300, answer, until=S.ADOPTED)
    assert case.state is S.ADOPTED
    assert list(case.refused) == ["input_tokens=65536+"]
    assert f"{long_candidate} of 100 passed" in case.refused["input_tokens=65536+"]


@pytest.mark.parametrize(("long_share", "told"), [(0.031, "40%"), (0.015, "24%"), (0.10, "70%")])
async def test_evidence_of_short_prompts_does_not_cover_long_ones(
    long_share: float, told: str
) -> None:
    """Scored items lie all below 4,096 tokens, the traffic's tokens do not: hold, with the part that is not covered."""
    case = await Case(kv_at_eight_bits()).start()
    case.score(counts("input_tokens=1024-4096", 1319, 900, 898))

    def answer(one: RequestRecord) -> RequestRecord:
        return prompt(faster(one), 60_000 if chance(one, "length") < long_share else 3_000)

    await case.serve(80, answer)
    found, reason = verdict(case, "quality_loss")
    assert (case.state, found) == (S.CANARY, Verdict.HOLD)
    assert "do not cover" in reason
    uncovered = float(reason.split("do not cover ")[1].split("%")[0])
    assert uncovered == pytest.approx(float(told[:-1]), abs=8.0)


@pytest.mark.parametrize("layout", ["tp4", "tp2", "pp2"])
async def test_another_layout_makes_scores_stale(layout: str) -> None:
    """Scores belong to a revision with its layout: of the same weights in another one nothing is known."""
    case = await Case(kv_at_eight_bits()).start()
    case.score(counts("input_tokens=256-1024", 400, 300, 300))
    assert case.record.revision is not None
    (scores,) = case.extras.scores
    other = case.record.revision.replace(layout=layout).id
    moved = msgspec.structs.replace(scores, revision=other)
    case.extras = msgspec.structs.replace(case.extras, scores=(moved,))
    await case.serve(40, faster)
    found, reason = verdict(case, "quality_loss")
    assert (case.state, found) == (S.CANARY, Verdict.HOLD)
    assert "another revision or layout and are stale" in reason


# D3: a drop smaller than the ruler


@pytest.mark.parametrize(
    ("n", "baseline", "candidate"), [(50, 22, 21), (50, 19, 18), (198, 139, 137)]
)
async def test_few_items_are_inconclusive_and_say_how_many_it_takes(
    n: int, baseline: int, candidate: int
) -> None:
    """Neither pass nor fail: the number of items that would tell is computed from the scores."""
    case = await Case(kv_at_eight_bits(question="no_harm")).start()
    case.score(counts("input_tokens=256-1024", n, baseline, candidate))
    await case.serve(60, faster)
    found, reason = verdict(case, "quality_loss")
    scores = CutScores(n=n, baseline_passed=baseline, candidate_passed=candidate)
    assert (case.state, found) == (S.CANARY, Verdict.HOLD)
    assert "inconclusive" in reason
    assert f"need about n>={items_needed(scores, 0.02):,}" in reason
    assert items_needed(scores, 0.02) > 3000


@pytest.mark.parametrize(("losses", "wins"), [(30, 12), (40, 18), (25, 7)])
async def test_paired_losses_are_a_regression(losses: int, wins: int) -> None:
    """1,319 paired items: exact McNemar decides, though the scores differ by less than the margin."""
    case = await Case(kv_at_eight_bits(question="no_harm")).start()
    case.score(pairs_line(1319, losses, wins, both=550, cut="input_tokens=256-1024"))
    await case.serve(60, faster, until=S.ROLLED_BACK)
    assert case.state is S.ROLLED_BACK
    found, reason = verdict(case, "quality_loss")
    assert found is Verdict.FAIL
    assert f"exact McNemar p = {mcnemar_p(losses, wins):.2g}" in reason
    assert mcnemar_p(30, 12) == pytest.approx(0.008, abs=0.0005)


@pytest.mark.parametrize(("n", "loss"), [(200, 3), (400, 6), (1000, 15)])
async def test_difference_inside_the_noise_floor_is_none(n: int, loss: int) -> None:
    """Five runs of the baseline differ by 0.02 from each other; 0.015 lies inside."""
    case = await Case(kv_at_eight_bits(question="no_harm")).start()
    case.score(counts("input_tokens=256-1024", n, n // 2, n // 2 - loss), floor=0.02, floor_runs=5)
    await case.serve(200, faster, until=S.ADOPTED)
    assert case.state is S.ADOPTED
    found, reason = verdict(case, "quality_loss")
    assert found is Verdict.PASS
    assert "inside the noise floor" in reason


# D4: average fine, one slice ruined


@pytest.mark.parametrize(
    ("n", "baseline", "candidate", "z"),
    [(164, 110, 61, -5.4), (164, 118, 60, -6.4), (300, 201, 120, -6.6)],
)
async def test_a_ruined_slice_is_served_by_the_original(
    n: int, baseline: int, candidate: int, z: float
) -> None:
    """Chat is as good as before, code is not: the code slice is named and leaves, chat is adopted."""
    case = await Case(kv_at_eight_bits()).start()
    case.score(counts("label=chat", 800, 632, 632) + counts("label=code", n, baseline, candidate))

    def answer(one: RequestRecord) -> RequestRecord:
        label = "code" if chance(one, "label") < 0.2 else "chat"
        return msgspec.structs.replace(prompt(faster(one), 500), label=label)

    case.score(counts("input_tokens=256-1024", 800, 632, 632))
    await case.serve(300, answer, until=S.ADOPTED)
    assert case.state is S.ADOPTED
    assert list(case.refused) == ["label=code"]
    reason = case.refused["label=code"]
    assert "a regression is shown" in reason
    assert f"z = {z:+.1f}" in reason
    assert "calibration data of its kind, or layers left out, may spare it" in reason


@pytest.mark.parametrize(
    "line",
    [
        '{"perplexity_baseline": 6.02, "perplexity_candidate": 6.05}',
        '{"item": "chat", "baseline": 7.9, "candidate": 7.9}',
        '{"item": "a", "baseline": 1, "candidate": 0}\n{"item": "b", "kl": 0.01}',
    ],
)
def test_perplexity_and_grades_are_no_scores_of_items(line: str) -> None:
    """What is no item passed or not is refused, with the line that is wrong."""
    with pytest.raises(LeverRecordError, match=r"items\.jsonl, line [12]: "):
        read_scores(line, source="items.jsonl", evaluation="e", revision="r")


HEAD, LAYER, ROUTER = (
    "language_model.lm_head",
    "model.layers.0.mlp.up_proj",
    "model.layers.0.mlp.gate",
)


@pytest.mark.parametrize(
    ("rule", "weight", "bits"),
    [("lm_head", HEAD, 4), ("output", "token_embd", 4.5), ("mlp.gate", ROUTER, 4.25)],
)
def test_rule_that_matched_nothing_is_said_before_any_traffic(
    rule: str, weight: str, bits: float
) -> None:
    """The artifact's own weights are read: what the rule meant has another name, and was lowered."""
    known = held({f"{LAYER}.weight": 4, f"{weight}.weight": bits}, {f"{weight}.weight": 16})
    with pytest.raises(LeverRecordError) as refused:
        Case(other_weights(rule), known)
    said = str(refused.value)
    assert said.startswith(f"$.revision.keep[0]: the rule '{rule}' matched nothing; nearest")
    assert f"{weight} at {bits:.3g} bits" in said


@pytest.mark.parametrize(
    ("rule", "weight", "bits", "before"),
    [
        (HEAD, HEAD, 4, 16),
        (f"{HEAD}.weight", HEAD, 8.5, 16),
        (r"re:.*mlp\\.gate$", ROUTER, 4.5, 8.5),
    ],
)
def test_weight_that_was_lowered_although_a_rule_names_it_is_refused(
    rule: str, weight: str, bits: float, before: float
) -> None:
    """A list of rules is no proof: what is really held decides, against what the baseline holds."""
    known = held({f"{weight}.weight": bits, f"{LAYER}.weight": 4}, {f"{weight}.weight": before})
    with pytest.raises(LeverRecordError, match=r"keep\[0\]: .* is held at .* although the rule"):
        Case(other_weights(rule), known)


@pytest.mark.parametrize(
    ("rule", "weight", "bits", "before"),
    [
        (HEAD, HEAD, 16, {f"{HEAD}.weight": 16.0}),
        (r"re:.*mlp\\.gate$", ROUTER, 8.5, {f"{ROUTER}.weight": 8.5}),
        ("output.weight", "output", 16, {}),
    ],
)
async def test_artifact_that_keeps_what_its_record_says_meets_requests(
    rule: str, weight: str, bits: float, before: dict[str, float]
) -> None:
    """The whole name, and weights as wide as the baseline's: the lever is exposed, judged and adopted."""
    known = held({f"{weight}.weight": bits, f"{LAYER}.weight": 4}, before)
    case = await Case(other_weights(rule), known).start()
    met: list[Arm] = []

    def answer(one: RequestRecord) -> RequestRecord:
        met.append(one.arm)
        return faster(one)

    await case.serve(150, answer, until=S.ADOPTED)
    assert case.state is S.ADOPTED
    assert Arm.CANDIDATE in met
    assert case.record.keep == (rule.replace(r"\\", "\\"),)
