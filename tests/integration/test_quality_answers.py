"""Evals on a served arm: seeds, stops, lengths, programs, judges; what breaks says whose fault it was."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from trimtab.core.ports import LaunchError
from trimtab.engines.llamacpp_score import LlamaCppScore
from trimtab.quality.eval_checks import ContainsCheck, JudgeCheck, ProgramCheck
from trimtab.quality.eval_scores import EvalAnswer, EvalSet
from trimtab.quality.evals import EvalItem, PairItem
from trimtab.runtime.asked_arm import ArmError
from trimtab.runtime.eval_judge import JudgeError
from trimtab.runtime.quality_arm import QualityArm
from trimtab.runtime.quality_evals import answered, check_evals
from trimtab.runtime.sandbox import SandboxError
from trimtab.workloads.base import Message


class Server:
    """An arm that answers `answer SEED`, and a judge that scores as it is told; keeps what both were asked."""

    def __init__(self, score: object = 1.0, status: int = 200) -> None:
        self.asked: list[dict[str, Any]] = []
        self.judged: list[dict[str, Any]] = []
        self._score, self._status = score, status
        self.url = ""

    async def complete(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.asked.append(body)
        text = f"    return a + b  # {body.get('seed')}\n"
        return web.json_response(
            {
                "choices": [{"index": 0, "text": text, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 300, "completion_tokens": 5},
            }
        )

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "served"}]})

    async def judge(self, request: web.Request) -> web.Response:
        self.judged.append(await request.json())
        return web.json_response({"score": self._score}, status=self._status)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[QualityArm]:
        app = web.Application()
        app.router.add_post("/v1/completions", self.complete)
        app.router.add_post("/judge", self.judge)
        app.router.add_get("/v1/models", self.models)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            async with aiohttp.ClientSession() as session:
                yield QualityArm("arm", self.url, session, LlamaCppScore())
        finally:
            await runner.cleanup()


def asked(*items: EvalItem, runs: int = 3) -> EvalSet:
    return EvalSet(items=items, total=len(items), runs=runs)


async def test_sampled_item_is_asked_by_seeds_and_a_greedy_one_once() -> None:
    """Equal seeds for every arm; the prompt's length is what the engine counted."""
    server = Server()
    warm = EvalItem(prompt="x", temperature=0.7, checks=(ContainsCheck("# 21"),))
    cold = EvalItem(prompt="x", stop=("\ndef ",), checks=(ContainsCheck("return"),))
    async with server.running() as arm:
        found = await answered(arm, asked(warm, cold))
    assert [one.answer for one in found] == [
        EvalAnswer((False, True, False), 300),
        EvalAnswer((True,), 300),
    ]
    assert [body.get("seed") for body in server.asked] == [20, 21, 22, None]
    assert server.asked[3]["stop"] == ["\ndef "]


async def test_program_is_run_behind_its_beginning() -> None:
    """What the arm wrote continues the prompt and meets the tests."""
    try:
        await check_evals(asked(EvalItem(prompt="x", checks=(ProgramCheck("pass"),))))
    except SandboxError as error:
        pytest.skip(f"sandbox: {error}")
    before = "def add(a, b):\n"
    right = ProgramCheck("assert add(1, 2) == 3", before=before)
    wrong = ProgramCheck("assert add(1, 2) == 4", before=before)
    async with Server().running() as arm:
        found = await answered(
            arm, asked(*(EvalItem(prompt=before, checks=(one,)) for one in (right, wrong)))
        )
    assert [one.answer.right for one in found] == [(True,), (False,)]


async def test_judge_sees_the_item_and_the_answer() -> None:
    """Its score is held against the least one that will do."""
    server = Server(score=0.6)
    async with server.running() as arm:
        checks = [
            JudgeCheck(f"{server.url}/judge", rubric="polite?", score_min=least)
            for least in (0.5, 0.7)
        ]
        items = [EvalItem(id="q", prompt="x", checks=(check,)) for check in checks]
        found = await answered(arm, asked(*items, runs=2))
    assert [one.answer.right for one in found] == [(True, True), (False, False)]
    assert server.judged[0]["rubric"] == "polite?"
    assert server.judged[0]["answer"].startswith("    return")


@pytest.mark.parametrize(
    ("score", "status", "said"),
    [(7, 200, "gave no `score`"), (1.0, 503, "answered with status 503"), (None, 200, "gave no")],
)
async def test_judge_that_breaks_is_an_error_and_no_verdict(
    score: object, status: int, said: str
) -> None:
    """The item and the judge's address are named, and no user or key of it."""
    server = Server(score, status)
    async with server.running() as arm:
        secret = server.url.replace("http://", "http://me:hidden@") + "/judge?key=hidden"
        item = EvalItem(id="q9", prompt="x", checks=(JudgeCheck(secret),))
        with pytest.raises(JudgeError, match=f"eval item q9: the judge at .*{said}") as raised:
            await answered(arm, asked(item))
    assert f"{server.url}/judge " in str(raised.value)
    assert "hidden" not in str(raised.value)


async def test_arm_that_refuses_an_item_names_it() -> None:
    """Such as one that is longer than its context."""
    async with Server().running() as arm:
        lost = QualityArm("arm", f"{arm.url}/nowhere", arm._session, LlamaCppScore())
        item = EvalItem(id="q9", prompt="x", checks=(ContainsCheck("y"),))
        with pytest.raises(ArmError, match=r"eval item q9: arm answered .* status 404"):
            await answered(lost, asked(item))


async def test_item_that_is_surely_longer_than_the_context_is_refused_up_front() -> None:
    """By its name, prompts, messages and pairs alike; what may fit is asked."""
    long = "one two three four five " * 1000
    check = (ContainsCheck("y"),)
    for item in (
        EvalItem(id="q9", prompt=long, checks=check),
        EvalItem(id="q9", messages=(Message("user", long),), checks=check),
        PairItem(id="q9", kind="pairs", good="short", bad=long),
    ):
        evals = EvalSet(items=(item,), total=1)
        with pytest.raises(LaunchError, match=r"eval item q9: its prompt has about .* takes 2,048"):
            await check_evals(evals, context_tokens=2048)
        await check_evals(evals, context_tokens=8192)
