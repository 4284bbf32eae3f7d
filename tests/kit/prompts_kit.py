"""Request bodies for the lint of prompts, and the lint of them without files."""

import json
import random
from collections.abc import Iterable, Mapping
from typing import Any

from trimtab.engines.openai import CHAT_PATH, COMPLETIONS_PATH, read_request
from trimtab.workloads.prompt_lint import PromptLint, lint
from trimtab.workloads.prompt_parts import Prompt, text_parts

Body = Mapping[str, Any]


def words(seed: int, count: int) -> str:
    """Text of so many different words, one of eight a line."""
    rng = random.Random(seed)
    made = [f"{rng.choice('abcdefgh')}{rng.randrange(10**6)}" for _ in range(count)]
    return "\n".join(" ".join(made[at : at + 8]) for at in range(0, count, 8))


def chat(*messages: tuple[str, str], **fields: object) -> Body:
    """A chat body of (role, content) pairs."""
    return {"messages": [{"role": role, "content": text} for role, text in messages], **fields}


def tool(name: str, text: str = "") -> Body:
    """A function tool with a description of some length."""
    described = {"name": name, "description": text or f"What {name} does. " * 10}
    return {"type": "function", "function": {**described, "parameters": {"type": "object"}}}


def prompt_of(body: Body, line: int, bytes_per_token: float = 4.0) -> Prompt:
    """One body as a prompt."""
    path = CHAT_PATH if "messages" in body else COMPLETIONS_PATH
    facts = read_request(path, json.dumps(body).encode())
    parts = text_parts(facts.segments, bytes_per_token=bytes_per_token)
    return Prompt(line=line, session=str(body.get("session", "")), parts=parts)


def lint_of(bodies: Iterable[Body], **options: Any) -> PromptLint:
    """The lint of bodies in order."""
    return lint((prompt_of(body, at) for at, body in enumerate(bodies, start=1)), **options)


def nonce_at_top(requests: int = 20, *, tokens: int = 60_000, at: int = 40) -> list[Body]:
    """Requests whose system text differs only in five hexadecimal digits after `at` tokens of four bytes."""
    rng = random.Random(5)
    head = ("x-billing-header: agent version 2.1; " * 100)[: 4 * at - 4] + "cch="
    tail = "\n" + words(1, tokens)
    tail = tail[: 4 * tokens - len(head) - 5 - 8]
    return [
        chat(("system", f"{head}{rng.randrange(16**5):05x}{tail}"), ("user", "go on!!!"))
        for _ in range(requests)
    ]


def shuffled_tools(requests: int = 27, *, tools: int = 12) -> list[Body]:
    """One session that grows by a turn each time, its tools in another order each time."""
    rng = random.Random(7)
    named = [tool(f"tool_{at:02d}") for at in range(tools)]
    bodies, history = [], [("user", "find the fault")]
    for turn in range(requests):
        order = rng.sample(named, len(named))
        bodies.append(chat(("system", words(2, 200)), *history, tools=order))
        history += [("assistant", words(100 + turn, 40)), ("user", f"next, step {turn}")]
    return bodies
