"""Cases H1 and H2: looking often, cold against warm; entered through a lever record and request records.

H3, control that swings, stands with the cases of triggers.
"""

import msgspec
import pytest
from case_kit import Case, chance, is_candidate, speculation, spread, verdict, written

from trimtab.core.events import GatesEvaluated
from trimtab.core.record import RequestRecord, Tokens
from trimtab.core.types import ErrorClass, RolloutState, Verdict

S = RolloutState


def alike(one: RequestRecord, ratio: float = 1.0) -> RequestRecord:
    """Both arms alike but for a factor on the candidate's TPOT, with a tail that is heavy."""
    tail = 4.0 if chance(one, "tail") < 0.03 else 1.0
    tpot = 20.0 * spread(one) * tail * (ratio if is_candidate(one) else 1.0)
    return msgspec.structs.replace(one, tpot_ms=tpot, ttft_ms=100.0 * spread(one, "t") * tail)


# H1: looking every day and stopping when it looks good


@pytest.mark.parametrize("name", ["first", "second", "third"])
async def test_a_lever_that_changes_nothing_is_not_adopted_however_often_it_is_looked_at(
    name: str,
) -> None:
    """A look each second for four peak cycles; how many there were is in the record."""
    case = await Case(speculation(name=name)).start()
    await case.serve(96, alike, per_s=12)
    assert S.ADOPTED not in case.moves
    assert case.controller.proof is not None
    looks = [e.look for e in case.events("gates_evaluated") if isinstance(e, GatesEvaluated)]
    assert looks == sorted(looks)
    assert max(looks) <= case.controller.proof.looks == 96


@pytest.mark.parametrize("ratio", [0.93, 0.96, 0.90])
async def test_a_small_gain_early_on_goes_on_instead_of_being_adopted(ratio: float) -> None:
    """A look that would pass a test of fixed size (p = 0.03) is one of many: continue."""
    case = await Case(speculation(shares="[0.5, 0.95]")).start()
    await case.serve(30, lambda one: alike(one, ratio), per_s=12)
    found, reason = verdict(case, "tpot_ms gain")
    assert case.state is S.CANARY
    assert found is Verdict.HOLD
    assert "not shown yet" in reason or "units" in reason


@pytest.mark.parametrize(("bad", "per_s"), [(0.20, 20), (0.35, 12), (0.60, 8)])
async def test_a_burst_of_errors_stops_the_lever_at_once(bad: float, per_s: int) -> None:
    """0.5% becomes 20% in the first fifty requests of the candidate: its own bound stops it before any gate is due."""

    def answer(one: RequestRecord) -> RequestRecord:
        share = bad if is_candidate(one) else 0.005
        if chance(one, "error") >= share:
            return alike(one)
        return msgspec.structs.replace(one, error=ErrorClass.UPSTREAM_STATUS, status=502)

    case = await Case(speculation()).start()
    await case.serve(24, answer, per_s=per_s, until=S.ROLLED_BACK)
    assert case.state is S.ROLLED_BACK
    failed = case.result("errors")
    assert failed.verdict is Verdict.FAIL
    assert failed.n_candidate <= 150
    assert case.actuator.plan.candidate is None


# H2: warm against cold


def from_cache(one: RequestRecord, hit: float, slower: float) -> RequestRecord:
    """A request of which a part of the prompt came from cache."""
    told = Tokens(prompt=1000, output=50, delivered=int(1000 * hit), predicted=int(1000 * hit))
    return msgspec.structs.replace(
        one, tokens=told, ttft_ms=100.0 * spread(one, "t") * slower, tpot_ms=20.0 * spread(one)
    )


@pytest.mark.parametrize(("hit", "slower"), [(0.1, 1.6), (0.0, 2.5), (0.3, 1.3)])
async def test_a_cold_candidate_is_not_a_regression(hit: float, slower: float) -> None:
    """While its caches fill it holds; what that cost is told apart; warm, it is judged on what lasts."""
    case = await Case(speculation(warm_up="30s", cycle="40s")).start()

    def cold(one: RequestRecord) -> RequestRecord:
        if is_candidate(one):
            return from_cache(one, hit, slower)
        return from_cache(one, 0.7, 1.0)

    def warm(one: RequestRecord) -> RequestRecord:
        one = from_cache(one, 0.7, 1.0)
        tpot = 20.0 * spread(one) * (0.7 if is_candidate(one) else 1.0)
        return msgspec.structs.replace(one, tpot_ms=tpot)

    # Whole blocks: a warm-up of 30 s ends with the sixth block of 6 s.
    await case.serve(36, cold)
    assert case.state is S.CANARY
    assert all(each.verdict is not Verdict.FAIL for each in case.results)
    await case.serve(400, warm, until=S.ADOPTED)
    assert case.state is S.ADOPTED
    _, reason = verdict(case, "ttft_ms proving")
    assert "while cold, not judged" in reason
    assert f"{hit:.0%} of the prompt cached" in reason


@pytest.mark.parametrize("first_s", [12, 18, 24])
async def test_a_slow_first_wave_is_told_apart(first_s: int) -> None:
    """40 s instead of 1 s for the first requests of a new replica, never again: no harm in the tail."""
    case = await Case(speculation(warm_up="30s", cycle="40s")).start()

    def wave(one: RequestRecord) -> RequestRecord:
        late = one.arrived_at_s - began_s > first_s
        slow = 40.0 if is_candidate(one) and not late else 1.0
        one = msgspec.structs.replace(one, ttft_ms=1000.0 * spread(one, "t") * slow)
        tpot = 20.0 * spread(one) * (0.7 if is_candidate(one) else 1.0)
        return msgspec.structs.replace(one, tpot_ms=tpot)

    began_s = case.clock.wall_s()
    await case.serve(430, wave, until=S.ADOPTED)
    assert case.state is S.ADOPTED
    assert S.ROLLED_BACK not in case.moves
    _, reason = verdict(case, "ttft_ms proving")
    cold = reason.partition("candidate ")[2]
    assert 36_000 <= float(cold.partition("p95 ")[2].partition(" ms")[0]) <= 44_000


@pytest.mark.parametrize(("share", "slow"), [(0.2, 40.0), (0.5, 4.0), (1.0, 1.8)])
async def test_slow_requests_over_the_whole_window_are_a_regression(
    share: float, slow: float
) -> None:
    """What does not end with the warm-up is the candidate's own doing."""
    case = await Case(speculation(warm_up="12s", cycle="40s")).start()

    def answer(one: RequestRecord) -> RequestRecord:
        hit = is_candidate(one) and chance(one, "slow") < share
        ttft = 1000.0 * spread(one, "t") * (slow if hit else 1.0)
        return msgspec.structs.replace(one, ttft_ms=ttft, tpot_ms=20.0 * spread(one))

    await case.serve(400, answer, until=S.ROLLED_BACK)
    assert case.state is S.ROLLED_BACK
    failed = [each for each in case.results if each.verdict is Verdict.FAIL]
    assert {each.metric.value for each in failed} == {"ttft_ms"}


def test_a_record_by_hand_is_complete() -> None:
    """The records of these cases are those that a person may write."""
    assert Case(written(technique="prefill_chunking", revision="chunk_tokens = 64", pays="compute"))
