"""kill -9 of a gateway on the real engine in each state of a rollout: the next life finds everything where it was."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from cli_kit import QUICK_CLI, Background, ask, chat, command, processes, until
from serving_kit import CHAT, RECORD

from trimtab.core.events import (
    RequestServed,
    RolloutMoved,
    SessionsExposed,
)
from trimtab.core.state import EMPTY
from trimtab.core.types import RolloutAction, RolloutState
from trimtab.runtime.clock import SystemClock
from trimtab.runtime.ledger import SqliteLedger
from trimtab.runtime.ledger_reader import Filter, SqliteReader

pytestmark = pytest.mark.engine_llamacpp

PATIENT = RECORD.format(
    name="affine",
    technique="prefix_caching",
    head='policy = "prefix_affine"',
    shares="[0.1, 0.25, 0.95]",
    peak="24h",
    block="5min",
    rest="""
sticky_by = "session"
[expected.ttft_ms]
ratio = 0.5
low = 0.3
high = 0.9
because = "prompts are held"
""",
)
SMALL = """
[engine]
threads = 1
slots = 2
context_tokens = 512
[fleet]
replicas = 1
[gateway]
port = 0
[ledger]
path = "l.sqlite"
"""
SHORT_LIVED = 'expires_after = "1s"\n[bott'
Stand = tuple[RolloutState, float, str, str | None, float]
"""State and share by the ledger; policy, lever and share by the plan."""

SESSIONS = 12
SERVING_NOW = "Ctrl-C drains and stops"
SHARES = {
    RolloutState.CANARY: 0.1,
    RolloutState.RAMPING: 0.25,
    RolloutState.PROVING: 0.95,
    RolloutState.ADOPTED: 1.0,
}


class Life:
    """One life of a gateway on one ledger, from its start to its kill -9."""

    def __init__(self, folder: Path) -> None:
        (folder / "trimtab.toml").write_text(SMALL)
        self.running = Background(folder, "up", "--config", "trimtab.toml", program=QUICK_CLI)
        self.ledger = folder / "l.sqlite"

    def __enter__(self) -> "Life":
        try:
            said = self.running.wait_for(SERVING_NOW, 180)
        except AssertionError:
            self.running.__exit__()
            raise
        [line] = [line for line in said.splitlines() if line.startswith("OpenAI API")]
        self.url = line.split()[-1].removesuffix("/v1")
        return self

    def __exit__(self, *error: object) -> None:
        """Kill it as a machine that loses power would."""
        os.kill(self.running.process.pid, signal.SIGKILL)
        self.running.process.wait()
        until(lambda: processes(self.running.mark) == {}, 30, "the replicas are gone")

    def act(self, action: RolloutAction, **more: object) -> None:
        """Ask what a person asks, and expect that it is done."""
        answer = ask(self.url + "/rollouts", {"action": action, "name": "affine", **more})
        assert answer.status == 200, answer.body

    def exposures(self) -> dict[str, str | None]:
        """What each of some sessions met: the slice of the lever, the rest, or nothing of it."""
        before = self.served()
        for number in range(SESSIONS):
            body = {**chat(f"Say {number}.", max_tokens=1), "user": f"session-{number}"}
            assert ask(self.url + CHAT, body).status == 200
        until(lambda: self.served() == before + SESSIONS, 10, "all are in the ledger")
        with SqliteReader(self.ledger) as reader:
            found = [
                each.event for each in reader.last(Filter(kind="request_served"), limit=SESSIONS)
            ]
        records = [event.record for event in found if isinstance(event, RequestServed)]
        return {one.session or "": one.slice for one in records}

    def served(self) -> int:
        """How many requests the ledger has."""
        with SqliteReader(self.ledger) as reader:
            return reader.catch_up(EMPTY).counts.get("request_served", 0)

    def stands(self) -> Stand:
        """Where the lever is by the folded ledger, and by the plan that the gateway follows."""
        with SqliteReader(self.ledger) as reader:
            lever = reader.catch_up(EMPTY).levers["affine"]
        plan: Any = ask(self.url + "/debug/fleet").json()["plan"]
        candidate = plan["candidate"] or {"lever": None, "share": 0.0}
        return lever.state, lever.share, plan["policy"], candidate["lever"], candidate["share"]


def stand(state: RolloutState) -> Stand:
    """Where everything is to be in a state."""
    running = state in (RolloutState.CANARY, RolloutState.RAMPING, RolloutState.PROVING)
    share = SHARES.get(state, 0.0)
    policy = "prefix_affine" if state is RolloutState.ADOPTED else "round_robin"
    return state, share, policy, "affine" if running else None, share if running else 0.0


def grow(ledger: Path, before: RolloutState, after: RolloutState) -> None:
    """Record what the controller does when gates passed: a day's peak cycle does not fit into a test."""
    sink = SqliteLedger(ledger, clock=SystemClock())
    moved = RolloutMoved(
        lever="affine", before=before, after=after, share=SHARES[after], reason="passed"
    )
    sink.append(moved, cause_id=None, durable=True)
    sink.close()


