"""Rollouts on a real fleet: harm in one cut, an error burst, levers that meet, and kill -9 in every state."""

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from cli_kit import Background, ask, chat, command, processes, until

from trimtab.core.config import (
    Config,
    EngineConfig,
    FleetConfig,
    GatewayConfig,
    LedgerConfig,
    LeverConfig,
)
from trimtab.core.cost import START_COST
from trimtab.core.cuts import Cut, Dimension
from trimtab.core.events import (
    AnyEvent,
    CutsKept,
    RequestServed,
    RolloutMoved,
)
from trimtab.core.lever import LeverRecord
from trimtab.core.state import EMPTY
from trimtab.core.types import Arm, Mode, ReplicaState, RolloutAction, RolloutState
from trimtab.levers.catalog import routing_policy_of
from trimtab.rollout.short_record import complete, parse_record
from trimtab.runtime.clock import SystemClock
from trimtab.runtime.control import Control
from trimtab.runtime.ledger import SqliteLedger
from trimtab.runtime.ledger_reader import Filter, SqliteReader
from trimtab.runtime.operate import Operator
from trimtab.runtime.serve import standing_of
from trimtab.runtime.supervisor import System

pytestmark = [pytest.mark.engine_llamacpp, pytest.mark.timeout(240)]

CHAT = "/v1/chat/completions"
RECORD = """
name = "{name}"
technique = "{technique}"
owner = "tests"
premise = "measured in a test"
condition = "all traffic of a test"
failure_modes = ["long prompts wait"]
{head}
[bottleneck]
phase = "decode"
resource = "memory_bandwidth"
diagnosis = "a test says so"
[[moves]]
budget = "compute"
spends = true
delta_share = 0.05
because = "verification"
[[moves]]
budget = "memory"
spends = false
delta_share = -0.1
because = "less is read"
[[triggers]]
signal = "batch"
off_at = 64.0
on_at = 32.0
off_when_above = true
because = "never in a test"
[ramp]
shares = {shares}
peak_cycle = "{peak}"
block = "{block}"
edge = "0.1s"
warm_up = "0s"
{rest}
"""
WORDS = ("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa")


class Serving:
    """A small real fleet with everything that moves levers, and clients of it."""

    def __init__(self, folder: Path, engine: EngineConfig, *, replicas: int = 2) -> None:
        config = Config(
            gateway=GatewayConfig(port=0),
            ledger=LedgerConfig(path=str(folder / "ledger.sqlite")),
            fleet=FleetConfig(replicas=replicas, restart_backoff_s=0.2),
            engine=engine,
            levers=LeverConfig(mode=Mode.ACT),
        )
        self.system = System(config, SystemClock(), command="up")
        self.control = Control(self.system, lambda: standing_of(self.system, START_COST))
        self.operator = Operator(self.control, self.system)
        self.http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))

    async def __aenter__(self) -> "Serving":
        await self.system.start()
        await self.control.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.control.stop()
        await self.http.close()
        await self.system.stop("a test ended")

    async def ask(
        self,
        session: str,
        text: str,
        *,
        tokens: int = 4,
        label: str = "",
        begun: Callable[[], None] = lambda: None,
    ) -> bool:
        """Stream one chat; True if it was answered to its end. `begun` is called at its first bytes."""
        body = chat(text, max_tokens=tokens, stream=True, ignore_eos=True)
        headers = {"X-Trimtab-Session": session, "X-Trimtab-Label": label}
        try:
            async with self.http.post(self.system.url + CHAT, json=body, headers=headers) as got:
                data = await got.content.readany()
                begun()
                data += await got.read()
                return got.status == 200 and data.rstrip().endswith(b"data: [DONE]")
        except aiohttp.ClientError:
            return False

    async def sessions(self, arm: Arm, n: int) -> list[str]:
        """Names of sessions that the lever being proven has in one arm."""
        found: list[str] = []
        number = 0
        while len(found) < n:
            name = f"{arm.value}-{number}"
            number += 1
            assert not self.control.controller.has_ended, self.control.controller.proof
            assert await self.ask(name, "Hi.", tokens=1)
            if self.system.records[-1].arm is arm:
                found.append(name)
        return found

    def events(self) -> list[AnyEvent]:
        """Everything in the ledger so far."""
        return [envelope.event for envelope in self.system.ledger.read()]

    def state(self, lever: str) -> RolloutState | None:
        """Where a lever is, by its last move."""
        moves = [e for e in self.events() if isinstance(e, RolloutMoved) and e.lever == lever]
        return moves[-1].after if moves else None

    def record(self, text: str) -> LeverRecord:
        """A whole lever record of a text, each gate left to its own alpha so that a test need not wait."""
        short = parse_record(text, source="a test")
        record = complete(short, baseline=self.system.baseline, now_s=self.system.clock.wall_s())
        quick = msgspec.structs.replace(record.ramp, harm_alpha=None)
        return msgspec.structs.replace(record, ramp=quick)

    async def start(self, record: LeverRecord) -> None:
        """Propose a record and expose its first slice."""
        controller = self.control.controller
        proposed = controller.propose(record, cause_id=self.system.started_event)
        self.control.begin_proof()
        await controller.start(record, routing_policy_of(record), cause_id=proposed)


