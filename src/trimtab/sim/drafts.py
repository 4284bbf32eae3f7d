"""Speculation on a simulated replica: what drafts of a depth give and cost, and how deep to draft.

Law: a step with drafts of k tokens gives a stream 1 + a(1) + ... + a(k) tokens in the mean, a(i) being the part of
drafts whose token at position i is accepted, which each label may have its own of. It costs the step of

    tokens = streams * (1 + k)    verified (`core.step_cost`: free while reading the weights hides them)
    + draft_ms * k                to make the drafts, one token after the other

so speculation pays while reading the weights is most of a step, and loses from some batch on: the break-even. The
depth is fixed, or `policies.speculation_depth` chooses it before each stretch of steps from the batch and what it has
seen accepted. What is drafted beyond an answer's end counts as drafted.

Failure modes: acceptance is a mean, so that a stream's luck does not spread answers; it does not fall with the
temperature or rise as an answer goes on unless labels say so.
"""

import itertools
from typing import Final

import msgspec

from trimtab.core.cost import SpeculationTable, StepPoint
from trimtab.core.revision import Speculation, SpeculationMethod
from trimtab.core.step_cost import StepCost
from trimtab.policies.speculation_depth import DepthRules

ANY_LABEL: Final = ""
BATCHES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


class DraftSpec(msgspec.Struct, frozen=True, kw_only=True):
    """How a replica speculates. `acceptance`: by label ("" is every other), at positions 1, 2, ...; never rising.

    `depth`: fixed draft length; None: the depth policy, by `rules`.
    """

    acceptance: dict[str, tuple[float, ...]]
    depth: int | None = None
    draft_ms: float = 0.0
    rules: DepthRules = DepthRules()

    def accepted(self, label: str, depth: int) -> tuple[float, ...]:
        """Return the acceptance at positions 1 to `depth`; beyond what is told nothing is accepted."""
        told = self.acceptance.get(label, self.acceptance.get(ANY_LABEL, ()))[:depth]
        return told + (0.0,) * (depth - len(told))

    def step_ms(self, cost: StepCost, streams: float, depth: int, context_tokens: float) -> float:
        """Return the milliseconds of a step of decodes alone with drafts of a depth."""
        return self.draft_ms * depth + cost.step_ms(
            tokens=streams * (1 + depth), streams=streams, context_tokens=context_tokens
        )


def speculation_table(
    spec: DraftSpec, cost: StepCost, *, label: str, depth: int, context_tokens: float
) -> SpeculationTable:
    """Return aggregate output tokens per second by batch without and with drafts of a depth, as the model has it.

    Its `break_even_batch` is where drafting begins to lose, as for a measured table. `context_tokens`: of each stream.
    """
    gained = 1.0 + sum(spec.accepted(label, depth))
    off, on = [], []
    for batch in _batches():
        plain_ms = spec.step_ms(cost, batch, 0, batch * context_tokens)
        drafted_ms = spec.step_ms(cost, batch, depth, batch * context_tokens)
        off.append(StepPoint(batch=batch, tokens_per_s=1000.0 * batch / plain_ms, samples=1))
        on.append(
            StepPoint(
                batch=batch,
                tokens_per_s=1000.0 * batch * gained / drafted_ms,
                samples=1,
                accepted_per_step=gained,
            )
        )
    return SpeculationTable(
        speculation=Speculation(method=SpeculationMethod.NGRAM_SIMPLE, draft_tokens_max=depth),
        off=tuple(off),
        on=tuple(on),
        content=label or "all labels",
    )


def _batches() -> tuple[int, ...]:
    """Return batches with steps of an eighth between the powers of two."""
    found = {1, BATCHES[-1]}
    for low, high in itertools.pairwise(BATCHES):
        found.update(range(low, high, max(1, (high - low) // 8)))
    return tuple(sorted(found))