def inside(exposures: dict[str, str | None]) -> set[str]:
    """The sessions that met the lever."""
    return {session for session, slice_ in exposures.items() if (slice_ or "").startswith("slice")}


@pytest.mark.timeout(900)
def test_kill_in_each_state_of_a_rollout_and_it_is_where_it_was(tmp_path: Path) -> None:
    """Proposed to expired: after kill -9 the same state, share and plan, and the same sessions in the slice."""
    state, ledger = RolloutState, tmp_path / "l.sqlite"
    with Life(tmp_path) as life:
        life.act(RolloutAction.PROPOSE, record=PATIENT)
    with Life(tmp_path) as life:
        assert life.stands()[0] is state.PROPOSED
        life.act(RolloutAction.START)
        canary = inside(life.exposures())
    with Life(tmp_path) as life:
        assert life.stands() == stand(state.CANARY)
        assert inside(life.exposures()) == canary
        life.act(RolloutAction.PAUSE)
    with Life(tmp_path) as life:
        assert life.stands() == stand(state.PAUSED)
        assert inside(life.exposures()) == set()
    grow(ledger, state.PAUSED, state.RAMPING)
    with Life(tmp_path) as life:
        ramping = inside(life.exposures())
    with Life(tmp_path) as life:
        assert life.stands() == stand(state.RAMPING)
        assert inside(life.exposures()) == ramping
    grow(ledger, state.RAMPING, state.PROVING)
    with Life(tmp_path) as life:
        assert life.stands() == stand(state.PROVING)
        met = life.exposures()
        proving = inside(met)
        life.act(RolloutAction.ADOPT)
    check_told_once(ledger, set(met))
    assert canary <= ramping <= proving
    assert 0 < len(proving) <= SESSIONS
    check_after_adoption(tmp_path)


def check_told_once(ledger: Path, sessions: set[str]) -> None:
    """Over all lives each session is told once an arm, and all of them are told."""
    with SqliteReader(ledger) as reader:
        found = [each.event for each in reader.stream(Filter(kind="sessions_exposed"))]
    told = [event for event in found if isinstance(event, SessionsExposed)]
    candidate = [session for event in told for session in event.candidate]
    baseline = [session for event in told for session in event.baseline]
    assert len(candidate) == len(set(candidate))
    assert len(baseline) == len(set(baseline))
    assert {*candidate, *baseline} == sessions


def check_after_adoption(folder: Path) -> None:
    """Adopted, disabled, taken back, and expired in a second rollout: each stands after a kill."""
    with Life(folder) as life:
        assert life.stands() == stand(RolloutState.ADOPTED)
        life.act(RolloutAction.DISABLE)
    with Life(folder) as life:
        assert life.stands() == stand(RolloutState.DISABLED)
        life.act(RolloutAction.ROLLBACK)
    with Life(folder) as life:
        assert life.stands() == stand(RolloutState.ROLLED_BACK)
        life.act(RolloutAction.PROPOSE, record=PATIENT.replace("[bott", SHORT_LIVED, 1), start=True)
        until(lambda: life.stands()[0] is RolloutState.EXPIRED, 30, "it expired")
    with Life(folder) as life:
        assert life.stands() == stand(RolloutState.EXPIRED)
        assert inside(life.exposures()) == set()
    assert command(folder, "ledger", "--ledger", str(folder / "l.sqlite"), "verify").code == 0
