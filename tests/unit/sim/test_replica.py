"""One simulated replica against times worked out by hand."""

import msgspec
import pytest

from trimtab.core.step_cost import StepCost
from trimtab.sim.drafts import DraftSpec
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

    def __init__(self, **spec: object) -> None:
        self.kernel = Kernel()
        self.ended: list[Job] = []
        self.stepped: list[int] = []
        self.room: list[Job] = []
        listener = Listener(
            first_token=lambda _, job: None,
            ended=lambda _, job: self.ended.append(job),
            stepped=self.stepped.append,
            has_room=lambda _, job: self.room.append(job),
        )
        sizes = {"cost": COST, "kv_tokens": 16_000, "budget_tokens": 256, "streams_max": 8, **spec}
        self.replica = Replica(ReplicaSpec(**sizes), self.kernel, listener)

    def send(self, at_s: float, job: Job) -> Job:
        """Send a job at a time."""
        self.kernel.at(at_s, self.replica.submit, job)
        return job


def job(
    number: int, inputs: int, outputs: int, hashes: tuple[int, ...] = (), **more: object
) -> Job:
    """A request of so many tokens."""
    return Job(id=number, input_tokens=inputs, output_tokens=outputs, hashes=hashes, **more)


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


def drafts(*shares: float, depth: int | None = None, **more: object) -> DraftSpec:
    """Drafts that are accepted at these shares, whatever the label."""
    return DraftSpec(acceptance={"": shares}, depth=depth, **more)


def test_accepted_drafts_shorten_an_answer_and_cost_their_verification() -> None:
    """Two tokens a step halve the steps; three drafted tokens are computed beside the stream's own."""
    took = []
    for spec in (None, drafts(0.5, 0.3, 0.2, depth=3)):
        bench = Bench(drafts=spec)
        one = bench.send(0.0, job(1, 100, 41))
        bench.kernel.run()
        assert one.finished_s is not None
        assert one.first_token_s is not None
        took.append(one.finished_s - one.first_token_s)
    assert took[1] / took[0] == pytest.approx(0.5, abs=0.01)
    assert bench.replica.decodes.drafted_tokens == pytest.approx(3 * 20)
    assert bench.replica.decodes.accepted_tokens == pytest.approx(20)
    many = [
        Bench(drafts=spec, streams_max=200, budget_tokens=400)
        for spec in (None, drafts(0.1, depth=4))
    ]
    for bench in many:
        for number in range(64):
            bench.send(0.0, job(number, 4, 40))
        bench.kernel.run()
    assert many[1].kernel.now_s > 1.3 * many[0].kernel.now_s


def test_drafts_of_each_label_are_accepted_as_told_and_making_them_takes_time() -> None:
    """Edits copy; questions do not."""
    spec = DraftSpec(acceptance={"": (0.0,), "edit": (1.0,)}, depth=1, draft_ms=2.0)
    bench = Bench(drafts=spec)
    edit = bench.send(0.0, job(1, 100, 41, label="edit"))
    other = bench.send(10.0, job(2, 100, 41))
    bench.kernel.run()
    assert edit.finished_s is not None
    assert edit.first_token_s is not None
    assert other.finished_s is not None
    assert other.first_token_s is not None
    steps = (edit.finished_s - edit.first_token_s, other.finished_s - other.first_token_s)
    assert steps[0] == pytest.approx(sum(12.5 + 0.001 * (101 + 2 * at) for at in range(20)) / 1000)
    assert steps[1] == pytest.approx(sum(12.5 + 0.001 * (101 + at) for at in range(40)) / 1000)


def test_depth_policy_drafts_alone_and_stops_in_a_crowd_without_losing_a_token() -> None:
    """190 streams of 0.1 ms a token are over the 8 ms of the weights."""
    cost = msgspec.structs.replace(COST, stream_ms=0.0)
    bench = Bench(cost=cost, drafts=drafts(0.3, 0.1), streams_max=200, budget_tokens=1000)
    first = bench.send(0.0, job(0, 50, 2000))
    crowd = [bench.send(3.0, job(number, 10, 300)) for number in range(1, 190)]
    bench.kernel.run(2.9)
    drafter = bench.replica.drafter
    assert drafter is not None
    assert drafter.depth > 0
    bench.kernel.run(4.0)
    assert drafter.depth == 0
    bench.kernel.run()
    assert {one.generated for one in crowd} == {300}
    assert (first.generated, bench.replica.pool.available) == (2000, bench.replica.pool.blocks)


def test_prompt_that_is_handed_over_keeps_its_blocks_until_they_were_fetched() -> None:
    """A second prompt has to wait for the room."""
    bench = Bench(kv_tokens=320)
    first = bench.send(0.0, job(1, 200, 1, hands_over=True))
    second = bench.send(0.0, job(2, 200, 1, hands_over=True))
    bench.kernel.run()
    assert [one.id for one in bench.ended] == [1]
    assert not bench.replica.is_idle
    bench.replica.handed_over(bench.kernel.now_s, first)
    bench.kernel.run()
    assert [one.id for one in bench.ended] == [1, 2]
    bench.replica.handed_over(bench.kernel.now_s, second)
    bench.replica.handed_over(bench.kernel.now_s, second)
    assert bench.replica.is_idle
    assert bench.replica.pool.available == bench.replica.pool.blocks


