"""`trimtab up` on the real engine: serves, heals, drains, and starts again from what its ledger says."""

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cli_kit import QUICK_CLI, Answer, Background, ask, chat, command, processes, until
from events_kit import LEVER, lever_record, moved

from trimtab.core.events import (
    AnyEvent,
    Envelope,
    LeverProposed,
    ReplicaCrashed,
    RequestServed,
    RolloutMoved,
    RunEnded,
    RunStarted,
    TrafficPlanned,
)
from trimtab.core.lever import TriggerSignal, TriggerSpec
from trimtab.core.traffic import TrafficPlan
from trimtab.core.types import RolloutState
from trimtab.runtime.clock import SystemClock
from trimtab.runtime.ledger import SqliteLedger
from trimtab.runtime.ledger_reader import SqliteReader

pytestmark = [pytest.mark.engine_llamacpp, pytest.mark.timeout(180)]

CHAT = "/v1/chat/completions"
SERVING = "Ctrl-C drains and stops"
SHARED = "You are a careful assistant. " * 12


class Up:
    """A running `trimtab up` with the address it printed."""

    def __init__(self, running: Background, ledger: Path) -> None:
        self.running = running
        self.ledger = ledger
        said = running.wait_for(SERVING)
        [line] = [line for line in said.splitlines() if line.startswith("OpenAI API")]
        self.url = line.split()[-1].removesuffix("/v1")

    def fleet(self) -> dict[str, object]:
        """What /debug/fleet says."""
        return ask(self.url + "/debug/fleet").json()

    def states(self) -> list[str]:
        """The state of each replica."""
        return [replica["state"] for replica in self.fleet()["replicas"]]  # type: ignore[index,attr-defined]


def start(folder: Path, name: str) -> Background:
    return Background(folder, "up", "--port", "0", "--ledger", name, program=QUICK_CLI)


def events_of(ledger: Path) -> list[Envelope]:
    with SqliteReader(ledger) as reader:
        return list(reader.read())


def write(ledger: Path, *events: AnyEvent) -> None:
    """Append events to a ledger that nobody is writing, each caused by the one before it."""
    sink = SqliteLedger(ledger, clock=SystemClock())
    cause = None
    for event in events:
        cause = sink.append(event, cause_id=cause, durable=True)
    sink.close()


def verifies(ledger: Path) -> bool:
    return command(ledger.parent, "ledger", "--ledger", str(ledger), "verify").code == 0


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """One fleet for all tests of serving; the last of them ends it."""
    folder = tmp_path_factory.mktemp("up")
    with start(folder, "l.sqlite") as running:
        yield Up(running, folder / "l.sqlite")


def test_models_page_and_root_answer(up: Up) -> None:
    """A client finds the model's name, a person the page."""
    models, page = ask(up.url + "/v1/models"), ask(up.url + "/")
    assert (models.status, models.json()["object"]) == (200, "list")
    assert [model["id"] for model in models.json()["data"]] == ["SmolLM2-135M-Instruct"]
    assert (page.status, page.headers["content-type"].split(";")[0]) == (200, "text/html")
    assert b"<title>" in page.body


def test_whole_chat_has_the_shape_of_openai(up: Up) -> None:
    """One choice with a message, a finish reason, and token counts."""
    answer = ask(up.url + CHAT, chat("Say hello."))
    found = answer.json()
    [choice] = found["choices"]
    assert (answer.status, found["object"]) == (200, "chat.completion")
    assert (choice["message"]["role"], choice["finish_reason"]) == ("assistant", "length")
    assert len(choice["message"]["content"]) > 0
    assert found["usage"]["completion_tokens"] == 8


def test_streamed_chat_has_the_shape_of_openai_and_the_same_text(up: Up) -> None:
    """Chunks whose deltas add up to the whole answer, no usage that was not asked for, then the end mark."""
    whole = ask(up.url + CHAT, chat("Count to five.")).json()["choices"][0]["message"]["content"]
    answer = ask(up.url + CHAT, chat("Count to five.", stream=True))
    lines = [line for line in answer.body.decode().splitlines() if line]
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    text = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)
    assert (answer.status, lines[-1], text) == (200, "data: [DONE]", whole)
    assert answer.headers["content-type"].split(";")[0] == "text/event-stream"
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert [chunk for chunk in chunks if chunk.get("usage")] == []


@pytest.mark.parametrize("stream", [False, True])
def test_context_overflow_is_the_engines_own_readable_error(up: Up, stream: bool) -> None:
    """Status 400 and the two numbers a client needs to shorten its prompt."""
    answer = ask(up.url + CHAT, chat("word " * 6000, stream=stream))
    error = answer.json()["error"]
    assert (answer.status, error["type"]) == (400, "exceed_context_size_error")
    assert error["n_prompt_tokens"] > error["n_ctx"] == 2048
    assert "context" in error["message"]


