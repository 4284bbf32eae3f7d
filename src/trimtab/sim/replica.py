"""One simulated replica: continuous batching with chunked prefill, bounded KV and prefix reuse.

Law, per step: every decoding stream gets one token; what is left of the step's token budget goes to prefill chunks,
first come first served; a request is admitted while there is a place among the running and room for its whole
prompt. When a stream needs a block and none is there, the request that came last is preempted: its blocks go, and
it is prefilled again with what it had generated. These are the rules of vLLM's V1 scheduler. A step's time is
`core.step_cost`.

Steps of decodes alone are not simulated one by one: until the next end of a stream, the next arrival or the end of
the KV nothing changes but the contexts, so that many steps are one jump (`sim.jumps`). An arrival in between is taken
up at the end of the step in which it falls. Whoever listens is told of steps when a jump ends, and when it asks.

Failure modes: a request longer than the KV is refused (it could never run); a scheduler that prefers prefills to
decodes or runs them apart (older engines) is not modelled.
"""

import bisect
from collections import deque
from operator import attrgetter
from typing import Final

from trimtab.sim.blocks import BlockPool
from trimtab.sim.decodes import Decodes, Rate
from trimtab.sim.drafting import Drafter
from trimtab.sim.jobs import Job, Listener, ReplicaSpec
from trimtab.sim.jumps import Jump
from trimtab.sim.kernel import Kernel

_PLAIN: Final[Rate] = (1.0, 0.0)

RANK_STEP: Final = 1
"""Arrivals of the same moment come before the end of a step, as a scheduler sees what has arrived."""


