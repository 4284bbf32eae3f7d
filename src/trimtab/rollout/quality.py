"""The gate on quality: scores of the same items in both arms, judged cut by cut.

Law: where items pair, only those that one arm alone passed speak: under "no worse" a loss is at most as likely as a
win, so the number of losses among them is at most a fair coin's (exact McNemar). Where they do not pair, the counts of
both arms are compared (`core.stats_proportions`). Evaluation k of a lever is judged at alpha / (k (k + 1)), so that all
evaluations together are wrong with probability at most alpha however often somebody asks again; of m cuts each gets
its m-th part. Scores that come again under one name take the place of the earlier, whose items they repeat; unless
they are equal they count as one more asked.
    fail  a loss is shown, and it is larger than the baseline differs from itself
    pass  no_harm: a loss beyond the margin is excluded. veto: none is shown, and what is seen is not beyond the margin
    hold  neither: with the number of items that would be needed

Failure modes: the noise floor is the largest of a few runs and grows with their number; items that repeat the same
error count as independent. Perplexity and agreement of tokens are no scores of items and never decide.

Source: McNemar, "Note on the sampling error of the difference between correlated proportions", 1947.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final, assert_never

import msgspec

from trimtab.core.gate import GateResult, GateSpec, Question
from trimtab.core.lever import LeverRecord
from trimtab.core.quality_scores import CutScores, Scores
from trimtab.core.stats import Interval, difference_bounds, difference_e_value
from trimtab.core.types import Technique, Verdict
from trimtab.rollout.answer import ALL_TRAFFIC
from trimtab.rollout.leaving import leaving

UNCOVERED_SHARE_MAX: Final = 0.05
"""Part of the prompt tokens of the traffic that may lie in cuts of input tokens without enough scored items."""

CUT_ITEMS_MIN: Final = 20
"""Items without which a cut of input tokens is not covered: fewer show not even a ruined one."""

Z_ALPHA, Z_POWER = 1.645, 0.842
"""Normal quantiles for alpha 0.05 on one side and a power of 0.8, for the number of items to plan."""

SPARES: Final = (
    "the original serves it; calibration data of its kind, or layers left out, may spare it"
)


def quality_results(
    record: LeverRecord, spec: GateSpec, prompt_tokens: Mapping[str, int], scores: Sequence[Scores]
) -> list[GateResult]:
    """Answer a quality gate: of its cut, or of everything scored and of every scored cut, the worst of which can fail.

    `prompt_tokens`: of the traffic, by cut of input tokens.
    A cut can stop the lever, or leave it; one in which a loss is likely and not shown holds it.
    """
    known = [each for each in scores if each.revision == revision_of(record)]
    if not known:
        stale = len(scores)
        old = (
            f"; {stale} evaluations are of another revision or layout and are stale"
            if stale
            else ""
        )
        return [_held(spec, f"no evaluation of this revision was scored{old}")]
    wanted = ALL_TRAFFIC if spec.cut is None else str(spec.cut)
    by_cut = joined(known)
    asked = len(set(known))
    alpha = spec.alpha / (asked * (asked + 1))
    if wanted not in by_cut:
        return [_held(spec, f"no scored item lies in {wanted}")]
    others = [] if spec.cut is not None else [cut for cut in by_cut if cut != ALL_TRAFFIC]
    floor = _floor(known)
    vetoes = [
        _result(_veto_of(spec, cut), by_cut[cut], floor, alpha / max(1, len(others)))
        for cut in others
    ]
    failed = [_advised(record, each) for each in vetoes if each.verdict is Verdict.FAIL]
    rest = _without(record, by_cut[wanted], [by_cut[each.cut] for each in failed])
    # Where nothing is left of what was scored, the lever itself has lost it.
    main = _advised(record, _result(spec, rest or by_cut[wanted], floor, alpha))
    uncovered = uncovered_share(prompt_tokens, by_cut) if spec.cut is None else 0.0
    if main.verdict is Verdict.PASS and uncovered > UNCOVERED_SHARE_MAX:
        main = _held(
            spec,
            f"the evaluations do not cover {uncovered:.0%} of the prompt tokens of the traffic: "
            "score items as long as its prompts",
        )
    likely = [each for each in vetoes if each.verdict is Verdict.HOLD]
    return [main, *failed, *(msgspec.structs.replace(each, required=True) for each in likely)]


def _advised(record: LeverRecord, result: GateResult) -> GateResult:
    """Add to a loss that rounding made what can spare it."""
    if result.verdict is not Verdict.FAIL or record.technique is not Technique.QUANTIZATION:
        return result
    return msgspec.structs.replace(result, reason=f"{result.reason}; {SPARES}")


def _without(
    record: LeverRecord, scores: CutScores, failed: Sequence[CutScores]
) -> CutScores | None:
    """Return what was scored outside the cuts that leave the lever; of the first dimension only, as others overlap."""
    dimensions = [each.cut.partition("=")[0] for each in failed]
    rest: CutScores | None = scores
    for dimension, each in zip(dimensions, failed, strict=True):
        if rest is None or dimension != dimensions[0] or leaving(record, each.cut) is None:
            continue
        rest = rest.minus(each)
    return rest


def revision_of(record: LeverRecord) -> str:
    """Return what a lever's scores belong to: the revision with its layout, or the policy."""
    return record.revision.id if record.revision is not None else f"policy {record.policy}"


