"""What a person asks of levers, through the command, the gateway's route and a ledger on disk."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result
from control_kit import Deciding, HandClock, traffic
from events_kit import REVISION
from fake_engine import FakeEngine
from harness import Harness

from trimtab.core.config import Config, LedgerConfig, LeverConfig
from trimtab.core.events import QualityScored
from trimtab.core.types import Mode, RolloutState
from trimtab.interfaces.cli import main
from trimtab.interfaces.web.rollouts import PATH, rollout_routes
from trimtab.runtime.ledger import SqliteLedger
from trimtab.runtime.operate import Operator
from trimtab.runtime.secret import Secret

RECORD = """
name = "smaller-chunk"
technique = "prefill_chunking"
owner = "ada"
premise = "chunk gaps of running streams rise to 400 ms while a prefill runs"
condition = "long prompts beside running streams"
failure_modes = ["long prompts wait longer for their first token"]

[revision]
chunk_tokens = 64

[bottleneck]
phase = "decode"
resource = "compute"
diagnosis = "dg-1"

[[moves]]
budget = "compute"
spends = true
because = "smaller batches of prefill are less efficient"

[expected.chunk_gap_ms]
ratio = 0.5
low = 0.3
high = 0.8
because = "a chunk is half as long"

[[triggers]]
signal = "net_tpot_ratio"
off_at = 1.3
on_at = 1.1
off_when_above = true
because = "streams got slower"

[ramp]
shares = [0.1, 0.5]
peak_cycle = "24s"
block = "6s"
edge = "1s"
"""


class Served(Deciding):
    """A controller and triggers on fake replicas, with a ledger on disk, behind a real gateway's route."""

    def __init__(self, path: Path) -> None:
        self.disk = SqliteLedger(path, clock=HandClock())
        super().__init__(self.disk)
        self.system: Any = SimpleNamespace(
            config=Config(ledger=LedgerConfig(path=str(path))),
            baseline=REVISION,
            clock=self.clock,
            started_event=None,
            records=(),
            attached=None,
            gateway=None,
            secret=Secret(bytes(32)),
            ledger=self.disk,
        )
        control: Any = SimpleNamespace(
            controller=self.controller,
            triggers=self.triggers,
            actuator=self.actuator,
            begin_proof=lambda: None,
            scored=self.take_scores,
        )
        self.operator = Operator(control, self.system)
        self.scored: list[QualityScored] = []

    def take_scores(self, event: QualityScored, *, cause_id: str | None) -> None:
        """Record an evaluation."""
        self.scored.append(event)
        self.disk.append(event, cause_id=cause_id, durable=True)

    async def until(self, state: RolloutState) -> None:
        """Serve traffic that the lever speeds up until it is in a state."""
        for _ in range(200):
            proof = self.controller.proof
            assert proof is not None
            if proof.rollout.state is state:
                return
            for one in traffic(self.actuator.plan, self.clock, ratio=0.5):
                self.controller.on_record(one)
            self.clock.pass_s(1.0)
            await self.controller.tick()
        raise AssertionError(f"never {state}")


class Asking:
    """The command against the gateway, in a thread, as from another terminal."""

    def __init__(self, served: Served, harness: Harness, folder: Path) -> None:
        self.served, self.harness, self.folder = served, harness, folder
        self.file = folder / "lever.toml"
        self.file.write_text(RECORD)

    async def __call__(self, *arguments: str) -> Result:
        reads = arguments[1] in ("list", "show") if len(arguments) > 1 else False
        where = (
            ("--ledger", str(self.folder / "l.sqlite")) if reads else ("--url", self.harness.url)
        )
        await self.served.disk.flush()
        return await asyncio.to_thread(CliRunner().invoke, main, [*arguments, *where])

    async def ledger(self, *arguments: str, code: int = 0) -> str:
        """What `trimtab ledger` says."""
        await self.served.disk.flush()
        where = ("ledger", "--ledger", str(self.folder / "l.sqlite"))
        found = await asyncio.to_thread(CliRunner().invoke, main, [*where, *arguments])
        assert found.exit_code == code, found.output
        return found.output

    async def json(self, *arguments: str) -> Any:
        found = await self(*arguments, "--json")
        assert found.exit_code == 0, found.output
        return json.loads(found.output)


