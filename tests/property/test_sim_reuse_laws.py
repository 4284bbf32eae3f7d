"""What must hold for reuse on any simulated replica: nothing counts as cached that was not computed or received."""

import math

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.core.step_cost import StepCost
from trimtab.sim.jobs import Job, Listener, ReplicaSpec
from trimtab.sim.kernel import Kernel
from trimtab.sim.replica import Replica
from trimtab.sim.slot_replica import SlotReplica

COST = StepCost(
    overhead_ms=2.0,
    weights_ms=8.0,
    token_ms=0.05,
    stream_ms=0.1,
    context_ms=0.0002,
    pair_ms=0.000001,
    source="made up",
)
BLOCK = 16


class Filled:
    """Which blocks of prompts were computed or received since the replica last lost all, kept beside it."""

    def __init__(self) -> None:
        self.names: set[int] = set()
        self.computed: dict[int, int] = {}
        self.seen: set[int] = set()
        self.phantoms: list[int] = []

    def chunk(self, job: Job, size: int) -> None:
        """Note a chunk that a step has computed; before the first one, look at what counted as cached."""
        if job.id not in self.seen and not job.incoming:
            self.seen.add(job.id)
            cached = job.hashes[: math.ceil(job.cached_tokens / BLOCK)]
            self.phantoms += [name for name in cached if name not in self.names]
        self.computed[job.id] = self.computed.get(job.id, 0) + size
        self.put(job, job.prefilled // BLOCK, (job.prefilled + size) // BLOCK)

    def put(self, job: Job, first: int, end: int) -> None:
        """Note blocks of a prompt that are there."""
        self.names.update(job.hashes[first:end])


class Paged(Replica):
    """A replica of paged blocks whose chunks are noted as their step ends."""

    filled: Filled

    def _end_chunks(self, now_s: float) -> None:
        for job, size in self._chunks:
            if job.finished_s is None:
                self.filled.chunk(job, size)
            else:
                # Its client left; the step computed the chunk all the same.
                self.filled.put(job, job.prefilled // BLOCK, (job.prefilled + size) // BLOCK)
        super()._end_chunks(now_s)


class Slots(SlotReplica):
    """A replica of slots whose chunks are noted as their step ends, and as their client leaves."""

    filled: Filled

    def cancel(self, now_s: float, job: Job, reason: str) -> None:
        for one, size in self._chunks:
            if one is job:
                self.filled.put(job, job.prefilled // BLOCK, (job.prefilled + size) // BLOCK)
        super().cancel(now_s, job, reason)

    def _step_over(self, now_s: float, version: int) -> None:
        if version == self._version:
            for job, size in self._chunks:
                self.filled.chunk(job, size)
        super()._step_over(now_s, version)


def chain(family: int, shared: int, number: int, blocks: int) -> tuple[int, ...]:
    """Names of a prompt's blocks: `shared` of its family, then its own."""
    common = [1000 * family + at for at in range(min(shared, blocks))]
    return (*common, *(1_000_000 + 1000 * number + at for at in range(len(common), blocks)))


REQUEST = st.fixed_dictionaries(
    {
        "at_s": st.floats(0.0, 1.5),
        "inputs": st.integers(1, 900),
        "outputs": st.integers(1, 150),
        "family": st.integers(0, 2),
        "shared": st.integers(0, 60),
        "leaves_s": st.none() | st.none() | st.floats(0.0, 0.4),
        "comes_s": st.none() | st.none() | st.floats(0.0, 0.6),
        "complete": st.booleans(),
    }
)
Asked = dict[str, float | int | bool | None]


def _job(number: int, one: Asked) -> Job:
    inputs = int(one["inputs"] or 0)
    return Job(
        id=number,
        input_tokens=inputs,
        output_tokens=int(one["outputs"] or 0),
        hashes=chain(int(one["family"] or 0), int(one["shared"] or 0), number, inputs // BLOCK),
    )


def _replica(
    kind: type[Paged] | type[Slots], spec: ReplicaSpec, listener: Listener
) -> tuple[Kernel, Paged | Slots]:
    kernel = Kernel()
    replica = kind(spec, kernel, listener)
    replica.filled = Filled()
    return kernel, replica


@settings(max_examples=150, deadline=None)
@given(
    asked=st.lists(REQUEST, min_size=2, max_size=14),
    kv_blocks=st.integers(66, 160),
    budget=st.sampled_from((32, 100, 512)),
    streams=st.integers(2, 8),
    start_ms=st.sampled_from((0.0, 40.0)),
    losses=st.lists(st.floats(0.0, 2.0), max_size=2),
)
def test_nothing_counts_as_cached_that_was_not_computed_or_received(
    asked: list[Asked],
    kv_blocks: int,
    budget: int,
    streams: int,
    start_ms: float,
    losses: list[float],
) -> None:
    """With clients that leave, full KV, KV from elsewhere and losses; and all that came has ended, all blocks back."""
    ended: dict[int, Job] = {}
    spec = ReplicaSpec(
        cost=msgspec.structs.replace(COST, start_ms=start_ms),
        kv_tokens=BLOCK * kv_blocks,
        block_tokens=BLOCK,
        budget_tokens=budget,
        streams_max=streams,
    )
    coming: dict[int, Asked] = {}

    def has_room(now_s: float, job: Job) -> None:
        one = coming[job.id]
        kernel.at(now_s + float(one["comes_s"] or 0.0), arrives, (job, bool(one["complete"])))

    def arrives(now_s: float, what: tuple[Job, bool]) -> None:
        job, complete = what
        if complete and job.id in replica.receiving:
            replica.filled.put(job, 0, (job.input_tokens - 1) // BLOCK)
        replica.received(now_s, job, complete=complete)

    def lose(now_s: float, _: None) -> None:
        ended.update({job.id: job for job in replica.kill(now_s, "lost")})
        replica.filled.names.clear()

    listener = Listener(
        first_token=lambda *_: None,
        ended=lambda _, job: ended.__setitem__(job.id, job),
        has_room=has_room,
    )
    kernel, replica = _replica(Paged, spec, listener)
    assert isinstance(replica, Paged)
    jobs = [_job(number, one) for number, one in enumerate(asked)]
    for job, one in zip(jobs, asked, strict=True):
        job.incoming = one["comes_s"] is not None
        coming[job.id] = one
        at_s = float(one["at_s"] or 0.0)
        kernel.at(at_s, replica.submit, job)
        if one["leaves_s"] is not None:
            leaves = lambda now_s, job: replica.cancel(now_s, job, "left")  # noqa: E731
            kernel.at(at_s + float(one["leaves_s"]), leaves, job)
    for at_s in losses:
        kernel.at(at_s, lose, None)
    kernel.run()
    assert replica.filled.phantoms == []
    assert len(ended) == len(jobs)
    assert replica.is_idle
    assert replica.pool.available == replica.pool.blocks
    for job, one in zip(jobs, asked, strict=True):
        if job.failed is None and job.preemptions == 0 and one["comes_s"] is None:
            assert replica.filled.computed[job.id] + job.cached_tokens == job.input_tokens


@settings(max_examples=60, deadline=None)
@given(
    asked=st.lists(REQUEST, min_size=2, max_size=14),
    budget=st.sampled_from((32, 100, 512)),
    slots=st.integers(1, 3),
)
def test_slot_keeps_of_a_prompt_what_was_computed(
    asked: list[Asked], budget: int, slots: int
) -> None:
    """With clients that leave before their prompt was computed."""
    ended: list[int] = []
    spec = ReplicaSpec(
        cost=COST,
        kv_tokens=slots * 1100,
        block_tokens=BLOCK,
        budget_tokens=budget,
        streams_max=slots,
        similarity=0.1,
    )
    listener = Listener(first_token=lambda *_: None, ended=lambda _, job: ended.append(job.id))
    kernel, replica = _replica(Slots, spec, listener)
    for number, one in enumerate(asked):
        job, at_s = _job(number, one), float(one["at_s"] or 0.0)
        kernel.at(at_s, replica.submit, job)
        if one["leaves_s"] is not None:
            leaves = lambda now_s, job: replica.cancel(now_s, job, "left")  # noqa: E731
            kernel.at(at_s + float(one["leaves_s"]), leaves, job)
    kernel.run()
    assert replica.filled.phantoms == []
    assert sorted(ended) == list(range(len(asked)))
