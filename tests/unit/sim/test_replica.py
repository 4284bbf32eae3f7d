"""One simulated replica against times worked out by hand."""

import pytest

from trimtab.core.step_cost import StepCost
from trimtab.sim.jobs import Job, Listener, ReplicaSpec
from trimtab.sim.kernel import Kernel
from trimtab.sim.replica import Replica

COST = StepCost(
    overhead_ms=2.0,
    weights_ms=8.0,
    token_ms=0.1,
    stream_ms=0.5,
    context_ms=0.001,
    pair_ms=0.0001,
    source="made up",
)


class Bench:
    """A replica with what became of its jobs."""

    def __init__(self, **spec: int) -> None:
        self.kernel = Kernel()
        self.ended: list[Job] = []
        self.stepped: list[int] = []
        listener = Listener(
            first_token=lambda _, job: None,
            ended=lambda _, job: self.ended.append(job),
            stepped=self.stepped.append,
        )
        sizes = {"kv_tokens": 16_000, "budget_tokens": 256, "streams_max": 8, **spec}
        self.replica = Replica(ReplicaSpec(cost=COST, **sizes), self.kernel, listener)

    def send(self, at_s: float, job: Job) -> Job:
        """Send a job at a time."""
        self.kernel.at(at_s, self.replica.submit, job)
        return job


def job(number: int, inputs: int, outputs: int, hashes: tuple[int, ...] = ()) -> Job:
    """A request of so many tokens."""
    return Job(id=number, input_tokens=inputs, output_tokens=outputs, hashes=hashes)


def test_lone_request_takes_one_prefill_step_and_a_decode_step_per_further_token() -> None:
    """The closed form of the decode steps equals the sum of single ones."""
    bench = Bench()
    one = bench.send(0.0, job(1, 100, 4))
    bench.kernel.run()
    prefill_ms = 2.0 + 10.0 + 0.0001 * 100 * 50
    decode_ms = sum(2.0 + 8.0 + 0.5 + 0.001 * context for context in (101, 102, 103))
    assert one.first_token_s == pytest.approx(prefill_ms / 1000.0)
    assert one.finished_s == pytest.approx((prefill_ms + decode_ms) / 1000.0)


def test_long_prompt_is_prefilled_in_chunks_of_the_budget() -> None:
    """The last chunk is the rest."""
    bench = Bench()
    one = bench.send(0.0, job(1, 600, 1))
    bench.kernel.run()
    chunks = ((256, 0), (256, 256), (88, 512))
    pairs = sum(size * (before + size / 2) for size, before in chunks)
    expected_ms = sum(2.0 + max(8.0, 0.1 * size) for size, _ in chunks) + 0.0001 * pairs
    assert one.finished_s == pytest.approx(expected_ms / 1000.0)
    assert one.first_token_s == one.finished_s


def test_arrival_during_decodes_starts_at_the_end_of_the_step_in_which_it_falls() -> None:
    """The running stream meets the prefill in one longer step."""
    bench = Bench()
    first = bench.send(0.0, job(1, 100, 50))
    second = bench.send(0.100, job(2, 200, 1))
    bench.kernel.run()
    assert first.first_token_s is not None
    steps, now_ms, context = 0, first.first_token_s * 1000.0, 101
    while now_ms < 100.0:
        now_ms += 10.5 + 0.001 * (context + steps)
        steps += 1
    assert second.scheduled_s == pytest.approx(now_ms / 1000.0)


def test_prompt_that_was_there_is_reused_but_for_its_last_token() -> None:
    """Whole blocks of 16; the last token of a prompt is computed always."""
    bench = Bench()
    names = tuple(range(1, 7))
    bench.send(0.0, job(1, 96, 1, names))
    again = bench.send(1.0, job(2, 96, 1, names))
    longer = bench.send(2.0, job(3, 130, 1, (*names, 70, 80)))
    bench.kernel.run()
    assert (again.cached_tokens, longer.cached_tokens) == (95, 96)


def test_latest_request_is_preempted_when_the_kv_is_full_and_still_ends_right() -> None:
    """It is prefilled again with what it had generated; nobody is lost."""
    bench = Bench(kv_tokens=320)
    first = bench.send(0.0, job(1, 100, 100))
    second = bench.send(0.0, job(2, 100, 100))
    bench.kernel.run()
    assert (first.preemptions, second.preemptions > 0) == (0, True)
    assert [one.generated for one in (first, second)] == [100, 100]
    assert bench.replica.pool.available == bench.replica.pool.blocks


def test_request_longer_than_the_kv_is_refused_at_once() -> None:
    """It could never run."""
    bench = Bench(kv_tokens=320)
    huge = bench.send(0.5, job(1, 400, 10))
    bench.kernel.run()
    assert (huge.failed, huge.finished_s) == ("longer than the KV of the replica", 0.5)


def test_cancelled_stream_frees_its_place_and_blocks() -> None:
    """The others go on."""
    bench = Bench(streams_max=1)
    gone = bench.send(0.0, job(1, 100, 1000))
    waits = bench.send(0.0, job(2, 100, 2))
    bench.kernel.at(1.0, lambda now_s, _: bench.replica.cancel(now_s, gone, "its client left"))
    bench.kernel.run()
    assert gone.failed == "its client left"
    assert waits.scheduled_s == pytest.approx(1.0)
    assert bench.replica.pool.available == bench.replica.pool.blocks


def test_killed_replica_loses_what_it_had_and_can_serve_again() -> None:
    """Nothing of the old life reaches into the new one."""
    bench = Bench()
    lost = bench.send(0.0, job(1, 100, 1000, tuple(range(6))))
    bench.kernel.run(0.5)
    assert bench.replica.kill(0.5, "lost") == [lost]
    fresh = bench.send(1.0, job(2, 100, 2, tuple(range(6))))
    bench.kernel.run()
    assert (lost.failed, fresh.cached_tokens, fresh.failed) == ("lost", 0, None)


def test_accepted_drafts_shorten_an_answer_and_cost_their_verification() -> None:
    """Two tokens a step halve the steps; three drafted tokens are computed beside the stream's own."""
    bench = Bench()
    plain = bench.send(0.0, job(1, 100, 41))
    bench.kernel.run()
    drafted = bench.send(10.0, job(2, 100, 41))
    drafted.tokens_per_step, drafted.drafted = 2.0, 3.0
    bench.kernel.run()
    assert plain.finished_s is not None
    assert plain.first_token_s is not None
    assert drafted.finished_s is not None
    assert drafted.first_token_s is not None
    ratio = (drafted.finished_s - drafted.first_token_s) / (plain.finished_s - plain.first_token_s)
    assert ratio == pytest.approx(0.5, abs=0.01)


def test_every_step_of_the_streams_is_told_once() -> None:
    """Who asks in the middle of a jump is told of what has passed, and of the rest when it ends."""
    bench = Bench()
    one = bench.send(0.0, job(1, 100, 50))
    bench.kernel.at(0.1, lambda now_s, _: bench.replica.tell_steps(now_s))
    bench.kernel.at(0.1, lambda now_s, _: bench.replica.tell_steps(now_s))
    bench.kernel.run()
    assert one.first_token_s is not None
    context, end_s, passed = 101, one.first_token_s, 0
    while (end_s := end_s + (10.5 + 0.001 * context) / 1000.0) <= 0.1:
        context, passed = context + 1, passed + 1
    assert bench.stepped == [passed, 49 - passed]
