"""Evals of two arms: judged by kind and by length of the prompt, never beyond the ruler's own error."""

from collections.abc import Iterable

import pytest

from trimtab.core.types import Verdict
from trimtab.quality.eval_checks import ContainsCheck, JudgeCheck
from trimtab.quality.eval_scores import (
    EvalAnswer,
    EvalOutcome,
    EvalSet,
    eval_gates,
    floors_of,
    noise_floor,
)
from trimtab.quality.evals import EvalItem, PairItem
from trimtab.quality.paired import PairedResult

CHECKS = (ContainsCheck("x"),)


def answers(*right: bool, tokens: int | None = 100) -> list[EvalAnswer]:
    return [EvalAnswer((one,), tokens) for one in right]


def items(found: Iterable[EvalAnswer]) -> list[EvalOutcome]:
    return [EvalOutcome(f"code-{at}", "code", answer) for at, answer in enumerate(found)]


def gates(base: Iterable[EvalAnswer], rung: Iterable[EvalAnswer]) -> dict[str, PairedResult]:
    return eval_gates(items(base), items(rung), 0.02)


def test_only_items_that_may_differ_are_asked_several_times() -> None:
    """A temperature or a judge asks for seeds; a pair and a greedy answer do not."""
    cold = EvalItem(prompt="x", checks=CHECKS)
    warm = EvalItem(prompt="x", temperature=0.7, checks=CHECKS)
    judged = EvalItem(prompt="x", checks=(JudgeCheck("http://judge/"),))
    pair = PairItem(id="p", kind="p", good="a", bad="b")
    found = EvalSet(items=(cold, warm, judged, pair), total=4, runs=5)
    told = [found.runs_of(item) for item in found.items]
    assert told == [1, 5, 5, 1]


def test_loss_on_long_prompts_alone_is_found_there() -> None:
    """400 short items equal, 60 long ones all lost: the long ones fail, the short ones pass."""
    base = [*answers(*[True] * 400), *answers(*[True] * 60, tokens=5000)]
    rung = [*answers(*[True] * 400), *answers(*[False] * 60, tokens=5000)]
    found = gates(base, rung)
    assert list(found) == ["evals, code", "evals, code 0-256", "evals, code 4096-16384"]
    assert found["evals, code 0-256"].verdict is Verdict.PASS
    assert found["evals, code 4096-16384"].verdict is Verdict.FAIL


def test_one_length_of_prompts_has_no_cut_of_its_own() -> None:
    """It would ask the same question twice; unknown lengths are in no cut."""
    known, unknown = answers(*[True] * 40), answers(*[True] * 40, tokens=None)
    assert list(gates(known, known)) == ["evals, code"]
    assert list(gates(unknown, unknown)) == ["evals, code"]


def test_fifty_items_without_a_flip_do_not_pass_two_percent() -> None:
    """Up to 8% of items may still be lost: hold, with the number that would do."""
    found = gates(answers(*[True] * 50), answers(*[True] * 50))["evals, code"]
    assert found.verdict is Verdict.HOLD
    assert found.needed is not None
    assert 150 < found.needed < 300


def test_sampled_items_that_never_differ_are_no_more_proof_than_others() -> None:
    """Eight items, all right in all runs of both arms: their differences have no spread, and a third could be lost."""
    same = [EvalAnswer((True, True, True))] * 8
    found = gates(same, same)["evals, code"]
    assert found.verdict is Verdict.HOLD
    assert found.interval is not None
    assert found.interval.high > 0.3
    enough = [EvalAnswer((True, True, True))] * 300
    assert gates(enough, enough)["evals, code"].verdict is Verdict.PASS


def test_one_sampled_item_that_loses_a_run_is_bounded_by_counts() -> None:
    """One of 40 loses a run of three: nobody can tell from one how many others would, or by how much."""
    base = [EvalAnswer((True, True, True))] * 40
    rung = [EvalAnswer((True, True, False)), *base[1:]]
    found = gates(base, rung)["evals, code"]
    assert found.verdict is Verdict.HOLD
    assert found.interval is not None
    assert found.interval.low <= found.harm <= found.interval.high
    assert found.because.startswith("1 of 40 items got worse, 0 better")


def test_floor_is_the_largest_difference_between_runs_of_the_original() -> None:
    """Of four items one flips in run two and two in run three: half the items between the best and the worst run."""
    runs = [(True, True, False), (True, False, False), (True, True, True), (False, False, False)]
    found = [EvalAnswer(run) for run in runs]
    assert noise_floor(found) == 0.5
    assert noise_floor(answers(True, False)) is None
    assert floors_of(items(found)) == {"code": 0.5}


def test_loss_inside_the_noise_floor_is_not_shown() -> None:
    """Steady losses of a tenth in every item, where the original differs by a fifth from itself: hold."""
    # The original's run 0 is right 20 items less often than its others.
    base = [EvalAnswer((at >= 20, *[True] * 9)) for at in range(100)]
    rung = [EvalAnswer((False, *[at >= 20] * 1, *[True] * 8)) for at in range(100)]
    gate = gates(base, rung)["evals, code"]
    assert noise_floor(base) == pytest.approx(0.2)
    assert gate.harm is not None
    assert 0.05 < gate.harm <= 0.2
    assert gate.verdict is Verdict.HOLD
    assert "inside the noise floor" in gate.because


def test_loss_beyond_the_noise_floor_fails() -> None:
    """Half of the runs lost where the original hardly differs from itself."""
    base = [EvalAnswer((True, at != 0)) for at in range(100)]
    rung = [EvalAnswer((False, at % 3 > 0)) for at in range(100)]
    gate = gates(base, rung)["evals, code"]
    assert gate.verdict is Verdict.FAIL
    assert "differs by 1.0% from itself" in gate.because


def test_arms_that_were_asked_different_items_are_not_compared() -> None:
    """Pairs belong together by their names."""
    with pytest.raises(ValueError, match="the same items"):
        eval_gates(items(answers(True, True)), items(answers(True)), 0.02)
