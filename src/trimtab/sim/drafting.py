"""How deep one simulated replica drafts: the depth policy over what its streams have shown; the law is `sim.drafts`."""

from typing import Final

from trimtab.core.step_cost import StepCost
from trimtab.policies.speculation_depth import choose, first_state, moved, observed
from trimtab.sim.decodes import NEVER, Decodes, Rate
from trimtab.sim.drafts import DraftSpec
from trimtab.sim.jobs import Job

STEPS_UNSEEN_MAX: Final = 64
"""Steps after which the depth is looked at again though nothing else happens."""


class Drafter:
    """Follows one replica's streams and says how deep to draft. `changes` counts how often the depth moved."""

    def __init__(self, spec: DraftSpec, cost: StepCost) -> None:
        self.spec = spec
        self.changes = 0
        self._cost = cost
        self._state = first_state(spec.rules)
        self._depth = self._state.depth if spec.depth is None else spec.depth
        self._seen_steps = 0

    @property
    def depth(self) -> int:
        """Draft tokens of a step and stream."""
        return self._depth

    @property
    def draft_ms(self) -> float:
        """Milliseconds that making the drafts adds to a step."""
        return self.spec.draft_ms * self._depth

    def rate(self, job: Job) -> Rate:
        """Return what a step gives a stream and what is verified for it."""
        return 1.0 + sum(self.spec.accepted(job.label, self._depth)), float(self._depth)

    def look(self, decodes: Decodes) -> bool:
        """Learn from the steps since the last look and choose a depth; returns whether it changed."""
        if self.spec.depth is not None or not decodes.jobs:
            return False
        steps = decodes.step_count - self._seen_steps
        self._seen_steps = decodes.step_count
        batch = len(decodes)
        self._state = observed(
            self._state, _mean_acceptance(self.spec, decodes, self._depth), steps, self.spec.rules
        )
        context = decodes.context / batch

        def step_ms(streams: float, depth: int) -> float:
            return self.spec.step_ms(self._cost, streams, depth, streams * context)

        choice = choose(self._state, float(batch), step_ms, self.spec.rules)
        self._state = moved(self._state, choice)
        changed = choice.depth != self._depth
        self._depth = choice.depth
        self.changes += changed
        return changed

    @property
    def steps_max(self) -> int:
        """Steps that may pass before the next look."""
        return NEVER if self.spec.depth is not None else STEPS_UNSEEN_MAX


def _mean_acceptance(spec: DraftSpec, decodes: Decodes, depth: int) -> tuple[float, ...]:
    if depth == 0:
        return ()
    total = max(1, sum(decodes.labels.values()))
    sums = [0.0] * depth
    for label, count in decodes.labels.items():
        for at, share in enumerate(spec.accepted(label, depth)):
            sums[at] += share * count
    return tuple(share / total for share in sums)
