"""Answers recorded without drafts, from which every rule of drafting is judged before one is started."""

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from trimtab.core.cuts import repetition_bucket
from trimtab.core.ports import LaunchError
from trimtab.core.types import Constraint
from trimtab.engines.llamacpp_decode import Decoded
from trimtab.policies.ngram_drafts import DraftCounts, NewestMatch, replay
from trimtab.runtime.json_schemas import fits_schema, schema_fault
from trimtab.runtime.prompt import repetition_of
from trimtab.runtime.speculate_arm import DraftArm, Prompt
from trimtab.workloads.base import looks_looping
from trimtab.workloads.draft_samples import DraftSample

ANSWER_TOKENS_MIN = 4
"""A shorter answer says nothing of decode."""

UNKNOWN_REPETITION = "unknown"


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A sample as the model is asked it; its place among the asked is its slot."""

    sample: DraftSample
    prompt: Prompt
    repetition: str

    @property
    def constraint(self) -> str:
        """Whether the answer is bound to a schema."""
        bound = self.sample.schema is not None
        return (Constraint.JSON_SCHEMA if bound else Constraint.FREE).value


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """A greedy answer, and whether it can be judged by."""

    asked: Asked
    decoded: Decoded

    @property
    def looping(self) -> bool:
        """Whether it ends in a loop."""
        return looks_looping(self.decoded.text)

    @property
    def usable(self) -> bool:
        """Whether it says something of decode."""
        return not self.looping and self.decoded.output_tokens >= ANSWER_TOKENS_MIN

    def counts(self, match: int, depth: int) -> DraftCounts:
        """Return what the engine's rule drafts over it."""
        return counts_of(self.asked, self.decoded, match, depth)


def counts_of(asked: Asked, decoded: Decoded, match: int, depth: int) -> DraftCounts:
    """Return what the engine's rule drafts over an answer."""
    prompt = asked.prompt
    rule = NewestMatch(match, depth)
    return replay(prompt.tokens, decoded.tokens, rule, tokens_max=prompt.tokens_max)


def total(counts: Iterable[DraftCounts]) -> DraftCounts:
    """Return the counts of all."""
    return sum(counts, DraftCounts())


async def asked_of(arm: DraftArm, samples: Sequence[DraftSample]) -> tuple[Asked, ...]:
    """Return the samples as tokens; raises `ArmError`."""
    found: list[Asked] = []
    for sample in samples:
        text = sample.prompt or await arm.chat_prompt(sample.messages)
        share = repetition_of(text.encode())
        prompt = Prompt(
            tokens=await arm.tokens(text), tokens_max=sample.tokens_max, schema=sample.schema
        )
        repetition = UNKNOWN_REPETITION if share is None else repetition_bucket(share)
        found.append(Asked(sample=sample, prompt=prompt, repetition=repetition))
    return tuple(found)


async def record(
    arm: DraftArm,
    asked: Sequence[Asked],
    seed: int,
    say: Callable[[float, str], None],
) -> tuple[Recorded, ...]:
    """Let the arm answer everything greedily; what is asked i-th stays in slot i. Raises `ArmError`."""
    found: list[Recorded] = []
    for slot, one in enumerate(asked):
        say(slot / len(asked), f"recording answers without drafts, {slot + 1} of {len(asked)}")
        decoded = await arm.answer(one.prompt, slot=slot, temperature=0.0, seed=seed)
        found.append(Recorded(asked=one, decoded=decoded))
    return tuple(found)


def fits(text: str, schema: Any) -> bool:
    """Say whether an answer is JSON that fits its schema."""
    try:
        return fits_schema(json.loads(text), schema)
    except (ValueError, RecursionError):
        return False


def check_schemas(samples: Sequence[DraftSample]) -> None:
    """Raise `LaunchError` where a schema is none, or is to be checked and the package for it is missing."""
    bound = [sample for sample in samples if sample.schema is not None]
    if not bound:
        return
    try:
        import jsonschema  # noqa: F401
    except ImportError as error:
        raise LaunchError(
            "answers bound to a schema are checked with the jsonschema package: pip install 'trimtab[quantize]', or "
            "give --requests without such answers"
        ) from error
    for sample in bound:
        if fault := schema_fault(sample.schema):
            raise LaunchError(
                f"the JSON schema of a request labelled {sample.label!r} is none: {fault}"
            )
