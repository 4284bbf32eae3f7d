"""Serving diagnoses by itself; what it starts by itself depends on the mode."""

import asyncio
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest
from control_kit import Rig
from events_kit import REVISION
from rollout_kit import EXTRAS
from routing_kit import COST
from situations import FLEET, PREFILL_BOUND, readings, situation

from trimtab.core.config import Config, LeverConfig
from trimtab.core.types import Mode, RolloutState
from trimtab.levers.prefix_caching import PrefixAffineRouting
from trimtab.runtime import serve
from trimtab.runtime.control import Control
from trimtab.runtime.controller import Controller
from trimtab.runtime.serve import DIAGNOSE_REQUESTS_MIN, Advisor
from trimtab.runtime.situation import Looked, Situations
from trimtab.runtime.supervisor import System

LEVER = PrefixAffineRouting.name


class Serving(Rig):
    """An advisor on a rig whose every look finds prefill bound by lost tokens."""

    def __init__(self, mode: Mode, *, requests: int = DIAGNOSE_REQUESTS_MIN) -> None:
        super().__init__()
        self.said: list[str] = []
        self.looks = 0
        self.proofs_begun = 0
        self.watched: dict[str, object] = {}
        self.controller = Controller(
            actuator=self.actuator,
            sink=self.sink,
            clock=self.clock,
            extras=lambda record, replicas: EXTRAS,
            after_adoption=lambda record, cause_id: None,
            on_adopted=lambda *_: None,
        )
        control = SimpleNamespace(
            controller=self.controller,
            situations=Situations(self.sink, self.clock),
            triggers=SimpleNamespace(adopted=self.watched),
            look=self._look,
            begin_proof=self._begin_proof,
        )
        system = SimpleNamespace(
            config=Config(levers=LeverConfig(mode=mode)),
            clock=self.clock,
            records_since=lambda _: [None] * requests,
            started_event="R",
            fleet_facts=lambda: FLEET,
            baseline=REVISION,
            attached=None,
            fleet=SimpleNamespace(infos=tuple),
            roles=SimpleNamespace(settings_for=lambda role: None),
        )
        self.advisor = Advisor(cast(System, system), cast(Control, control), COST, self.said.append)

    def _look(self, scope: str, *, cause_id: str | None) -> Looked:
        self.looks += 1
        of = situation(readings(**PREFILL_BOUND))
        return Looked(readings=of.readings, diagnosis=of.diagnosis, event_id=cause_id or "")

    def _begin_proof(self) -> None:
        self.proofs_begun += 1

    async def minutes(self, n: int) -> None:
        """Let the advisor look `n` times."""
        running = asyncio.create_task(self.advisor.run())
        before = self.looks
        for _ in range(100):
            if self.looks - before >= n or running.done():
                break
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.fixture(autouse=True)
def minutes_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """The advisor looks at each turn of the loop instead of each minute."""
    monkeypatch.setattr(serve, "DIAGNOSE_EVERY_S", 0.0)


async def test_too_little_traffic_is_not_diagnosed() -> None:
    """A handful of requests says nothing."""
    serving = Serving(Mode.ACT, requests=DIAGNOSE_REQUESTS_MIN - 1)
    await serving.minutes(1)
    assert (serving.looks, serving.envelopes) == (0, ())


async def test_observing_proposes_nothing() -> None:
    """It looks, and that is all."""
    serving = Serving(Mode.OBSERVE)
    await serving.minutes(2)
    assert (serving.looks, serving.said, serving.envelopes) == (2, [], ())


async def test_advising_says_once_what_it_would_do_and_starts_nothing() -> None:
    """The assessments are recorded at each look; the same words are not said again."""
    serving = Serving(Mode.ADVISE)
    await serving.minutes(3)
    assert len(serving.events("levers_assessed")) == 3
    (said,) = serving.said
    assert said.startswith(f"advice      {LEVER}")
    assert (serving.controller.proof, serving.proofs_begun) == (None, 0)


async def test_acting_starts_the_narrowest_lever_and_waits_for_it() -> None:
    """One proposal however often it looks, with the policy of that lever in its slice."""
    serving = Serving(Mode.ACT)
    await serving.minutes(3)
    assert len(serving.events("lever_proposed")) == 1
    proof = serving.controller.proof
    assert proof is not None
    assert (proof.record.name, proof.rollout.state) == (LEVER, RolloutState.CANARY)
    candidate = serving.actuator.plan.candidate
    assert candidate is not None
    assert (candidate.lever, candidate.policy) == (LEVER, "prefix_affine")
    assert serving.proofs_begun == 1


async def test_acting_does_not_start_an_adopted_lever_again() -> None:
    """It is in force; its triggers watch it."""
    serving = Serving(Mode.ACT)
    serving.watched[LEVER] = object()
    await serving.minutes(2)
    assert serving.events("lever_proposed") == []


async def test_acting_does_not_try_again_what_was_taken_back() -> None:
    """The same traffic would be harmed a minute later, and every minute after that."""
    serving = Serving(Mode.ACT)
    await serving.minutes(1)
    await serving.controller.give_up("a gate failed")
    await serving.minutes(3)
    assert len(serving.events("lever_proposed")) == 1


async def test_acting_while_frozen_says_why_nothing_starts() -> None:
    """And lives on."""
    serving = Serving(Mode.ACT)
    serving.controller.freeze(True, "maintenance")
    await serving.minutes(2)
    assert f"{LEVER} was not started: promotions are frozen" in "\n".join(serving.said)
    assert serving.controller.proof is None


async def test_acting_while_frozen_proposes_nothing_however_often_it_looks() -> None:
    """A proposal that cannot be started would be one more event every minute."""
    serving = Serving(Mode.ACT)
    serving.controller.freeze(True, "maintenance")
    await serving.minutes(3)
    assert serving.events("lever_proposed") == []
    assert len(serving.said) == 2
    serving.controller.freeze(False, "done")
    await serving.minutes(1)
    assert len(serving.events("lever_proposed")) == 1


def test_standing_is_that_of_the_configuration() -> None:
    """A real peak cycle, the configured mode, owner and target."""
    serving = Serving(Mode.ACT)
    found = serving.advisor.standing()
    assert (found.mode, found.owner, found.target_gain) == (Mode.ACT, "operator", 0.05)
    assert found.ramp.peak_cycle_s == 86_400.0
    assert msgspec.structs.replace(found, mode=Mode.ACT) == found
