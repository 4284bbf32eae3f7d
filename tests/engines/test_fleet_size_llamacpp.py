"""`trimtab fleet` on the real engine: a replica joins and leaves while requests flow, and none of them fails."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_kit import QUICK_CLI, Background, Ended, ask, chat, command, until

from trimtab.core.events import Envelope, FleetSized, ReplicaChanged, RequestServed
from trimtab.core.types import FleetAction, ReplicaState
from trimtab.runtime.ledger_reader import SqliteReader

pytestmark = [pytest.mark.engine_llamacpp, pytest.mark.timeout(240)]

CHAT = "/v1/chat/completions"


class Up:
    """A running `trimtab up` with the address it printed."""

    def __init__(self, running: Background, ledger: Path) -> None:
        self.ledger = ledger
        said = running.wait_for("Ctrl-C drains and stops")
        [line] = [line for line in said.splitlines() if line.startswith("OpenAI API")]
        self.url = line.split()[-1].removesuffix("/v1")

    def replicas(self) -> dict[str, str]:
        """Each replica's state by its id."""
        found = ask(self.url + "/debug/fleet").json()["replicas"]
        return {replica["id"]: replica["state"] for replica in found}

    def events(self) -> list[Envelope]:
        """Everything in its ledger."""
        with SqliteReader(self.ledger) as reader:
            return list(reader.read())


class Flow:
    """Two clients that ask one short thing after the other until told to stop."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._stop = threading.Event()
        self.statuses: list[int] = []
        self._threads = [threading.Thread(target=self._ask, args=(n,)) for n in range(2)]

    def _ask(self, client: int) -> None:
        while not self._stop.is_set():
            words = f"Client {client} asks number {len(self.statuses)}."
            self.statuses.append(ask(self._url + CHAT, chat(words, max_tokens=16)).status)

    def __enter__(self) -> "Flow":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """One fleet of two for all tests of this file."""
    folder = tmp_path_factory.mktemp("fleet")
    words = ("up", "--port", "0", "--ledger", "l.sqlite")
    with Background(folder, *words, program=QUICK_CLI) as running:
        yield Up(running, folder / "l.sqlite")


def change(up: Up, *words: str) -> Ended:
    return command(up.ledger.parent, "fleet", *words, "--url", up.url, timeout_s=120)


def test_replica_joins_and_leaves_while_requests_flow(up: Up) -> None:
    """It serves once it is ready, leaves once it has drained, and no request of two clients fails meanwhile."""
    with Flow(up.url) as flow:
        joined = change(up, "add")
        assert (joined.code, [*up.replicas()]) == (0, ["r0", "r1", "r2"]), joined
        assert set(up.replicas().values()) == {"ready"}
        asked = len(flow.statuses)
        until(lambda: len(flow.statuses) >= asked + 8, 60, "traffic on three replicas")
        left = change(up, "remove", "r0", "--force")
        assert (left.code, [*up.replicas()]) == (0, ["r1", "r2"]), left
        asked = len(flow.statuses)
        until(lambda: len(flow.statuses) >= asked + 4, 60, "traffic on those that stayed")
    assert set(flow.statuses) == {200}


def test_both_moves_are_in_the_ledger_with_what_followed(up: Up) -> None:
    """Each decision is the cause of its replica's states, and the replica that joined served requests."""
    found = up.events()
    moves = {e.id: e.event for e in found if isinstance(e.event, FleetSized)}
    assert [(m.action, m.replica, m.allowed) for m in moves.values()] == [
        (FleetAction.ADD, "r2", True),
        (FleetAction.REMOVE, "r0", True),
    ]
    states = {
        move.replica: [
            e.event.state
            for e in found
            if isinstance(e.event, ReplicaChanged) and e.cause_id == cause
        ]
        for cause, move in moves.items()
    }
    assert states["r2"] == [ReplicaState.STARTING, ReplicaState.READY]
    assert states["r0"] == [ReplicaState.DRAINING, ReplicaState.STOPPED]
    served = {e.event.record.replica for e in found if isinstance(e.event, RequestServed)}
    assert served == {"r0", "r1", "r2"}


def test_busy_fleet_refuses_with_figures(up: Up) -> None:
    """One of two that are at work would get twice its load, so it is said and nothing leaves."""
    with Flow(up.url) as flow:
        until(lambda: len(flow.statuses) >= 6, 60, "traffic")
        refused = change(up, "remove", "r1")
    assert (refused.code, [*up.replicas()]) == (1, ["r1", "r2"])
    assert "1 of 2 get 2.00 of their load" in refused.err
    last = [e.event for e in up.events() if isinstance(e.event, FleetSized)][-1]
    assert (last.allowed, last.forced) == (False, False)


def test_unknown_replica_is_named(up: Up) -> None:
    """The answer names those that there are."""
    refused = change(up, "remove", "r9")
    assert (refused.code, "'r9'" in refused.err, "r1, r2" in refused.err) == (1, True, True)


def test_calm_fleet_lets_one_leave(up: Up) -> None:
    """Without traffic the readings fall, and then the check itself allows it."""
    found: list[Ended] = []

    def left() -> bool:
        found.append(change(up, "remove", "r1"))
        return found[-1].code == 0

    until(left, 60, "a calm fleet")
    assert [*up.replicas()] == ["r2"]
    alone = change(up, "remove", "r2")
    assert (alone.code, "only replica" in alone.err) == (1, True)
    assert ask(up.url + CHAT, chat("Still there?")).status == 200


def test_route_takes_json_only(up: Up) -> None:
    """Anything that a page of another site could send to loopback without asking is refused."""
    url = up.url + "/fleet/replicas"
    assert ask(url, {"action": "explode"}).status == 400
    assert ask(url).status == 405
