"""Walks the ladder of precisions of one model on live llama.cpp arms: `trimtab quantize`.

The original runs all the time; each rung is written, read back, started beside it, scored on the same texts, measured
in turns with it, and ended. Files of rungs that are not chosen are removed at once.
"""

import asyncio
import platform
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import aiohttp
import msgspec

from trimtab.core.ports import Clock, LaunchError
from trimtab.core.revision import Model, Revision
from trimtab.engines.gguf_tensors import Group, TensorKind
from trimtab.engines.llamacpp import NAME
from trimtab.quality.ladder import ORIGINAL_KV, Rung, RungResult, choose, llamacpp_ladder
from trimtab.quality.loss import TextScore
from trimtab.quality.quantized import Confirmation, Quantized
from trimtab.quality.rung_results import (
    Measured,
    broken_of,
    garbage_of,
    is_garbage,
    notes_of,
    original_note,
    result_of,
)
from trimtab.quality.sensitivity import Sensitivity
from trimtab.runtime import quality_pair as pair
from trimtab.runtime.gguf_codec import convert
from trimtab.runtime.launcher import LlamaCppLauncher
from trimtab.runtime.model import KV_BYTES, check_model, engine_version, find_model
from trimtab.runtime.quality_arm import ArmError, QualityArm
from trimtab.runtime.quality_evals import (
    answered,
    check_schemas,
    eval_gate,
    eval_gates,
    outcomes,
)
from trimtab.runtime.quantize_ask import QuantizeAsk
from trimtab.runtime.quantize_original import (
    CONTEXT_TOKENS,
    Original,
    beginnings_of,
    plan_of,
    quantized_groups,
    shipped_kind,
    windows_of,
)
from trimtab.runtime.quantize_sensitivity import Probes, sensitivity_of

ORIGINAL: Final = "original"
SLOTS: Final = 4
FREE_TOKENS: Final = 64
SPARE_BYTES: Final = 64 * 1024 * 1024

Progress = Callable[[str, float], None]
"""(what is being done, part of the whole that is done)."""


class Quantizer:
    """One walk. `on_progress` hears what is being done."""

    def __init__(self, ask: QuantizeAsk, clock: Clock, on_progress: Progress) -> None:
        self._ask = ask
        self._clock = clock
        self._say = on_progress

    async def run(self) -> Quantized:
        """Walk; raises `LaunchError`, `ArmError`, `TextError`. Whatever was started is ended."""
        began_s = self._clock.mono_s()
        check_schemas(self._ask.evals)
        source = find_model(self._ask.model)
        header = check_model(source.path)
        shipped = shipped_kind(header)
        launcher = LlamaCppLauncher(clock=self._clock, start_timeout_s=self._ask.start_timeout_s)
        try:
            async with pair.plain_session() as session:
                walk = _Walk(self._ask, launcher, session, self._say)
                return await walk.run(source, shipped, began_s, self._clock)
        finally:
            await launcher.close()
            await asyncio.to_thread(_clear, self._ask.folder / "models")