def joined(scores: Sequence[Scores]) -> dict[str, CutScores]:
    """Return the items of all evaluations together, by cut; everything under "all".

    Of one evaluation the latest scores count: its items are the same ones, and none counts twice.
    """
    found: dict[str, CutScores] = {}
    for each in {one.evaluation: one for one in scores}.values():
        for one in each.cuts:
            before = found.get(one.cut)
            found[one.cut] = one if before is None else before.plus(one)
    return found


def uncovered_share(prompt_tokens: Mapping[str, int], scored: dict[str, CutScores]) -> float:
    """Return the part of the traffic's prompt tokens in cuts of input tokens without enough scored items."""
    missing = 0
    for cut, tokens in prompt_tokens.items():
        found = scored.get(cut)
        if found is None or found.n < CUT_ITEMS_MIN:
            missing += tokens
    total = sum(prompt_tokens.values())
    return missing / total if total else 0.0


def mcnemar_p(losses: int, wins: int) -> float:
    """Return the exact two-sided p of that many losses and wins under "both are as likely"."""
    n, most = losses + wins, max(losses, wins)
    tail = math.fsum(math.comb(n, k) for k in range(most, n + 1)) / 2.0**n
    return min(1.0, 2.0 * tail)


def items_needed(scores: CutScores, margin: float) -> int:
    """Return about how many items exclude a loss beyond the margin in 8 of 10 evaluations, if there is no loss at all.

    Pairs vary by how often the arms disagree, unpaired items by the scores themselves.
    """
    p, q = scores.baseline_passed / scores.n, scores.candidate_passed / scores.n
    if scores.losses is not None and scores.wins is not None:
        spread = max(1, scores.losses + scores.wins) / scores.n
    else:
        spread = max(1.0 / scores.n, p * (1.0 - p) + q * (1.0 - q))
    return math.ceil((Z_ALPHA + Z_POWER) ** 2 * spread / max(margin, 1e-6) ** 2)


def _result(spec: GateSpec, scores: CutScores, floor: float | None, alpha: float) -> GateResult:
    verdict, reason = _judge(spec, scores, floor, alpha)
    return _said(spec, verdict, reason, scores, _bounds(scores, alpha))