@pytest.fixture
async def ask(tmp_path: Path) -> AsyncIterator[Asking]:
    served = Served(tmp_path / "l.sqlite")
    routes = rollout_routes(served.system, lambda: served.operator)
    try:
        async with Harness(FakeEngine(), extra_routes=routes) as harness:
            served.system.gateway = harness.gateway
            yield Asking(served, harness, tmp_path)
    finally:
        served.disk.close()


async def test_dry_run_says_what_would_change_and_changes_nothing(ask: Asking) -> None:
    """The replica, its new setting, the first share, the way back; no event, no restart."""
    done = await ask.json("rollout", "propose", str(ask.file), "--dry-run")
    steps = "\n".join(done["steps"])
    assert f"restart r1 with chunk_tokens {REVISION.chunk_tokens} -> 64" in steps
    assert "for 10% of the sessions of all traffic" in steps
    assert "if every look passes it takes 48 s" in steps
    assert "0 of 30 recent requests to tell the spread by" in steps
    assert "to go back: take its traffic off" in steps
    name = done["name"]
    assert f"commands: trimtab rollout start {name}, then trimtab rollout show {name}" in steps
    assert f"to stop it at once: trimtab rollout rollback {name};" in steps
    assert (ask.served.log, (await ask.json("rollout", "list"))) == ([], {})


async def test_lever_is_proposed_started_paused_resumed_and_taken_back(ask: Asking) -> None:
    """Each word does what it says, and the ledger holds the person's reason."""
    file = str(ask.file)
    assert (await ask.json("rollout", "propose", file))["state"] == "proposed"
    done = await ask.json("rollout", "start", "smaller-chunk")
    assert (done["state"], done["share"]) == ("canary", 0.1)
    assert ask.served.fleet.revisions["r1"].chunk_tokens == 64
    done = await ask.json("rollout", "pause", "smaller-chunk", "--reason", "a release")
    assert (done["state"], done["share"]) == ("paused", 0.0)
    assert (await ask.json("rollout", "resume", "smaller-chunk"))["state"] == "canary"
    done = await ask.json("rollout", "rollback", "smaller-chunk", "--reason", "enough seen")
    assert done["state"] == "rolled_back"
    assert ask.served.fleet.revisions["r1"] == REVISION
    shown = (await ask("rollout", "show", "smaller-chunk")).output
    assert "rolled_back" in shown
    assert "a person asked: enough seen" in shown
    assert "net_tpot_ratio above 1.3" in shown
    assert ask.served.disk.verify().ok


async def test_adopted_lever_is_disabled_and_adopted_again_by_a_person(ask: Asking) -> None:
    """Proven by its gates, then off and on; its replica follows."""
    await ask.json("rollout", "propose", str(ask.file), "--start")
    await ask.served.until(RolloutState.PROVING)
    assert (await ask.json("rollout", "adopt", "smaller-chunk"))["state"] == "adopted"
    assert (await ask.json("rollout", "disable", "smaller-chunk"))["state"] == "disabled"
    assert ask.served.fleet.revisions["r1"] == REVISION
    assert (await ask.json("rollout", "adopt", "smaller-chunk"))["state"] == "adopted"
    assert ask.served.fleet.revisions["r1"].chunk_tokens == 64
    refused = await ask("rollout", "disable", "smaller-chunk", "--slice", "output_tokens=0-16")
    assert (refused.exit_code, "known only when" in refused.output) == (1, True)
    assert (
        await ask("rollout", "disable", "smaller-chunk", "--slice", "label=edit")
    ).exit_code == 0
    (kept,) = ask.served.actuator.plan.preferences
    assert [str(cut) for cut in kept.without] == ["label=edit"]
    done = await ask.json("rollout", "rollback", "smaller-chunk")
    assert (done["state"], ask.served.triggers.adopted) == ("rolled_back", {})


