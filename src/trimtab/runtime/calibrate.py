"""Measures on idle replicas what a prefill, a decode step and a speculated step cost.

Cost of one replica: prefills of unique prompts at two lengths and decode of short prompts at batch 1, 2 and 4, in
rounds for as long as the time allows.

Speculation: the same prompt is decoded by 1, 2, 4, ... streams at once, on a replica without and on one with
speculation, in turn and never at the same time, so that both meet the same machine; which goes first alternates.
The prompt is computed beforehand, on both replicas at once, and its KV copied into the other slots, so that only
decode counts. Every round takes another prompt, until the prompts or the time are used up.

Failure mode: all streams of a run decode the same prompt, so each batch knows only as many different answers as there
were rounds; the proof on real traffic is the judge, this is the prediction.
"""

import asyncio
import itertools
from collections.abc import Callable, Sequence
from statistics import median
from typing import Final, Protocol

import aiohttp
import msgspec

from trimtab.core.cost import CostModel, SpeculationTable
from trimtab.core.ports import (
    Clock,
    EngineFormat,
    EngineFormatError,
    EngineReport,
    LaunchError,
    SavedKV,
)
from trimtab.core.revision import Speculation
from trimtab.diagnosis.calibration import (
    BatchRun,
    CalibrationError,
    PrefillTiming,
    StepTiming,
    fit_cost,
    speculation_table,
)

Progress = Callable[[float, str], None]
"""(part done from 0 to 1, what is being measured)."""

REQUEST_TIMEOUT_S: Final = 60.0
COST_BUDGET_S: Final = 12.0
SPECULATION_BUDGET_S: Final = 40.0
PREFILL_WORDS: Final = (45, 190)
"""Words of the prompts to prefill: about 60 and 250 tokens."""
STEP_BATCHES: Final = (1, 2, 4)
ROUNDS_MAX: Final = 3
STEP_WORDS: Final = 6
STEP_OUTPUT_TOKENS: Final = 16
STEP_OUTPUT_TOKENS_MIN: Final = 4
COMPLETIONS_PATH: Final = "/v1/completions"

# Common words that are one token each for most tokenizers; their order makes a prompt unique.
# fmt: off
_WORDS: Final = (
    "time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child",
    "world", "school", "state", "family", "student", "group", "country", "problem", "hand", "part",
    "place", "case", "week", "company", "system", "program", "question", "work", "government", "number",
    "night", "point", "home", "water", "room", "mother", "area", "money", "story", "fact",
)
# fmt: on


class Replica(msgspec.Struct, frozen=True, kw_only=True):
    """A replica to measure: its id for the launcher, and its URL."""

    id: str
    url: str


class SlotKeeper(Protocol):
    """What copies KV between the slots of a replica: the launcher."""

    async def save_kv(self, replica: str) -> SavedKV:
        """See `Launcher`."""
        ...

    async def restore_kv(self, replica: str, saved: SavedKV) -> SavedKV:
        """See `Launcher`."""
        ...

    def discard_kv(self, saved: SavedKV) -> None:
        """Remove saved slots that will not be restored."""
        ...


class Prober:
    """Sends measured requests straight to replicas."""

    def __init__(
        self, session: aiohttp.ClientSession, engine_format: EngineFormat, clock: Clock
    ) -> None:
        self._session = session
        self._format = engine_format
        self.clock = clock

    async def ask(self, url: str, path: str, body: bytes) -> EngineReport:
        """Send one non-streaming body and return the engine's report; raises `CalibrationError`."""
        what = f"{url}{path} gave no measurement"
        timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S)
        headers = {"content-type": "application/json"}
        try:
            async with self._session.post(
                url + path, data=body, headers=headers, timeout=timeout
            ) as response:
                data = await response.read()
                status = response.status
        except (aiohttp.ClientError, TimeoutError) as error:
            raise CalibrationError(f"{what}: {type(error).__name__}") from error
        if status != 200:
            raise CalibrationError(f"{what}: status {status}")
        try:
            report = self._format.read_response(data).report
        except EngineFormatError as error:
            raise CalibrationError(f"{what}: {error}") from error
        if report is None:
            raise CalibrationError(f"{what}: the response carries no usage")
        return report

    async def ask_all(self, url: str, path: str, bodies: Sequence[bytes]) -> list[EngineReport]:
        """Send several bodies at once and return their reports in order; raises `CalibrationError`."""
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self.ask(url, path, body)) for body in bodies]
        except* CalibrationError as failed:
            raise failed.exceptions[0] from None
        return [task.result() for task in tasks]

    def pinned(self, body: bytes, slot: int, *, max_tokens: int) -> bytes:
        """Return a body made non-streaming and greedy, for one slot and so many output tokens."""
        fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        fields.pop("stream_options", None)
        fields.pop("max_completion_tokens", None)
        fields["stream"] = msgspec.Raw(b"false")
        fields["temperature"] = msgspec.Raw(b"0")
        fields["max_tokens"] = msgspec.Raw(str(max_tokens).encode())
        return self._format.edit_request(
            msgspec.json.encode(fields), include_usage=False, id_slot=slot
        )


