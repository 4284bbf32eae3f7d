"""Rollouts on a real fleet: harm in one cut takes that cut out, and levers that meet are verified again."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from serving_kit import RECORD, Serving, until_true

from trimtab.core.config import (
    EngineConfig,
)
from trimtab.core.cuts import Cut, Dimension
from trimtab.core.events import (
    CutsKept,
    GatesEvaluated,
    RolloutMoved,
    VerificationDue,
)
from trimtab.core.gate import GateSpec, Metric, Question
from trimtab.core.lever import LeverRecord
from trimtab.core.types import Arm, RolloutState

pytestmark = [pytest.mark.engine_llamacpp, pytest.mark.timeout(330)]


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installation of its own for each test."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


WORDS = ("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa")


def prose(number: int, words: int) -> str:
    """A text of its own for each number."""
    return " ".join(WORDS[(number * 7 + at * (number + 3)) % len(WORDS)] for at in range(words))


DOCUMENTS = (prose(0, 240), prose(1, 240))


# -- a lever that is good on average and bad for long inputs ---------------------------------

FEWER_SLOTS = RECORD.format(
    name="speculation-in-one-slot",
    technique="speculation",
    head="[revision]\nslots = 1\nspeculation = {method = 'ngram_simple', match_tokens = 6, draft_tokens_max = 8}",
    shares="[0.5, 0.95]",
    peak="20min",
    block="2s",
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
cut = "input_tokens=256-1024"
min_requests = 4
during = ["canary", "ramping", "proving"]
required = false
""",
)
LONG = Cut(Dimension.INPUT_TOKENS, "256-1024")
REPEATED = "Repeat this line ten times: one two three four five six seven eight nine ten."


async def test_lever_that_harms_long_inputs_is_stopped_for_long_inputs_only(
    tmp_path: Path,
) -> None:
    """Its one slot forgets long prompts, which wait anew each time: they leave the slice, short ones stay in it."""
    engine = EngineConfig(slots=4, context_tokens=1024)
    async with Serving(tmp_path, engine) as serving:
        record = serving.record(FEWER_SLOTS)
        await serving.start(record)
        stop = asyncio.Event()
        sessions = [
            *await serving.sessions(Arm.BASELINE, 1),
            *await serving.sessions(Arm.CANDIDATE, 1),
        ]
        # The baseline holds its documents from the start: pairs of two cold caches would show nothing.
        for document in DOCUMENTS:
            assert await serving.ask(sessions[0], document, tokens=1)
        clients = [
            asyncio.create_task(mixed_traffic(serving, session, stop)) for session in sessions
        ]
        try:
            await until_true(lambda: bool(refused(serving)), 200, "long inputs leave the slice")
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
        assert Arm.CANDIDATE in {one.arm for one in later if (one.tokens.prompt or 0) < 256}
        assert serving.state(record.name) is RolloutState.CANARY
        assert all(one.ok for one in later)
        assert tpot_ratio(serving) < 1.0


async def mixed_traffic(serving: Serving, session: str, stop: asyncio.Event) -> None:
    """Two long documents in turn, short requests between them, until told to stop."""
    turn = 0
    while not stop.is_set():
        assert await serving.ask(session, REPEATED, tokens=24)
        assert await serving.ask(session, f"{DOCUMENTS[turn % 2]} Question {turn}?", tokens=2)
        turn += 1


def refused(serving: Serving) -> dict[str, str]:
    """Cuts that left, with the reason."""
    found = [event.refused for event in serving.events() if isinstance(event, CutsKept)]
    return {cut: why for one in found for cut, why in one.items()}


def long_inputs(serving: Serving, since: int) -> list[Any]:
    """Records of long inputs that arrived after so many records."""
    found = serving.system.records[since + 2 :]
    return [one for one in found if (one.tokens.prompt or 0) >= 256]


def tpot_ratio(serving: Serving) -> float:
    """Mean TPOT of the short requests of the candidate over the baseline's."""
    times: dict[Arm, list[float]] = {arm: [] for arm in Arm}
    for one in serving.system.records:
        if one.tpot_ms is not None and one.tokens.output == 24:
            times[one.arm].append(one.tpot_ms)
    means = {arm: sum(values) / len(values) for arm, values in times.items()}
    return means[Arm.CANDIDATE] / means[Arm.BASELINE]