async def test_freeze_stops_promotion_and_not_the_way_back(ask: Asking) -> None:
    """While frozen nothing starts and nothing grows; rollback works."""
    await ask.json("rollout", "propose", str(ask.file), "--start")
    frozen = await ask.json("freeze", "--reason", "an incident")
    assert frozen["frozen"]
    with pytest.raises(AssertionError, match="never"):
        await ask.served.until(RolloutState.RAMPING)
    assert "an incident" in (await ask("rollout", "list")).output
    assert (await ask.json("rollout", "rollback", "smaller-chunk"))["state"] == "rolled_back"
    refused = await ask("rollout", "propose", str(ask.file), "--start")
    assert (refused.exit_code, "frozen" in refused.output) == (1, True)
    assert not (await ask.json("unfreeze"))["frozen"]


async def test_fleet_that_only_observes_starts_nothing(ask: Asking) -> None:
    """The person is told which setting says so; proposing is allowed."""
    config = ask.served.system.config
    ask.served.system.config = Config(ledger=config.ledger, levers=LeverConfig(mode=Mode.OBSERVE))
    await ask.json("rollout", "propose", str(ask.file))
    refused = await ask("rollout", "start", "smaller-chunk")
    assert (refused.exit_code, "levers.mode" in refused.output) == (1, True)
    assert ask.served.log == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("rollout", "start", "nothing"), "no lever 'nothing' was proposed here"),
        (("rollout", "rollback", "nothing"), "neither being proven nor adopted"),
        (("rollout", "pause", "nothing"), "not being proven; none is"),
        (("rollout", "show", "nothing"), "no lever 'nothing'; known: none"),
    ],
)
async def test_unknown_lever_is_refused_with_what_is_known(
    ask: Asking, arguments: tuple[str, ...], words: str
) -> None:
    """Exit code 1 and one line."""
    found = await ask(*arguments)
    assert found.exit_code == 1
    assert words in found.output


async def test_refused_record_names_file_and_path(ask: Asking) -> None:
    """Nothing is written for it."""
    ask.file.write_text(RECORD.replace("chunk_tokens = 64", "chunk_token = 64"))
    found = await ask("rollout", "propose", str(ask.file))
    assert found.exit_code == 1
    assert (
        "lever.toml: Object contains unknown field `chunk_token` - at `$.revision`" in found.output
    )
    assert (await ask.json("rollout", "list")) == {}


async def test_action_of_another_site_is_refused(ask: Asking) -> None:
    """A page cannot send JSON to loopback without asking; another type is not read."""
    body = json.dumps({"action": "freeze"})
    headers = {"Content-Type": "text/plain"}
    async with ask.harness.client.post(
        ask.harness.url + PATH, data=body, headers=headers
    ) as response:
        assert response.status == 415
    assert not ask.served.controller.frozen


async def test_second_lever_waits_for_the_first(ask: Asking) -> None:
    """One at a time: the refusal names the one being proven."""
    await ask.json("rollout", "propose", str(ask.file), "--start")
    ask.file.write_text(RECORD.replace('"smaller-chunk"', '"another"'))
    refused = await ask("rollout", "propose", str(ask.file), "--start")
    assert (refused.exit_code, "smaller-chunk is being proven" in refused.output) == (1, True)


async def test_lever_that_restarts_a_replica_is_refused_on_servers_of_others(ask: Asking) -> None:
    """An attached fleet is not ours to restart; nothing was touched."""
    ask.served.system.attached = object()
    refused = await ask("rollout", "propose", str(ask.file), "--start")
    assert (refused.exit_code, "not ours to restart" in refused.output) == (1, True)
    assert ask.served.log == []


