"""Roles that follow the traffic on the real engine: what prefilled for others decodes when answers need it."""

import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_kit import Background, ask, chat, command, until

from trimtab.core.events import Envelope, HandedOver, ReplicaChanged, RequestServed, RolesDecided
from trimtab.core.handover import HandOverOutcome
from trimtab.core.roles import RoleAction
from trimtab.core.types import Role
from trimtab.runtime.ledger_reader import SqliteReader

pytestmark = [pytest.mark.engine_llamacpp, pytest.mark.alone, pytest.mark.timeout(420)]

CHAT = "/v1/chat/completions"
CONFIG = """
[engine]
slots = 2
chunk_tokens = 64

[fleet]
replicas = 3

[handover]
place = "remote"

[roles]
mode = "follow"
prefill = 1
ttft_ms = 4000
tpot_ms = 400
window_s = 10
cooldown_s = 10
ticks = 2
samples_min = 4
"""
TURN_S = 90.0
"""Longest wait for the change: it took 35 s, 21 s of it to drain, on a machine at load 18."""


class Up:
    """A running `trimtab up` with roles that follow the traffic."""

    def __init__(self, running: Background, ledger: Path) -> None:
        self.ledger = ledger
        said = running.wait_for("Ctrl-C drains and stops")
        [line] = [line for line in said.splitlines() if line.startswith("OpenAI API")]
        self.url = line.split()[-1].removesuffix("/v1")

    def roles(self) -> dict[str, str]:
        """Each replica's role by its id."""
        found = ask(self.url + "/debug/fleet").json()["replicas"]
        return {replica["id"]: replica["role"] for replica in found}

    def events(self) -> list[Envelope]:
        """Everything in its ledger."""
        with SqliteReader(self.ledger) as reader:
            return list(reader.read())


class Clients:
    """Clients that ask one thing after the other until told to stop; what they got is kept."""

    def __init__(self, url: str, count: int, body: Callable[[int], dict[str, Any]]) -> None:
        self._url = url
        self._body = body
        self._numbers = itertools.count()
        self._stop = threading.Event()
        self.statuses: list[int] = []
        self._threads = [threading.Thread(target=self._ask) for _ in range(count)]

    def _ask(self) -> None:
        while not self._stop.is_set():
            answer = ask(self._url + CHAT, self._body(next(self._numbers)), timeout_s=200)
            self.statuses.append(answer.status)

    def __enter__(self) -> "Clients":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


def long_prompt(number: int) -> dict[str, Any]:
    """Some four hundred tokens that no replica holds, and a short answer."""
    words = " ".join(f"Item {number}-{at} costs {number * at % 97} coins." for at in range(30))
    return chat(f"{words} Which item is the cheapest?", max_tokens=6, stream=True)


def long_answer(number: int) -> dict[str, Any]:
    """A few words, and an answer that takes its time."""
    return chat(f"Tell story number {number}.", max_tokens=64, stream=True)


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """One fleet of three, the last of which prefills, for all tests of this file."""
    folder = tmp_path_factory.mktemp("roles")
    (folder / "roles.toml").write_text(CONFIG)
    words = ("up", "--port", "0", "--ledger", "l.sqlite", "--config", "roles.toml")
    with Background(folder, *words) as running:
        yield Up(running, folder / "l.sqlite")


def test_traffic_that_turns_to_long_answers_gets_the_prefill_replica_without_one_failure(
    up: Up,
) -> None:
    """First long prompts, which are sent ahead; then answers fill the decode side, and the replica changes its role."""
    assert up.roles() == {"r0": "decode", "r1": "decode", "r2": "prefill"}
    with Clients(up.url, 2, long_prompt) as prompts:
        until(lambda: len(prompts.statuses) >= 6, 120, "long prompts")
    with Clients(up.url, 8, long_answer) as answers:
        until(lambda: up.roles()["r2"] != "prefill", TURN_S, "a change of role")
        asked = len(answers.statuses)
        until(lambda: len(answers.statuses) >= asked + 12, 120, "answers in the new roles")
    assert set(prompts.statuses) | set(answers.statuses) == {200}
    # Who prefills in the end depends on the machine's speed; the one that did, gave its role.
    assert up.roles()["r2"] != "prefill"


def test_change_and_all_that_led_to_it_are_in_the_ledger(up: Up) -> None:
    """The decision with what was seen is the cause of the drain and the flip, and every request was served."""
    found = up.events()
    moves = {
        each.id: each.event
        for each in found
        if isinstance(each.event, RolesDecided) and each.event.replica is not None
    }
    # While long prompts come another replica may have been given to them first.
    first, move = next((at, one) for at, one in moves.items() if one.replica == "r2")
    assert move.role is Role.DECODE
    assert move.decision is not None
    assert move.decision.action in {RoleAction.MORE_DECODE, RoleAction.MERGE}
    changed = [
        (each.event.state.value, each.event.role)
        for each in found
        if isinstance(each.event, ReplicaChanged) and each.cause_id == first
        if each.event.replica == "r2"
    ]
    assert changed[0] == ("draining", Role.PREFILL)
    assert changed[-1] in {("ready", Role.MIXED), ("ready", Role.DECODE)}
    sent = [e.event.hand_over for e in found if isinstance(e.event, HandedOver)]
    assert "r2" in {one.source for one in sent if one.outcome is HandOverOutcome.DELIVERED}
    served = [e.event.record for e in found if isinstance(e.event, RequestServed)]
    assert all(record.ok for record in served)
    assert {record.replica for record in served} == {"r0", "r1", "r2"}


def test_person_gives_a_role_and_takes_it_back(up: Up) -> None:
    """Each answer names all roles; a replica that has the role already is refused."""
    folder = up.ledger.parent

    def role(*words: str) -> Any:
        return command(folder, "fleet", "role", *words, "--url", up.url, timeout_s=120)

    given = role("r0", "prefill")
    assert (given.code, "r0 prefill" in given.out) == (0, True), given
    again = role("r0", "prefill")
    assert (again.code, "prefills already" in again.err) == (1, True), again
    back = role("r0", "mixed")
    assert (back.code, "r0 prefill" in back.out) == (0, False), back
