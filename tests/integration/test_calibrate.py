"""Calibration against a fake engine on loopback whose costs are known."""

import json
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web

from trimtab.core.ports import SavedKV
from trimtab.core.revision import Speculation, SpeculationMethod
from trimtab.diagnosis.calibration import CalibrationError
from trimtab.engines.llamacpp import LlamaCppFormat
from trimtab.runtime.calibrate import (
    STEP_OUTPUT_TOKENS,
    Replica,
    SpeculationProbe,
    calibrate_cost,
    calibrate_speculation,
)
from trimtab.runtime.clock import SystemClock

NGRAM = Speculation(method=SpeculationMethod.NGRAM_SIMPLE, match_tokens=6, draft_tokens_max=6)
EDIT = json.dumps(
    {
        "model": "default",
        "messages": [{"role": "user", "content": "Rework it."}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.7,
        "max_tokens": 44,
    }
).encode()


class KnownEngine:
    """Reports 5 ms + 10 per prompt token, and steps of 20 ms + 4 per stream times a factor."""

    def __init__(self, *, step_factor: float = 1.0, accepted: int | None = None) -> None:
        self.factor = step_factor
        self.accepted = accepted
        self.status = 200
        self.bodies: list[dict[str, object]] = []
        self.cached: set[str] = set()

    async def answer(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.bodies.append(body)
        if self.status != 200:
            return web.json_response({"error": {"message": "no"}}, status=self.status)
        prompt = json.dumps(body.get("prompt") or body["messages"])
        n = len(prompt.split())
        cached = n - 1 if prompt in self.cached else 0
        self.cached.add(prompt)
        out = body["max_tokens"]
        batch = body.get("id_slot", 0) + 1
        timings = {
            "cache_n": cached,
            "prompt_n": n - cached,
            "prompt_ms": 5.0 + 10.0 * (n - cached),
            "predicted_n": out,
            "predicted_ms": (out - 1) * (20.0 + 4.0 * batch) * self.factor,
        }
        if self.accepted is not None and out > 1:
            timings |= {"draft_n": 2 * self.accepted, "draft_n_accepted": self.accepted}
        return web.json_response(
            {
                "choices": [{"text": "x", "message": {"content": "x"}, "finish_reason": "length"}],
                "usage": {"prompt_tokens": n, "completion_tokens": out},
                "timings": timings,
            }
        )


class Keeper:
    """Copies nothing, and notes what it was asked."""

    def __init__(self, slots: int = 8) -> None:
        self.slots = slots
        self.restored: list[tuple[str, tuple[tuple[int, str], ...]]] = []
        self.discarded: list[str] = []

    async def save_kv(self, replica: str) -> SavedKV:
        files = ((3, f"{replica}-old"), (0, f"{replica}-new"))
        return SavedKV(replica=replica, files=files, tokens=2, bytes=2, took_ms=1.0)

    async def restore_kv(self, replica: str, saved: SavedKV) -> SavedKV:
        self.restored.append((replica, saved.files))
        files = saved.files[: self.slots]
        return SavedKV(replica=replica, files=files, tokens=1, bytes=1, took_ms=1.0)

    def discard_kv(self, saved: SavedKV) -> None:
        self.discarded += [name for _, name in saved.files]


@pytest.fixture
async def served() -> AsyncIterator[list[tuple[KnownEngine, str]]]:
    """Two engines on loopback: plain, and one with drafts."""
    runners: list[web.AppRunner] = []
    found: list[tuple[KnownEngine, str]] = []
    for engine in (KnownEngine(), KnownEngine(step_factor=0.5, accepted=18)):
        app = web.Application()
        app.router.add_post("/v1/completions", engine.answer)
        app.router.add_post("/v1/chat/completions", engine.answer)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        runners.append(runner)
        found.append((engine, f"http://127.0.0.1:{runner.addresses[0][1]}"))
    yield found
    for runner in runners:
        await runner.cleanup()


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    """A client."""
    async with aiohttp.ClientSession() as opened:
        yield opened


async def test_known_costs_are_found(
    served: list[tuple[KnownEngine, str]], session: aiohttp.ClientSession
) -> None:
    """The fitted model has the engine's own prefill cost, from prompts that share no prefix."""
    engine, url = served[0]
    seen: list[float] = []
    cost = await calibrate_cost(
        url,
        LlamaCppFormat(),
        session=session,
        clock=SystemClock(),
        on_progress=lambda part, _: seen.append(part),
    )
    assert cost.prefill_base_ms == pytest.approx(5.0)
    assert cost.prefill_ms_per_token == pytest.approx(10.0)
    assert (cost.prefill_samples, cost.step_samples) == (9, 9)
    assert seen == sorted(seen)
    assert seen[-1] == 1.0
    heads = [" ".join(str(body["prompt"]).split()[:3]) for body in engine.bodies]
    distinct = {str(body["prompt"]) for body in engine.bodies}
    assert len(set(heads)) == len(distinct)


async def test_steps_of_an_engine_that_drafts_are_timed_as_steps(
    served: list[tuple[KnownEngine, str]], session: aiohttp.ClientSession
) -> None:
    """Its tokens come at half the price because each step gives several; a step of a lone stream is no shorter."""
    engine, url = served[1]
    engine.accepted = 9
    cost = await calibrate_cost(
        url, LlamaCppFormat(), session=session, clock=SystemClock(), budget_s=0.0
    )
    tokens = STEP_OUTPUT_TOKENS - 1
    assert cost.tokens_per_step == pytest.approx(tokens / (tokens - 9))
    assert cost.step_ms(1.0) == pytest.approx(12.0)
    assert cost.idle_step_ms == pytest.approx(12.0 * tokens / (tokens - 9))


async def test_used_up_budget_keeps_what_was_measured(
    served: list[tuple[KnownEngine, str]], session: aiohttp.ClientSession
) -> None:
    """With no time left one round is still finished, and the counts say so."""
    cost = await calibrate_cost(
        served[0][1], LlamaCppFormat(), session=session, clock=SystemClock(), budget_s=0.0
    )
    assert (cost.prefill_samples, cost.step_samples) == (3, 3)


async def test_engine_that_refuses_is_an_error(
    served: list[tuple[KnownEngine, str]], session: aiohttp.ClientSession
) -> None:
    """Nothing is fitted to an engine that answers with errors; the message says which status."""
    engine, url = served[0]
    engine.status = 500
    with pytest.raises(CalibrationError, match="status 500"):
        await calibrate_cost(url, LlamaCppFormat(), session=session, clock=SystemClock())


async def test_speculation_is_measured_side_by_side(
    served: list[tuple[KnownEngine, str]], session: aiohttp.ClientSession
) -> None:
    """An engine whose steps take half the time has ratio 2 at every batch; each stream has a slot of its own."""
    (plain, off), (drafting, on) = served
    keeper = Keeper()
    table = await calibrate_speculation(
        Replica(id="off", url=off),
        Replica(id="on", url=on),
        NGRAM,
        SpeculationProbe(
            path="/v1/chat/completions", prompts=(EDIT,), content="edit", batches=(1, 4)
        ),
        engine_format=LlamaCppFormat(),
        session=session,
        clock=SystemClock(),
        keeper=keeper,
    )
    assert dict(table.ratios()) == pytest.approx({1: 2.0, 4: 2.0})
    assert table.content == "edit"
    assert table.break_even_batch() is None
    assert [body["id_slot"] for body in plain.bodies[1:]] == [0, 0, 1, 2, 3]
    assert len(drafting.bodies) == len(plain.bodies)
    assert all(body["stream"] is False and body["temperature"] == 0 for body in plain.bodies)
    assert dict(keeper.restored)["off"] == tuple((slot, "off-new") for slot in range(4))
    assert sorted(keeper.discarded) == ["off-old", "on-old"]


async def test_too_few_idle_slots_are_an_error(
    served: list[tuple[KnownEngine, str]], session: aiohttp.ClientSession
) -> None:
    """A batch that the replica cannot hold is not measured as if it could."""
    with pytest.raises(CalibrationError, match="2 idle slots, 4 are needed"):
        await calibrate_speculation(
            Replica(id="off", url=served[0][1]),
            Replica(id="on", url=served[1][1]),
            NGRAM,
            SpeculationProbe(
                path="/v1/chat/completions", prompts=(EDIT,), content="edit", batches=(4,)
            ),
            engine_format=LlamaCppFormat(),
            session=session,
            clock=SystemClock(),
            keeper=Keeper(slots=2),
        )