class Replica:
    """Runs jobs in virtual time. `submit` gives it one, `cancel` takes one back, `kill` loses all.

    `busy_s` and `prefill_tokens` are totals since the start, as are those of `decodes`.
    """

    def __init__(
        self, spec: ReplicaSpec, kernel: Kernel, listener: Listener, *, slow: float = 1.0
    ) -> None:
        """Take what it can do and whom to tell; `slow` multiplies every step's time."""
        self.spec = spec
        self.pool = BlockPool(spec.kv_tokens // spec.block_tokens)
        self.waiting: deque[Job] = deque()
        self.prefilling: list[Job] = []
        self.decodes = Decodes(self.pool, spec.block_tokens)
        self.receiving: dict[int, Job] = {}
        self.handing: dict[int, Job] = {}
        self.drafter = None if spec.drafts is None else Drafter(spec.drafts, spec.cost)
        self.slow = self._slow = slow
        self.busy_s = 0.0
        self.prefill_tokens = 0
        self.preemptions = 0
        self._kernel = kernel
        self._listener = listener
        self._version = 0
        self._running = False
        # The jump under way: steps of decodes alone, or one mixed step with its chunks.
        self._began_s = 0.0
        self._planned = 0
        self._jump = Jump(1.0, 0.0, 1.0)
        self._told = 0
        self._chunks: list[tuple[Job, int]] = []

    @property
    def running(self) -> int:
        """Requests that have a place."""
        return len(self.prefilling) + len(self.decodes)

    @property
    def used_share(self) -> float:
        """Part (0 to 1) of the KV that running requests hold."""
        return self.pool.used_share

    @property
    def in_flight(self) -> int:
        """Requests that are there, running or waiting; prompts that were handed over not."""
        return len(self.waiting) + len(self.receiving) + self.running

    @property
    def is_idle(self) -> bool:
        """Whether nothing is there, nor is any KV still to be fetched."""
        return self.in_flight == 0 and not self.handing

    def become(self, spec: ReplicaSpec) -> None:
        """Take another specification of the same KV, as an idle replica does that restarts."""
        assert self.in_flight == 0, "only an idle replica changes what it can do"
        self.spec = spec
        self.drafter = None if spec.drafts is None else Drafter(spec.drafts, spec.cost)

    def submit(self, now_s: float, job: Job) -> None:
        """Take a job; one that could never fit fails at once."""
        job.arrived_s = now_s
        job.prefill_left = job.input_tokens
        if self._blocks(job.input_tokens + job.output_tokens) > self.pool.blocks:
            job.failed = "longer than the KV of the replica"
            job.finished_s = now_s
            self._listener.ended(now_s, job)
            return
        start_s = now_s + self.spec.cost.start_ms / 1000.0
        if start_s > now_s:
            self._kernel.at(start_s, self._enqueue, job)
        else:
            self._enqueue(now_s, job)

    def _enqueue(self, now_s: float, job: Job) -> None:
        if job.failed is not None:
            return
        self.waiting.append(job)
        if not self._running:
            self._plan(now_s)
        elif not self._chunks and self._planned > 1 and self._may_admit():
            self._shorten(now_s)

    def cancel(self, now_s: float, job: Job, reason: str) -> None:
        """Take a job back, wherever it is; its tokens so far are lost. A job that ended changes nothing."""
        if job.finished_s is not None:
            return
        job.failed, job.finished_s = reason, now_s
        if job in self.waiting:
            self.waiting.remove(job)
        elif job in self.prefilling:
            self._chunks = [chunk for chunk in self._chunks if chunk[0] is not job]
            self.prefilling.remove(job)
            self._release(job)
        elif job.id in self.receiving:
            del self.receiving[job.id]
            self._freed(now_s, job)
        elif job.id in self.decodes.jobs:
            if self._running and not self._chunks:
                self._settle(now_s)
            self.decodes.leave(job)
            self._release(job)
            if self._running and not self._chunks:
                self._plan(now_s)
        self._listener.ended(now_s, job)

    def kill(self, now_s: float, reason: str) -> list[Job]:
        """Lose everything, as a crash does; returns the jobs that failed, in the order they came."""
        there = (self.waiting, self.receiving.values(), self.prefilling, self.decodes.jobs.values())
        lost = sorted((job for jobs in there for job in jobs), key=attrgetter("id"))
        self.waiting.clear()
        self.receiving.clear()
        self.handing.clear()
        self.prefilling.clear()
        self.decodes.clear()
        self._chunks.clear()
        self.pool.clear()
        self._version += 1
        self._running = False
        for job in lost:
            job.failed, job.finished_s = reason, now_s
        return lost

    def tell_steps(self, now_s: float) -> None:
        """Tell the listener of the steps of the jump under way that have passed."""
        if self._running and not self._chunks:
            passed = self._jump.passed(now_s - self._began_s, self._planned)
            if passed > self._told:
                self._listener.stepped(passed - self._told)
                self._told = passed

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.spec.block_tokens)

    def _may_admit(self) -> bool:
        """Say whether the first that waits could start now."""
        if not self.waiting or self.running >= self.spec.streams_max:
            return False
        job = self.waiting[0]
        need = self._blocks(job.input_tokens + job.generated)
        matched = min(self.pool.match(job.hashes), need)
        return self.pool.room_for(job.hashes, matched, need)

    def _plan(self, now_s: float) -> None:
        """Decide what runs next, and when it is over."""
        self._version += 1
        self._slow, self._told = self.slow, 0
        if self.waiting:
            self._admit(now_s)
        self._began_s = now_s
        if self.prefilling:
            self._plan_mixed(now_s)
        elif self.decodes.jobs:
            self._plan_decodes(now_s)
        else:
            self._running = False
            held = self.receiving or self.handing
            assert held or not self.waiting, "an idle replica has room for any request it took"

    def _admit(self, now_s: float) -> None:
        budget = self.spec.budget_tokens - len(self.decodes)
        budget -= sum(job.prefill_left for job in self.prefilling)
        while self.waiting and budget > 0 and self.running < self.spec.streams_max:
            job = self.waiting[0]
            prompt = job.input_tokens + job.generated
            need = self._blocks(prompt)
            matched = min(self.pool.match(job.hashes), need)
            if not self.pool.room_for(job.hashes, matched, need):
                break
            self.waiting.popleft()
            job.named = min(len(job.hashes), need)
            job.private = need - job.named
            self.pool.hold(job.hashes[: job.named], matched, job.private)
            cached = job.reused_of(prompt, matched * self.spec.block_tokens)
            if job.scheduled_s is None:
                job.scheduled_s, job.cached_tokens = now_s, cached
            job.prefilled, job.prefill_left = cached, prompt - cached
            if job.incoming:
                self.receiving[job.id] = job
                self._listener.has_room(now_s, job)
                continue
            self.prefilling.append(job)
            budget -= job.prefill_left

    def received(self, now_s: float, job: Job, *, complete: bool) -> None:
        """Go on with an incoming job: with all its KV but the last token's, or without what should have come."""
        if self.receiving.pop(job.id, None) is None:
            return
        job.incoming = False
        if complete:
            job.prefilled, job.prefill_left = job.input_tokens - 1, 1
        self.prefilling.append(job)
        self._wake(now_s)

    def handed_over(self, now_s: float, job: Job) -> None:
        """Free the blocks of a prompt whose KV was fetched, or will not be."""
        if self.handing.pop(job.id, None) is not None:
            self._freed(now_s, job)

    def _freed(self, now_s: float, job: Job) -> None:
        self._release(job)
        if self.waiting:
            self._wake(now_s)

    def _wake(self, now_s: float) -> None:
        """Look at what is to be done at once, or at the end of the step under way."""
        if not self._running:
            self._plan(now_s)
        elif not self._chunks and self._planned > 1:
            self._shorten(now_s)

    def _plan_mixed(self, now_s: float) -> None:
        """Plan one step of decodes and prefill chunks."""
        self._make_room(1)
        self._draft()
        streams = len(self.decodes)
        budget = max(1, self.spec.budget_tokens - streams)
        pairs, tokens = 0.0, 0
        self._chunks = []
        for job in self.prefilling:
            size = min(job.prefill_left, budget - tokens)
            if size <= 0:
                break
            self._chunks.append((job, size))
            tokens += size
            pairs += size * (job.prefilled + size / 2.0)
        took_ms = self._step_ms(tokens, pairs)
        self._planned, self._running = 1, True
        end_s = now_s + took_ms * self._slow / 1000.0
        self._kernel.at(end_s, self._step_over, self._version, RANK_STEP)

    def _plan_decodes(self, now_s: float) -> None:
        """Plan as many steps of decodes alone as nothing changes in."""
        self._draft()
        decodes = self.decodes
        steps = decodes.next_end - decodes.step_count
        if self.drafter is not None:
            steps = min(steps, self.drafter.steps_max)
        if decodes.outgrows(steps) and decodes.blocks_for(steps) > self.pool.available:
            room, fits = self.pool.available, range(1, steps + 1)
            steps = bisect.bisect_right(fits, room, key=decodes.blocks_for)
            if steps == 0:
                self._make_room(1)
                steps = 1
        self._planned, self._running, self._chunks = steps, True, []
        growth_ms = self.spec.cost.context_ms * decodes.grown(1)
        self._jump = Jump(self._step_ms(0, 0.0), growth_ms, self._slow)
        end_s = now_s + self._jump.seconds(steps)
        self._kernel.at(end_s, self._step_over, self._version, RANK_STEP)

    def _step_ms(self, prompt_tokens: int, pairs: float) -> float:
        """Milliseconds of a step of all streams, their drafts and so many tokens of prompts."""
        streams, decodes = len(self.decodes), self.decodes
        took_ms = self.spec.cost.step_ms(
            tokens=prompt_tokens + streams + decodes.drafted,
            streams=streams,
            context_tokens=decodes.context,
            pairs=pairs,
        )
        if self.drafter is not None and streams:
            took_ms += self.drafter.draft_ms
        return took_ms

    def _draft(self) -> None:
        """Choose how deep to draft from here on."""
        if self.drafter is not None and self.drafter.look(self.decodes):
            self.decodes.rerate(self.drafter.rate)

    def _make_room(self, steps: int) -> None:
        """Preempt the latest requests until the streams have blocks for so many steps."""
        decodes = self.decodes
        if not decodes.outgrows(steps):
            return
        while decodes.jobs and decodes.blocks_for(steps) > self.pool.available:
            victim = (
                self.prefilling[-1]
                if self.prefilling
                else max(decodes.jobs.values(), key=attrgetter("id"))
            )
            self._preempt(victim)

    def _preempt(self, job: Job) -> None:
        if job.id in self.decodes.jobs:
            job.generated += self.decodes.made_by(job)
            self.decodes.leave(job)
        else:
            self.prefilling.remove(job)
        self._release(job)
        job.preemptions += 1
        self.preemptions += 1
        self.waiting.appendleft(job)

    def _shorten(self, now_s: float) -> None:
        """End the jump at the step in which now falls, because something arrived that may start then."""
        steps = self._planned = self._jump.ending(now_s - self._began_s, self._planned)
        self._version += 1
        end_s = max(now_s, self._began_s + self._jump.seconds(steps))
        self._kernel.at(end_s, self._step_over, self._version, RANK_STEP)

    def _settle(self, now_s: float) -> None:
        """Fold the whole steps of a jump that have passed; the step under way is started anew."""
        gone_s = now_s - self._began_s
        self._fold(self._jump.passed(gone_s, self._planned))
        self.busy_s += gone_s

    def _fold(self, steps: int) -> None:
        if self.decodes.jobs and steps > self._told:
            self._listener.stepped(steps - self._told)
        self._told = 0
        self.decodes.fold(steps)

    def _step_over(self, now_s: float, version: int) -> None:
        if version != self._version:
            return
        self.busy_s += now_s - self._began_s
        self._fold(self._planned)
        for job in self.decodes.take_ended():
            self._release(job)
            self._finish(now_s, job)
        if self._chunks:
            self._end_chunks(now_s)
        self._plan(now_s)

    def _end_chunks(self, now_s: float) -> None:
        chunks, self._chunks = self._chunks, []
        for job, size in chunks:
            job.prefill_left -= size
            job.prefilled += size
            self.prefill_tokens += size
            if job.prefill_left == 0:
                self.prefilling.remove(job)
                self._first_token(now_s, job)

    def _first_token(self, now_s: float, job: Job) -> None:
        if job.hands_over:
            self.handing[job.id] = job
            self._finish(now_s, job)
            return
        job.generated += 1
        if job.first_token_s is None:
            job.first_token_s = now_s
            self._listener.first_token(now_s, job)
        if job.generated >= job.output_tokens:
            self._release(job)
            self._finish(now_s, job)
            return
        self.decodes.join(job, _PLAIN if self.drafter is None else self.drafter.rate(job))

    def _release(self, job: Job) -> None:
        self.pool.release(job.hashes[: job.named], job.private)
        job.named = job.private = 0

    def _finish(self, now_s: float, job: Job) -> None:
        job.finished_s = now_s
        self._listener.ended(now_s, job)
