"""Walks the ladder of precisions of one model on live arms of its engine: `trimtab quantize`.

The original runs all the time; each rung is written, read back, started beside it, scored on the same texts, measured
in turns with it, and ended. Files of rungs that are not chosen are removed at once. What differs between engines is
behind `LadderEngine`.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

import msgspec

from trimtab.core.ports import Clock, LaunchError
from trimtab.quality.eval_scores import eval_gate, eval_gates, floors_of, kinds_of
from trimtab.quality.ladder import (
    Rung,
    RungResult,
    bar_of,
    choose,
    spares_kv,
    why_not_faster,
    why_slower,
)
from trimtab.quality.loss import TextScore
from trimtab.quality.paired import PairedResult
from trimtab.quality.quantized import Confirmation, Quantized
from trimtab.quality.rung_results import (
    Measured,
    RungFacts,
    broken_of,
    garbage_of,
    is_garbage,
    is_harmful,
    is_refused,
    result_of,
    untried_of,
)
from trimtab.quality.sensitivity import Sensitivity
from trimtab.quality.turns import prompts_used
from trimtab.runtime import quality_pair as pair
from trimtab.runtime.asked_arm import ArmError
from trimtab.runtime.eval_judge import JudgeError
from trimtab.runtime.lm_eval import HarnessError
from trimtab.runtime.quality_arm import QualityArm, Window
from trimtab.runtime.quality_evals import answered, check_evals
from trimtab.runtime.quality_speed import speed_of
from trimtab.runtime.quantize_ask import QuantizeAsk
from trimtab.runtime.quantize_checks import check_models_text
from trimtab.runtime.quantize_engine import LadderEngine, OriginalArm, Progress, RungError
from trimtab.runtime.quantize_original import (
    Original,
    beginnings_of,
    context_of,
    plan_of,
    windows_of,
)
from trimtab.runtime.quantize_sitting import (
    Base,
    Sitting,
    begun,
    ended,
    fingerprint_of,
    kept,
    words_of,
)
from trimtab.runtime.sandbox import SandboxError

FREE_TOKENS: Final = 64
NOT_THE_RUNGS: Final = (JudgeError, HarnessError, SandboxError)
"""Failures of what judges a rung: they end the walk, which can be resumed, and are no verdict on the rung."""
NOTHING_WRITTEN: Final = RungFacts(
    effective={}, bits_per_weight=0.0, file_bytes=0, kv_bytes_per_token=None
)
SLOW_TIMES: Final = 20.0
"""A rung whose first text takes so many times the original's is refused unjudged, after `SLOW_MIN_S` at least."""
SLOW_MIN_S: Final = 30.0


