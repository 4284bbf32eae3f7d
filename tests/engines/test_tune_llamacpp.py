"""`trimtab tune` on the real engine: a whole small run to its report, interrupts at any stage, a full disk."""

import asyncio
import json
import re
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import msgspec
import pytest
from cli_kit import QUICK_CLI, Background, chat, command, processes, until
from disk_kit import disk_of
from events_kit import lever_record

from trimtab.core.config import Config, EngineConfig, FleetConfig, GatewayConfig, LedgerConfig
from trimtab.core.cost import START_COST
from trimtab.core.events import Frozen, RequestServed, RunEnded
from trimtab.core.lever import RampPlan
from trimtab.core.ports import Clock
from trimtab.core.types import Mode
from trimtab.interfaces.report import write_report
from trimtab.interfaces.web.routes import page_routes
from trimtab.levers.catalog import routing_policy_of
from trimtab.runtime import control as control_module
from trimtab.runtime import tune as tune_module
from trimtab.runtime.clock import SystemClock
from trimtab.runtime.control import Control
from trimtab.runtime.ledger_reader import SqliteReader
from trimtab.runtime.proof import ControlError
from trimtab.runtime.result import TuneResult
from trimtab.runtime.serve import standing_of
from trimtab.runtime.situation import Standing
from trimtab.runtime.supervisor import System
from trimtab.runtime.tune_plan import TunePlan
from trimtab.runtime.tune_run import run_tune
from trimtab.runtime.tune_view import SilentView

pytestmark = [pytest.mark.engine_llamacpp, pytest.mark.timeout(180)]

SMALL_DISK_KIB = 4 * 1024
CALIBRATE_S = 1.0
RECOVER_EVERY_TICKS = 2

RUN_FIGURES = {
    "n",
    "ttft_ms",
    "tpot_ms",
    "output_tokens_per_s",
    "prompt_tokens",
    "cached_tokens",
    "accepted_per_step",
    "output_share_by_replica",
}
LEVER_FIGURES = {"name", "premise", "predicted_gain_share", "measured", "verdict", "gates"}
RESULT_PARTS = {"baseline", "final", "diagnoses", "budgets", "levers", "triggers", "ledger"}


