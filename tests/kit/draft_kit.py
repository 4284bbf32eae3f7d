"""Drafting without an engine: answers by a rule and times by a law, so that what should be found is known."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from trimtab.core.config import EngineConfig
from trimtab.core.revision import Model, Revision, Speculation
from trimtab.engines.llamacpp_decode import Decoded
from trimtab.policies.ngram_drafts import DraftCounts, NewestMatch, replay
from trimtab.runtime.speculate_arm import LoopTime, Noise, Prompt
from trimtab.runtime.speculate_ask import SpeculateAsk
from trimtab.workloads.draft_samples import DraftSample

REVISION = Revision(
    engine="llamacpp",
    engine_version="1",
    model=Model(path="m.gguf", sha256="0" * 64, name="m"),
    slots=16,
)


class Law(msgspec.Struct, frozen=True):
    """What a step costs: `base` + `token` for each token computed + `looking` where the engine can draft."""

    base: float = 10.0
    token: float = 0.5
    looking: float = 0.1

    def ms(self, batch: int, drafted: float, *, drafting: bool) -> float:
        return self.base + self.token * batch * (1 + drafted) + self.looking * drafting


def word(text: str) -> int:
    """The token of a word: the same for the same word."""
    return sum(ord(letter) * 31**place for place, letter in enumerate(text)) % 1_000_003


class FakeArm:
    """Answers a prompt with what `say` makes of its words; `broken`: what drafts do to answers bound to a schema."""

    def __init__(
        self,
        name: str,
        speculation: Speculation,
        law: Law,
        say: Callable[[str], str],
        *,
        broken: bool = False,
    ) -> None:
        self.name = name
        self._speculation = speculation
        self._law = law
        self._say = say
        self._broken = broken
        self._texts: dict[tuple[int, ...], str] = {}

    async def chat_prompt(self, messages: Any) -> str:
        return " ".join(str(each["content"]) for each in messages)

    async def tokens(self, text: str) -> tuple[int, ...]:
        found = tuple(word(each) for each in text.split())
        TEXTS[found] = text
        return found

    async def warm(self, prompt: Prompt, *, slot: int) -> None: ...

    def _counts(self, prompt: Prompt, output: Sequence[int]) -> DraftCounts:
        match, depth = self._speculation.match_tokens, self._speculation.draft_tokens_max
        rule = NewestMatch(match or 10_000, depth or 1)
        return replay(prompt.tokens, output, rule, tokens_max=prompt.tokens_max)

    def _step_ms(self, batch: int, counts: DraftCounts) -> float:
        drafted = sum(counts.drafted) / counts.steps if counts.steps else 0.0
        return self._law.ms(batch, drafted, drafting=self._speculation.is_on)

    async def answer(self, prompt: Prompt, *, slot: int, temperature: float, seed: int) -> Decoded:
        text = self._say(TEXTS[prompt.tokens])
        if prompt.schema is not None:
            text = "no JSON" if self._broken and self._speculation.is_on else '{"a": 1}'
        output = tuple(word(each) for each in text.split())
        if temperature > 0.0:
            # Sampling parts from the prompt in every second token.
            output = tuple(token + at % 2 * (1 + at) for at, token in enumerate(output))
        counts = self._counts(prompt, output)
        return Decoded(
            tokens=output,
            text=text,
            output_tokens=len(output),
            # A machine is never quite steady.
            decode_ms=counts.steps * self._step_ms(1, counts) * (1.0 + 0.001 * (slot % 3)),
            drafted=sum(counts.drafted),
            accepted=sum(counts.accepted),
            computed=1,
            ended=True,
        )

    async def noise(
        self, prompt: Sequence[int], alphabet: Sequence[int], *, batch: int, tokens: int, seed: int
    ) -> list[Noise]:
        depth = self._speculation.draft_tokens_max or 0
        # Looked up singly, a token of the alphabet is found; 64 of them never.
        single = self._speculation.match_tokens == 1
        runs = []
        for slot in range(batch):
            rng = random.Random(seed + slot)
            drawn = tuple(rng.choice(alphabet) for _ in range(tokens))
            rule = NewestMatch(1, depth) if single else NewestMatch(10_000, 1)
            counts = replay(prompt, drawn, rule, tokens_max=10_000)
            drafted = sum(counts.drafted) / counts.steps
            ms = self._law.ms(batch, drafted, drafting=self._speculation.is_on)
            runs.append(Noise(tokens=drawn, ms=counts.steps * ms * (1.0 + 0.001 * (seed % 7))))
        return runs

    async def loop(self, prompts: Sequence[Prompt], *, batch: int, least_s: float) -> LoopTime:
        counts = DraftCounts()
        for prompt in prompts:
            output = tuple(word(each) for each in self._say(TEXTS[prompt.tokens]).split())
            counts += self._counts(prompt, output)
        ms = self._step_ms(batch, counts) / (counts.tokens_per_step or 1.0)
        LOOPS.append(batch)
        wobble = 1.0 + 0.001 * (len(LOOPS) % 5)
        return LoopTime(batch=batch, tokens=1000, active_ms=1000.0 * ms * wobble)


TEXTS: dict[tuple[int, ...], str] = {}
LOOPS: list[int] = []


class FakeStage:
    """Starts fake arms and keeps what was asked of it."""

    def __init__(
        self,
        law: Law | None = None,
        *,
        say: Callable[[str], str] | None = None,
        broken: bool = False,
    ) -> None:
        self.revision = REVISION
        self.threads = 1
        self.started: list[str] = []
        self.stopped: list[str] = []
        self.spreads: list[tuple[str, str, tuple[int, ...]]] = []
        self._law = law or Law()
        self._say = say or echo
        self._broken = broken

    async def start(self, name: str, speculation: Speculation) -> FakeArm:
        self.started.append(name)
        return FakeArm(name, speculation, self._law, self._say, broken=self._broken)

    async def stop(self, arm: FakeArm) -> None:
        self.stopped.append(arm.name)

    async def spread(self, source: FakeArm, target: FakeArm, places: Sequence[int]) -> None:
        self.spreads.append((source.name, target.name, tuple(places)))

    async def idle(self, arm: FakeArm) -> None: ...


def echo(prompt: str) -> str:
    """Repeat the words between the marks, or say something of one's own."""
    _, mark, rest = prompt.partition("EDIT ")
    return rest.partition(" END")[0] if mark else " ".join(f"own{at}" for at in range(30))


