"""A simulated replica of llama.cpp against times and reuse worked out by hand."""

import math
import random

import msgspec
import pytest

from trimtab.core.step_cost import StepCost
from trimtab.sim.hosts import Host
from trimtab.sim.jobs import HostSpec, Job, Listener, ReplicaSpec
from trimtab.sim.kernel import Kernel
from trimtab.sim.slot_replica import SlotReplica
from trimtab.sim.unrest import Unrest

COST = StepCost(
    overhead_ms=10.0,
    weights_ms=0.0,
    token_ms=1.0,
    stream_ms=0.0,
    context_ms=0.0,
    pair_ms=0.0,
    source="made up",
)


class Bench:
    """Replicas on one host with what became of their jobs."""

    def __init__(self, replicas: int = 1, *, host: HostSpec | None = None, **sizes: object) -> None:
        self.kernel = Kernel()
        self.ended: list[Job] = []
        self.steps = 0
        listener = Listener(
            first_token=lambda _, job: None,
            ended=lambda _, job: self.ended.append(job),
            stepped=self._stepped,
        )
        given = {
            "cost": COST,
            "kv_tokens": 4000,
            "budget_tokens": 64,
            "streams_max": 2,
            "block_tokens": 10,
        }
        spec = ReplicaSpec(similarity=0.5, **(given | sizes))
        shared = None if host is None else Host(host)
        self.replicas = [
            SlotReplica(spec, self.kernel, listener, shared, random.Random(number))
            for number in range(replicas)
        ]

    def _stepped(self, steps: int) -> None:
        self.steps += steps

    def send(self, at_s: float, job: Job, replica: int = 0) -> Job:
        """Send a job at a time."""
        self.kernel.at(at_s, self.replicas[replica].submit, job)
        return job

    def run(self) -> None:
        """Run to the end."""
        self.kernel.run()


def job(number: int, inputs: int, outputs: int, hashes: tuple[int, ...] = ()) -> Job:
    """A request of so many tokens."""
    return Job(id=number, input_tokens=inputs, output_tokens=outputs, hashes=hashes)


def test_lone_request_takes_its_chunks_and_a_step_per_further_token() -> None:
    """A prompt of 100 in chunks of 64 and 36 tokens, then two decodes of one token."""
    bench = Bench()
    one = bench.send(0.0, job(1, 100, 3))
    bench.run()
    assert one.first_token_s == pytest.approx((74 + 46) / 1000)
    assert one.finished_s == pytest.approx((74 + 46 + 2 * 11) / 1000)
    assert (bench.steps, bench.replicas[0].prefill_tokens, bench.replicas[0].decode_tokens) == (
        2,
        100,
        2,
    )


def test_prompt_shares_its_steps_with_the_decodes_of_others() -> None:
    """The other slot's token comes at the end of the longer step, takes a token of its budget and a pass of its own."""
    bench = Bench()
    first = bench.send(0.0, job(1, 10, 4))
    second = bench.send(0.025, job(2, 63, 2))
    bench.run()
    # Steps: prompt of 10 in slot 1 (20 ms), a decode (11 ms, the second came in it), then the decode in a pass and all
    # 63 tokens of slot 0 in another, then both slots' decodes in one.
    assert first.first_token_s == pytest.approx(0.020)
    assert second.first_token_s == pytest.approx(0.031 + 0.011 + 0.073)
    assert first.finished_s == pytest.approx(0.031 + 0.011 + 0.073 + 0.012)
    assert second.finished_s == first.finished_s


def test_next_turn_takes_the_slot_of_its_session_and_computes_what_is_new() -> None:
    """Also what the slot generated is there, where the prompt goes on with it."""
    bench = Bench()
    first = job(1, 100, 11, tuple(range(10)))
    first.after = (10, 11)
    bench.send(0.0, first)
    bench.send(1.0, job(2, 60, 2, tuple(range(100, 106))))
    turn = bench.send(2.0, job(3, 140, 2, (*range(12), 50, 51)))
    bench.run()
    assert (first.cached_tokens, turn.cached_tokens) == (0, 120)
    assert turn.first_token_s == pytest.approx(2.0 + 0.030)