# -- levers that meet ----------------------------------------------------------------------------

SPECULATION = RECORD.format(
    name="speculation",
    technique="speculation",
    head="[revision]\nspeculation = {method = 'ngram_simple', match_tokens = 6, draft_tokens_max = 8}",
    shares="[0.5]",
    peak="4s",
    block="1s",
    rest="""
[expected.tpot_ms]
ratio = 0.7
low = 0.4
high = 0.95
because = "texts are repeated"
""",
)
SMALLER_KV = RECORD.format(
    name="smaller-kv",
    technique="quantization",
    head="quality_exposure = 'lossy'\nquality_gate = 'outputs at temperature 0'\n[revision]\nkv_type = 'q8_0'",
    shares="[0.5]",
    peak="4s",
    block="1s",
    rest="""
[expected.memory_bytes]
ratio = 0.9
low = 0.5
high = 0.99
because = "keys and values take half"
[[gates]]
metric = "memory_bytes"
question = "gain"
margin = 0.02
""",
)


async def test_adopting_a_precision_lever_has_speculation_verified_again(
    tmp_path: Path,
) -> None:
    """Both are adopted on replicas of their own; the second marks the first, which is proven again with a verdict."""
    engine = EngineConfig(slots=4, context_tokens=1024, threads=1)
    async with Serving(tmp_path, engine, replicas=3) as serving:
        serving.control.verifies = True
        stop = asyncio.Event()
        clients = [asyncio.create_task(steady(serving, number, stop)) for number in range(4)]
        try:
            await adopt(serving, serving.record(SPECULATION))
            await adopt(serving, serving.record(SMALLER_KV))
            await until_true(lambda: verdict_of_rerun(serving) is not None, 120, "it ended")
        finally:
            stop.set()
            await asyncio.gather(*clients)
        [due] = [event for event in serving.events() if isinstance(event, VerificationDue)]
        assert (due.lever, due.changed) == ("speculation", "smaller-kv")
        assert due.budgets
        looks = [e for e in serving.events() if isinstance(e, GatesEvaluated)]
        assert [look.lever for look in looks][-1] == "speculation"
        assert serving.system.fleet.info("r1").revision.kv_type == "q8_0"
        assert verdict_of_rerun(serving) in (RolloutState.ADOPTED, RolloutState.ROLLED_BACK)


async def steady(serving: Serving, number: int, stop: asyncio.Event) -> None:
    """Short requests of many sessions, one after the other."""
    turn = 0
    while not stop.is_set():
        await serving.ask(f"client-{number}-{turn % 5}", f"{REPEATED} {turn}", tokens=12)
        turn += 1


async def adopt(serving: Serving, record: LeverRecord) -> None:
    """Prove a lever as far as a person may adopt it, and adopt it."""
    controller = serving.control.controller
    relaxed = tuple(gate for gate in record.gates if not needs_time(gate))
    await serving.start(msgspec.structs.replace(record, gates=relaxed))
    await until_true(
        lambda: (
            controller.proof is not None and controller.proof.rollout.state is RolloutState.PROVING
        ),
        90,
        f"{record.name} is proving: {controller.proof and controller.proof.rollout}",
    )
    await controller.adopt_now("a test asked")
    controller.finish()


TAKES_TIME = (Metric.TTFT_MS, Metric.TPOT_MS, Metric.OUTPUT_DIFFERENCE)


def needs_time(gate: GateSpec) -> bool:
    """A veto that may hold for longer than a test waits; what is tested here is what follows an adoption."""
    return gate.question is Question.VETO and gate.metric in TAKES_TIME


def verdict_of_rerun(serving: Serving) -> RolloutState | None:
    """Where the lever that was due went after its gates were asked again."""
    moves = [
        e for e in serving.events() if isinstance(e, RolloutMoved) and e.lever == "speculation"
    ]
    begun = [at for at, each in enumerate(moves) if each.before is RolloutState.ADOPTED]
    if not begun:
        return None
    ends = (RolloutState.ADOPTED, RolloutState.ROLLED_BACK)
    return next((each.after for each in moves[begun[0] + 1 :] if each.after in ends), None)
