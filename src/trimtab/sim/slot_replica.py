"""One simulated replica of llama.cpp: slots that hold one chain each instead of blocks that all share.

Law, per step: every decoding slot gets a token; what is left of the step's token budget goes to prompts in order of
slot, so that a prompt is prefilled in chunks while others decode. A request takes the slot that `core.prefix_slots`
says, keeps what of its chain it has in common and overwrites the rest; with all slots busy it waits, first come first
served. A step is cut into passes (`sim.passes`), each of which has the overhead and the weights of `core.step_cost`;
its time is their sum times the pace of the host whose cores the replicas share, and that of its own (`sim.unrest`).

A slot keeps what it generated (`Job.after`, where told) behind its prompt; of a request that leaves before its prompt
was computed it keeps what was, the chunk of the step under way with it. A chain is compared by whole blocks, so
that reuse errs on the low side by less than one. KV never fills: a slot has room for a whole context, and what is
longer is refused.

Source: `update_slots` and `get_available_slot` of llama.cpp's server.
"""

import math
import random
from collections import deque
from collections.abc import Sequence

from trimtab.core.prefix_slots import SlotCache
from trimtab.engines.llamacpp import MICRO_BATCH_TOKENS_MAX
from trimtab.sim.hosts import Host
from trimtab.sim.jobs import HostSpec, Job, Listener, ReplicaSpec
from trimtab.sim.kernel import Kernel
from trimtab.sim.passes import passes_of
from trimtab.sim.replica import RANK_STEP
from trimtab.sim.starts import Starts
from trimtab.sim.unrest import Unrest