async def until_true(holds: Callable[[], bool], timeout_s: float, what: str) -> None:
    """Wait until something holds."""
    try:
        async with asyncio.timeout(timeout_s):
            while not holds():  # noqa: ASYNC110 - what is waited for sets no event
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise AssertionError(f"not within {timeout_s:g} s: {what}") from None


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installation of its own for each test."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def prose(number: int, words: int) -> str:
    """A text of its own for each number."""
    return " ".join(WORDS[(number * 7 + at * (number + 3)) % len(WORDS)] for at in range(words))


# -- a lever that is good on average and bad for long inputs ---------------------------------

FEWER_SLOTS = RECORD.format(
    name="speculation-in-one-slot",
    technique="speculation",
    head="[revision]\nslots = 1\nspeculation = {method = 'ngram_simple', match_tokens = 6, draft_tokens_max = 8}",
    shares="[0.5, 0.95]",
    peak="20min",
    block="3s",
    rest="""
[expected.tpot_ms]
ratio = 0.7
low = 0.4
high = 0.95
because = "texts are repeated"
[[gates]]
name = "long inputs"
metric = "ttft_ms"
question = "veto"
margin = 0.25
cut = "input_tokens=1024-4096"
min_requests = 4
during = ["canary", "ramping", "proving"]
required = false
""",
)
LONG = Cut(Dimension.INPUT_TOKENS, "1024-4096")
REPEATED = "Repeat this line ten times: one two three four five six seven eight nine ten."


async def test_lever_that_harms_long_inputs_is_stopped_for_long_inputs_only(
    tmp_path: Path,
) -> None:
    """Its one slot forgets long prompts, which wait anew each time: they leave the slice, short ones stay in it."""
    engine = EngineConfig(slots=4, context_tokens=2048)
    async with Serving(tmp_path, engine) as serving:
        record = serving.record(FEWER_SLOTS)
        await serving.start(record)
        stop = asyncio.Event()
        clients = [
            asyncio.create_task(mixed_traffic(serving, session, number, stop))
            for arm in Arm
            for number, session in enumerate(await serving.sessions(arm, 1))
        ]
        try:
            await until_true(lambda: bool(refused(serving)), 150, "long inputs leave the slice")
            seen = len(serving.system.records)
            await until_true(
                lambda: len(long_inputs(serving, seen)) >= 3, 60, "long inputs are served since"
            )
        finally:
            stop.set()
            await asyncio.gather(*clients)
        later = serving.system.records[seen:]
        assert list(refused(serving)) == [str(LONG)]
        assert {one.arm for one in long_inputs(serving, seen)} == {Arm.BASELINE}
        assert Arm.CANDIDATE in {one.arm for one in later if (one.tokens.prompt or 0) < 1024}
        assert serving.state(record.name) is RolloutState.CANARY
        assert all(one.ok for one in later)
        assert tpot_ratio(serving) < 1.0


