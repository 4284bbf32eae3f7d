"""The decoding streams of one simulated replica: their contexts, blocks and ends, and what many steps do to them.

Every stream gets `tokens_per_step` tokens a step, so between two changes all contexts grow alike and a stream ends at
a step that is known when it joins. With drafts a step gives 1 + the accepted tokens in the mean; tokens are counted
as whole ones.
"""

import heapq
import math
from collections import Counter
from collections.abc import Callable
from operator import attrgetter
from typing import Final

from trimtab.core.step_cost import StepCost
from trimtab.sim.blocks import BlockPool
from trimtab.sim.jobs import Job

NEVER: Final = 1 << 62

Rate = tuple[float, float]
"""Tokens that a stream gets in a step, and draft tokens verified for it in each."""


class Decodes:
    """The streams by job id. `step_count`, `tokens`, `drafted_tokens`, `accepted_tokens` are totals since the start.

    `context`: tokens of KV of all streams; `drafted`: draft tokens of one step of all; `block_at`: the step count at
    which some stream outgrows its blocks.
    """

    def __init__(self, pool: BlockPool, block_tokens: int) -> None:
        self.jobs: dict[int, Job] = {}
        self.labels: Counter[str] = Counter()
        self.step_count = 0
        self.tokens = 0.0
        self.drafted_tokens = 0.0
        self.accepted_tokens = 0.0
        self.context = 0.0
        self.drafted = 0.0
        self.block_at = NEVER
        self._accepted = 0.0
        self._pool = pool
        self._size = block_tokens
        self._ends: list[tuple[int, int, Job]] = []

    def __len__(self) -> int:
        return len(self.jobs)

    @property
    def latest(self) -> Job:
        """The stream whose request came last."""
        return max(self.jobs.values(), key=attrgetter("id"))

    @property
    def next_end(self) -> int:
        """The step count at which the next stream ends."""
        return self._ends[0][0]

    def join(self, job: Job, rate: Rate) -> None:
        """Take in a stream that has its first token; its blocks hold the prompt."""
        job.tokens_per_step, job.drafted = rate
        job.context = job.input_tokens + job.generated
        self.jobs[job.id] = job
        self.labels[job.label] += 1
        self.context += job.context
        self._start(job)

    def _start(self, job: Job) -> None:
        """Count a stream from this step on, at its present rate."""
        left = job.output_tokens - job.generated
        job.joined = self.step_count
        job.ends = self.step_count + math.ceil(left / job.tokens_per_step)
        self.drafted += job.drafted
        self._accepted += job.tokens_per_step - 1.0
        self.block_at = min(self.block_at, self._next_block_at(job))
        heapq.heappush(self._ends, (job.ends, job.id, job))

    def leave(self, job: Job) -> None:
        """Take a stream out; its blocks are the caller's to free."""
        del self.jobs[job.id]
        self.labels[job.label] -= 1
        self.context -= job.context + (self.step_count - job.joined) * job.tokens_per_step
        self._stop(job)
        if not self.jobs:
            self.context, self.drafted, self._accepted, self.block_at = 0.0, 0.0, 0.0, NEVER

    def _stop(self, job: Job) -> None:
        self.drafted -= job.drafted
        self._accepted -= job.tokens_per_step - 1.0

    def clear(self) -> None:
        """Forget all streams."""
        self.jobs.clear()
        self.labels.clear()
        self._ends.clear()
        self.context, self.drafted, self._accepted, self.block_at = 0.0, 0.0, 0.0, NEVER

    def rerate(self, rate_of: Callable[[Job], Rate]) -> None:
        """Give every stream another rate from this step on; what it has made stays."""
        self._ends.clear()
        for job in self.jobs.values():
            made = self.made_by(job)
            job.context += (self.step_count - job.joined) * job.tokens_per_step
            job.generated += made
            self._stop(job)
            job.tokens_per_step, job.drafted = rate_of(job)
            self._start(job)

    def made_by(self, job: Job) -> int:
        """Tokens a stream made since it joined, its first one there not counted."""
        return min(self._grown_by(job, self.step_count), job.output_tokens - job.generated)

    def _grown_by(self, job: Job, step: int) -> int:
        return int((step - job.joined) * job.tokens_per_step)

    def _held_at(self, job: Job, step: int) -> int:
        """Tokens of KV that a stream has at a step."""
        return math.ceil(job.context + (step - job.joined) * job.tokens_per_step)

    def step_ms(self, cost: StepCost, prompt_tokens: int, pairs: float) -> float:
        """Milliseconds of a step of all streams, with their drafts' verification and so many tokens of prompts."""
        streams = len(self.jobs)
        return cost.step_ms(
            tokens=prompt_tokens + streams + self.drafted,
            streams=streams,
            context_tokens=self.context,
            pairs=pairs,
        )

    def grown(self, steps: int) -> float:
        """Tokens by which all contexts grow in so many steps."""
        return (len(self.jobs) + self._accepted) * steps

    def outgrows(self, steps: int) -> bool:
        """Say whether some stream needs a block within so many steps."""
        return self.step_count + steps >= self.block_at

    def blocks_for(self, steps: int) -> int:
        """New blocks that the streams need for so many more steps."""
        step, size = self.step_count + steps, self._size
        need = 0
        for job in self.jobs.values():
            tokens = self._held_at(job, step)
            need += max(0, -(-tokens // size) - job.named - job.private)
        return need

    def fold(self, steps: int) -> None:
        """Let so many steps pass; streams that have grown out of their blocks get more."""
        grown = self.grown(steps)
        self.step_count += steps
        self.context += grown
        self.tokens += grown
        self.drafted_tokens += self.drafted * steps
        self.accepted_tokens += self._accepted * steps
        if self.step_count >= self.block_at:
            self._take_blocks()

    def _take_blocks(self) -> None:
        size = self._size
        soonest = NEVER
        for job in self.jobs.values():
            tokens = self._held_at(job, self.step_count)
            more = -(-tokens // size) - job.named - job.private
            if more > 0:
                self._pool.grow(more)
                job.private += more
            soonest = min(soonest, self._next_block_at(job))
        self.block_at = soonest

    def _next_block_at(self, job: Job) -> int:
        """The step count at which a stream has outgrown the blocks that it has."""
        room = (job.named + job.private) * self._size - job.context
        return job.joined + math.floor(room / job.tokens_per_step) + 1

    def take_ended(self) -> list[Job]:
        """Take out and return the streams whose last token has come, in order of step and id."""
        ended = []
        ends = self._ends
        while ends and ends[0][0] <= self.step_count:
            _, _, job = heapq.heappop(ends)
            if self.jobs.get(job.id) is job and job.ends <= self.step_count:
                self.leave(job)
                job.generated = job.output_tokens
                ended.append(job)
        return ended