def test_short_likeness_takes_the_slot_that_was_idle_longest() -> None:
    """A share of half or less is no reason to overwrite a session; then nothing is reused."""
    bench = Bench()
    bench.send(0.0, job(1, 40, 2, (1, 2, 3, 4)))
    bench.send(1.0, job(2, 40, 2, (9, 8, 7, 6)))
    other = bench.send(2.0, job(3, 80, 2, (9, 8, 20, 21, 22, 23, 24, 25)))
    again = bench.send(3.0, job(4, 50, 2, (9, 8, 7, 6, 5)))
    bench.run()
    assert (other.cached_tokens, again.cached_tokens) == (0, 40)


def test_whole_prompt_in_a_slot_is_computed_by_its_last_token() -> None:
    """An engine computes at least one token."""
    bench = Bench()
    bench.send(0.0, job(1, 40, 2, (1, 2, 3, 4)))
    again = bench.send(1.0, job(2, 40, 2, (1, 2, 3, 4)))
    bench.run()
    assert again.cached_tokens == 39
    assert again.first_token_s == pytest.approx(1.011)


def test_with_all_slots_busy_requests_wait_in_order() -> None:
    """The third starts when the first ends, the fourth when the second does."""
    bench = Bench(streams_max=1)
    jobs = [bench.send(0.0, job(number, 10, 2)) for number in range(3)]
    bench.run()
    assert [one.scheduled_s for one in jobs] == pytest.approx([0.0, 0.031, 0.062])
    assert [one.id for one in bench.ended] == [0, 1, 2]


def test_reuse_that_was_measured_is_taken_as_told() -> None:
    """For fitting: the costs are not to make up for a wrong guess of what was reused."""
    bench = Bench()
    told = job(1, 100, 2)
    told.told_cached = 90
    bench.send(0.0, told)
    bench.run()
    assert (told.cached_tokens, told.first_token_s) == (90, pytest.approx(0.020))


def test_replicas_on_too_few_cores_slow_each_other_while_both_work() -> None:
    """Two on one core take twice as long as long as both are at work, and the rest goes at full speed."""
    bench = Bench(2, host=HostSpec(cores=1, threads=1, replicas=2), budget_tokens=1000)
    first = bench.send(0.0, job(1, 90, 1), 0)
    second = bench.send(0.050, job(2, 90, 1), 1)
    bench.run()
    # The first did half alone, the other half at half speed; then the second has half left for itself.
    assert first.first_token_s == pytest.approx(0.150)
    assert second.first_token_s == pytest.approx(0.200)


def test_contention_is_added_for_each_other_replica_at_work() -> None:
    """With cores for both, what is left is what they take from each other."""
    spec = HostSpec(cores=2, threads=1, replicas=2, contention=0.25)
    bench = Bench(2, host=spec, budget_tokens=1000)
    jobs = [bench.send(0.0, job(number, 90, 1), number) for number in range(2)]
    alone = bench.send(1.0, job(3, 90, 1), 0)
    bench.run()
    assert [one.first_token_s for one in jobs] == pytest.approx([0.125, 0.125])
    assert alone.first_token_s == pytest.approx(1.100)


def test_unrest_of_a_core_lengthens_each_step_by_the_pace_it_began_with() -> None:
    """The law of `sim.unrest`, one process for each replica, whoever else is at work."""
    spread = {"unrest_prefill": 0.4, "unrest_decode": 0.2, "unrest_s": 1.0}
    restless = HostSpec(cores=2, threads=1, replicas=2, **spread)
    bench = Bench(2, host=restless, budget_tokens=1000)
    jobs = [bench.send(0.0, job(number, 90, 2), number) for number in range(2)]
    bench.run()
    for number, one in enumerate(jobs):
        unrest = Unrest(1.0, random.Random(number))
        first_s = 0.100 * unrest.pace(0.0, 0.4)
        assert one.first_token_s == pytest.approx(first_s)
        assert one.finished_s == pytest.approx(first_s + 0.011 * unrest.pace(first_s, 0.2))
    assert not math.isclose(jobs[0].first_token_s or 0.0, jobs[1].first_token_s or 0.0)