def _judge(
    spec: GateSpec, scores: CutScores, floor: float | None, alpha: float
) -> tuple[Verdict, str]:
    loss, note = scores.loss, _note(scores)
    within = floor is not None and abs(loss) <= floor
    if within:
        inside = f"{loss:+.1%} lost lies inside the noise floor: the baseline differs by {floor:.1%} from itself"
        return Verdict.PASS, f"{inside}; {note}"
    if _loss_shown(scores, alpha):
        return Verdict.FAIL, f"a regression is shown: {loss:+.1%} lost; {note}"
    match spec.question:
        case Question.NO_HARM:
            excluded = _bounds(scores, alpha).high <= spec.margin
        case Question.VETO:
            excluded = loss <= spec.margin
        case Question.GAIN:
            excluded = _loss_shown(_turned(scores), alpha) and -loss >= spec.margin
        case _:
            assert_never(spec.question)
    if excluded:
        return Verdict.PASS, f"no loss beyond {spec.margin:.1%}: {loss:+.1%} lost; {note}"
    needed = items_needed(scores, spec.margin)
    return Verdict.HOLD, (
        f"inconclusive: {loss:+.1%} lost in {scores.n} items; "
        f"need about n>={needed:,} to tell {spec.margin:.1%}; {note}"
    )


def _loss_shown(scores: CutScores, alpha: float) -> bool:
    if scores.losses is not None and scores.wins is not None:
        # The p of both sides: what is called a regression here would be called one by whoever checks it.
        return scores.losses > scores.wins and mcnemar_p(scores.losses, scores.wins) <= alpha
    failed_b, failed_c = scores.n - scores.baseline_passed, scores.n - scores.candidate_passed
    return difference_e_value(failed_b, scores.n, failed_c, scores.n, margin=0.0) >= 1.0 / alpha


def _bounds(scores: CutScores, alpha: float) -> Interval:
    """Bound the part of the items that is lost; of pairs, the share of losses is compared with that of wins."""
    if scores.losses is None or scores.wins is None:
        failed_b, failed_c = scores.n - scores.baseline_passed, scores.n - scores.candidate_passed
        return difference_bounds(failed_b, scores.n, failed_c, scores.n, alpha=min(0.49, alpha))
    return difference_bounds(scores.wins, scores.n, scores.losses, scores.n, alpha=min(0.49, alpha))


def _turned(scores: CutScores) -> CutScores:
    return CutScores(
        cut=scores.cut,
        n=scores.n,
        baseline_passed=scores.candidate_passed,
        candidate_passed=scores.baseline_passed,
        losses=scores.wins,
        wins=scores.losses,
    )


def _note(scores: CutScores) -> str:
    passed = f"{scores.candidate_passed} of {scores.n} passed, {scores.baseline_passed} with the baseline"
    if scores.losses is None or scores.wins is None:
        return f"{passed}; z = {_z(scores):+.1f}"
    p = mcnemar_p(scores.losses, scores.wins)
    return f"{passed}; {scores.losses} lost, {scores.wins} won, exact McNemar p = {p:.2g}"


def _z(scores: CutScores) -> float:
    """Return the difference of both arms' shares in standard errors of none; told, never what decides."""
    both = (scores.baseline_passed + scores.candidate_passed) / (2.0 * scores.n)
    spread = math.sqrt(2.0 * both * (1.0 - both) / scores.n)
    return -scores.loss / spread if spread else 0.0


def _floor(scores: Sequence[Scores]) -> float | None:
    """Return the noise floor of the newest evaluation that has one."""
    known = [each.floor for each in scores if each.floor is not None]
    return known[-1] if known else None


def _veto_of(spec: GateSpec, cut: str) -> GateSpec:
    return GateSpec(
        name=f"{spec.name} in {cut}",
        metric=spec.metric,
        question=Question.VETO,
        margin=spec.margin,
        required=False,
    )


def _held(spec: GateSpec, reason: str) -> GateResult:
    return _said(spec, Verdict.HOLD, reason, None, None)


def _said(
    spec: GateSpec,
    verdict: Verdict,
    reason: str,
    scores: CutScores | None,
    interval: Interval | None,
) -> GateResult:
    cut = ALL_TRAFFIC if spec.cut is None else str(spec.cut)
    return GateResult(
        gate=spec.name,
        metric=spec.metric,
        question=spec.question,
        cut=cut if scores is None else scores.cut,
        verdict=verdict,
        n_baseline=0 if scores is None else scores.n,
        n_candidate=0 if scores is None else scores.n,
        value=None if scores is None else scores.loss,
        interval=interval,
        margin=spec.margin,
        reason=reason,
        required=spec.required,
    )
