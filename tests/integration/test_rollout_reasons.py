"""Why a person did something to a lever, and for which slice: kept in the ledger, carried out, shown again."""

from collections.abc import Awaitable, Callable

import msgspec
import pytest
from control_kit import QUESTIONS
from test_rollout_route import RECORD, Asking, ask

from trimtab.core.state import LeverStatus
from trimtab.core.types import Mode, RolloutState

__all__ = ["ask"]

S = RolloutState
NAME = "smaller-chunk"
EDITS_GATE = """
[[gates]]
name = "edits wait no longer"
metric = "ttft_ms"
question = "no_harm"
margin = 0.3
cut = "label=edit"
during = ["canary", "ramping", "proving"]
"""


async def levers(ask: Asking) -> dict[str, LeverStatus]:
    """What the ledger says of every lever."""
    found = await ask.json("rollout", "list")
    return msgspec.convert(found, dict[str, LeverStatus])


async def test_reason_is_kept_of_everything_that_a_person_does(ask: Asking) -> None:
    """Of a proposal in its record, of every move in the move."""
    await ask.json("rollout", "propose", str(ask.file), "--reason", "gaps hurt")
    record = (await levers(ask))[NAME].record
    assert record is not None
    assert record.chosen_because == "ada proposed it: gaps hurt"
    told = {}
    for action, more in (("start", ()), ("pause", ()), ("resume", ()), ("rollback", ())):
        await ask.json("rollout", action, NAME, *more, "--reason", f"{action} it")
        told[action] = (await levers(ask))[NAME].reason
    assert told == {
        "start": "first slice; a person asked: start it",
        "pause": "a person asked: pause it",
        "resume": "a person asked: resume it",
        "rollback": "a person asked: rollback it",
    }


@pytest.mark.parametrize("state", [S.CANARY, S.PROVING])
async def test_a_person_takes_one_cut_out_of_a_lever_that_is_proven(
    ask: Asking, state: RolloutState
) -> None:
    """The rest goes on, and the cut stays off the lever once it is adopted."""
    await ask.json("rollout", "propose", str(ask.file), "--start")
    await ask.served.until(state)
    done = await ask.json(
        "rollout", "disable", NAME, "--slice", "label=question", "--reason", "hurt"
    )
    assert done["steps"] == ["requests of label=question are on the baseline"]
    candidate = ask.served.actuator.plan.candidate
    assert candidate is not None
    assert candidate.without == (QUESTIONS,)
    again = await ask("rollout", "disable", NAME, "--slice", "label=question")
    assert (again.exit_code, "is kept off label=question already" in again.output) == (1, True)
    await ask.served.until(S.PROVING)
    await ask.json("rollout", "adopt", NAME)
    (kept,) = ask.served.actuator.plan.preferences
    assert kept.without == (QUESTIONS,)
    assert (await levers(ask))[NAME].refused == {"label=question": "a person asked: hurt"}


async def test_cut_leaves_a_paused_lever_before_it_is_resumed(ask: Asking) -> None:
    """Whom it hurt does not have to meet it again first; nothing meets it while it is paused."""
    await ask.json("rollout", "propose", str(ask.file), "--start")
    await ask.json("rollout", "pause", NAME)
    await ask.json("rollout", "disable", NAME, "--slice", "label=question")
    assert ask.served.actuator.plan.candidate is None
    assert set((await levers(ask))[NAME].refused) == {"label=question"}
    await ask.json("rollout", "resume", NAME)
    candidate = ask.served.actuator.plan.candidate
    assert candidate is not None
    assert candidate.without == (QUESTIONS,)


@pytest.mark.parametrize(
    ("cut", "words"),
    [
        ("batch=4", "known only when a request has been served"),
        ("label=edit", "is for label=edit alone: trimtab rollout rollback"),
        ("nonsense", "is no cut"),
    ],
)
async def test_cut_that_cannot_leave_alone_is_refused(ask: Asking, cut: str, words: str) -> None:
    """Nothing of the plan changes."""
    ask.file.write_text('slice = ["label=edit"]\n' + RECORD)
    await ask.json("rollout", "propose", str(ask.file), "--start")
    before = ask.served.actuator.plan
    found = await ask("rollout", "disable", NAME, "--slice", cut)
    assert found.exit_code == 1
    assert words in " ".join(found.output.split())
    assert ask.served.actuator.plan == before


async def test_started_for_one_slice_it_is_another_proposal(ask: Asking) -> None:
    """The record that is judged names the cut; a dry run says so and changes nothing."""
    await ask.json("rollout", "propose", str(ask.file))
    tried = await ask("rollout", "start", NAME, "--slice", "label=question", "--dry-run")
    assert "smaller-chunk: would be started" in tried.output
    assert "of the sessions of label=question" in tried.output
    assert ask.served.actuator.plan.candidate is None
    await ask.json("rollout", "start", NAME, "--slice", "label=question")
    candidate = ask.served.actuator.plan.candidate
    assert candidate is not None
    assert candidate.cuts == (QUESTIONS,)
    record = (await levers(ask))[NAME].record
    assert record is not None
    assert record.cuts == (QUESTIONS,)