async def mixed_traffic(serving: Serving, session: str, number: int, stop: asyncio.Event) -> None:
    """Two long documents in turn, short requests between them, until told to stop."""
    documents = [prose(2 * number + at, 620) for at in range(2)]
    turn = 0
    while not stop.is_set():
        assert await serving.ask(session, REPEATED, tokens=24)
        assert await serving.ask(session, documents[turn % 2] + f" Question {turn}?", tokens=4)
        turn += 1


def refused(serving: Serving) -> dict[str, str]:
    """Cuts that left, with the reason."""
    found = [event.refused for event in serving.events() if isinstance(event, CutsKept)]
    return {cut: why for one in found for cut, why in one.items()}


def long_inputs(serving: Serving, since: int) -> list[Any]:
    """Records of long inputs that arrived after so many records."""
    found = serving.system.records[since + 2 :]
    return [one for one in found if (one.tokens.prompt or 0) >= 1024]


def tpot_ratio(serving: Serving) -> float:
    """Mean TPOT of the short requests of the candidate over the baseline's."""
    times: dict[Arm, list[float]] = {arm: [] for arm in Arm}
    for one in serving.system.records:
        if one.tpot_ms is not None and one.tokens.output == 24:
            times[one.arm].append(one.tpot_ms)
    means = {arm: sum(values) / len(values) for arm, values in times.items()}
    return means[Arm.CANDIDATE] / means[Arm.BASELINE]


# -- an error burst in the candidate -----------------------------------------------------------

SMALLER_CHUNKS = RECORD.format(
    name="smaller-chunks",
    technique="prefill_chunking",
    head="[revision]\nchunk_tokens = 128",
    shares="[0.5, 0.95]",
    peak="20min",
    block="2s",
    rest="""
[expected.chunk_gap_ms]
ratio = 0.8
low = 0.5
high = 0.95
because = "smaller batches"
""",
)
BURST = 16


async def test_error_burst_in_the_candidate_rolls_it_back_within_two_ticks(
    tmp_path: Path,
) -> None:
    """Its process dies under sixteen streams: they break, the lever goes, and no later request fails."""
    engine = EngineConfig(slots=BURST, context_tokens=512)
    async with Serving(tmp_path, engine) as serving:
        record = serving.record(SMALLER_CHUNKS)
        await serving.start(record)
        candidate = await serving.sessions(Arm.CANDIDATE, 8)
        baseline = await serving.sessions(Arm.BASELINE, 4)
        for at in range(24):
            assert await serving.ask(baseline[at % 4], f"Say {at}.", tokens=2)
        begun: list[int] = []
        streams = [
            asyncio.create_task(
                serving.ask(
                    candidate[at % 8],
                    f"Tell story {at}.",
                    tokens=400,
                    begun=lambda: begun.append(1),
                )
            )
            for at in range(BURST)
        ]
        await until_true(lambda: len(begun) == BURST, 60, "all streams run")
        ticks = count_ticks(serving)
        pid = serving.system.fleet.info("r1").pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        answered = await asyncio.gather(*streams)
        ticks.clear()
        later = [
            await serving.ask(session, f"Go on {at}.", tokens=2)
            for at in range(4)
            for session in (*candidate, *baseline)
        ]
        await until_true(
            lambda: serving.state(record.name) is RolloutState.ROLLED_BACK, 30, "rolled back"
        )
        assert answered.count(False) == BURST
        assert later == [True] * len(later)
        assert ticks.index(RolloutState.ROLLED_BACK) < 2
        assert "errors failed" in last_move(serving, record.name).reason
        await until_true(lambda: is_plain(serving, "r1"), 60, "its replica is back")
        assert serving.system.router.plan.candidate is None


def count_ticks(serving: Serving) -> list[RolloutState]:
    """Keep where the lever is after each tick of the controller from now on."""
    controller, seen = serving.control.controller, list[RolloutState]()
    tick = controller.tick

    async def counted() -> None:
        await tick()
        if controller.proof is not None:
            seen.append(controller.proof.rollout.state)

    controller.tick = counted  # type: ignore[method-assign]
    return seen