def test_host_with_unrest_needs_a_generator_of_randomness() -> None:
    """A replica that made its own would not be the same under the same seed."""
    spec = ReplicaSpec(cost=COST, kv_tokens=100, similarity=0.5)
    listener = Listener(first_token=lambda *_: None, ended=lambda *_: None)
    host = Host(HostSpec(cores=1, threads=1, unrest_decode=0.1))
    with pytest.raises(ValueError, match="generator"):
        SlotReplica(spec, Kernel(), listener, host)


def test_cancelled_job_leaves_its_slot_and_a_killed_replica_forgets() -> None:
    """Whoever waits gets the slot; after a kill nothing is reused and jobs can come again."""
    bench = Bench(streams_max=1)
    replica = bench.replicas[0]
    gone = bench.send(0.0, job(1, 50, 50, (1, 2, 3, 4, 5)))
    waiting = bench.send(0.0, job(2, 10, 2))
    bench.kernel.at(0.1, lambda now_s, _: replica.cancel(now_s, gone, "left"))
    bench.kernel.run(0.5)
    assert (gone.failed, gone.finished_s) == ("left", 0.1)
    assert waiting.finished_s is not None
    lost = bench.send(1.0, job(3, 50, 50, (1, 2, 3, 4, 5)))
    bench.kernel.run(1.2)
    assert (lost.cached_tokens, replica.in_flight, replica.used_share > 0.0) == (0, 1, True)
    assert replica.kill(1.2, "crashed") == [lost]
    again = bench.send(2.0, job(4, 50, 2, (1, 2, 3, 4, 5)))
    bench.run()
    assert (again.cached_tokens, replica.in_flight, again.failed) == (0, 0, None)


def test_slot_of_a_client_that_left_keeps_what_was_computed() -> None:
    """A chunk of 64 and, with the step under way, one more; the next one computes the rest."""
    bench = Bench()
    replica, names = bench.replicas[0], tuple(range(30))
    first = bench.send(0.0, job(1, 300, 2, names))
    bench.kernel.at(0.1, lambda now_s, _: replica.cancel(now_s, first, "left"))
    again = bench.send(1.0, job(2, 300, 2, names))
    bench.run()
    assert (first.prefilled, again.cached_tokens) == (64, 0)
    assert replica.prefill_tokens == 128 + 300


def test_request_in_its_start_is_lost_with_the_replica_or_leaves_with_its_client() -> None:
    """It counts from the moment the replica takes it, and never runs after that."""
    bench = Bench(cost=msgspec.structs.replace(COST, start_ms=500.0))
    replica = bench.replicas[0]
    jobs = [bench.send(0.0, job(number, 50, 2)) for number in range(3)]
    bench.kernel.run(0.1)
    assert replica.in_flight == 3
    replica.cancel(0.1, jobs[0], "left")
    assert replica.kill(0.2, "crashed") == jobs[1:]
    bench.run()
    assert ([one.failed for one in jobs], replica.prefill_tokens) == (
        ["left", "crashed", "crashed"],
        0,
    )


def test_request_longer_than_a_slot_is_refused() -> None:
    """It could never run: each slot has its share of the KV."""
    bench = Bench()
    long = bench.send(0.0, job(1, 1990, 20))
    bench.run()
    assert long.failed == "longer than a slot of the replica"


def test_replica_without_a_similarity_has_no_slots() -> None:
    """It would be of the paged kind."""
    spec = ReplicaSpec(cost=COST, kv_tokens=100)
    listener = Listener(first_token=lambda *_: None, ended=lambda *_: None)
    with pytest.raises(ValueError, match="similarity"):
        SlotReplica(spec, Kernel(), listener)
