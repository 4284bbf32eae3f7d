"""Verdicts reach a log and a webhook on real sockets; a webhook that is dead, slow or refuses delays nobody."""

import asyncio
import hashlib
import hmac
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from aiohttp import web
from events_kit import LEVER, SteppingClock, moved, request, story, trigger_moved
from harness import until
from page_kit import all_verdicts

from trimtab.core.config import ConfigError, TelemetryConfig
from trimtab.core.events import AnyEvent, Frozen
from trimtab.core.types import RolloutState
from trimtab.runtime import webhook as webhook_module
from trimtab.runtime.ledger import SqliteLedger
from trimtab.runtime.secret import SecretError
from trimtab.runtime.sinks import VerdictSinks
from trimtab.runtime.webhook import WAITING_MAX, Webhook

SECRET = "a-key-of-this-test"
Answer = Callable[[web.Request], Awaitable[web.Response]]


class Receiver:
    """A server that keeps what is posted to it and answers as told."""

    def __init__(self) -> None:
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.statuses: list[int] = []
        """Answers in order; 200 once they are used up."""
        self.hold = asyncio.Event()
        self.hold.set()
        self.url = ""
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        app = web.Application()
        app.router.add_post("/hook", self._take)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}/hook"

    async def stop(self) -> None:
        assert self._runner is not None
        self.hold.set()
        await self._runner.cleanup()

    async def _take(self, request: web.Request) -> web.Response:
        body = await request.read()
        await self.hold.wait()
        self.got.append((dict(request.headers), body))
        status = self.statuses.pop(0) if self.statuses else 200
        return web.Response(status=status)

    @property
    def told(self) -> list[dict[str, Any]]:
        """What was posted, decoded."""
        return [msgspec.json.decode(body) for _, body in self.got]


@pytest_asyncio.fixture
async def receiver() -> AsyncIterator[Receiver]:
    made = Receiver()
    await made.start()
    yield made
    await made.stop()


@pytest_asyncio.fixture
async def hook(receiver: Receiver) -> AsyncIterator[Webhook]:
    made = Webhook(receiver.url, SECRET, wait_s_min=0.01)
    made.start()
    yield made
    await made.close()


def sinks(**telemetry: str) -> VerdictSinks:
    return VerdictSinks(TelemetryConfig(**telemetry), SteppingClock(), "run-1")


async def test_story_of_a_lever_reaches_both_sinks(receiver: Receiver, tmp_path: Path) -> None:
    """What the ledger is told of a lever arrives in order, signed, in words; requests are not among it."""
    (tmp_path / "key").write_text(SECRET + "\n")
    log = tmp_path / "verdicts.jsonl"
    told = sinks(
        verdict_webhook=receiver.url,
        verdict_webhook_secret=f"file:{tmp_path / 'key'}",
        verdict_log=str(log),
    )
    told.start()
    ledger = SqliteLedger(tmp_path / "l.sqlite", clock=SteppingClock())
    ledger.hears = (told.heard,)
    ids = [ledger.append(event, cause_id=None) for event, _ in story()]
    served = ledger.append(request(7), cause_id=None)
    ledger.close()
    await told.close()

    lines = [msgspec.json.decode(line) for line in log.read_bytes().splitlines()]
    assert receiver.told == lines
    kinds = [one["kind"] for one in lines]
    assert {"lever_proposed", "rollout_moved", "gates_evaluated", "cuts_kept"} <= set(kinds)
    assert not {"request_served", "measured", "diagnosed"} & set(kinds)
    assert [one["id"] for one in lines] == [
        each for each in ids if each in {o["id"] for o in lines}
    ]
    assert served not in {one["id"] for one in lines}
    assert all(one["text"] and one["run"] == "run-1" for one in lines)
    for headers, body in receiver.got:
        digest = hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
        assert headers["X-Trimtab-Signature"] == f"sha256={digest}"
        assert headers["X-Trimtab-Event"] == msgspec.json.decode(body)["id"]
    assert told.counts()["webhook", "delivered"] == told.counts()["log", "delivered"] == len(lines)
    assert log.stat().st_mode & 0o777 == 0o600


async def test_look_is_told_only_when_a_verdict_changed(receiver: Receiver) -> None:
    """Gates are looked at every second; a person hears of one that says something else than before."""
    told = sinks(verdict_webhook=receiver.url)
    told.start()
    look = all_verdicts(LEVER)
    later = msgspec.structs.replace(look, look=look.look + 1)
    changed = msgspec.structs.replace(later, results=look.results[:2])
    for number, event in enumerate((look, later, later, changed, changed)):
        told.heard(f"e{number}", event)
    await told.close()
    assert [one["id"] for one in receiver.told] == ["e0", "e3"]
    assert [gate["verdict"] for gate in receiver.told[0]["gates"]] == [
        "pass",
        "fail",
        "hold",
        "error",
    ]


