"""A rung's measurements joined: what is required, what vetoes, what could not be judged."""

import msgspec

from trimtab.core.stats import Interval
from trimtab.core.types import Verdict
from trimtab.quality.ladder import Rung, Stage
from trimtab.quality.loss import TextScore
from trimtab.quality.paired import Direction, Margin, PairedResult
from trimtab.quality.rung_results import (
    Measured,
    RungFacts,
    broken_of,
    garbage_of,
    is_garbage,
    is_harmful,
    is_refused,
    result_of,
    untried_of,
)

FACTS = RungFacts(effective={}, bits_per_weight=8.5, file_bytes=1, kv_bytes_per_token=None)


def gate(verdict: Verdict) -> PairedResult:
    return PairedResult(
        verdict=verdict,
        because=verdict.value,
        n=16,
        harm=0.0,
        interval=Interval(low=-0.01, high=0.01, level=0.95),
        margin=Margin(value=0.02, unit="nats", direction=Direction.LOWER_IS_BETTER),
        base=2.0,
        candidate=2.0,
    )


def measured(evals: tuple[str, ...] = (), **gates: Verdict) -> Measured:
    names = {name.replace("__", " ").replace("_", ", ", 1): one for name, one in gates.items()}
    return Measured(
        rung=Rung(name="q8_0", stages=(Stage.WEIGHTS,), kinds={}),
        facts=FACTS,
        kinds=("code",),
        evals=evals,
        quality={name.replace("loss", "log loss"): gate(one) for name, one in names.items()},
    )


def test_range_of_positions_vetoes_its_kind() -> None:
    """A fail deep inside is a fail of code; a hold there is none."""
    failed = result_of(measured(loss_code=Verdict.PASS, loss_code__512=Verdict.FAIL))
    held = result_of(measured(loss_code=Verdict.PASS, loss_code__512=Verdict.HOLD))
    assert (failed.kinds, failed.verdict) == ({"code": Verdict.FAIL}, Verdict.FAIL)
    assert (held.kinds, held.verdict) == ({"code": Verdict.PASS}, Verdict.PASS)


def test_kind_whose_name_begins_with_another_is_not_its_cut() -> None:
    """`code reviews` is a kind of its own."""
    found = result_of(measured(loss_code=Verdict.PASS, loss_code__reviews=Verdict.FAIL))
    assert found.kinds == {"code": Verdict.PASS}
    assert found.elsewhere is Verdict.FAIL


def test_inconclusive_eval_holds_the_rung() -> None:
    """Required, and not told."""
    found = result_of(measured(("evals, gsm8k",), loss_code=Verdict.PASS, evals_gsm8k=Verdict.HOLD))
    assert (found.verdict, found.elsewhere) == (Verdict.HOLD, Verdict.HOLD)


def test_rung_that_does_not_answer_is_an_error_and_says_why() -> None:
    """It could not be judged; the walk goes on."""
    found = broken_of(measured(), "rung did not answer")
    assert (found.verdict, found.because) == (Verdict.ERROR, "rung did not answer")
    assert found.kinds == {"code": Verdict.ERROR}


def test_stage_after_one_that_failed_is_not_tried() -> None:
    """Activations go down only on top of weights that have not failed; the words name what stands before."""
    failed = msgspec.structs.replace(
        result_of(measured(loss_code=Verdict.FAIL)), rung=Rung(name="int8 rounded", stages=())
    )
    found = untried_of(measured(), failed)
    assert (found.verdict, found.kinds) == (Verdict.FAIL, {"code": Verdict.FAIL})
    assert found.because.startswith("not tried: int8 rounded")


def test_only_a_rung_that_passes_nowhere_ends_its_branch() -> None:
    """Harm on code alone leaves prose to be tried further; a hold is no failure."""
    failed = result_of(measured(loss_code=Verdict.FAIL))
    held = result_of(measured(loss_code=Verdict.HOLD))
    mixed = msgspec.structs.replace(failed, kinds={"code": Verdict.FAIL, "prose": Verdict.PASS})
    broken = broken_of(measured(), "did not start")
    assert [is_refused(one) for one in (failed, held, mixed, broken)] == [True, False, False, True]


def test_log_loss_alone_refuses_only_what_fails_in_every_kind() -> None:
    """One kind that is held or passes keeps the other gates in the question."""
    gates = {"log loss, code": gate(Verdict.FAIL), "log loss, prose": gate(Verdict.HOLD)}
    assert is_harmful(gates, ["code"])
    assert not is_harmful(gates, ["code", "prose"])


def test_garbage_is_told_by_its_loss() -> None:
    """Ten nats a token more, or no number at all."""
    base = TextScore(kind="code", name="t", first_position=0, losses=(2.0, 2.0))
    worse = TextScore(kind="code", name="t", first_position=0, losses=(12.0, 12.0))
    none = TextScore(kind="code", name="t", first_position=0, losses=(2.0, float("inf")))
    assert [is_garbage(base, one) for one in (base, worse, none)] == [False, True, True]
    found = garbage_of(measured(), base, worse)
    assert (found.verdict, found.kinds) == (Verdict.FAIL, {"code": Verdict.FAIL})
    assert "met no traffic" in found.because