async def calibrate_cost(
    base_url: str,
    engine_format: EngineFormat,
    *,
    session: aiohttp.ClientSession,
    clock: Clock,
    seed: int = 0,
    budget_s: float = COST_BUDGET_S,
    on_progress: Progress = lambda *_: None,
) -> CostModel:
    """Measure one idle replica and fit its cost model; raises `CalibrationError` if nothing could be timed.

    The first round is always finished; another begins only if the last one would fit into what is left of `budget_s`.
    """
    prober = Prober(session, engine_format, clock)
    began_s = clock.mono_s()
    numbers = itertools.count()
    prefills: list[PrefillTiming] = []
    steps: list[StepTiming] = []
    last_s = 0.0
    for turn in range(ROUNDS_MAX):
        turn_began_s = clock.mono_s()
        if turn and turn_began_s - began_s + last_s > budget_s:
            break
        for words in PREFILL_WORDS:
            done = min(0.95, (clock.mono_s() - began_s) / max(budget_s, 1e-3))
            on_progress(done, f"prefill of {words} words")
            prompt = _prompt(seed, next(numbers), words)
            prefills += await _time_prefill(prober, base_url, prompt)
        for batch in STEP_BATCHES:
            done = min(0.95, (clock.mono_s() - began_s) / max(budget_s, 1e-3))
            on_progress(done, f"decode of {batch} streams")
            prompts = [_prompt(seed, next(numbers), STEP_WORDS) for _ in range(batch)]
            found, timed = await _time_steps(prober, base_url, prompts)
            prefills += found
            steps += timed
        last_s = clock.mono_s() - turn_began_s
    on_progress(1.0, "fitted")
    took_s = clock.mono_s() - began_s
    return fit_cost(prefills, steps, source=f"measured on {base_url} in {took_s:.1f} s")


