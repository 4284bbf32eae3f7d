"""What a tick of the role control sees: steps and not tokens are compared, and transfers with their own prompts."""

import msgspec
import pytest

from trimtab.core.roles import RolesSeen
from trimtab.policies.role_watch import RoleSides, RoleTargets, RoleWatch

SIDES = RoleSides(prefill=("p",), decode=("d",), moving=0, kv_used_share=0.5, preemptions=0)
IDLE_MS = 20.0


def watch() -> RoleWatch:
    """One that has watched for its window of 60 s; a transfer may take 100 ms."""
    return RoleWatch(RoleTargets(ttft_ms=400.0, tpot_ms=40.0, transfer_ms=100.0), 60.0, 60.0)


def seen_by(one: RoleWatch, idle_ms: float | None = IDLE_MS) -> RolesSeen:
    return one.seen(60.0, SIDES, step_idle_ms=idle_ms)


@pytest.mark.parametrize(
    ("tpot_ms", "tokens_per_step", "lost"),
    [(20.0, 1.0, 0.0), (40.0, 1.0, 0.5), (8.0, 2.5, 0.0), (16.0, 2.5, 0.5)],
)
def test_drafts_that_are_accepted_hide_no_load(
    tpot_ms: float, tokens_per_step: float, lost: float
) -> None:
    """A stream that waits as long for others in each step loses as much of its time, whatever a step gives it."""
    one = watch()
    for at in range(10):
        one.ended(10.0 + at, tpot_ms, tokens_per_step)
    seen = seen_by(one)
    assert seen.lost_share == pytest.approx(lost)
    assert (seen.tokens_per_step, seen.lost_unknown) == (tokens_per_step, "")


def test_answers_that_draft_more_while_others_do_not_are_no_gain_of_load() -> None:
    """A lever that starts to draft changes tokens per step and leaves steps as they are: lost stays."""
    one = watch()
    for at in range(10):
        one.ended(10.0 + at, 40.0, 1.0)
        one.ended(10.0 + at, 10.0, 4.0)
    assert seen_by(one).lost_share == pytest.approx(0.5)


def test_answer_that_tells_no_tokens_per_step_leaves_the_mean_of_the_others() -> None:
    """One unknown answer must not freeze roles for a window, nor enter the mean: its steps are not known."""
    one = watch()
    for at in range(9):
        one.ended(10.0 + at, 40.0, 1.0)
    one.ended(30.0, 10.0, None)
    seen = one.seen(60.0, SIDES, step_idle_ms=IDLE_MS, samples_min=9)
    assert seen.lost_share == pytest.approx(0.5)
    assert (seen.tokens_per_step, seen.lost_unknown) == (1.0, "")
    assert (seen.answers, seen.work_window_s) == (9, 60.0)


@pytest.mark.parametrize(("told", "untold", "samples_min"), [(4, 5, 1), (9, 1, 10)])
def test_lost_is_unknown_where_few_answers_tell_tokens_per_step(
    told: int, untold: int, samples_min: int
) -> None:
    """Fewer than half, or fewer than a mean needs: the others may draft, and nobody can say what answers lose."""
    one = watch()
    for at in range(told):
        one.ended(10.0 + at, 40.0, 1.0)
    for at in range(untold):
        one.ended(30.0 + at, 10.0, None)
    seen = one.seen(60.0, SIDES, step_idle_ms=IDLE_MS, samples_min=samples_min)
    assert seen.lost_share is None
    words = f"tokens per step of {untold} of {told + untold} answers not measured"
    assert seen.lost_unknown == words
    assert seen.tpot_ms_p90 is not None, "what users get is known all the same"


def test_lost_says_that_no_cost_was_measured() -> None:
    """Without an idle step there is nothing to compare with."""
    one = watch()
    one.ended(10.0, 40.0, 1.0)
    seen = seen_by(one, idle_ms=None)
    assert (seen.lost_share, seen.lost_unknown) == (None, "no cost was measured")


def test_transfers_are_held_against_their_own_prompts() -> None:
    """Slow ones of long prompts and quick ones of short prompts are dear to nobody; apart, their P90s look alike."""
    paired, crossed = watch(), watch()
    for at in range(10):
        paired.moved(10.0 + at, 200.0, 4000.0)
        paired.moved(10.0 + at, 10.0, 50.0)
        crossed.moved(10.0 + at, 200.0, 50.0)
        crossed.moved(10.0 + at, 10.0, 4000.0)
    cheap, dear = seen_by(paired), seen_by(crossed)
    assert cheap.transfer_ms_p90 == dear.transfer_ms_p90 == 200.0
    assert (cheap.dearness_p90, dear.dearness_p90) == pytest.approx((0.1, 2.0))
    assert cheap.transfers == 20


def test_transfer_must_be_long_and_longer_than_half_its_prompt_to_be_dear() -> None:
    """Half of the transfers long beside long prompts, half short beside shorter ones: none of them is both."""
    one = watch()
    for at in range(10):
        one.moved(10.0 + at, 300.0, 3000.0)
        one.moved(10.0 + at, 50.0, 20.0)
    assert seen_by(one).dearness_p90 == pytest.approx(0.5)


@pytest.mark.parametrize(("work_ms", "dearness"), [(1000.0, 0.4), (350.0, 200 / 175), (None, 2.0)])
def test_long_transfer_is_not_dear_where_computing_takes_much_longer(
    work_ms: float | None, dearness: float
) -> None:
    """Prompts of a hundred thousand tokens move for seconds, and would be computed for many times as long."""
    one = watch()
    one.moved(10.0, 200.0, work_ms)
    assert seen_by(one).dearness_p90 == pytest.approx(dearness)


def test_nothing_handed_over_is_no_quantile() -> None:
    """There is nothing to be dear; and what was handed over before the window is no longer there."""
    one = watch()
    one.moved(-10.0, 200.0, None)
    seen = seen_by(one)
    assert (seen.transfers, seen.transfer_ms_p90, seen.dearness_p90) == (0, None, None)


def test_tick_between_two_pages_is_no_look_at_preemptions() -> None:
    """Pages each third second show preemptions in every look that was had, and not in one tick of three."""
    one = watch()
    for tick in range(60):
        is_new = tick % 3 == 0
        sides = msgspec.structs.replace(SIDES, preemptions=2 if is_new else 0, looked=is_new)
        seen = one.seen(float(tick), sides, step_idle_ms=IDLE_MS)
    assert (seen.looks, seen.looks_preempted, seen.preemptions) == (20, 20, 0)
    later = one.seen(118.0, SIDES, step_idle_ms=IDLE_MS)
    assert (later.looks, later.looks_preempted) == (1, 0), "a look is forgotten with its window"


def test_requests_under_way_are_a_mean_over_the_windows_ticks() -> None:
    """One that happens to run at a tick makes no busy fleet, nor is a fleet idle because none does just then."""
    one = watch()
    for tick in range(60):
        sides = msgspec.structs.replace(SIDES, in_flight=tick % 4)
        seen = one.seen(float(tick), sides, step_idle_ms=IDLE_MS)
    assert seen.in_flight == pytest.approx(1.5)
    assert seen_by(watch()).in_flight is None, "nobody told"


def test_requests_count_that_gave_a_token_or_ended() -> None:
    """Answers of one token have no time per token and are requests all the same."""
    one = watch()
    for at in range(12):
        one.first_token(10.0 + at, 100.0)
    one.ended(30.0, 20.0, 1.0)
    seen = seen_by(one)
    assert (seen.requests, seen.samples) == (12, 1)
