"""Replaying a recorded day: the recorded policy decides as it did, another one is told apart."""

import msgspec
import pytest
from events_kit import request
from sim_kit import COST, LOAD_BOUND, MIN_MATCH_TOKENS, recorded_day

from trimtab.core.events import AnyEvent, RequestServed, RunStarted
from trimtab.sim.public_policies import PUBLIC
from trimtab.sim.replay import DIFFERENCES_MAX, Replayed, replay
from trimtab.sim.scenario import ScenarioError

PUBLIC_MADE = {name: build() for name, build in PUBLIC.items()}


def replayed(events: list[AnyEvent], policy: str, *, load_bound: float = LOAD_BOUND) -> Replayed:
    """Replay under a policy with the defaults of the recorded day."""
    return replay(
        events,
        policy,
        load_bound=load_bound,
        min_match_tokens=MIN_MATCH_TOKENS,
        public=PUBLIC_MADE,
    )


@pytest.mark.parametrize("policy", ["prefix_affine", "round_robin", "least_loaded"])
def test_recorded_policy_decides_as_it_did(policy: str) -> None:
    """Every decision comes out the same from what the ledger keeps with it."""
    found = replayed(recorded_day(24, policy=policy), policy)
    assert (found.same, found.different, found.left_out) == (24, 0, 0)
    assert (found.faithful, found.refaithful) == (24, 24)
    assert found.by_policy == {policy: 24}
    assert found.differing == ()
    assert found.extra_ms_mean is None


def test_day_survives_being_written_and_read() -> None:
    """A ledger keeps events as JSON: nothing that decides is lost on the way."""
    events = msgspec.json.decode(msgspec.json.encode(recorded_day(24)), type=list[AnyEvent])
    found = replayed(events, "prefix_affine")
    assert (found.faithful, found.refaithful) == (24, 24)


def test_other_policy_is_told_apart_with_what_it_would_cost() -> None:
    """Round robin ignores prefixes: where it leaves a holder it pays the prompt's prefill."""
    found = replayed(recorded_day(24), "round_robin")
    assert found.different == len(found.differing) > 0
    assert found.same + found.different == 24
    assert (found.faithful, found.refaithful) == (24, 24)
    one = next(one for one in found.differing if one.request_id == "q1")
    # r0 holds 800 of 1,000 tokens at 0.5 ms each; leaving it costs their prefill, less what r1 is better in load.
    assert (one.recorded, one.other, one.recorded_policy) == ("r0", "r1", "prefix_affine")
    assert one.extra_ms is not None
    assert one.extra_ms > 300.0
    assert one.ttft_ms == 101.0
    assert found.extra_samples == found.different
    known = [one.extra_ms for one in found.differing if one.extra_ms is not None]
    assert found.extra_ms_mean == pytest.approx(sum(known) / len(known))


def test_changed_policy_shows_where_it_differs() -> None:
    """Each differing decision is one that round robin itself would make, at the place in the day where it was."""
    day = recorded_day(24)
    served = [event for event in day if isinstance(event, RequestServed)]
    recorded = {one.record.request_id: one.record.replica for one in served}
    for one in replayed(day, "round_robin").differing:
        number = int(one.request_id.removeprefix("q"))
        assert one.recorded == recorded[one.request_id]
        assert one.other == f"r{number % 2}" != one.recorded
        assert one.at_s == float(number)
        assert one.reason == "round_robin_turn"


@pytest.mark.parametrize("policy", sorted(PUBLIC))
def test_public_policies_can_be_asked(policy: str) -> None:
    """All requests are decided by them."""
    found = replayed(recorded_day(12), policy)
    assert (found.requests, found.same + found.different) == (12, 12)


def test_requests_that_were_not_kept_whole_are_counted_and_left_out() -> None:
    """No `asked`, no view, no decision, or a decision of a fleet of which not every candidate is kept."""
    day = recorded_day(4)
    whole = day[1]
    assert isinstance(whole, RequestServed)
    assert whole.decision is not None
    partly = msgspec.structs.replace(
        whole, decision=msgspec.structs.replace(whole.decision, omitted=3)
    )
    gaps = [
        request(90),
        msgspec.structs.replace(whole, view=None),
        msgspec.structs.replace(whole, decision=None),
        partly,
    ]
    found = replayed([*day, *gaps], "prefix_affine")
    assert (found.requests, found.same, found.left_out) == (8, 4, 4)


def test_decision_under_an_unknown_policy_counts_neither_way() -> None:
    """A policy of a later version was recorded: it can be replaced, but not checked."""
    day = recorded_day(3)
    for at, event in enumerate(day):
        if isinstance(event, RequestServed) and event.decision is not None:
            named = msgspec.structs.replace(event.decision, policy="of tomorrow")
            day[at] = msgspec.structs.replace(event, decision=named)
    found = replayed(day, "prefix_affine")
    assert (found.refaithful, found.same, found.by_policy) == (0, 3, {"of tomorrow": 3})


def test_forged_choice_is_not_faithful() -> None:
    """A recorded replica that the policy would not have chosen is seen."""
    day = recorded_day(8)
    event = day[2]
    assert isinstance(event, RequestServed)
    assert event.decision is not None
    other = "r1" if event.decision.replica == "r0" else "r0"
    forged = msgspec.structs.replace(event.decision, replica=other)
    day[2] = msgspec.structs.replace(event, decision=forged)
    found = replayed(day, "prefix_affine")
    assert (found.faithful, found.refaithful, found.different) == (7, 8, 1)


def test_costs_are_those_calibrated_last_before_a_decision() -> None:
    """With prefill ten times dearer the extra of a lost prefix grows with it."""
    cheap = replayed(recorded_day(24), "round_robin")
    day = recorded_day(24)
    first = day[0]
    dear = msgspec.structs.replace(COST, prefill_ms_per_token=5.0)
    day.insert(1, msgspec.structs.replace(first, cost=dear))
    dearer = replayed(day, "round_robin")
    assert cheap.extra_ms_mean is not None
    assert dearer.extra_ms_mean is not None
    assert dearer.extra_ms_mean > 5.0 * cheap.extra_ms_mean


def test_recorded_policy_is_made_anew_with_the_settings_of_its_run() -> None:
    """What is replayed has the bound that is asked for; what is checked has the one that was recorded."""
    day = recorded_day(24)
    started = RunStarted(
        run_id="a", command="tune", version="1", settings={"routing.load_bound": LOAD_BOUND}
    )
    found = replayed([started, *day], "prefix_affine", load_bound=1.0)
    assert (found.faithful, found.refaithful) == (24, 24)
    assert found.different > 0
    other = msgspec.structs.replace(started, settings={"routing.load_bound": 1.0})
    turned = replayed([other, *day], "prefix_affine")
    assert turned.faithful == 24 - found.different
    assert turned.different == 0


def test_unknown_policy_is_refused_with_those_that_are_known() -> None:
    """A typing error is told at once."""
    with pytest.raises(ScenarioError, match=r"no policy 'fifo'.*prefix_affine"):
        replayed([], "fifo")


def test_differences_are_counted_beyond_those_that_are_kept() -> None:
    """Memory is bounded, the count is not."""
    day = recorded_day(3)
    assert replayed([day[0], day[2]], "round_robin").different == 1
    found = replayed([day[0], *[day[2]] * (DIFFERENCES_MAX + 5)], "round_robin")
    assert (found.different, len(found.differing)) == (DIFFERENCES_MAX + 5, DIFFERENCES_MAX)