def _prompt(seed: int, at: int, words: int) -> str:
    """Return a prompt that shares no prefix with the others: its first words spell its number."""
    n = len(_WORDS)
    number = seed * 1009 + at
    head = [_WORDS[number % n], _WORDS[number // n % n], _WORDS[number // n // n % n]]
    rest = [_WORDS[(number * 31 + i * (7 + number % 11)) % n] for i in range(words - len(head))]
    return " ".join([*head, *rest])


def _completion(prompt: str, max_tokens: int) -> bytes:
    return msgspec.json.encode(
        {
            "model": "default",
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": False,
            # An engine that knows it keeps decoding, so that every stream has its tokens.
            "ignore_eos": True,
        }
    )


async def _time_prefill(prober: Prober, url: str, prompt: str) -> list[PrefillTiming]:
    return _prefill_of(await prober.ask(url, COMPLETIONS_PATH, _completion(prompt, 1)))


def _prefill_of(report: EngineReport) -> list[PrefillTiming]:
    if report.prompt_tokens is None or report.cached_tokens is None or report.prefill_ms is None:
        return []
    computed = report.prompt_tokens - report.cached_tokens
    return [PrefillTiming(computed, report.prefill_ms)] if computed > 0 else []


async def _time_steps(
    prober: Prober, url: str, prompts: Sequence[str]
) -> tuple[list[PrefillTiming], list[StepTiming]]:
    """Time the steps of one stream per prompt; a prompt that was computed alone is a short prefill as well."""

    def bodies(tokens: int) -> list[bytes]:
        return [
            prober.pinned(_completion(prompt, tokens), slot, max_tokens=tokens)
            for slot, prompt in enumerate(prompts)
        ]

    # Computed beforehand, so that no stream's prompt stalls the steps of the others.
    warmed = await prober.ask_all(url, COMPLETIONS_PATH, bodies(1))
    reports = await prober.ask_all(url, COMPLETIONS_PATH, bodies(STEP_OUTPUT_TOKENS))
    # Without a count of accepted drafts none were: the engine tells it of every answer that had one.
    told = [
        (report.decode_ms, report.output_tokens - 1, report.accepted_tokens or 0)
        for report in reports
        if report.decode_ms is not None
        and report.output_tokens is not None
        and report.output_tokens >= STEP_OUTPUT_TOKENS_MIN
    ]
    prefills = _prefill_of(warmed[0]) if len(warmed) == 1 else []
    if not told:
        return prefills, []
    ms = median(decode_ms / tokens for decode_ms, tokens, _ in told)
    per_step = median(tokens / max(1, tokens - accepted) for _, tokens, accepted in told)
    return prefills, [StepTiming(len(prompts), ms, per_step)]


class SpeculationProbe(msgspec.Struct, frozen=True, kw_only=True):
    """What to measure speculation with: bodies for `path`, named by their label in `content`."""

    path: str
    prompts: tuple[bytes, ...]
    content: str
    batches: tuple[int, ...] = (1, 2, 4, 8)
    output_tokens: int = 28
    rounds_max: int = 4


async def calibrate_speculation(
    off: Replica,
    on: Replica,
    speculation: Speculation,
    probe: SpeculationProbe,
    *,
    engine_format: EngineFormat,
    session: aiohttp.ClientSession,
    clock: Clock,
    keeper: SlotKeeper,
    budget_s: float = SPECULATION_BUDGET_S,
    on_progress: Progress = lambda *_: None,
) -> SpeculationTable:
    """Measure aggregate decode speed by batch without and with speculation; raises `CalibrationError`.

    `keeper` (the launcher) copies the KV of the first slot into the others. The first round is always finished;
    another begins only if the last one would fit into what is left of `budget_s`. Both replicas must be idle.
    """
    if not probe.prompts:
        raise CalibrationError(f"no prompt to measure speculation with: {probe.content!r} has none")
    prober = Prober(session, engine_format, clock)
    pair = _Pair(prober, off, on, probe, keeper)
    began_s = clock.mono_s()
    runs: list[BatchRun] = []
    last_s = 0.0
    for at, prompt in enumerate(probe.prompts[: probe.rounds_max]):
        round_began_s = clock.mono_s()
        if at and round_began_s - began_s + last_s > budget_s:
            break
        done = min(0.95, (round_began_s - began_s) / budget_s)
        on_progress(done, f"speculation, prompt {at + 1}: computing it on both replicas")
        await pair.warm(prompt)
        for step, batch in enumerate(probe.batches):
            done = min(0.95, (clock.mono_s() - began_s) / budget_s)
            on_progress(done, f"speculation, prompt {at + 1}: {batch} streams")
            runs += await pair.run(prompt, batch, round_=at, off_first=(at + step) % 2 == 0)
        last_s = clock.mono_s() - round_began_s
    on_progress(1.0, "measured")
    return speculation_table(runs, speculation=speculation, content=probe.content)


class _Pair:
    """The two replicas of a comparison."""

    def __init__(
        self,
        prober: Prober,
        off: Replica,
        on: Replica,
        probe: SpeculationProbe,
        keeper: SlotKeeper,
    ) -> None:
        self._prober = prober
        self._sides = ((off, False), (on, True))
        self._probe = probe
        self._keeper = keeper

    async def warm(self, prompt: bytes) -> None:
        """Compute the prompt in slot 0 of both replicas and copy its KV into as many slots as are needed."""
        try:
            async with asyncio.TaskGroup() as group:
                for replica, _ in self._sides:
                    group.create_task(self._warm(replica, prompt))
        except* CalibrationError as failed:
            raise failed.exceptions[0] from None

    async def _warm(self, replica: Replica, prompt: bytes) -> None:
        body = self._prober.pinned(prompt, 0, max_tokens=1)
        await self._prober.ask(replica.url, self._probe.path, body)
        try:
            saved = await self._keeper.save_kv(replica.id)
            first = [name for slot, name in saved.files if slot == 0]
            others = tuple((slot, name) for slot, name in saved.files if slot != 0)
            self._keeper.discard_kv(msgspec.structs.replace(saved, files=others))
            if not first:
                raise CalibrationError(f"replica {replica.id} did not save the slot of the prompt")
            copies = tuple((slot, first[0]) for slot in range(max(self._probe.batches)))
            copied = await self._keeper.restore_kv(
                replica.id, msgspec.structs.replace(saved, files=copies)
            )
        except LaunchError as error:
            raise CalibrationError(
                f"the prompt could not be copied between slots: {error}"
            ) from error
        if len(copied.files) < len(copies):
            raise CalibrationError(
                f"replica {replica.id} has {len(copied.files)} idle slots, {len(copies)} are needed"
            )

    async def run(
        self, prompt: bytes, batch: int, *, round_: int, off_first: bool
    ) -> list[BatchRun]:
        """Decode the prompt in `batch` slots at once on one side, then on the other."""
        sides = self._sides if off_first else tuple(reversed(self._sides))
        found: list[BatchRun] = []
        for replica, speculating in sides:
            bodies = [
                self._prober.pinned(prompt, slot, max_tokens=self._probe.output_tokens)
                for slot in range(batch)
            ]
            reports = await self._prober.ask_all(replica.url, self._probe.path, bodies)
            found.append(_batch_run(reports, batch, round_=round_, speculating=speculating))
        return found


def _batch_run(
    reports: Sequence[EngineReport], batch: int, *, round_: int, speculating: bool
) -> BatchRun:
    """Return output tokens of all streams over the longest decode; the first token of each is no decode."""
    output = sum(max(0, (report.output_tokens or 0) - 1) for report in reports)
    accepted = [report.accepted_tokens for report in reports if report.accepted_tokens is not None]
    return BatchRun(
        batch=batch,
        round=round_,
        speculating=speculating,
        output_tokens=output,
        wall_s=max((report.decode_ms or 0.0) for report in reports) / 1000.0,
        # An engine that drafted nothing says nothing of drafts.
        accepted_tokens=sum(accepted) if speculating else None,
    )
