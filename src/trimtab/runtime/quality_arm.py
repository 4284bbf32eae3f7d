"""One arm under test: its texts scored, its own writing, all through the server that would serve users."""

import math
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import aiohttp
import msgspec

from trimtab.engines.llamacpp import LlamaCppFormat
from trimtab.engines.openai import CHAT_PATH
from trimtab.engines.score_format import Ask, Generated, ScoreFormat
from trimtab.quality.evals import EvalItem
from trimtab.quality.loss import TextScore
from trimtab.runtime.asked_arm import AskedArm
from trimtab.workloads.base import COMPLETIONS_ENDPOINT

T = TypeVar("T")


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of one text of which those from `first` on are scored. `kind`: such as code or prose."""

    kind: str
    name: str
    tokens: tuple[int, ...]
    first: int

    @property
    def scored(self) -> int:
        """How many positions are scored."""
        return len(self.tokens) - self.first


class Reply(NamedTuple):
    """An arm's answer, and how many tokens its prompt has, as far as the engine says."""

    text: str
    input_tokens: int | None


class QualityArm(AskedArm):
    """Asks one running server. `name`: for messages."""

    def __init__(
        self, name: str, url: str, session: aiohttp.ClientSession, score_format: ScoreFormat
    ) -> None:
        super().__init__(name, url, session)
        self._format = score_format

    @property
    def streams(self) -> int:
        """How many continuations it may be asked for at once."""
        return self._format.streams

    async def tokens(self, text: str) -> tuple[int, ...]:
        """Return the tokens of a text; raises `ArmError`."""
        return await self._ask(self._format.tokens(text))

    async def score(self, window: Window) -> TextScore:
        """Force the tokens of a window one after the other and return their losses; raises `ArmError`."""
        losses: list[float] = []
        for ask in self._format.forced(window.tokens, window.first):
            # A forced token whose probability underflows is told as a huge negative number or none at all.
            losses += [-one if math.isfinite(one) else math.inf for one in await self._ask(ask)]
        return TextScore(
            kind=window.kind,
            name=window.name,
            first_position=window.first,
            losses=tuple(losses),
        )

    async def write(
        self, before: Sequence[int], tokens: int, *, temperature: float, seed: int
    ) -> Generated:
        """Let the arm continue `before` by itself; raises `ArmError`."""
        return await self._ask(
            self._format.continued(before, tokens, temperature=temperature, seed=seed)
        )

    async def answer(self, item: EvalItem, *, seed: int = 0) -> Reply:
        """Return the answer to an eval's prompt, over the path that serves users; raises `ArmError`."""
        body: dict[str, object] = {"max_tokens": item.max_tokens, "temperature": item.temperature}
        if item.temperature > 0.0:
            body["seed"] = seed
        if item.stop:
            body["stop"] = item.stop
        if item.prompt is None:
            body["messages"] = msgspec.to_builtins(item.messages)
            path = CHAT_PATH
        else:
            body["prompt"] = item.prompt
            path = COMPLETIONS_ENDPOINT
        data = await self._post(path, msgspec.json.encode(body))
        event = self._read(data, LlamaCppFormat().read_response)
        return Reply(event.text, event.report.prompt_tokens if event.report else None)

    async def _ask(self, ask: Ask[T]) -> T:
        return self._read(await self._post(ask.path, ask.body), ask.read)