def stumble(prompt: str) -> str:
    """Repeat as `echo` does, but for every eighth word: most drafts go wrong in the middle."""
    words = echo(prompt).split()
    return " ".join(f"new_{each}" if at % 8 == 7 else each for at, each in enumerate(words))


def edit(number: int, words: int = 60) -> DraftSample:
    code = " ".join(f"code{number}_{at}" for at in range(words))
    return DraftSample(
        label="edit",
        messages=({"role": "user", "content": f"please repeat EDIT {code} END of it"},),
        tokens_max=128,
        expected=code,
    )


def talk(number: int) -> DraftSample:
    return DraftSample(label="chat", prompt=f"tell me of subject {number} at length", tokens_max=64)


def bound(number: int) -> DraftSample:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    return DraftSample(label="record", prompt=f"a record of {number}", tokens_max=64, schema=schema)


def ask_of(*samples: DraftSample, **changes: Any) -> SpeculateAsk:
    """A small ask: edits that repeat, chats that do not, records bound to a schema."""
    every = samples or (
        *(edit(n) for n in range(4)),
        *(talk(n) for n in range(3)),
        *(bound(n) for n in range(2)),
    )
    asked = SpeculateAsk(
        engine=EngineConfig(),
        samples=tuple(every),
        depths=(4, 8),
        batches=(1, 2, 4, 8),
        temperatures=(0.0, 1.0),
        rounds=3,
        loop_s=0.2,
    )
    return msgspec.structs.replace(asked, **changes)
