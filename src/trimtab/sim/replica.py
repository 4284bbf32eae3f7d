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
import heapq
import math
from collections import deque
from operator import attrgetter
from typing import Final

from trimtab.sim.blocks import BlockPool
from trimtab.sim.jobs import Job, Listener, ReplicaSpec
from trimtab.sim.jumps import Jump
from trimtab.sim.kernel import Kernel

_NEVER: Final = 1 << 62

RANK_STEP: Final = 1
"""Arrivals of the same moment come before the end of a step, as a scheduler sees what has arrived."""


class Replica:
    """Runs jobs in virtual time. `submit` gives it one, `cancel` takes one back, `kill` loses all.

    `step_count`, `busy_s`, `decode_tokens` and `prefill_tokens` are totals since the start.
    """

    def __init__(
        self, spec: ReplicaSpec, kernel: Kernel, listener: Listener, *, slow: float = 1.0
    ) -> None:
        """Take what it can do and whom to tell; `slow` multiplies every step's time."""
        self.spec = spec
        self.pool = BlockPool(spec.kv_tokens // spec.block_tokens)
        self.waiting: deque[Job] = deque()
        self.prefilling: list[Job] = []
        self.decoding: dict[int, Job] = {}
        self.slow = self._slow = slow
        self.busy_s = 0.0
        self.step_count = 0
        self.decode_tokens = 0
        self.prefill_tokens = 0
        self.preemptions = 0
        self._kernel = kernel
        self._listener = listener
        self._ends: list[tuple[int, int, Job]] = []
        self._context = 0
        self._drafted = 0.0
        self._block_at = _NEVER
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
        return len(self.prefilling) + len(self.decoding)

    @property
    def used_share(self) -> float:
        """Part (0 to 1) of the KV that running requests hold."""
        return self.pool.used_share

    @property
    def in_flight(self) -> int:
        """Requests that are there, running or waiting."""
        return len(self.waiting) + len(self.prefilling) + len(self.decoding)

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
        elif job.id in self.decoding:
            if self._running and not self._chunks:
                self._settle(now_s)
            self._leave(job)
            if self._running and not self._chunks:
                self._plan(now_s)
        self._listener.ended(now_s, job)

    def kill(self, now_s: float, reason: str) -> list[Job]:
        """Lose everything, as a crash does; returns the jobs that failed, in the order they came."""
        lost = sorted(
            [*self.waiting, *self.prefilling, *self.decoding.values()], key=attrgetter("id")
        )
        self.waiting.clear()
        self.prefilling.clear()
        self.decoding.clear()
        self._ends.clear()
        self._chunks.clear()
        self._context, self._drafted, self._block_at = 0, 0.0, _NEVER
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
        elif self.decoding:
            self._plan_decodes(now_s)
        else:
            self._running = False
            assert not self.waiting, "an idle replica has room for any request that it took"

    def _admit(self, now_s: float) -> None:
        budget = self.spec.budget_tokens - len(self.decoding)
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
            # An engine computes at least the last token of a prompt.
            cached = min(matched * self.spec.block_tokens, prompt - 1)
            if job.scheduled_s is None:
                job.scheduled_s, job.cached_tokens = now_s, cached
            job.prefilled, job.prefill_left = cached, prompt - cached
            self.prefilling.append(job)
            budget -= job.prefill_left

    def _plan_mixed(self, now_s: float) -> None:
        """Plan one step of decodes and prefill chunks."""
        self._make_room(1)
        streams = len(self.decoding)
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
        took_ms = self.spec.cost.step_ms(
            tokens=tokens + streams + self._drafted,
            streams=streams,
            context_tokens=self._context,
            pairs=pairs,
        )
        self._planned, self._running = 1, True
        end_s = now_s + took_ms * self._slow / 1000.0
        self._kernel.at(end_s, self._step_over, self._version, RANK_STEP)

    def _plan_decodes(self, now_s: float) -> None:
        """Plan as many steps of decodes alone as nothing changes in."""
        steps = self._ends[0][0] - self.step_count
        grows = self.step_count + steps >= self._block_at
        if grows and self._blocks_for(steps) > self.pool.available:
            room, fits = self.pool.available, range(1, steps + 1)
            steps = bisect.bisect_right(fits, room, key=self._blocks_for)
            if steps == 0:
                self._make_room(1)
                steps = 1
        self._planned, self._running, self._chunks = steps, True, []
        cost, streams = self.spec.cost, len(self.decoding)
        first_ms = cost.step_ms(
            tokens=streams + self._drafted, streams=streams, context_tokens=self._context
        )
        self._jump = Jump(first_ms, cost.context_ms * self._grown(1), self._slow)
        end_s = now_s + self._jump.seconds(steps)
        self._kernel.at(end_s, self._step_over, self._version, RANK_STEP)

    def _grown(self, steps: int) -> float:
        """Tokens by which all contexts grow in so many steps."""
        return (len(self.decoding) + self._drafted_kept()) * steps

    def _drafted_kept(self) -> float:
        return (
            sum(job.tokens_per_step - 1.0 for job in self.decoding.values())
            if self._drafted
            else 0.0
        )

    def _blocks_for(self, steps: int) -> int:
        """New blocks that the streams need for so many more steps."""
        done, size = self.step_count, self.spec.block_tokens
        need = 0
        for job in self.decoding.values():
            tokens = job.context + int((done + steps - job.joined) * job.tokens_per_step)
            need += max(0, -(-tokens // size) - job.named - job.private)
        return need

    def _make_room(self, steps: int) -> None:
        """Preempt the latest requests until the streams have blocks for so many steps."""
        if self.step_count + steps < self._block_at:
            return
        while self.decoding and self._blocks_for(steps) > self.pool.available:
            victim = (
                self.prefilling[-1]
                if self.prefilling
                else max(self.decoding.values(), key=attrgetter("id"))
            )
            self._preempt(victim)

    def _preempt(self, job: Job) -> None:
        if job.id in self.decoding:
            job.generated += self._tokens_since(job)
            self._leave(job)
        else:
            self.prefilling.remove(job)
            self._release(job)
        job.preemptions += 1
        self.preemptions += 1
        self.waiting.appendleft(job)

    def _tokens_since(self, job: Job) -> int:
        """Tokens a stream made since it joined the decodes, its first one there not counted."""
        return min(
            int((self.step_count - job.joined) * job.tokens_per_step),
            job.output_tokens - job.generated,
        )

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
        if self.decoding and steps > self._told:
            self._listener.stepped(steps - self._told)
        self._told = 0
        grown = int(self._grown(steps))
        self.step_count += steps
        self._context += grown
        self.decode_tokens += grown
        if self.step_count >= self._block_at:
            self._take_blocks()

    def _take_blocks(self) -> None:
        """Give every stream the blocks that its context has grown into."""
        size = self.spec.block_tokens
        soonest = _NEVER
        for job in self.decoding.values():
            tokens = job.context + int((self.step_count - job.joined) * job.tokens_per_step)
            more = -(-tokens // size) - job.named - job.private
            if more > 0:
                self.pool.grow(more)
                job.private += more
            soonest = min(soonest, self._next_block_at(job))
        self._block_at = soonest

    def _next_block_at(self, job: Job) -> int:
        """The step count at which a stream has outgrown the blocks that it has."""
        room = (job.named + job.private) * self.spec.block_tokens - job.context + 1
        return job.joined + math.ceil(room / job.tokens_per_step)

    def _step_over(self, now_s: float, version: int) -> None:
        if version != self._version:
            return
        self.busy_s += now_s - self._began_s
        self._fold(self._planned)
        if self._ends and self._ends[0][0] <= self.step_count:
            self._end_decodes(now_s)
        if self._chunks:
            self._end_chunks(now_s)
        self._plan(now_s)

    def _end_decodes(self, now_s: float) -> None:
        ends = self._ends
        while ends and ends[0][0] <= self.step_count:
            _, _, job = heapq.heappop(ends)
            if self.decoding.get(job.id) is not job or job.ends > self.step_count:
                continue
            job.generated = job.output_tokens
            self._leave(job)
            self._finish(now_s, job)

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
        job.generated += 1
        if job.first_token_s is None:
            job.first_token_s = now_s
            self._listener.first_token(now_s, job)
        if job.generated >= job.output_tokens:
            self._release(job)
            self._finish(now_s, job)
            return
        left = job.output_tokens - job.generated
        job.joined = self.step_count
        job.context = job.input_tokens + job.generated
        job.ends = self.step_count + math.ceil(left / job.tokens_per_step)
        self.decoding[job.id] = job
        self._block_at = min(self._block_at, self._next_block_at(job))
        self._context += job.context
        self._drafted += job.drafted
        heapq.heappush(self._ends, (job.ends, job.id, job))

    def _leave(self, job: Job) -> None:
        """Take a stream out of the decodes and free its blocks."""
        del self.decoding[job.id]
        self._context -= job.context + int((self.step_count - job.joined) * job.tokens_per_step)
        self._drafted -= job.drafted
        if not self.decoding:
            self._context, self._drafted, self._block_at = 0, 0.0, _NEVER
        self._release(job)

    def _release(self, job: Job) -> None:
        self.pool.release(job.hashes[: job.named], job.private)
        job.named = job.private = 0

    def _finish(self, now_s: float, job: Job) -> None:
        job.finished_s = now_s
        self._listener.ended(now_s, job)