async def test_evaluation_is_scored_and_told(ask: Asking) -> None:
    """Its counts are in the ledger by cut, and `show` tells them; items and their names are not."""
    await ask.json("rollout", "propose", str(ask.file), "--start")
    items = ask.folder / "smoke.jsonl"
    items.write_text(
        "".join(
            f'{{"item": "secret-{n}", "baseline": 1, "candidate": {int(n % 10 > 0)}, "input_tokens": {300 * n}}}\n'
            for n in range(40)
        )
    )
    done = await ask.json(
        "rollout", "score", "smaller-chunk", str(items), "--floor", "0.01", "--floor-runs", "5"
    )
    assert done["steps"][0] == "all: 36 of 40 passed, 40 with the baseline"
    shown = (await ask("rollout", "show", "smaller-chunk")).output
    assert "Evaluation smoke scored revision" in shown
    assert "the baseline differs by 1.0% from itself in 5 runs" in shown
    assert "input_tokens=4096-16384" in shown
    assert ask.served.scored[0].scores.evaluation == "smoke"
    assert b"secret-" not in (ask.folder / "l.sqlite").read_bytes()


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (
            '{"item": "a", "baseline": 1, "candidate": 1}\n{"item": "a", "baseline": 1, "candidate": 0}\n',
            "line 2: item 'a' comes twice",
        ),
        ('{"item": "a", "baseline": 1, "candidate": 3}\n', "line 1: candidate is 3"),
        ('{"item": "a", "baseline": 1, "candidate": 1}\nnot json\n', "line 2: "),
        ("\n", "has no line"),
        (
            '{"cut": "label=a", "n": 5, "baseline_passed": 6, "candidate_passed": 1}\n',
            "more items passed",
        ),
    ],
)
async def test_broken_evaluation_names_its_line(ask: Asking, lines: str, words: str) -> None:
    """Nothing of it is taken."""
    await ask.json("rollout", "propose", str(ask.file), "--start")
    items = ask.folder / "items.jsonl"
    items.write_text(lines)
    found = await ask("rollout", "score", "smaller-chunk", str(items))
    assert found.exit_code == 1
    assert words in found.output.replace("\n", " ")
    assert ask.served.scored == []


async def test_model_that_is_not_there_is_refused_with_its_path(ask: Asking) -> None:
    """Before anything restarts: the key and the file are named."""
    record = RECORD.replace("chunk_tokens = 64", f'model = "{ask.folder}/none.gguf"')
    record = record.replace('"prefill_chunking"', '"quantization"')
    ask.file.write_text('quality_gate = "scored items"\n' + record)
    found = await ask("rollout", "propose", str(ask.file), "--dry-run")
    assert found.exit_code == 1
    assert "$.revision.model: there is no model at" in found.output.replace("\n", " ")
    assert ask.served.log == []


async def test_ledger_answers_questions_about_a_lever(ask: Asking) -> None:
    """Why it is on, what would be lost, how good its prediction was, what changed before it was taken back."""
    await ask.json("rollout", "propose", str(ask.file), "--start")
    await ask.served.until(RolloutState.PROVING)
    await ask.json("rollout", "adopt", "smaller-chunk")
    why = await ask.ledger("why", "smaller-chunk")
    assert "smaller-chunk is adopted at 100%" in why
    assert "Proposed smaller-chunk" in why
    without = json.loads(await ask.ledger("without", "smaller-chunk", "--json"))
    assert without["is_on"]
    assert any(text.startswith("compute is paid no more") for text in without["budgets"])
    assert "smaller-chunk chunk_gap_ms: predicted 0.50x [0.30, 0.80]" in await ask.ledger(
        "predictions"
    )
    await ask.json("rollout", "rollback", "smaller-chunk", "--reason", "streams stall")
    before = json.loads(await ask.ledger("before", "smaller-chunk", "--json"))
    assert before[0]["lever"] == "smaller-chunk"
    assert {"compute", "decode"} <= set(before[0]["shares"])
    exported = await ask.ledger("export", "--format", "markdown")
    assert "## Predictions against outcomes" in exported


async def test_question_that_cannot_be_answered_says_why(ask: Asking) -> None:
    """An unknown lever, one that was never taken back, no time at all, a time that is none."""
    await ask.json("rollout", "propose", str(ask.file), "--start")
    assert "knows no lever 'nothing'" in await ask.ledger("why", "nothing", code=1)
    assert "was never taken back" in await ask.ledger("before", "smaller-chunk", code=1)
    assert "say when it got worse" in await ask.ledger("before", code=2)
    assert "is no time" in await ask.ledger("before", "--at", "yesterday", code=2)