def test_debug_fleet_tells_url_role_revision_state_and_load(up: Up) -> None:
    """An operator sees every replica; both run the same revision."""
    replicas = up.fleet()["replicas"]
    assert [replica["id"] for replica in replicas] == ["r0", "r1"]  # type: ignore[attr-defined]
    for replica in replicas:  # type: ignore[attr-defined]
        assert replica.keys() >= {"url", "role", "revision", "state", "load"}
        assert (replica["role"], replica["state"]) == ("mixed", "ready")
        assert replica["load"].keys() >= {"running", "waiting", "tokens_outstanding"}
        assert ask(replica["url"] + "/health").status == 200
    assert len({replica["revision"] for replica in replicas}) == 1  # type: ignore[attr-defined]


def test_load_reports_a_file_of_bodies_as_json(up: Up, tmp_path: Path) -> None:
    """`trimtab load --json` exits with 0 when all were answered and has every figure of the run."""
    bodies = [chat(f"Name {n} colours.", session=f"s{n % 2}", stream=True) for n in range(4)]
    (tmp_path / "w.jsonl").write_text("".join(json.dumps(body) + "\n" for body in bodies))
    ended = command(
        tmp_path, "load", up.url, "--workload", "w.jsonl", "--rate", "4", "--json", timeout_s=90
    )
    assert (ended.code, ended.err, ended.left) == (0, "", {})
    found = json.loads(ended.out)
    summary = found["summary"]
    assert (found["workload"], summary["n"], summary["ok"], summary["errors"]) == ("file", 4, 4, {})
    assert (summary["unsent"], summary["output_tokens"]) == (0, 32)
    assert summary["ttft_ms"].keys() == {"n", "mean", "p50", "p95", "max"}
    assert [row["turn"] for row in found["requests"]] == [0, 0, 1, 1]
    assert all(row["status"] == 200 and row["tpot_ms"] > 0 for row in found["requests"])


def test_load_generates_a_coding_workload(up: Up, tmp_path: Path) -> None:
    """The generator that `tune` uses fits the context of the server it is told of."""
    ended = command(
        tmp_path, "load", up.url, "--requests", "2", "--rate", "2", "--json", timeout_s=90
    )
    assert (ended.code, json.loads(ended.out)["summary"]["ok"]) == (0, 2)


def test_killed_replica_comes_back_and_the_ledger_tells(up: Up) -> None:
    """Another process serves under the same name; the crash is an event with its signal."""
    before = up.running.replicas()
    os.kill(before[0], signal.SIGKILL)
    until(lambda: before[0] not in up.running.replicas(), 5, "the killed replica is gone")
    until(lambda: len(up.running.replicas()) == 2, 15, "another process")
    until(lambda: up.states() == ["ready", "ready"], 15, "both replicas are ready")
    assert len(set(up.running.replicas()) - set(before)) == 1
    assert [ask(up.url + CHAT, chat("Still there?")).status for _ in range(4)] == [200] * 4

    def crashes() -> list[ReplicaCrashed]:
        found = (envelope.event for envelope in events_of(up.ledger))
        return [event for event in found if isinstance(event, ReplicaCrashed)]

    until(lambda: bool(crashes()), 5, "the crash is in the ledger")
    assert [event.exit_code for event in crashes()] == [-signal.SIGKILL]


def test_interrupt_drains_and_leaves_nothing(up: Up) -> None:
    """A running answer is finished, the exit code is 0, no process and no slot folder stays, the chain verifies."""
    answers: list[Answer] = []
    body = chat("Tell a story.", max_tokens=60)
    client = threading.Thread(target=lambda: answers.append(ask(up.url + CHAT, body)))
    assert len(up.running.slot_folders()) == 1
    client.start()
    until(lambda: running_requests(up) == 1, 10, "the request runs")
    up.running.interrupt()
    ended = up.running.end()
    client.join()
    [answer] = answers
    assert (ended.code, ended.left, up.running.slot_folders()) == (0, {}, [])
    assert "Traceback" not in ended.out
    assert (answer.status, answer.json()["usage"]["completion_tokens"]) == (200, 60)
    last = events_of(up.ledger)[-1].event
    assert isinstance(last, RunEnded)
    assert (last.reason, verifies(up.ledger)) == ("asked to stop", True)


def running_requests(up: Up) -> int:
    """Requests that the gateway has on its replicas."""
    loads = [replica["load"] for replica in up.fleet()["replicas"]]  # type: ignore[attr-defined]
    return sum(load["running"] + load["waiting"] for load in loads)


@pytest.mark.parametrize("moment", ["replicas start", "costs are measured"])
def test_interrupt_during_the_start_ends_it_at_once(tmp_path: Path, moment: str) -> None:
    """Nobody waits for a start that is not wanted any more, nor for a measurement of full length."""
    with Background(tmp_path, "up", "--port", "0", "--ledger", "l.sqlite") as running:
        if moment == "replicas start":
            until(lambda: bool(running.replicas()), 30, "a replica's process")
        else:
            running.wait_for("measuring the costs")
        running.interrupt()
        ended = running.end(15)
        assert (ended.code, ended.left, running.slot_folders()) == (0, {}, [])
        assert "Traceback" not in ended.out
    last = events_of(tmp_path / "l.sqlite")[-1].event
    assert isinstance(last, RunEnded)
    assert "interrupted" in last.reason
    assert verifies(tmp_path / "l.sqlite")


