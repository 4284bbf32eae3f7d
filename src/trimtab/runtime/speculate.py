"""Finds where drafting pays on the embedded engine: `trimtab speculate`.

Answers are recorded without drafts; what every rule of drafting would have done over them is counted. What a step
costs by batch and by what it verifies is measured apart, where almost no draft agrees. Both together predict every
depth at every batch; then every depth runs, in turn with none, in closed loops of the requests that drafting promises
most for. In the end each request is answered alone with the chosen depth and without, at every temperature.
"""

import asyncio
import math
import platform
from collections.abc import Callable
from typing import Final

import aiohttp

from trimtab.core.ports import Clock, LaunchError
from trimtab.core.revision import Revision
from trimtab.levers.speculation_depths import best_drafting
from trimtab.levers.speculation_found import Speculated
from trimtab.runtime.asked_arm import ArmError
from trimtab.runtime.launcher import LlamaCppLauncher
from trimtab.runtime.model import baseline_revision, check_model, holds_checkpoint, resolved
from trimtab.runtime.speculate_answer import (
    Measured,
    answer_of,
    choose_settings,
    judged_label,
    looped_places,
)
from trimtab.runtime.speculate_ask import SpeculateAsk
from trimtab.runtime.speculate_compare import points_of, run_loops, run_pairs
from trimtab.runtime.speculate_record import asked_of, check_schemas, record
from trimtab.runtime.speculate_stage import DraftStage
from trimtab.runtime.speculate_steps import OFF, measure_steps, noise_prompt
from trimtab.workloads.draft_samples import DraftSample, sample_tokens

RECORDER: Final = "recorder"
CONTEXT_STEP: Final = 128
CONTEXT_SPARE: Final = 1.25
"""Prompts may be longer than they are estimated by so much."""
CONTEXT_MIN: Final = 512

Progress = Callable[[float, str], None]
"""(part done from 0 to 1, what is being done)."""


class Speculator:
    """One measurement."""

    def __init__(self, ask: SpeculateAsk, clock: Clock, on_progress: Progress) -> None:
        self._ask = ask
        self._clock = clock
        self._say = on_progress

    async def run(self) -> Speculated:
        """Measure; raises `LaunchError`, `ArmError`. Whatever was started is ended."""
        began_s = self._clock.mono_s()
        check_schemas(self._ask.samples)
        revision = await asyncio.to_thread(self._revision)
        launcher = LlamaCppLauncher(
            clock=self._clock,
            start_timeout_s=self._ask.start_timeout_s,
            threads=self._ask.engine.threads,
        )
        try:
            # Every request has a connection of its own: the engine closes kept ones when it likes.
            connector = aiohttp.TCPConnector(limit=0, force_close=True)
            async with aiohttp.ClientSession(connector=connector) as session:
                stage = DraftStage(launcher, session, self._clock, revision)
                try:
                    measured = await self.measure(stage)
                except ArmError as error:
                    raise ArmError(f"{error}{stage.ended()}") from error
        finally:
            await launcher.close()
        return answer_of(
            measured,
            self._ask,
            revision,
            machine=f"{platform.machine()}, {stage.threads} threads a replica",
            took_s=self._clock.mono_s() - began_s,
        )

    def _revision(self) -> Revision:
        ask = self._ask
        revision = baseline_revision(ask.engine)
        context = _context(ask.samples)
        slots = max(*ask.measured_batches, len(ask.samples))
        trained = check_model(revision.model.path).context_tokens
        return revision.replace(
            slots=slots,
            # All streams may draft at once, and the engine ends where a step has more tokens than its batch.
            chunk_tokens=max(revision.chunk_tokens, slots * (1 + max(ask.depths))),
            context_tokens=min(context, trained or context),
            speculation=OFF,
        )

    async def measure(self, stage: DraftStage) -> Measured:
        """Measure with the arms that a stage starts; raises `LaunchError`, `ArmError`."""
        ask = self._ask
        off = await stage.start(RECORDER, OFF)
        asked = await asked_of(off, ask.samples)
        answers = await record(off, asked, ask.seed, self._part(0.0, 0.1))
        label = judged_label(answers, ask)
        like = [one for one in asked if one.sample.label == label]
        prompt, alphabet = noise_prompt(asked, like, ask.seed)
        times, off_inside = await measure_steps(
            stage,
            prompt,
            alphabet,
            batches=ask.measured_batches,
            depths=ask.depths,
            rounds=ask.rounds,
            seed=ask.seed,
            say=self._part(0.1, 0.4),
        )
        chosen = choose_settings(label, answers, times, ask)
        loops, arms = await run_loops(
            stage,
            off,
            looped_places(asked, answers, label),
            asked,
            chosen.settings,
            batches=ask.measured_batches,
            rounds=ask.rounds,
            loop_s=ask.loop_s,
            say=self._part(0.4, 0.8),
        )
        points = points_of(loops, times, chosen.counts, ask.measured_batches)
        # Where no gain is shown, the depth next to that still tells what it does to each kind of traffic.
        depth = best_drafting(points, ask.batch)
        await stage.idle(arms[depth])
        await stage.spread(off, arms[depth], range(len(asked)))
        pairs = await run_pairs(
            off, arms[depth], asked, ask.temperatures, ask.seed, self._part(0.8, 1.0)
        )
        return Measured(
            times=times,
            off_inside=off_inside,
            chosen=chosen,
            loops=loops,
            points=points,
            depth=depth,
            pairs=pairs,
        )

    def _part(self, low: float, high: float) -> Progress:
        return lambda done, words: self._say(low + (high - low) * done, words)


def check_given(model: str) -> None:
    """Refuse a model that drafts cannot be measured with, before anything is made for it; raises `LaunchError`."""
    if not model:
        return
    path = resolved(model)
    if holds_checkpoint(path):
        raise LaunchError(
            f"{path} is a folder of weights as vLLM and SGLang serve them; drafts are measured on the embedded engine, "
            "which reads a GGUF file: name one; what drafts would find in the traffic of servers of such weights, "
            "trimtab repeats tells of their recorded requests"
        )
    check_model(str(path))


def _context(samples: tuple[DraftSample, ...]) -> int:
    """Return tokens of a slot that hold the longest request with its answer."""
    longest = max(CONTEXT_SPARE * sample_tokens(one) + one.tokens_max for one in samples)
    return max(CONTEXT_MIN, CONTEXT_STEP * math.ceil(longest / CONTEXT_STEP))
