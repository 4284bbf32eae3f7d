"""One llama.cpp server whose decode is measured: whole answers with the engine's own times, and closed loops."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from typing import Any, Final, TypeVar

import aiohttp
import msgspec

from trimtab.core.ports import Clock
from trimtab.engines.llamacpp_decode import (
    TEMPLATE_PATH,
    Decoded,
    decode_body,
    noise_body,
    read_decoded,
    read_piece,
    read_template,
    template_body,
)
from trimtab.engines.llamacpp_score import (
    COMPLETION_PATH,
    TOKENIZE_PATH,
    read_tokens,
    tokenize_body,
)
from trimtab.engines.sse import SSEParser
from trimtab.runtime.asked_arm import JSON_HEADERS, REQUEST_TIMEOUT, ArmError, AskedArm

T = TypeVar("T")

NOISE_SPARE: Final = 80
"""Tokens asked for and not read; more than any draft has."""


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked in one slot: tokens, and how many may be answered."""

    tokens: tuple[int, ...]
    tokens_max: int
    schema: Any = None


class Noise(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens that a stream drew, and milliseconds from the first that arrived to the last."""

    tokens: tuple[int, ...]
    ms: float


class LoopTime(msgspec.Struct, frozen=True, kw_only=True):
    """A closed loop of `batch` streams. `active_ms`: of all streams together, between their tokens."""

    batch: int
    tokens: int
    active_ms: float

    @property
    def tpot_ms(self) -> float:
        """Milliseconds of a stream's output token; raises `ArmError` where none came."""
        if not self.tokens or self.active_ms <= 0.0:
            raise ArmError(f"{self.batch} streams gave no token after their first: loop longer")
        return self.active_ms / self.tokens

    @property
    def tokens_per_s(self) -> float:
        """Output tokens per second of all streams at this batch."""
        return 1000.0 * self.batch / self.tpot_ms


class DraftArm(AskedArm):
    """Asks one running server. `name`: for messages."""

    def __init__(self, name: str, url: str, session: aiohttp.ClientSession, clock: Clock) -> None:
        super().__init__(name, url, session)
        self._clock = clock

    async def chat_prompt(self, messages: Any) -> str:
        """Return a chat as the model's template writes it; raises `ArmError`."""
        return self._read(await self._post(TEMPLATE_PATH, template_body(messages)), read_template)

    async def tokens(self, text: str) -> tuple[int, ...]:
        """Return the tokens of a text; raises `ArmError`."""
        return self._read(await self._post(TOKENIZE_PATH, tokenize_body(text)), read_tokens)

    async def answer(self, prompt: Prompt, *, slot: int, temperature: float, seed: int) -> Decoded:
        """Return the whole answer; raises `ArmError`."""
        body = decode_body(
            prompt.tokens,
            tokens_max=prompt.tokens_max,
            temperature=temperature,
            seed=seed,
            slot=slot,
            schema=prompt.schema,
        )
        return self._read(await self._post(COMPLETION_PATH, body), read_decoded)

    async def warm(self, prompt: Prompt, *, slot: int) -> None:
        """Compute a prompt in a slot; raises `ArmError`."""
        one = msgspec.structs.replace(prompt, tokens_max=1, schema=None)
        await self.answer(one, slot=slot, temperature=0.0, seed=1)

    async def noise(
        self, prompt: Sequence[int], alphabet: Sequence[int], *, batch: int, tokens: int, seed: int
    ) -> list[Noise]:
        """Let `batch` slots draw tokens from an alphabet at once, and leave after `tokens`; raises `ArmError`.

        More are asked for than are read, because the engine drafts no further than the answer may go.
        """
        bodies = [
            noise_body(prompt, alphabet, tokens=tokens + NOISE_SPARE, seed=seed + slot, slot=slot)
            for slot in range(batch)
        ]
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._noise(body, tokens)) for body in bodies]
        except* ArmError as failed:
            raise failed.exceptions[0] from None
        return [task.result() for task in tasks]

    async def _noise(self, body: bytes, tokens: int) -> Noise:
        drawn: list[int] = []
        first_s = last_s = 0.0
        async with contextlib.aclosing(self._pieces(body)) as pieces:
            async for now_s, new in pieces:
                first_s, last_s = (first_s if drawn else now_s), now_s
                drawn += new
                if len(drawn) >= tokens:
                    break
        return Noise(tokens=tuple(drawn), ms=1000.0 * (last_s - first_s))

    async def loop(self, prompts: Sequence[Prompt], *, batch: int, least_s: float) -> LoopTime:
        """Answer greedily with `batch` streams at once, each slot its own prompt, again and again.

        Stream w takes the slots w, w + batch, ... in turn and never waits for the others, so that they come out of
        step as in service. It ends `least_s` after every stream has its first token; what is running then counts up
        to there. `prompts[i]` is what slot i holds; there must be `batch` of them at least. Raises `ArmError`.
        """
        book = _LoopBook(batch)
        try:
            async with asyncio.TaskGroup() as group:
                workers = [
                    group.create_task(self._stream_on(book, stream, prompts[stream::batch], batch))
                    for stream in range(batch)
                ]
                await book.all_began.wait()
                await asyncio.sleep(least_s)
                book.close()
                for worker in workers:
                    worker.cancel()
        except* ArmError as failed:
            raise failed.exceptions[0] from None
        return LoopTime(batch=batch, tokens=book.tokens, active_ms=book.active_ms)

    async def _stream_on(
        self, book: "_LoopBook", stream: int, prompts: Sequence[Prompt], batch: int
    ) -> None:
        turn = 0
        while True:
            place = turn % len(prompts)
            prompt = prompts[place]
            body = decode_body(
                prompt.tokens,
                tokens_max=prompt.tokens_max,
                temperature=0.0,
                seed=1,
                slot=stream + place * batch,
                stream=True,
            )
            await self._stream(book, stream, body)
            turn += 1

    async def _stream(self, book: "_LoopBook", stream: int, body: bytes) -> None:
        book.begin(stream)
        async with contextlib.aclosing(self._pieces(body)) as pieces:
            async for now_s, new in pieces:
                book.came(stream, len(new), now_s)

    async def _pieces(self, body: bytes) -> AsyncGenerator[tuple[float, list[int]], None]:
        """Yield what arrives at once: when, and its tokens; raises `ArmError`."""
        parser = SSEParser()
        async with contextlib.aclosing(self._parts(body)) as parts:
            async for now_s, data in parts:
                events = [event.data for event in parser.feed(data) if event.data is not None]
                new = [token for each in events for token in self._read(each, read_piece)]
                if new:
                    yield now_s, new

    async def _parts(self, body: bytes) -> AsyncGenerator[tuple[float, bytes], None]:
        """Yield the bytes of a stream as they come, and when; raises `ArmError`."""
        try:
            async with self._session.post(
                self.url + COMPLETION_PATH, data=body, headers=JSON_HEADERS, timeout=REQUEST_TIMEOUT
            ) as response:
                if response.status != 200:
                    raise ArmError(f"{self.name} answered a stream with status {response.status}")
                async for data, _ in response.content.iter_chunks():
                    yield self._clock.mono_s(), data
        except (aiohttp.ClientError, TimeoutError) as error:
            raise ArmError(f"{self.name} broke a stream off: {type(error).__name__}") from error


class _LoopBook:
    """Tokens and the time between them, from the moment on when every stream has begun.

    Of each answer the time from one event to the next counts with the tokens of the later one; the wait for its first
    token does not, because it is the prompt's.
    """

    def __init__(self, batch: int) -> None:
        self.tokens = 0
        self.active_ms = 0.0
        self.all_began = asyncio.Event()
        self._last_s: list[float | None] = [None] * batch
        self._waiting = set(range(batch))
        self._closed = False

    def begin(self, stream: int) -> None:
        """Hear that a stream asks for its next answer."""
        self._last_s[stream] = None

    def came(self, stream: int, tokens: int, now_s: float) -> None:
        """Hear of tokens of a stream."""
        last_s, self._last_s[stream] = self._last_s[stream], now_s
        if self._waiting:
            self._waiting.discard(stream)
            if not self._waiting:
                self.all_began.set()
        elif last_s is not None and not self._closed:
            self.tokens += tokens
            self.active_ms += 1000.0 * (now_s - last_s)

    def close(self) -> None:
        """Hear no more: the gap that is running does not count."""
        self._closed = True