def last_move(serving: Serving, lever: str) -> RolloutMoved:
    return [e for e in serving.events() if isinstance(e, RolloutMoved) and e.lever == lever][-1]


def is_plain(serving: Serving, replica: str) -> bool:
    info = serving.system.fleet.info(replica)
    return info.state is ReplicaState.READY and info.revision == serving.system.baseline


# -- kill -9 in every state ----------------------------------------------------------------------

QUICK_UP = (
    "-c",
    "import trimtab.runtime.serve as serve; serve.CALIBRATE_S = 0.5\n"
    "from trimtab.interfaces.cli import main; main()",
)
"""The command line with a short measurement of costs: this test starts a fleet a dozen times."""

PATIENT = RECORD.format(
    name="affine",
    technique="prefix_caching",
    head='policy = "prefix_affine"',
    shares="[0.1, 0.25, 0.95]",
    peak="24h",
    block="5min",
    rest="""
[expected.ttft_ms]
ratio = 0.5
low = 0.3
high = 0.9
because = "prompts are held"
""",
)
SHORT_LIVED = 'expires_after = "1s"\n[bott'
Stand = tuple[RolloutState, float, str, str | None, float]
"""State and share by the ledger; policy, lever and share by the plan."""

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
        self.running = Background(
            folder,
            *("up", "--replicas", "1", "--port", "0", "--ledger", "l.sqlite"),
            program=QUICK_UP,
        )
        self.ledger = folder / "l.sqlite"

    def __enter__(self) -> "Life":
        said = self.running.wait_for(SERVING_NOW, 120)
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
        n = 12
        for number in range(n):
            body = {**chat(f"Say {number}.", max_tokens=1), "user": f"session-{number}"}
            assert ask(self.url + CHAT, body).status == 200
        served = Filter(kind="request_served")

        def stored() -> list[RequestServed]:
            with SqliteReader(self.ledger) as reader:
                found = [each.event for each in reader.last(served, limit=n)]
            return [each for each in found if isinstance(each, RequestServed)]

        seen = [event.record.session for event in stored()]
        until(lambda: len({one.record.session for one in stored()}) == n, 10, f"{n} of {seen}")
        return {one.record.session or "": one.record.slice for one in stored()}

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


@pytest.mark.timeout(600)
def test_kill_in_each_state_of_a_rollout_and_it_is_where_it_was(tmp_path: Path) -> None:
    """Proposed to expired: after kill -9 the same state, share and plan, and the same sessions in the slice."""
    state, ledger = RolloutState, tmp_path / "l.sqlite"
    with Life(tmp_path) as life:
        life.act(RolloutAction.PROPOSE, record=PATIENT)
    with Life(tmp_path) as life:
        assert life.stands()[0] is state.PROPOSED
        life.act(RolloutAction.START)
        canary = life.exposures()
    with Life(tmp_path) as life:
        assert life.stands() == stand(state.CANARY)
        assert life.exposures() == canary
        life.act(RolloutAction.PAUSE)
    with Life(tmp_path) as life:
        assert life.stands() == stand(state.PAUSED)
        assert inside(life.exposures()) == set()
    grow(ledger, state.PAUSED, state.RAMPING)
    with Life(tmp_path) as life:
        ramping = life.exposures()
    with Life(tmp_path) as life:
        assert life.stands() == stand(state.RAMPING)
        assert life.exposures() == ramping
    grow(ledger, state.RAMPING, state.PROVING)
    with Life(tmp_path) as life:
        proving = life.exposures()
    with Life(tmp_path) as life:
        assert life.stands() == stand(state.PROVING)
        assert life.exposures() == proving
        life.act(RolloutAction.ADOPT)
    assert inside(canary) <= inside(ramping) <= inside(proving)
    assert 0 < len(inside(proving)) <= len(proving)
    check_after_adoption(tmp_path)


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