class SlotReplica:
    """Runs jobs in virtual time, with the same face as `sim.replica.Replica`."""

    def __init__(
        self,
        spec: ReplicaSpec,
        kernel: Kernel,
        listener: Listener,
        host: Host | None = None,
        rng: random.Random | None = None,
    ) -> None:
        """Take what it can do, whom to tell, on whose cores it runs and where its unrest comes from.

        Raises ValueError without a similarity, and without `rng` where its host knows unrest.
        """
        if spec.similarity is None:
            raise ValueError("a replica with slots needs the similarity from which on one is taken")
        self.spec = spec
        self.slow = 1.0
        self.waiting: deque[Job] = deque()
        self.busy_s = 0.0
        self.step_count = 0
        self.decode_tokens = 0
        self.prefill_tokens = 0
        self.preemptions = 0
        self._kernel = kernel
        self._listener = listener
        self._starts = Starts(kernel, self._enqueue)
        self._host = host or Host(HostSpec(cores=1, threads=1))
        self._unrest: Unrest | None = None
        if self._host.spec.is_restless:
            if rng is None:
                raise ValueError("a host with unrest needs a generator of randomness")
            self._unrest = Unrest(self._host.spec.unrest_s, rng)
        self._cache = SlotCache(spec.streams_max, spec.similarity)
        self._slots: list[Job | None] = [None] * spec.streams_max
        self._made: dict[int, float] = {}
        self._ticks = 0
        self._version = 0
        self._at_work = False
        # The step under way: what is left of it in milliseconds of a replica alone, since when, and at what pace.
        self._left_ms = 0.0
        self._since_s = 0.0
        self._pace = 1.0
        self._chunks: list[tuple[Job, int]] = []
        self._decoded: list[Job] = []

    @property
    def running(self) -> int:
        """Requests that have a slot."""
        return sum(1 for job in self._slots if job is not None)

    @property
    def in_flight(self) -> int:
        """Requests that are there, in a slot, waiting or starting."""
        return self.running + len(self.waiting) + len(self._starts.jobs)

    @property
    def used_share(self) -> float:
        """Part (0 to 1) of the KV that slots at work hold."""
        held = sum(job.prefilled + job.generated for job in self._slots if job is not None)
        return min(1.0, held / self.spec.kv_tokens)

    def held_blocks(self, hashes: Sequence[int]) -> int:
        """Return how many of a prompt's first blocks would be reused if it started now."""
        return self._cache.preview(tuple(hashes))[0]

    def submit(self, now_s: float, job: Job) -> None:
        """Take a job; one that no slot has room for fails at once."""
        job.arrived_s = now_s
        if job.input_tokens + job.output_tokens > self.spec.kv_tokens // self.spec.streams_max:
            job.failed, job.finished_s = "longer than a slot of the replica", now_s
            self._listener.ended(now_s, job)
            return
        self._starts.begin(now_s, job, self.spec.cost.start_ms)

    def _enqueue(self, now_s: float, job: Job) -> None:
        self.waiting.append(job)
        if not self._at_work:
            self._plan(now_s)

    def cancel(self, now_s: float, job: Job, reason: str) -> None:
        """Take a job back, wherever it is; the step under way ends as planned. A job that ended changes nothing."""
        if job.finished_s is not None:
            return
        job.failed, job.finished_s = reason, now_s
        self._starts.drop(job)
        if job in self.waiting:
            self.waiting.remove(job)
        elif job in self._slots:
            under_way = sum(size for one, size in self._chunks if one is job)
            computed = job.prefilled + under_way
            if computed < job.input_tokens:
                self._cache.cut(self._slots.index(job), computed // self.spec.block_tokens)
            self.prefill_tokens += under_way
            self._chunks = [chunk for chunk in self._chunks if chunk[0] is not job]
            self._decoded = [other for other in self._decoded if other is not job]
            self._leave(job)
        self._listener.ended(now_s, job)

    def kill(self, now_s: float, reason: str) -> list[Job]:
        """Lose everything, as a crash does; returns the jobs that failed, in the order they came."""
        there = [
            *self._starts.clear(),
            *self.waiting,
            *(job for job in self._slots if job is not None),
        ]
        lost = sorted(there, key=lambda job: job.id)
        self.waiting.clear()
        self._slots = [None] * self.spec.streams_max
        self._cache = SlotCache(*self._cache.settings)
        self._made.clear()
        self._chunks, self._decoded = [], []
        self._version += 1
        self._rest(now_s)
        for job in lost:
            job.failed, job.finished_s = reason, now_s
        return lost

    def tell_steps(self, now_s: float) -> None:
        """Do nothing: the listener is told of every step when it ends."""

    def _plan(self, now_s: float) -> None:
        """Fill free slots, then decide what the next step computes."""
        while self.waiting and self.running < self.spec.streams_max:
            self._start(now_s, self.waiting.popleft())
        there = [(place, job) for place, job in enumerate(self._slots) if job is not None]
        decoding = [(place, job) for place, job in there if job.prefill_left == 0]
        batch = [(place, 1 + math.ceil(job.drafted)) for place, job in decoding]
        self._decoded = [job for _, job in decoding]
        self._chunks = []
        room = self.spec.budget_tokens - sum(tokens for _, tokens in batch)
        for place, job in there:
            size = min(job.prefill_left, room)
            if size > 0:
                self._chunks.append((job, size))
                batch.append((place, size))
                room -= size
        if not batch:
            self._rest(now_s)
            return
        self._left_ms = self.slow * self._own_pace(now_s) * self._step_ms(batch)
        if not self._at_work:
            self._at_work = True
            self._host.begin(now_s, id(self), self._repace)
        self._since_s, self._pace = now_s, self._host.pace
        self._schedule(now_s)

    def _step_ms(self, batch: Sequence[tuple[int, int]]) -> float:
        """Milliseconds of the step of a batch, alone on its host: its passes, and once what each stream adds."""
        cost = self.spec.cost
        passes = passes_of(batch, min(MICRO_BATCH_TOKENS_MAX, self.spec.budget_tokens))
        pairs = sum(size * (job.prefilled + size / 2.0) for job, size in self._chunks)
        context = sum(job.input_tokens + self._made[job.id] for job in self._decoded)
        first_ms = cost.step_ms(
            tokens=passes[0], streams=len(self._decoded), context_tokens=context, pairs=pairs
        )
        return first_ms + sum(cost.step_ms(tokens=tokens) for tokens in passes[1:])

    def _own_pace(self, now_s: float) -> float:
        if self._unrest is None:
            return 1.0
        host = self._host.spec
        return self._unrest.pace(now_s, host.unrest_prefill if self._chunks else host.unrest_decode)

    def _rest(self, now_s: float) -> None:
        if self._at_work:
            self._at_work = False
            self._host.end(now_s, id(self))

    def _repace(self, now_s: float, pace: float) -> None:
        """Go on with the step under way at another pace."""
        gone_s = now_s - self._since_s
        self._left_ms = max(0.0, self._left_ms - gone_s * 1000.0 / self._pace)
        self.busy_s += gone_s
        self._since_s, self._pace = now_s, pace
        self._schedule(now_s)

    def _schedule(self, now_s: float) -> None:
        self._version += 1
        end_s = now_s + self._left_ms * self._pace / 1000.0
        self._kernel.at(end_s, self._step_over, self._version, RANK_STEP)

    def _start(self, now_s: float, job: Job) -> None:
        """Give a job the slot that the engine would take."""
        self._ticks += 1
        place, reused = self._cache.take(tuple(job.hashes), job.id, self._ticks)
        held = reused * self.spec.block_tokens if job.told_cached is None else job.told_cached
        # An engine computes at least the last token of a prompt.
        cached = min(held, job.input_tokens - 1)
        job.scheduled_s, job.cached_tokens = now_s, cached
        job.prefilled, job.prefill_left = cached, job.input_tokens - cached
        self._slots[place] = job
        self._made[job.id] = 0.0

    def _step_over(self, now_s: float, version: int) -> None:
        if version != self._version:
            return
        self.busy_s += now_s - self._since_s
        self.step_count += 1
        decoded, chunks = self._decoded, self._chunks
        if decoded:
            self._listener.stepped(1)
        for job in decoded:
            self._made[job.id] += job.tokens_per_step
            job.generated = min(job.output_tokens, 1 + int(self._made[job.id] + 1e-9))
            self.decode_tokens += 1
            if job.generated >= job.output_tokens:
                self._finish(now_s, job)
        for job, size in chunks:
            job.prefill_left -= size
            job.prefilled += size
            self.prefill_tokens += size
            if job.prefill_left == 0:
                self._first_token(now_s, job)
        self._plan(now_s)

    def _first_token(self, now_s: float, job: Job) -> None:
        job.generated, job.first_token_s = 1, now_s
        self._listener.first_token(now_s, job)
        if job.generated >= job.output_tokens:
            self._finish(now_s, job)

    def _finish(self, now_s: float, job: Job) -> None:
        if job.after:
            self._cache.extend(self._slots.index(job), tuple(job.after))
        self._leave(job)
        job.finished_s = now_s
        self._listener.ended(now_s, job)

    def _leave(self, job: Job) -> None:
        self._ticks += 1
        self._slots[self._slots.index(job)] = None
        del self._made[job.id]
        self._cache.release(tuple(job.hashes), job.id, self._ticks)
