"""What a decode step costs by batch and depth, measured where almost no draft agrees.

All streams draw tokens at random from a small alphabet that stands in their prompt. An engine that looks up single
tokens then drafts in nearly every step, and nearly every draft is wrong: each step verifies as many tokens as the depth
says and gives one. The same streams on an engine that cannot draft give the plain step, and on one that looks up 64
tokens, which never stand there twice, the step of an engine that could draft and does not.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Final

from trimtab.core.revision import Speculation, SpeculationMethod
from trimtab.policies.ngram_drafts import DraftCounts, NewestMatch, replay
from trimtab.policies.speculation_model import StepMeasured, StepTimes
from trimtab.quality.ladder import Ratio, ratio_of
from trimtab.runtime.asked_arm import ArmError
from trimtab.runtime.speculate_arm import Noise, Prompt
from trimtab.runtime.speculate_record import Asked
from trimtab.runtime.speculate_stage import DraftStage

ALPHABET_TOKENS: Final = 64
NEVER_MATCH: Final = 64
ENDLESS: Final = 1_000_000
PLAIN: Final = "plain"
IDLE: Final = "idle"
OFF: Final = Speculation()

STEPS: Final = ((2, 16), (4, 10), (8, 6))
"""(batch up to, steps of a run); larger batches take `STEPS_MIN`: their steps are long."""
STEPS_MIN: Final = 4


def idle_speculation() -> Speculation:
    """Return the speculation of an engine that looks and never finds."""
    return _simple(NEVER_MATCH, 1)


def _simple(match: int, depth: int) -> Speculation:
    return Speculation(
        method=SpeculationMethod.NGRAM_SIMPLE, match_tokens=match, draft_tokens_max=depth
    )


def noise_prompt(
    asked: Sequence[Asked], like: Sequence[Asked], seed: int
) -> tuple[Prompt, tuple[int, ...]]:
    """Return a prompt as long as those of `like` in the middle of their answers, ending in an alphabet; and that.

    Raises `ArmError` where the prompts have too few different tokens.
    """
    rng = random.Random(f"noise {seed}")
    known = sorted({token for one in asked for token in one.prompt.tokens})
    if len(known) < ALPHABET_TOKENS:
        raise ArmError(
            f"the requests have {len(known)} different tokens and {ALPHABET_TOKENS} are needed: give more of them"
        )
    alphabet = tuple(rng.sample(known, ALPHABET_TOKENS))
    lengths = sorted(len(one.prompt.tokens) + one.prompt.tokens_max // 2 for one in like)
    length = max(2 * ALPHABET_TOKENS + 3, lengths[len(lengths) // 2])
    longest = max(asked, key=lambda one: len(one.prompt.tokens)).prompt.tokens
    tail = (*rng.sample(alphabet, ALPHABET_TOKENS), *rng.sample(alphabet, ALPHABET_TOKENS))
    head = (longest * (1 + length // len(longest)))[: length - len(tail)]
    return Prompt(tokens=(*head, *tail), tokens_max=1), alphabet


async def measure_steps(
    stage: DraftStage,
    prompt: Prompt,
    alphabet: Sequence[int],
    *,
    batches: Sequence[int],
    depths: Sequence[int],
    rounds: int,
    seed: int,
    say: Callable[[float, str], None],
) -> tuple[StepTimes, dict[int, Ratio]]:
    """Measure every arm at every batch, in turn, `rounds` times; who goes first changes.

    Returns the times and, by batch, the step of an engine that only looks over the plain one. Raises `ArmError`.
    """
    arms = {
        PLAIN: await stage.start(PLAIN, OFF),
        IDLE: await stage.start(IDLE, idle_speculation()),
        **{str(k): await stage.start(f"noise{k}", _simple(1, k)) for k in depths},
    }
    most = max(batches)
    await arms[PLAIN].warm(prompt, slot=0)
    for arm in [*arms.values()][::-1]:
        await stage.spread(arms[PLAIN], arm, [0] * most)
        # The first step of a size is slower: the engine lays out its work.
        await arm.noise(prompt.tokens, alphabet, batch=most, tokens=2, seed=seed)
        await stage.idle(arm)
    seen: dict[tuple[str, int], list[StepMeasured]] = {}
    for turn in range(rounds):
        for at, batch in enumerate(batches):
            say((turn + at / len(batches)) / rounds, f"steps of {batch} streams, round {turn + 1}")
            names = [*arms]
            shift = (turn + at) % len(names)
            for name in names[shift:] + names[:shift]:
                await stage.idle(arms[name])
                runs = await arms[name].noise(
                    prompt.tokens,
                    alphabet,
                    batch=batch,
                    tokens=1 + steps_of(batch),
                    seed=seed + 1000 * turn,
                )
                depth = int(name) if name.isdigit() else 0
                seen.setdefault((name, batch), []).append(step_of(prompt, runs, depth))
    for arm in arms.values():
        await stage.stop(arm)
    return _times(seen, batches, depths), _off_inside(seen, batches)


def steps_of(batch: int) -> int:
    """Return how many steps a run of a batch takes."""
    return next((steps for most, steps in STEPS if batch <= most), STEPS_MIN)


def step_of(prompt: Prompt, runs: Sequence[Noise], depth: int) -> StepMeasured:
    """Return the mean step of streams that ran together; raises `ArmError` without a step.

    How many steps there were and what they verified follows from the tokens by the engine's rule.
    """
    counts = DraftCounts()
    for run in runs:
        rule = NewestMatch(1, depth) if depth else _Silent()
        counts += replay(prompt.tokens, run.tokens, rule, tokens_max=ENDLESS)
    if not counts.steps:
        raise ArmError(f"{len(runs)} streams took no step")
    return StepMeasured(
        batch=len(runs),
        drafted=sum(counts.drafted) / counts.steps,
        ms=sum(run.ms for run in runs) / counts.steps,
        steps=counts.steps // len(runs),
    )


class _Silent:
    """Drafts nothing."""

    def draft(self, history: Sequence[int]) -> Sequence[int]:
        """See `Drafter`."""
        return ()


def _times(
    seen: Mapping[tuple[str, int], Sequence[StepMeasured]],
    batches: Sequence[int],
    depths: Sequence[int],
) -> StepTimes:
    return StepTimes(
        plain=tuple(_middle(seen[PLAIN, batch]) for batch in batches),
        drafting=tuple(
            _middle(seen[name, batch])
            for batch in batches
            for name in (IDLE, *(str(k) for k in depths))
        ),
    )


def _middle(rounds: Sequence[StepMeasured]) -> StepMeasured:
    return StepMeasured(
        batch=rounds[0].batch,
        drafted=sum(one.drafted for one in rounds) / len(rounds),
        ms=median(one.ms for one in rounds),
        steps=sum(one.steps for one in rounds),
    )


def _off_inside(
    seen: Mapping[tuple[str, int], Sequence[StepMeasured]], batches: Sequence[int]
) -> dict[int, Ratio]:
    return {
        batch: ratio_of(
            [one.ms for one in seen[PLAIN, batch]], [one.ms for one in seen[IDLE, batch]]
        )
        for batch in batches
    }