async def test_small_tune_ends_with_a_whole_result_and_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Start, calibrate, baseline, diagnosis, final: every promised field is there and the chain verifies."""
    monkeypatch.setattr(tune_module, "CALIBRATE_S", CALIBRATE_S)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    report = tmp_path / "out"
    report.mkdir()
    ledger = report / "ledger.sqlite"
    config = Config(
        gateway=GatewayConfig(port=0),
        ledger=LedgerConfig(path=str(ledger)),
        engine=EngineConfig(slots=2),
    )
    plan = TunePlan(
        users=2, turns_per_session=3, baseline_requests=10, rate_per_s=2.0, levers_max=0
    )
    view = SilentView()
    result = await run_tune(config, plan, view, SystemClock(), routes=page_routes)
    assert sorted(write_report(result, report)) == [report / "report.html", report / "result.json"]

    assert (result.baseline.n, result.baseline.errors) == (10, 0)
    assert (result.final.n, result.final.errors) == (10, 0)
    assert sum(result.baseline.output_share_by_replica.values()) == pytest.approx(1.0)
    stages = [line.split("]")[0][1:] for line in view.said if line.startswith("[")]
    assert stages == ["start", "calibrate", "baseline", "final", "stop"]
    check_result(json.loads((report / "result.json").read_bytes()))
    check_page((report / "report.html").read_text())
    verified = command(tmp_path, "ledger", "--ledger", str(ledger), "verify")
    assert (verified.code, result.ledger.verified) == (0, True)
    with SqliteReader(ledger) as reader:
        served = [e.event for e in reader.read() if isinstance(e.event, RequestServed)]
    assert [event.record.stage for event in served if event.record.stage] == [
        *["baseline"] * 10,
        *["final"] * 10,
    ]
    check_replay(tmp_path, ledger, served[-1].record.policy)


def check_replay(folder: Path, ledger: Path, policy: str) -> None:
    """What was recorded is decided again as it was; of another policy it is shown where it differs."""
    again = command(folder, "replay", str(ledger), "--policy", policy, "--json")
    found = json.loads(again.out)
    assert (again.code, found["different"]) == (0, 0)
    assert found["faithful"] == found["refaithful"] == found["requests"] - found["left_out"] >= 20
    # Sessions stay on a replica by hash and go round without: with two replicas some turn must differ.
    other = command(folder, "replay", str(ledger), "--policy", "session_hash", "--json")
    changed = json.loads(other.out)
    assert (other.code, changed["different"] >= 1) == (1, True)
    assert changed["same"] + changed["different"] == found["requests"] - found["left_out"]
    assert len(changed["differing"]) == changed["different"]
    with SqliteReader(ledger) as reader:
        served = [e.event for e in reader.read() if isinstance(e.event, RequestServed)]
    recorded = {event.record.request_id: event.record.replica for event in served}
    for one in changed["differing"]:
        assert one["recorded"] == recorded[one["request_id"]] != one["other"]
        assert one["recorded_policy"] == policy
        assert one["extra_ms"] is not None


def check_result(found: dict[str, object]) -> None:
    """Scripts find every promised field, with figures in it."""
    assert found.keys() >= RESULT_PARTS
    assert msgspec.convert(found, TuneResult).version
    for name in ("baseline", "final"):
        run = found[name]
        assert isinstance(run, dict)
        assert run.keys() >= RUN_FIGURES
        for latency in ("ttft_ms", "tpot_ms"):
            assert [run[latency][each] > 0 for each in ("mean", "p50", "p95")] == [True] * 3
    scopes = [each["scope"] for each in found["diagnoses"]]  # type: ignore[attr-defined]
    whens = {each["when"] for each in found["budgets"]}  # type: ignore[attr-defined]
    assert (scopes, whens) == (["baseline", "final"], {"before", "after"})
    assert all(lever.keys() >= LEVER_FIGURES for lever in found["levers"])  # type: ignore[attr-defined]


def check_page(page: str) -> None:
    """The report needs nothing that is not in it: no script, no address to load from."""
    assert page.startswith("<!doctype html>")
    assert page.rstrip().endswith("</html>")
    assert "<svg" in page
    assert re.findall(r"<(?:script|link|img|iframe|object|embed)\b", page) == []
    assert re.findall(r"(?:src|href)=[\"'](?!#)", page) == []
    assert re.findall(r"@import|url\((?!#|data:)", page) == []


@pytest.mark.parametrize(("words", "after_s"), [("", 1.0), ("requests at", 2.0)])
def test_interrupted_tune_leaves_a_whole_ledger_and_nothing_else(
    tmp_path: Path, words: str, after_s: float
) -> None:
    """At its start or under load: exit code 130, no process, no slot folder, nor half a report; the chain verifies."""
    ledger = tmp_path / "out" / "ledger.sqlite"
    line = ("tune", "--minutes", "2", "--report", "out")
    with Background(tmp_path, *line, program=QUICK_CLI) as running:
        # Before it has a ledger there is nothing to clean up, and how long that takes is the machine's.
        until(ledger.exists, 60, "the ledger is begun")
        running.wait_for(words)
        with pytest.raises(subprocess.TimeoutExpired):
            running.process.wait(after_s)
        running.interrupt()
        ended = running.end()
        assert (ended.code, ended.left, running.slot_folders()) == (130, {}, []), ended.out
        assert "Traceback" not in ended.out
        assert "interrupted; everything was stopped" in ended.out
    assert {path.suffix for path in (tmp_path / "out").iterdir()}.isdisjoint({".html", ".json"})
    with SqliteReader(ledger) as reader:
        last = reader.read()[-1].event
    assert isinstance(last, RunEnded)
    assert "interrupted" in last.reason
    assert command(tmp_path, "ledger", "--ledger", str(ledger), "verify").code == 0


def test_killed_tune_leaves_a_ledger_that_verifies(tmp_path: Path) -> None:
    """SIGKILL once the replicas serve: they end within seconds, and no report is there."""
    with Background(tmp_path, "tune", "--minutes", "2", "--report", "out") as running:
        running.wait_for("replicas ready")
        running.process.send_signal(signal.SIGKILL)
        assert running.end().code == -signal.SIGKILL
        until(lambda: processes(running.mark) == {}, 5, "the replicas are gone")
    ledger = tmp_path / "out" / "ledger.sqlite"
    assert {path.suffix for path in (tmp_path / "out").iterdir()}.isdisjoint({".html", ".json"})
    assert command(tmp_path, "ledger", "--ledger", str(ledger), "verify").code == 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own with little room."""
    with disk_of(tmp_path / "disk", SMALL_DISK_KIB) as folder:
        yield folder