def test_restart_finds_every_lever_where_it_was(tmp_path: Path) -> None:
    """kill -9 of a gateway with a request and a canary: the next start goes on with it at its share, and says so.

    An adopted lever is on again at the start after that, still watched: its trigger disables it.
    """
    ledger = tmp_path / "l.sqlite"
    write(ledger, *proposed(), moved(RolloutState.CANARY, 0.10))
    with start(tmp_path, "l.sqlite") as running:
        up = Up(running, ledger)
        plan: Any = up.fleet()["plan"]
        exposed = plan["candidate"]
        assert (plan["policy"], exposed["lever"], exposed["share"]) == ("round_robin", LEVER, 0.10)

        def moves() -> list[RolloutState]:
            events = (each.event for each in events_of(ledger))
            return [event.after for event in events if isinstance(event, RolloutMoved)]

        until(lambda: len(moves()) == 2, 15, "the move at the restart is in the ledger")
        assert moves() == [RolloutState.CANARY, RolloutState.CANARY]
        assert f"canary      {LEVER} goes on" in running.said()
        kill_with_a_request_running(up)
    assert verifies(ledger)

    write(ledger, *proposed(), moved(RolloutState.ADOPTED, 1.0), TrafficPlanned(plan=AFFINE))
    with start(tmp_path, "l.sqlite") as running:
        up = Up(running, ledger)
        assert f"adopted     {LEVER}" in running.said()
        assert up.fleet()["plan"]["policy"] == "prefix_affine"  # type: ignore[index]
        texts = [f"{SHARED} Question {n}." for n in range(4)]
        assert [ask(up.url + CHAT, chat(text)).status for text in texts] == [200] * 4
        assert is_disabled_by_load(up)
        running.interrupt()
        assert running.end().code == 0
    check_affinity_and_trigger(ledger)
    assert verifies(ledger)


AFFINE = TrafficPlan(policy="prefix_affine")
CROWDED = TriggerSpec(
    name="crowded",
    signal=TriggerSignal.BATCH,
    off_at=1.5,
    on_at=None,
    off_when_above=True,
    min_samples=1,
    because="so that the test can fire it",
)


def proposed() -> tuple[AnyEvent, ...]:
    """A run in which a lever was proposed, not expired."""
    now_s = SystemClock().wall_s()
    record = msgspec.structs.replace(
        lever_record(), triggers=(CROWDED,), created_at_s=now_s, expires_at_s=now_s + 86_400.0
    )
    started = RunStarted(run_id="earlier", command="up", version="0.1.0", settings={})
    return (started, LeverProposed(record=record))


def kill_with_a_request_running(up: Up) -> None:
    """SIGKILL gives the gateway no chance; the kernel ends its replicas within seconds."""
    left: list[object] = []

    def client() -> None:
        try:
            left.append(ask(up.url + CHAT, chat("Tell a long story.", max_tokens=400)))
        except OSError as error:
            left.append(error)

    thread = threading.Thread(target=client)
    thread.start()
    until(lambda: running_requests(up) == 1, 10, "the request runs")
    os.kill(up.running.process.pid, signal.SIGKILL)
    up.running.process.wait()
    until(lambda: processes(up.running.mark) == {}, 5, "the replicas are gone")
    thread.join()
    assert isinstance(left[0], OSError)


def is_disabled_by_load(up: Up) -> bool:
    """Crowd the fleet until the adopted lever's trigger takes it back."""
    stop_s = time.monotonic() + 20
    body = chat("Tell a story.", max_tokens=60)

    def client() -> None:
        while time.monotonic() < stop_s and policy() == "prefix_affine":
            ask(up.url + CHAT, body)

    def policy() -> str:
        return up.fleet()["plan"]["policy"]  # type: ignore[index,no-any-return]

    clients = [threading.Thread(target=client) for _ in range(6)]
    for each in clients:
        each.start()
    for each in clients:
        each.join()
    return policy() == "round_robin"


def check_affinity_and_trigger(ledger: Path) -> None:
    """The repeated prompt went where it was held; the trigger's move cites an event that exists."""
    found = events_of(ledger)
    runs = [e.seq for e in found if isinstance(e.event, RunStarted)]
    mine = [e for e in found if e.seq >= runs[-1]]
    served = [e.event for e in mine if isinstance(e.event, RequestServed)][:4]
    assert {event.decision.policy for event in served if event.decision} == {"prefix_affine"}
    assert len({event.record.replica for event in served}) == 1
    moves = [e for e in mine if isinstance(e.event, RolloutMoved)]
    assert [move.event.after for move in moves] == [RolloutState.DISABLED]  # type: ignore[union-attr]