@pytest.mark.parametrize(("complete", "computed"), [(True, 1), (False, 100)])
def test_incoming_prompt_waits_for_its_kv_and_computes_what_did_not_come(
    complete: bool, computed: int
) -> None:
    """Its last token, which gives the first of the answer, or all of it; meanwhile others run."""
    bench = Bench()
    comes = bench.send(0.0, job(1, 100, 2, incoming=True))
    other = bench.send(0.0, job(2, 100, 2))
    bench.kernel.run()
    assert [one.id for one in bench.room] == [1]
    assert (comes.first_token_s, [one.id for one in bench.ended]) == (None, [2])
    before = bench.replica.prefill_tokens
    bench.kernel.at(1.0, lambda now_s, _: bench.replica.received(now_s, comes, complete=complete))
    bench.kernel.run()
    assert comes.generated == other.generated == 2
    assert bench.replica.prefill_tokens - before == computed
    assert bench.replica.is_idle


def test_client_that_leaves_while_kv_is_on_its_way_strands_nothing() -> None:
    """Its blocks are free at once."""
    bench = Bench()
    comes = bench.send(0.0, job(1, 100, 2, incoming=True))
    bench.kernel.run()
    bench.replica.cancel(1.0, comes, "its client left")
    bench.replica.received(1.0, comes, complete=True)
    assert bench.replica.is_idle
    assert bench.replica.pool.available == bench.replica.pool.blocks


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


def test_client_that_leaves_halfway_leaves_behind_what_was_computed() -> None:
    """Two chunks of 256 and, with the step under way, a third; the next one computes the rest."""
    bench = Bench()
    names = tuple(range(100))
    first = bench.send(0.0, job(1, 1600, 1, names))
    bench.kernel.at(0.080, lambda now_s, _: bench.replica.cancel(now_s, first, "its client left"))
    bench.kernel.run()
    assert (first.prefilled, bench.replica.prefill_tokens) == (512, 768)
    again = bench.send(1.0, job(2, 1600, 1, names))
    bench.kernel.run()
    assert (again.cached_tokens, bench.replica.prefill_tokens) == (768, 1600)
    assert bench.replica.pool.available == bench.replica.pool.blocks


def test_same_prompt_at_once_waits_for_the_first_and_shares_all_its_full_blocks() -> None:
    """The first takes the budget of every step until its last chunk, which both are in."""
    bench = Bench()
    names = tuple(range(37))
    first = bench.send(0.0, job(1, 600, 1, names))
    second = bench.send(0.0, job(2, 600, 1, names))
    bench.kernel.run()
    assert (first.cached_tokens, second.cached_tokens) == (0, 592)
    assert second.first_token_s == first.first_token_s
    assert bench.replica.prefill_tokens == 608


def test_preempted_prompt_is_found_again_as_far_as_it_was_computed() -> None:
    """Streams that grow take its room while it is prefilled; nothing of it is skipped."""
    bench = Bench(kv_tokens=640, budget_tokens=40)
    for number in range(4):
        bench.send(0.0, job(number, 60, 60))
    names = tuple(range(18))
    late = bench.send(0.26, job(9, 300, 2, names))
    bench.kernel.run()
    assert (late.preemptions > 0, late.generated) == (True, 2)
    assert bench.replica.prefill_tokens >= 4 * 60 + 300
    assert bench.replica.pool.available == bench.replica.pool.blocks


def test_kv_on_its_way_is_no_prefix_of_others_before_it_came() -> None:
    """Another with the same prompt computes it; one that comes after the KV does finds it."""
    bench = Bench()
    names = tuple(range(40))
    comes = bench.send(0.0, job(1, 640, 2, names, incoming=True))
    other = bench.send(0.1, job(2, 640, 2, names))
    bench.kernel.at(5.0, lambda now_s, _: bench.replica.received(now_s, comes, complete=True))
    bench.kernel.run()
    assert (other.cached_tokens, bench.replica.prefill_tokens) == (0, 641)
    alone = Bench()
    comes = alone.send(0.0, job(1, 640, 2, names, incoming=True))
    alone.kernel.at(5.0, lambda now_s, _: alone.replica.received(now_s, comes, complete=True))
    other = alone.send(6.0, job(2, 640, 2, names))
    alone.kernel.run()
    assert other.cached_tokens == 639
    for one in (bench, alone):
        assert one.replica.pool.available == one.replica.pool.blocks


def test_nobody_is_admitted_to_blocks_that_the_streams_need_in_that_step() -> None:
    """Two streams fill 18 of 20 blocks and take the last two in the next step; a prompt of two blocks waits."""
    bench = Bench(kv_tokens=320)
    streams = [bench.send(0.0, job(number, 144, 8)) for number in range(2)]
    late = bench.send(0.001, job(3, 32, 1))
    bench.kernel.run()
    assert [one.preemptions for one in (*streams, late)] == [0, 0, 0]
    assert late.scheduled_s == streams[0].finished_s


def test_request_in_its_start_is_lost_with_the_replica_or_leaves_with_its_client() -> None:
    """It counts from the moment the replica takes it, and never runs after that."""
    bench = Bench(cost=msgspec.structs.replace(COST, start_ms=500.0))
    jobs = [bench.send(0.0, job(number, 100, 2)) for number in range(3)]
    bench.kernel.run(0.1)
    assert (bench.replica.in_flight, bench.replica.is_idle) == (3, False)
    bench.replica.cancel(0.1, jobs[0], "its client left")
    assert bench.replica.in_flight == 2
    assert bench.replica.kill(0.2, "lost") == jobs[1:]
    again = bench.send(0.3, job(1, 100, 2))
    bench.kernel.run()
    assert [one.failed for one in jobs] == ["its client left", "lost", "lost"]
    assert (again.scheduled_s, bench.replica.prefill_tokens) == (0.8, 100)