class _Walk:
    def __init__(
        self,
        ask: QuantizeAsk,
        launcher: LlamaCppLauncher,
        session: aiohttp.ClientSession,
        say: Progress,
    ) -> None:
        self._ask = ask
        self._launcher = launcher
        self._session = session
        self._say = say
        self._places = launcher.place([ORIGINAL, "rung"])
        self._folder = ask.folder / "models"
        self._written: Path | None = None
        """The file of the present rung, while one is kept."""

    async def run(
        self, source: Model, shipped: str | None, began_s: float, clock: Clock
    ) -> Quantized:
        original = await self._original(source, shipped)
        again = await original.arm.score(original.windows[0])
        repeat = max(
            abs(a - b) for a, b in zip(again.losses, original.scores[0].losses, strict=True)
        )
        plan = plan_of(self._ask, original)
        self._ask.on_plan(plan)
        found = await self._sensitivity(original)
        rungs = self._rungs(found, shipped)
        results: list[RungResult] = []
        for number, rung in enumerate(rungs):
            self._say(
                f"{rung.label} ({number + 1} of {len(rungs)})", 0.2 + 0.7 * number / len(rungs)
            )
            path = await self._file(original, source, rung, found)
            results.append(await self._measure(original, rung, path))
            if number + 1 == len(rungs) or rungs[number + 1].name != rung.name:
                self._discard()
        choice = choose(results, kv_binds=self._ask.kv_binds)
        chosen = next(one for one in results if one.rung.label == choice.rung)
        confirmation = None
        if self._ask.confirm and not chosen.rung.is_original:
            self._say(f"{chosen.rung.label}, once more", 0.92)
            confirmation = await self._confirm(original, source, chosen, found)
        holds = confirmation is None or confirmation.holds
        artifact = await self._artifact(original, chosen, source, found) if holds else None
        return Quantized(
            engine=f"{NAME}/{engine_version()}",
            model=source.path,
            model_sha256=source.sha256,
            original=original.model.path,
            original_note=original_note(shipped),
            plan=plan,
            repeats_exactly=repeat == 0.0,
            repeat_spread=repeat,
            sensitivity=found,
            results=tuple(results),
            choice=choice,
            confirmation=confirmation,
            artifact=artifact,
            lever_record=None,
            kv_binds=self._ask.kv_binds,
            notes=notes_of(shipped, results),
            machine=f"{platform.machine()}, {self._places[0].threads} threads an arm",
            took_s=clock.mono_s() - began_s,
            items=outcomes(self._ask.evals, original.right),
        )

    async def _original(self, source: Model, shipped: str | None) -> Original:
        """Expand a quantized file to F16, the original from here on; start it and score it once."""
        model = source
        if shipped is not None:
            self._say("expanding to F16", 0.0)
            target = self._folder / "original-f16.gguf"
            await self._convert(
                Path(source.path), target, dict.fromkeys(quantized_groups(source), TensorKind.F16)
            )
            model = find_model(str(target))
        self._say("starting the original", 0.03)
        url = await self._launcher.start(_revision(model, ORIGINAL_KV), self._places[0])
        arm = QualityArm(ORIGINAL, url, self._session)
        windows = await windows_of(arm, self._ask.texts, self._ask.positions)
        self._say("scoring the original", 0.05)
        scores = await pair.scored(arm, windows)
        beginnings = beginnings_of(windows, self._ask.free_prompts)
        self._say("letting the original write", 0.1)
        writings = await pair.written(arm, beginnings, FREE_TOKENS, seed=1)
        own = await pair.judged(arm, beginnings, writings)
        right = await answered(arm, self._ask.evals)
        return Original(
            model,
            arm,
            windows,
            scores,
            beginnings,
            writings,
            own,
            right,
        )

    async def _sensitivity(self, original: Original) -> Sensitivity | None:
        if not self._ask.sensitivity:
            return None
        probes = Probes(
            source=Path(original.model.path),
            folder=self._folder,
            margin_nats=self._ask.margin_nats,
            say=lambda words, part: self._say(words, 0.1 + 0.1 * part),
        )
        # Half the windows: a group's damage decides an order, every rung is scored whole.
        windows, scores = original.windows[::2], original.scores[::2]

        async def score(path: Path) -> tuple[TextScore, ...]:
            async with self._started(find_model(str(path)), ORIGINAL_KV) as arm:
                return await pair.scored(arm, windows)

        return await sensitivity_of(probes, check_model(original.model.path), scores, score)

    def _rungs(self, found: Sensitivity | None, shipped: str | None) -> tuple[Rung, ...]:
        lowered = None if found is None else found.lowered
        every = llamacpp_ladder(lowered, kv_types=self._ask.kv_types, shipped=shipped)
        if not self._ask.only:
            return every
        names = {rung.name for rung in every}
        if unknown := [name for name in self._ask.only if name not in names]:
            raise LaunchError(f"there is no rung {unknown[0]!r}: {', '.join(sorted(names))}")
        return tuple(rung for rung in every if rung.is_original or rung.name in self._ask.only)

    async def _file(
        self, original: Original, source: Model, rung: Rung, found: Sensitivity | None
    ) -> Path:
        """Return the rung's file, written now unless it is the original or what was given."""
        if rung.shipped:
            return Path(source.path)
        if not rung.kinds:
            return Path(original.model.path)
        target = self._folder / f"rung-{_file_word(rung)}.gguf"
        if self._written != target:
            await self._convert(Path(original.model.path), target, rung.kinds, _kept(found))
            self._written = target
        return target

    def _discard(self) -> None:
        """Remove the file of a rung that is over."""
        if self._written is not None:
            self._written.unlink(missing_ok=True)
            self._written = None

    async def _convert(
        self,
        source: Path,
        target: Path,
        kinds: dict[Group, TensorKind],
        keep: frozenset[str] = frozenset(),
    ) -> None:
        await asyncio.to_thread(_convert, source, target, kinds, keep)

    async def _measure(self, original: Original, rung: Rung, path: Path) -> RungResult:
        measured = Measured(
            rung=rung,
            header=check_model(str(path)),
            file_bytes=_size(path),
            kv_bytes_per_value=KV_BYTES[rung.kv_type],
            kinds=tuple(dict.fromkeys(text.kind for text in self._ask.texts)),
            evals=tuple(eval_gate(kind) for kind in self._ask.evals.kinds),
        )
        try:
            return await self._answered(original, measured, path)
        except (ArmError, LaunchError) as error:
            if rung.is_original:
                raise
            # One rung that does not start or answer is an answer about that rung, not the end of the walk.
            return broken_of(measured, str(error))

    async def _answered(self, original: Original, measured: Measured, path: Path) -> RungResult:
        async with self._started(find_model(str(path)), measured.rung.kv_type) as arm:
            scores: list[TextScore] = []
            for window, before in zip(original.windows, original.scores, strict=True):
                scores.append(await arm.score(window))
                if is_garbage(before, scores[-1]):
                    return garbage_of(measured, before, scores[-1])
            gates = pair.loss_gates(
                original.scores, scores, pair.loss_margin(self._ask.margin_nats)
            )
            writings = await pair.written(arm, original.beginnings, FREE_TOKENS, seed=1)
            own = await pair.judged(original.arm, original.beginnings, writings)
            right = await answered(arm, self._ask.evals)
            speed = await pair.speed_of(
                original.arm.url,
                arm.url,
                rounds=self._ask.rounds,
                concurrencies=self._ask.concurrencies,
            )
            resident = self._launcher.memory_bytes("rung")
        return result_of(
            msgspec.structs.replace(
                measured,
                quality={
                    **gates,
                    **pair.free_gates(original.own, own),
                    **eval_gates(self._ask.evals, original.right, right, self._ask.eval_margin),
                },
                speed=speed,
                resident_bytes=resident,
                signs=pair.signs_of(original.writings, writings),
                right=right,
            )
        )

    async def _confirm(
        self, original: Original, source: Model, chosen: RungResult, found: Sensitivity | None
    ) -> Confirmation:
        path = await self._file(original, source, chosen.rung, found)
        result = await self._measure(original, chosen.rung, path)
        again = result.speed.score.interval if result.speed else None
        faster = again is not None and again.high < 1.0
        told = (result.verdict, result.kinds, result.elsewhere)
        holds = told == (chosen.verdict, chosen.kinds, chosen.elsewhere) and faster
        words = (
            f"second run: {result.verdict.value} ({result.because}); latency and cost "
            f"{result.speed.score.ratio:.2f} of the original"
            if result.speed and result.speed.score.ratio
            else f"second run: {result.verdict.value} ({result.because})"
        )
        return Confirmation(result=result, holds=holds, because=words)

    async def _artifact(
        self, original: Original, chosen: RungResult, source: Model, found: Sensitivity | None
    ) -> str | None:
        """Keep the chosen file; None where the original is the answer."""
        if chosen.rung.is_original:
            return None
        if not chosen.rung.kinds:
            # KV alone is lowered: the original's own file serves.
            return original.model.path
        path = await self._file(original, source, chosen.rung, found)
        target = self._ask.folder / f"{Path(source.path).stem}.{_file_word(chosen.rung)}.gguf"
        # Beside the report, so on the same disk: the very file that was measured is moved.
        path.replace(target)
        self._written = None
        return str(target)

    @asynccontextmanager
    async def _started(self, model: Model, kv_type: str) -> AsyncIterator[QualityArm]:
        url = await self._launcher.start(_revision(model, kv_type), self._places[1])
        try:
            yield QualityArm("rung", url, self._session)
        finally:
            await self._launcher.stop("rung", grace_s=2.0)