class Driven:
    """A small real fleet on a small disk, with everything that moves levers."""

    def __init__(self, disk: Path, clock: Clock) -> None:
        self.path = disk / "ledger.sqlite"
        self.ballast = disk / "ballast"
        config = Config(
            gateway=GatewayConfig(port=0),
            ledger=LedgerConfig(path=str(self.path)),
            fleet=FleetConfig(replicas=1),
            engine=EngineConfig(slots=2, context_tokens=512),
        )
        self.system = System(config, clock, command="up")
        self.control = Control(self.system, self._standing)

    def _standing(self) -> Standing:
        return standing_of(self.system, START_COST)

    def fill(self) -> None:
        """Leave no room on the disk."""
        with self.ballast.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                return

    async def ask(self, client: aiohttp.ClientSession) -> int:
        body = chat("Say hello.", max_tokens=2)
        async with client.post(self.system.url + "/v1/chat/completions", json=body) as response:
            await response.read()
            return response.status


@pytest.fixture
async def driven(
    small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Driven]:
    """Started, and stopped again whatever happens."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(control_module, "RECOVER_EVERY_TICKS", RECOVER_EVERY_TICKS)
    made = Driven(small_disk, SystemClock())
    async with made.system:
        await made.control.start()
        try:
            yield made
        finally:
            await made.control.stop()


async def test_full_disk_freezes_levers_while_requests_are_answered(driven: Driven) -> None:
    """No request fails for the ledger's sake, no lever starts; with room again nothing is missing."""
    system, controller = driven.system, driven.control.controller
    record = msgspec.structs.replace(lever_record(), ramp=RampPlan(), mode=Mode.ACT)
    policy = routing_policy_of(record)
    async with aiohttp.ClientSession() as client:
        assert await driven.ask(client) == 200
        await system.ledger.flush()
        driven.fill()
        statuses = [await driven.ask(client) for _ in range(10)]
        while system.ledger.healthy and len(statuses) < 200:
            statuses.append(await driven.ask(client))
        assert set(statuses) == {200}
        assert "full" in (system.ledger.unhealthy_reason or "")
        proposed = controller.propose(record, cause_id=system.started_event)
        with pytest.raises(ControlError, match="make the ledger writable again"):
            await controller.start(record, policy, cause_id=proposed)
        assert (system.router.plan.candidate, await driven.ask(client)) == (None, 200)
        driven.ballast.unlink()
        async with client.get(system.url + "/healthz") as response:
            assert response.status == 200
        await recovered(driven)
        assert (await driven.ask(client), driven.control.check()) == (200, None)
        await system.ledger.flush()
    asked = len(statuses) + 3
    events = [envelope.event for envelope in system.ledger.read()]
    assert sum(isinstance(event, RequestServed) for event in events) == asked
    said = [event.reason for event in events if isinstance(event, Frozen)]
    assert (said, system.ledger.verify().ok) == (["the ledger can be written again"], True)


async def recovered(driven: Driven) -> None:
    """Wait until the ledger is healthy and the controller has said so."""
    async with asyncio.timeout(20):
        while True:
            await driven.system.ledger.flush()
            events = driven.system.ledger.read() if driven.system.ledger.healthy else ()
            if any(isinstance(envelope.event, Frozen) for envelope in events):
                return
            await asyncio.sleep(0.2)