@pytest.mark.parametrize("state", [S.CANARY, S.ADOPTED, S.DISABLED])
async def test_lever_that_is_live_is_not_started_anew(ask: Asking, state: RolloutState) -> None:
    """What the ledger knows of it stays: its state, its share, its gates, its record."""
    await ask.json("rollout", "propose", str(ask.file), "--start")
    await ask.served.until(S.CANARY if state is S.CANARY else S.PROVING)
    if state is not S.CANARY:
        await ask.json("rollout", "adopt", NAME)
    if state is S.DISABLED:
        await ask.json("rollout", "disable", NAME)
    before = await levers(ask)
    for more in ((), ("--slice", "label=question"), ("--dry-run",)):
        found = await ask("rollout", "start", NAME, *more)
        assert found.exit_code == 1
        assert f"{NAME} is {state.value}: roll it back" in " ".join(found.output.split())
    assert await levers(ask) == before


async def observed(ask: Asking) -> None:
    """The fleet only observes."""
    levers_config = msgspec.structs.replace(ask.served.system.config.levers, mode=Mode.OBSERVE)
    ask.served.system.config = msgspec.structs.replace(
        ask.served.system.config, levers=levers_config
    )


async def frozen(ask: Asking) -> None:
    """Promotions are stopped."""
    await ask.json("freeze")


async def broken(ask: Asking) -> None:
    """The replica does not start."""
    ask.served.fleet.failures_left = 9


@pytest.mark.parametrize("obstacle", [observed, frozen, broken])
async def test_start_for_one_slice_that_is_refused_leaves_the_proposal_as_it_was(
    ask: Asking, obstacle: Callable[[Asking], Awaitable[None]]
) -> None:
    """The record is not narrowed for good by a start that did not happen."""
    await ask.json("rollout", "propose", str(ask.file))
    await obstacle(ask)
    before = await levers(ask)
    found = await ask("rollout", "start", NAME, "--slice", "label=question")
    assert found.exit_code == 1
    after = await levers(ask)
    assert after == before
    assert after[NAME].state is S.PROPOSED
    tried = await ask("rollout", "start", NAME, "--dry-run")
    assert "of the sessions of all traffic" in tried.output


async def test_disable_of_a_lever_that_is_proven_says_what_can_be_done(ask: Asking) -> None:
    """It is being proven, so the message does not say that it is not."""
    await ask.json("rollout", "propose", str(ask.file), "--start")
    found = await ask("rollout", "disable", NAME)
    assert found.exit_code == 1
    words = f"{NAME} is being proven: pause it, roll it back, or name a --slice"
    assert words in " ".join(found.output.split())


@pytest.mark.parametrize("cut", ["label=question", "batch=4"])
async def test_slice_that_the_record_does_not_hold_is_not_started(ask: Asking, cut: str) -> None:
    """A record for edits is not started for questions, nor for what is known too late."""
    ask.file.write_text('slice = ["label=edit"]\n' + RECORD)
    await ask.json("rollout", "propose", str(ask.file))
    found = await ask("rollout", "start", NAME, "--slice", cut)
    assert found.exit_code == 1
    assert ask.served.actuator.plan.candidate is None


async def test_one_cut_of_a_lever_is_shown_by_itself(ask: Asking) -> None:
    """Only the gates of that cut; of a lever that went back there is nothing to take back."""
    ask.file.write_text(RECORD + EDITS_GATE)
    await ask.json("rollout", "propose", str(ask.file), "--start")
    await ask.served.until(S.PROVING)
    everything = await ask("rollout", "show", NAME)
    one = await ask("rollout", "show", NAME, "--slice", "label=edit")
    assert "errors (all)" in everything.output
    assert "edits wait no longer (label=edit)" in one.output
    assert "(all)" not in one.output
    for cut, code, words in (
        ("lable=edit", 2, "'lable=edit' is no cut"),
        ("header=x-team:alpha", 1, "is about header=x-team:alpha; there are: "),
        ("label=edits", 1, "no gate or effect of smaller-chunk is about label=edits"),
    ):
        wrong = await ask("rollout", "show", NAME, "--slice", cut)
        assert (wrong.exit_code, words in " ".join(wrong.output.split())) == (code, True)
    assert {"all", "label=edit"} <= set(wrong.output.split("there are: ")[1].strip().split(", "))
    await ask.json("rollout", "rollback", NAME)
    over = await ask("rollout", "show", NAME)
    assert "it went back: all traffic is on the baseline" in over.output