def _revision(model: Model, kv_type: str) -> Revision:
    return Revision(
        engine=NAME,
        engine_version=engine_version(),
        model=model,
        kv_type=kv_type,
        slots=SLOTS,
        context_tokens=CONTEXT_TOKENS,
    )


def _file_word(rung: Rung) -> str:
    return rung.name.replace(" ", "-").replace(",", "")


def _kept(found: Sensitivity | None) -> frozenset[str]:
    return frozenset() if found is None else found.kept_tensors


def _convert(
    source: Path, target: Path, kinds: dict[Group, TensorKind], keep: frozenset[str]
) -> None:
    free, need = shutil.disk_usage(_existing(target.parent)).free, SPARE_BYTES + _size(source)
    if free < need:
        raise LaunchError(
            f"{target.parent} has {free >> 20:,} MiB free and {need >> 20:,} are needed for a copy of {source}: "
            "choose another folder (--report)"
        )
    convert(source, target, kinds, keep=keep)


def _clear(folder: Path) -> None:
    """Remove what a walk wrote on its way, also if it was ended in the middle; the expansion stays."""
    for path in (*folder.glob("rung-*.gguf"), *folder.glob("probe-*.gguf")):
        path.unlink(missing_ok=True)


def _size(path: Path) -> int:
    return path.stat().st_size


def _existing(folder: Path) -> Path:
    while not folder.exists():
        folder = folder.parent
    return folder
