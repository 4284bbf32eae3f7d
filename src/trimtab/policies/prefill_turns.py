"""Whose prompt a prefill replica computes: one after the other, but a much shorter one beside a long one.

Law: prompts take the main lane in the order in which they came. While one is computed there, the first of those that
wait and are at most a `PASS_RATIO`th of it is computed beside it, one at a time. What passes a prompt adds at most as
many tokens as that has itself, so that it ends after twice its time at the latest.

An engine that fills each step's chunk in the order of its slots computes what is in the first slot first: a prompt in
the passing lane waits for the step that runs, and then for its own chunks, whatever is left of which goes on to the
long one.

Failure mode: lengths are estimates; one that is far off passes where it should wait, or waits.

Source: shortest remaining time first, bounded so that nothing starves (Harchol-Balter, "Performance Modeling and Design
of Computer Systems", 2013, chapter 33).
"""

import math
from collections.abc import Iterable
from enum import StrEnum
from typing import Final

import msgspec

PASS_RATIO: Final = 4


class Lane(StrEnum):
    """Where a prompt is computed on its prefill replica."""

    MAIN = "main"
    PASSING = "passing"


class Waiting(msgspec.Struct, frozen=True):
    """A prompt that waits for its turn; `number`: in the order in which they came.

    `held`: those of its tokens that are computed already. Only the main lane has them: what passes is computed whole.
    """

    number: int
    tokens: int
    held: int = 0


class Turns(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one replica: tokens in each lane (None: free), and how many may still pass the main one."""

    main: int | None = None
    passing: int | None = None
    may_pass: int = 0


def next_turn(
    turns: Turns, waiting: Iterable[Waiting], *, passes: bool
) -> tuple[Turns, int, Lane] | None:
    """Return who is next with the state after it, None where all who wait must wait on."""
    queue = sorted(waiting, key=lambda one: one.number)
    if not queue:
        return None
    if turns.main is None:
        first = queue[0]
        left = max(1, first.tokens - first.held)
        taken = msgspec.structs.replace(turns, main=left, may_pass=left)
        return taken, first.number, Lane.MAIN
    if not passes or turns.passing is not None:
        return None
    most = min(turns.main // PASS_RATIO, turns.may_pass)
    shorter = next((one for one in queue if one.tokens <= most), None)
    if shorter is None:
        return None
    may_pass = turns.may_pass - shorter.tokens
    return (
        msgspec.structs.replace(turns, passing=shorter.tokens, may_pass=may_pass),
        shorter.number,
        Lane.PASSING,
    )


def ended(turns: Turns, lane: Lane) -> Turns:
    """Return the state once a lane is free again."""
    if lane is Lane.MAIN:
        return msgspec.structs.replace(turns, main=None, may_pass=0)
    return msgspec.structs.replace(turns, passing=None)


def tokens_waited_for(tokens: int, before: Iterable[int], chunk_tokens: int) -> float:
    """Return how many tokens are computed before a prompt's own end beyond its own, where it may pass longer ones.

    `before`: tokens that the prompts there now have to compute. Those that it passes cost half a chunk, which is the
    step that runs, and what its own chunks have left for them.
    """
    waited_for, passed = 0.0, False
    for each in before:
        if tokens <= each // PASS_RATIO:
            passed = True
        else:
            waited_for += each
    if passed:
        filled = math.ceil(tokens / max(1, chunk_tokens)) * chunk_tokens
        waited_for += chunk_tokens / 2.0 + filled - tokens
    return waited_for
