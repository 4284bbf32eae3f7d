"""One simulated replica: continuous batching with chunked prefill, bounded KV and prefix reuse.

Law, per step: every decoding stream gets one token; what is left of the step's token budget goes to prefill chunks,
first come first served; a request is admitted while there is a place among the running and room for its whole
prompt beside what the streams need now. When a stream needs a block and none is there, the request that came last is
preempted: its blocks go, it is prefilled again with what it had generated, and nobody is admitted to that step. These
are the rules of vLLM's V1 scheduler. A step's time is `core.step_cost`.

A block of a prompt is found by others from the step on that fills it, not from admission: whoever is admitted to that
very step reads it after it was written. Of a request that leaves or is preempted only what was computed is kept. KV
that comes from elsewhere is found when it is there. So does vLLM (`KVCacheManager.allocate_slots`).

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
from trimtab.sim.starts import Starts

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
        self._starts = Starts(kernel, self._enqueue)
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
        """Requests that are there, starting, waiting or running; prompts that were handed over not."""
        return len(self._starts.jobs) + len(self.waiting) + len(self.receiving) + self.running

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
        self._starts.begin(now_s, job, self.spec.cost.start_ms)

    def _enqueue(self, now_s: float, job: Job) -> None:
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
        self._starts.drop(job)
        if job in self.waiting:
            self.waiting.remove(job)
        elif job in self.prefilling:
            # The step under way computes its chunk all the same.
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
        placed = [*self.receiving.values(), *self.prefilling, *self.decodes.jobs.values()]
        lost = sorted([*self._starts.clear(), *self.waiting, *placed], key=attrgetter("id"))
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
        """Decide what runs next, and when it is over: those that run come first, then those that wait."""
        self._version += 1
        self._slow, self._told = self.slow, 0
        self._began_s, self._chunks = now_s, []
        if self.drafter is not None and self.drafter.look(self.decodes):
            self.decodes.rerate(self.drafter.rate)
        before = self.preemptions
        reserved = self._make_room()
        left = self._go_on()
        if self.waiting and (self.preemptions == before or not self.running):
            self._admit(now_s, left, reserved)
        if self._chunks:
            self._plan_mixed(now_s)
        elif self.decodes.jobs:
            self._plan_decodes(now_s)
        else:
            self._running = False
            held = self.receiving or self.handing
            assert held or not self.waiting, "an idle replica has room for any request it took"

    def _go_on(self) -> int:
        """Give prompts that are being computed their chunks; returns the tokens that the step has left."""
        left = self.spec.budget_tokens - len(self.decodes)
        if self.prefilling:
            left = max(1, left)
        for job in self.prefilling:
            if left == 0:
                break
            left -= self._compute(job, left)
        return left

    def _admit(self, now_s: float, left: int, reserved: int) -> None:
        """Admit whoever waits to the tokens that the step has left, beside the blocks reserved for its streams."""
        while self.waiting and left > 0 and self.running < self.spec.streams_max:
            job = self.waiting[0]
            prompt = job.input_tokens + job.generated
            need = self._blocks(prompt)
            matched = min(self.pool.match(job.hashes), need)
            if not self.pool.room_for(job.hashes, matched, need + reserved):
                break
            self.waiting.popleft()
            job.named, job.private = matched, need - matched
            self.pool.hold(job.hashes[:matched], job.private)
            # An engine computes at least the last token of a prompt.
            cached = min(matched * self.spec.block_tokens, prompt - 1)
            if job.scheduled_s is None:
                job.scheduled_s, job.cached_tokens = now_s, cached
            job.prefilled, job.prefill_left = cached, prompt - cached
            if job.incoming:
                self.receiving[job.id] = job
                self._listener.has_room(now_s, job)
                continue
            self.prefilling.append(job)
            left -= self._compute(job, left)

    def _compute(self, job: Job, most: int) -> int:
        """Let the coming step compute at most so many tokens of a prompt; returns how many it does."""
        size = min(job.prefill_left, most)
        self._chunks.append((job, size))
        self._name(job, job.prefilled + size)
        return size

    def _name(self, job: Job, tokens: int) -> None:
        """Let others find the blocks of a prompt that its first `tokens` fill."""
        full = len(job.hashes)
        if tokens < job.input_tokens:
            full = min(full, tokens // self.spec.block_tokens)
        more = min(full - job.named, job.private)
        if more > 0:
            self.pool.name(job.hashes[job.named : job.named + more])
            job.private -= more
            job.named += more

    def received(self, now_s: float, job: Job, *, complete: bool) -> None:
        """Go on with an incoming job: with all its KV but the last token's, or without what should have come."""
        if self.receiving.pop(job.id, None) is None:
            return
        job.incoming = False
        if complete:
            job.prefilled, job.prefill_left = job.input_tokens - 1, 1
            self._name(job, job.prefilled)
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
        pairs, tokens = 0.0, 0
        for job, size in self._chunks:
            pairs += size * (job.prefilled + size / 2.0)
            tokens += size
        took_ms = self._step_ms(tokens, pairs)
        self._planned, self._running = 1, True
        end_s = now_s + took_ms * self._slow / 1000.0
        self._kernel.at(end_s, self._step_over, self._version, RANK_STEP)

    def _plan_decodes(self, now_s: float) -> None:
        """Plan as many steps of decodes alone as nothing changes in; there is room for one."""
        decodes = self.decodes
        steps = decodes.next_end - decodes.step_count
        if self.drafter is not None:
            steps = min(steps, self.drafter.steps_max)
        if decodes.outgrows(steps) and decodes.blocks_for(steps) > self.pool.available:
            room, fits = self.pool.available, range(1, steps + 1)
            # At least one, though rounding may put off the step that fills a block.
            steps = max(1, bisect.bisect_right(fits, room, key=decodes.blocks_for))
        self._planned, self._running = steps, True
        growth_ms = self.spec.cost.context_ms * decodes.grown(1)
        self._jump = Jump(self._step_ms(0, 0.0), growth_ms, self._slow)
        end_s = now_s + self._jump.seconds(steps)
        self._kernel.at(end_s, self._step_over, self._version, RANK_STEP)

    def _step_ms(self, prompt_tokens: int, pairs: float) -> float:
        """Milliseconds of a step of all streams, their drafts and so many tokens of prompts."""
        took_ms = self.decodes.step_ms(self.spec.cost, prompt_tokens, pairs)
        if self.drafter is not None and self.decodes.jobs:
            took_ms += self.drafter.draft_ms
        return took_ms

    def _make_room(self) -> int:
        """Preempt the latest requests until the streams have blocks for a step; returns how many they need."""
        decodes = self.decodes
        if not decodes.outgrows(1):
            return 0
        while (need := decodes.blocks_for(1)) > self.pool.available:
            self._preempt(self.prefilling[-1] if self.prefilling else decodes.latest)
        return need

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
            self.prefill_tokens += size
            if job.finished_s is not None:
                continue
            job.prefill_left -= size
            job.prefilled += size
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
