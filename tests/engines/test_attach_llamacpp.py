"""`trimtab up --attach` before two real llama.cpp servers that were started outside."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_kit import Answer, Background, ask, chat, command, environment, until

from trimtab.runtime.launcher import free_ports
from trimtab.runtime.model import find_model

pytestmark = [pytest.mark.engine_llamacpp, pytest.mark.timeout(240)]

CHAT = "/v1/chat/completions"
SERVER = Path(__file__).parent / "outside_server.py"
LONG = "The rudder of a large ship is turned by a small tab on its edge. " * 20


class Outside:
    """A server of somebody else."""

    def __init__(self, folder: Path, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._arguments = [sys.executable, str(SERVER), find_model("").path, str(port)]
        self._folder = folder
        self.start()

    def start(self) -> None:
        with (self._folder / "outside.log").open("ab") as log:
            self.process = subprocess.Popen(
                self._arguments,
                env=environment("outside", self._folder),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        until(self.is_well, 60.0, f"a server on {self.url}")

    def is_well(self) -> bool:
        assert self.process.poll() is None, (self._folder / "outside.log").read_text()
        with contextlib.suppress(OSError):
            return ask(self.url + "/health").status == 200
        return False

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[tuple[Outside, Outside]]:
    ports = free_ports(2)
    one, other = Outside(tmp_path, ports[0]), Outside(tmp_path, ports[1])
    try:
        yield one, other
    finally:
        one.kill()
        other.kill()


def fleet_of(url: str) -> dict[str, Any]:
    """Return what /debug/fleet says, by replica."""
    return {each["id"]: each for each in ask(url + "/debug/fleet").json()["replicas"]}


def served_by(answer: Answer) -> str:
    assert answer.status == 200, answer.body
    return answer.headers["x-trimtab-replica"]


def cached(answer: Answer) -> int:
    return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


def test_servers_that_run_already_are_served_from(
    tmp_path: Path, outside: tuple[Outside, Outside]
) -> None:
    """Found, used with their cache, left out when one dies, taken back when it returns; they outlive the gateway."""
    one, other = outside
    arguments = ["--attach", f"a={one.url}/v1", "--attach", f"b={other.url}", "--port", "0"]
    with Background(tmp_path, "up", *arguments, "--ledger", "ledger.sqlite") as up:
        said = up.wait_for("Ctrl-C drains and stops")
        assert "2 of 2 attached servers ready, model small" in said
        assert up.replicas() == ()
        [line] = [line for line in said.splitlines() if line.startswith("OpenAI API")]
        url = line.split()[-1].removesuffix("/v1")

        fleet = fleet_of(url)
        assert {each["state"] for each in fleet.values()} == {"ready"}
        assert {each["slots"] for each in fleet.values()} == {2}
        assert {each["revision"].split("-")[0] for each in fleet.values()} == {"llamacpp"}
        assert [each["id"] for each in ask(url + "/v1/models").json()["data"]] == ["small"]

        first = ask(url + CHAT, chat(LONG))
        again = ask(url + CHAT, chat(LONG))
        assert served_by(again) == served_by(first)
        assert (cached(first), cached(again) > 100) == (0, True)

        loser = one if served_by(first) == "a" else other
        stays = "b" if loser is one else "a"
        loser.kill()
        lost = served_by(first)
        until(lambda: fleet_of(url)[lost]["state"] == "failed", 30.0, "the dead server left out")
        assert {served_by(ask(url + CHAT, chat(f"question {n}"))) for n in range(3)} == {stays}

        loser.start()
        until(lambda: fleet_of(url)[lost]["state"] == "ready", 30.0, "the server taken back")
        warm = ask(url + CHAT, chat(LONG))
        assert warm.status == 200

        reload = command(tmp_path, "reload", "--url", url)
        assert (reload.code, reload.out.strip()) == (0, "nothing changed")

        up.interrupt()
        ended = up.end()
        assert (ended.code, ended.left) == (0, {})
    assert one.is_well()
    assert other.is_well()
    verified = command(tmp_path, "ledger", "--ledger", "ledger.sqlite", "verify")
    assert verified.code == 0


def test_tune_ends_cleanly_on_sigterm(tmp_path: Path) -> None:
    """As on Ctrl-C: no process, and no folder in memory, stays."""
    with Background(tmp_path, "tune", "--report", "out") as tune:
        tune.wait_for("replicas ready", 90.0)
        assert tune.slot_folders() != []
        os.kill(tune.process.pid, signal.SIGTERM)
        ended = tune.end()
        assert (ended.code, ended.left) == (130, {})
        assert tune.slot_folders() == []