async def test_dead_webhook_delays_nobody_and_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing listens, hearing takes no time, what waits is bounded, and a stop ends in bounds."""
    monkeypatch.setattr(webhook_module, "CLOSE_S", 0.2)
    told = sinks(verdict_webhook="http://127.0.0.1:9/hook")
    told.start()
    asked = WAITING_MAX + 50
    for number in range(asked):
        told.heard(f"e{number}", Frozen(frozen=True, reason="test"))
    assert len(told._webhook._waiting) == WAITING_MAX  # type: ignore[union-attr]
    await told.close()
    counts = told.counts()
    assert counts["webhook", "delivered"] == 0
    assert counts["webhook", "failed"] + counts["webhook", "dropped"] == asked


async def test_webhook_that_hangs_holds_up_no_event(hook: Webhook, receiver: Receiver) -> None:
    """While one post waits for its answer others are taken, and follow in order."""
    receiver.hold.clear()
    for number in range(5):
        hook.offer(f"e{number}", b"{}")
        await asyncio.sleep(0)
    await asyncio.sleep(0.05)
    assert receiver.got == []
    receiver.hold.set()
    await until(lambda: len(receiver.got) == 5)
    assert [headers["X-Trimtab-Event"] for headers, _ in receiver.got] == [
        f"e{n}" for n in range(5)
    ]


@pytest.mark.parametrize(
    ("statuses", "posts", "outcome"),
    [
        ([204], 1, "delivered"),
        ([500, 503, 200], 3, "delivered"),
        ([429, 408, 200], 3, "delivered"),
        ([400], 1, "refused"),
        ([404], 1, "refused"),
        ([302], 5, "failed"),
        ([500] * 9, 5, "failed"),
    ],
)
async def test_answers_decide_whether_it_is_sent_again(
    hook: Webhook, receiver: Receiver, statuses: list[int], posts: int, outcome: str
) -> None:
    """An error of the receiver is tried again in bounds, a refusal is not, a redirect is not followed."""
    receiver.statuses = statuses if outcome != "failed" else statuses * 5
    hook.offer("e0", b"{}")
    await until(lambda: hook.counts[outcome] == 1)
    assert (len(receiver.got), {h["X-Trimtab-Event"] for h, _ in receiver.got}) == (posts, {"e0"})


async def test_after_a_failure_each_is_tried_once_until_one_arrives(
    hook: Webhook, receiver: Receiver
) -> None:
    """What waits behind a dead receiver is not tried for minutes; the first that arrives ends that."""
    receiver.statuses = [500] * 5 + [500, 200, 500, 200]
    for number in range(4):
        hook.offer(f"e{number}", b"{}")
    await until(lambda: sum(hook.counts.values()) == 4)
    posted = [headers["X-Trimtab-Event"] for headers, _ in receiver.got]
    assert posted == ["e0"] * 5 + ["e1", "e2", "e3", "e3"]
    assert (hook.counts["failed"], hook.counts["delivered"]) == (2, 2)


async def test_stop_sends_what_waits(receiver: Receiver) -> None:
    """The last verdicts before a stop are told, too."""
    told = sinks(verdict_webhook=receiver.url)
    told.start()
    events: list[AnyEvent] = [moved(RolloutState.CANARY, 0.1), trigger_moved(True, 4.6)]
    for number, event in enumerate(events):
        told.heard(f"e{number}", event)
    begun_s = time.monotonic()
    await told.close()
    assert [one["kind"] for one in receiver.told] == ["rollout_moved", "trigger_moved"]
    assert time.monotonic() - begun_s < webhook_module.CLOSE_S


def test_secret_that_is_not_there_is_refused_at_the_start() -> None:
    """Nothing is posted unsigned because a variable was not set."""
    with pytest.raises(SecretError, match="NO_SUCH_KEY is not set"):
        sinks(verdict_webhook="http://127.0.0.1:9/", verdict_webhook_secret="env:NO_SUCH_KEY")


def test_log_that_cannot_be_opened_names_its_key(tmp_path: Path) -> None:
    """A wrong path is said at the start, with the key of the configuration."""
    with pytest.raises(ConfigError, match=r"telemetry\.verdict_log .* cannot be written"):
        sinks(verdict_log=str(tmp_path / "none" / "x"))


def test_address_may_be_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """An address that holds a token is named by reference, so that it stands in no file and in no ledger."""
    monkeypatch.setenv("HOOK_ADDRESS", "http://127.0.0.1:9/token")
    told = sinks(verdict_webhook="env:HOOK_ADDRESS")
    assert told._webhook is not None
    assert told._webhook._url == "http://127.0.0.1:9/token"