class Quantizer:
    """One walk. `on_progress` hears what is being done."""

    def __init__(
        self, ask: QuantizeAsk, engine: LadderEngine, clock: Clock, on_progress: Progress
    ) -> None:
        self._ask = ask
        self._engine = engine
        self._clock = clock
        self._say = on_progress
        self._sitting = Sitting(fingerprint="")
        self._speed_seed = 0
        self._first_text_s = 0.0

    async def run(self) -> Quantized:
        """Walk; raises `LaunchError`, `ArmError`, `TextError`. Whatever was started is ended."""
        began_s = self._clock.mono_s()
        await check_evals(self._ask.evals, context_tokens=context_of(self._ask.engine))
        try:
            return await self._walk(began_s)
        finally:
            await self._engine.close()

    async def _walk(self, began_s: float) -> Quantized:
        started = await self._engine.original(self._say)
        fingerprint = fingerprint_of(
            self._ask,
            engine=self._engine.version,
            machine=self._engine.machine,
            sha256=started.sha256,
        )
        self._sitting = await asyncio.to_thread(begun, self._ask, fingerprint)
        original = await self._scored(started)
        at_s = self._clock.mono_s()
        again = await original.arm.score(original.windows[0])
        self._first_text_s = self._clock.mono_s() - at_s
        repeat = max(
            abs(a - b) for a, b in zip(again.losses, original.scores[0].losses, strict=True)
        )
        plan = plan_of(self._ask, original)
        self._ask.on_plan(plan)
        found = await self._sensitivity(original)
        results = await self._climbed(original, found)
        choice = choose(results, kv_binds=self._ask.kv_binds)
        chosen = next(one for one in results if one.rung.label == choice.rung)
        confirmation = None
        if self._ask.confirm and not chosen.rung.is_original:
            self._say(f"{chosen.rung.label}, once more", 0.92)
            confirmation = await self._confirm(original, chosen, found, results[0])
        holds = confirmation is None or confirmation.holds
        artifact = await self._artifact(chosen, found) if holds else None
        await asyncio.to_thread(ended, self._ask)
        return Quantized(
            engine=self._engine.version,
            model=started.source,
            model_sha256=started.sha256,
            original=started.path,
            original_note=started.note,
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
            notes=(*self._engine.notes(results), *words_of(self._sitting)),
            machine=self._engine.machine,
            took_s=self._clock.mono_s() - began_s,
            items=original.items,
            floors=floors_of(original.items),
        )

    async def _scored(self, started: OriginalArm) -> Original:
        """Score the original once and hear it once, unless an earlier sitting did."""
        arm = started.arm
        windows = await windows_of(arm, self._ask.texts, self._ask.positions)
        beginnings = beginnings_of(windows, self._ask.free_prompts)
        base = self._sitting.base
        if base is None:
            base = await self._base(started, windows, beginnings)
            await self._keep(msgspec.structs.replace(self._sitting, base=base))
        return Original(arm, windows, base.scores, beginnings, base.writings, base.own, base.items)

    async def _base(
        self, started: OriginalArm, windows: Sequence[Window], beginnings: Sequence[Window]
    ) -> Base:
        arm = started.arm
        self._say("scoring the original", 0.05)
        scores = await pair.scored(arm, windows)
        check_models_text(started.path, started.vocabulary, scores)
        self._say("letting the original write", 0.1)
        writings = await pair.written(arm, beginnings, FREE_TOKENS, seed=1)
        own = await pair.judged(arm, beginnings, writings)
        items = await answered(arm, self._ask.evals)
        return Base(scores=scores, writings=writings, own=own, items=items)

    async def _sensitivity(self, original: Original) -> Sensitivity | None:
        if not self._ask.sensitivity:
            return None
        if self._sitting.sensitivity is not None:
            return self._sitting.sensitivity
        # Half the windows: a group's damage decides an order, every rung is scored whole.
        found = await self._engine.sensitivity(
            original.windows[::2],
            original.scores[::2],
            lambda words, part: self._say(words, 0.1 + 0.1 * part),
        )
        await self._keep(msgspec.structs.replace(self._sitting, sensitivity=found))
        return found

    async def _climbed(self, original: Original, found: Sensitivity | None) -> list[RungResult]:
        """Measure every rung, in the order of the ladder."""
        rungs = self._rungs(found)
        results: dict[str, RungResult] = {}
        for number, rung in enumerate(rungs):
            self._say(
                f"{rung.label} ({number + 1} of {len(rungs)})", 0.2 + 0.7 * number / len(rungs)
            )
            result = self._sitting.results.get(rung.label)
            if result is None:
                before = results.get(rung.after)
                result = await self._measure(original, rung, found, before)
                done = {**self._sitting.results, rung.label: result}
                await self._keep(msgspec.structs.replace(self._sitting, results=done))
            results[rung.label] = result
            if number + 1 == len(rungs) or rungs[number + 1].name != rung.name:
                self._engine.discard()
        return list(results.values())

    async def _keep(self, sitting: Sitting) -> None:
        """Have it on disk, so that an interrupted walk can go on."""
        self._sitting = sitting
        await asyncio.to_thread(kept, self._ask, sitting)

    def _rungs(self, found: Sensitivity | None) -> tuple[Rung, ...]:
        every = self._engine.rungs(found)
        if not self._ask.only:
            return every
        names = {rung.name for rung in every} | {rung.label for rung in every}
        if unknown := [name for name in self._ask.only if name not in names]:
            raise LaunchError(f"there is no rung {unknown[0]!r}: {', '.join(sorted(names))}")
        asked = set(self._ask.only)
        return tuple(rung for rung in every if rung.is_original or {rung.name, rung.label} & asked)

    async def _measure(
        self,
        original: Original,
        rung: Rung,
        found: Sensitivity | None,
        before: RungResult | None = None,
    ) -> RungResult:
        """Measure one rung; `before`: the rung of an earlier stage that it rests on."""
        measured = Measured(
            rung=rung,
            facts=NOTHING_WRITTEN,
            kinds=tuple(dict.fromkeys(text.kind for text in self._ask.texts)),
            evals=tuple(eval_gate(kind) for kind in kinds_of(original.items)),
        )
        try:
            facts = await self._engine.write(rung, found)
        except RungError as error:
            return broken_of(measured, str(error))
        measured = msgspec.structs.replace(measured, facts=facts)
        if before is not None and is_refused(before):
            return untried_of(measured, before)
        try:
            return await self._answered(original, measured)
        except NOT_THE_RUNGS:
            raise
        except (ArmError, LaunchError) as error:
            if rung.is_original:
                raise
            # Where the original is gone too this raises: nothing is said of the rung then.
            await original.arm.score(original.windows[0])
            # One rung that does not start or answer is an answer about that rung, not the end of the walk.
            return broken_of(measured, str(error))

    async def _answered(self, original: Original, measured: Measured) -> RungResult:
        async with self._engine.started(measured.rung) as (arm, facts):
            measured = msgspec.structs.replace(measured, facts=facts)
            scores: list[TextScore] = []
            for window, before in zip(original.windows, original.scores, strict=True):
                scores.append(await (arm.score(window) if scores else self._first(arm, window)))
                if is_garbage(before, scores[-1]):
                    return garbage_of(measured, before, scores[-1])
            gates = pair.loss_gates(
                original.scores, scores, pair.loss_margin(self._ask.margin_nats)
            )
            heard = await self._heard(original, measured, arm, gates)
            speed = None
            if not measured.rung.quality_only:
                speed = await speed_of(
                    original.arm.url,
                    arm.url,
                    rounds=self._ask.rounds,
                    concurrencies=self._ask.concurrencies,
                    seed=self._next_seed(),
                )
            resident = self._engine.resident_bytes()
        heard = msgspec.structs.replace(heard, speed=speed, resident_bytes=resident)
        return result_of(heard)

    async def _first(self, arm: QualityArm, window: Window) -> TextScore:
        """Score a rung's first text; raises `ArmError` for one that is so slow that it is no answer whatever it says.

        Some kernels are there and have no implementation worth the name on this device.
        """
        limit_s = max(SLOW_MIN_S, SLOW_TIMES * self._first_text_s)
        try:
            async with asyncio.timeout(limit_s):
                return await arm.score(window)
        except TimeoutError:
            raise ArmError(
                f"its first text was not scored within {limit_s:.0f} s ({self._first_text_s:.1f} s under the "
                "original): too slow to be judged, it met no traffic"
            ) from None

    def _next_seed(self) -> int:
        """Return a seed of prompts that no rung of this sitting has met."""
        self._speed_seed += prompts_used(self._ask.rounds)
        return self._speed_seed

    async def _heard(
        self,
        original: Original,
        measured: Measured,
        arm: QualityArm,
        gates: dict[str, PairedResult],
    ) -> Measured:
        """Let a rung write and answer evals, unless log loss has refused it for every kind of text already."""
        if is_harmful(gates, measured.kinds):
            return msgspec.structs.replace(measured, quality=gates)
        writings = await pair.written(arm, original.beginnings, FREE_TOKENS, seed=1)
        own = await pair.judged(original.arm, original.beginnings, writings)
        try:
            items = await answered(arm, self._ask.evals)
        except HarnessError:
            # The harness fails with an arm that is gone, which this raises as the arm's own failure.
            await arm.score(original.windows[0])
            raise
        return msgspec.structs.replace(
            measured,
            quality={
                **gates,
                **pair.free_gates(original.own, own),
                **eval_gates(original.items, items, self._ask.eval_margin),
            },
            signs=pair.signs_of(original.writings, writings),
            items=items,
        )

    async def _confirm(
        self,
        original: Original,
        chosen: RungResult,
        found: Sensitivity | None,
        beside_itself: RungResult,
    ) -> Confirmation:
        """Measure the chosen rung once more and hold it to what it was chosen by."""
        result = await self._measure(original, chosen.rung, found)
        again = result.speed.score if result.speed else None
        # As it was chosen: fewer bytes of KV count where they bind, unless the rung is shown to be slower.
        by_kv = self._ask.kv_binds and spares_kv(chosen, beside_itself)
        refused = why_slower(again) if by_kv else why_not_faster(again, bar_of(beside_itself))
        told = (result.verdict, result.kinds, result.elsewhere)
        holds = told == (chosen.verdict, chosen.kinds, chosen.elsewhere) and not refused
        words = f"second run: {result.verdict.value} ({result.because})"
        if again is not None and again.ratio:
            words += f"; latency and cost {again.ratio:.2f} of the original"
        if refused:
            words += f"; {'slower' if by_kv else 'not faster'}: {refused}"
        return Confirmation(result=result, holds=holds, because=words)

    async def _artifact(self, chosen: RungResult, found: Sensitivity | None) -> str | None:
        """Keep the chosen files; None where the original is the answer."""
        if chosen.rung.is_original:
            return None
        await self._engine.write(chosen.rung, found)
        return await self._engine.keep(chosen.rung)
