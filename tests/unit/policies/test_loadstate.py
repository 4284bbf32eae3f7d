"""The gateway's own count of what is in flight."""

from trimtab.core.decision import ReplicaView
from trimtab.core.types import ReplicaState, Role
from trimtab.policies.loadstate import LoadState


def fleet(*replicas: str) -> LoadState:
    load = LoadState()
    for replica in replicas:
        put(load, replica)
    return load


def put(
    load: LoadState,
    replica: str,
    state: ReplicaState = ReplicaState.READY,
    *,
    started_at_s: float = 0.0,
) -> None:
    load.set_replica(
        id=replica,
        url="http://x",
        role=Role.MIXED,
        revision="v",
        state=state,
        slots=4,
        started_at_s=started_at_s,
    )


def work(view: ReplicaView) -> tuple[int, int, int, int]:
    return (
        view.running,
        view.waiting,
        view.prefill_tokens_outstanding,
        view.decode_tokens_outstanding,
    )


def test_request_moves_from_waiting_to_running_to_gone() -> None:
    """Prefill tokens are outstanding until the first token, decode tokens until they were delivered."""
    load = fleet("a")
    load.admitted("r", "a", prefill_tokens=100, decode_tokens=3)
    seen = [work(load.view(0.0).replicas[0])]
    load.prefill_done("r")
    load.chunk_delivered("r")
    seen.append(work(load.view(0.0).replicas[0]))
    for _ in range(5):
        load.chunk_delivered("r")
    seen.append(work(load.view(0.0).replicas[0]))
    load.finished("r")
    seen.append(work(load.view(0.0).replicas[0]))
    assert seen == [(0, 1, 100, 3), (1, 0, 0, 2), (1, 0, 0, 0), (0, 0, 0, 0)]


def test_request_that_ends_early_takes_all_of_its_work_with_it() -> None:
    """A request that is gone before its first token leaves no tokens outstanding; the other one stays."""
    load = fleet("a")
    load.admitted("r", "a", prefill_tokens=100, decode_tokens=30)
    load.admitted("s", "a", prefill_tokens=10, decode_tokens=3)
    load.finished("r")
    assert work(load.view(0.0).replicas[0]) == (0, 1, 10, 3)


def test_batch_is_of_the_replica_and_concurrency_of_the_fleet() -> None:
    """Both count the admitted request itself."""
    load = fleet("a", "b")
    admissions = [
        load.admitted(f"r{n}", replica, prefill_tokens=1, decode_tokens=1)
        for n, replica in enumerate("aab")
    ]
    load.finished("r0")
    admissions.append(load.admitted("r4", "a", prefill_tokens=1, decode_tokens=1))
    assert [(a.batch, a.concurrency) for a in admissions] == [(1, 1), (2, 2), (1, 3), (2, 3)]


def test_repeated_and_late_news_change_nothing() -> None:
    """First tokens are counted once; news of requests that are gone are ignored."""
    load = fleet("a")
    load.admitted("r", "a", prefill_tokens=5, decode_tokens=5)
    load.prefill_done("r")
    load.prefill_done("r")
    once = work(load.view(0.0).replicas[0])
    load.finished("r")
    load.finished("r")
    load.prefill_done("r")
    load.chunk_delivered("r")
    assert (once, work(load.view(0.0).replicas[0])) == ((1, 0, 0, 5), (0, 0, 0, 0))
    assert load.in_flight == 0


def test_only_ready_replicas_are_ready_and_all_are_in_the_view() -> None:
    """A draining replica is seen with its load and takes nothing new."""
    load = fleet("b", "a")
    load.admitted("r", "b", prefill_tokens=5, decode_tokens=5)
    put(load, "b", ReplicaState.DRAINING)
    view = load.view(7.0, sequence=3)
    assert load.ready() == ("a",)
    assert [(r.id, r.state.value, r.waiting) for r in view.replicas] == [
        ("a", "ready", 0),
        ("b", "draining", 1),
    ]
    assert (view.at_s, view.sequence) == (7.0, 3)


def test_probe_readings_survive_a_change_of_state() -> None:
    """What a probe saw stays until the next probe; news of unknown replicas are ignored."""
    load = fleet("a")
    load.seen("a", now_s=5.0, kv_used_share=0.25)
    load.seen("x", now_s=5.0, kv_used_share=0.5)
    put(load, "a", ReplicaState.DRAINING)
    [view] = load.view(6.0).replicas
    assert (view.kv_used_share, view.seen_at_s) == (0.25, 5.0)


def test_removed_replica_leaves_the_view_and_its_requests_end_quietly() -> None:
    """Requests in flight on a replica that is gone can still finish."""
    load = fleet("a", "b")
    load.admitted("r", "b", prefill_tokens=5, decode_tokens=5)
    load.remove_replica("b")
    load.prefill_done("r")
    load.finished("r")
    assert [replica.id for replica in load.view(0.0).replicas] == ["a"]
    assert load.in_flight == 0


def test_replicas_that_left_together_come_back_without_what_others_had_there() -> None:
    """What an engine told of other gateways' requests ends with it, though nobody looked at the fleet in between."""
    load = fleet("a", "b")
    for replica in "ab":
        load.seen(replica, now_s=1.0, kv_used_share=0.5, running=3, waiting=2)
    for replica in "ab":
        load.remove_replica(replica)
    for replica in "ab":
        put(load, replica)
    view = load.view(2.0)
    assert [work(one) for one in view.replicas] == [(0, 0, 0, 0)] * 2
    assert [one.kv_used_share for one in view.replicas] == [None, None]


def test_restart_beside_a_newcomer_ends_what_others_had_there() -> None:
    """A restarted engine's requests are gone, whether or not the fleet was looked at since another replica came."""
    load = fleet("a")
    load.seen("a", now_s=1.0, kv_used_share=0.5, running=3, waiting=2)
    put(load, "b")
    put(load, "a", started_at_s=9.0)
    assert [work(one) for one in load.view(2.0).replicas] == [(0, 0, 0, 0)] * 2


def test_names_that_are_gone_leave_nothing_behind() -> None:
    """Work of a replica that left is kept until its last request from here has ended, and no longer."""
    load = fleet("z")
    grown = []
    for number in range(100):
        name = f"r{number}"
        put(load, name)
        load.admitted(name, name, prefill_tokens=1, decode_tokens=1)
        load.view(0.0)
        load.remove_replica(name)
        assert load.own_in_flight(name) == 1
        load.finished(name)
        grown.append(len(load._work))
    assert grown == [1] * 100


def test_prompt_that_does_not_travel_counts_where_it_is_computed_after_all() -> None:
    """A prompt sent ahead in vain is work of its decode side again, and of nobody once its request has ended."""
    load = fleet("r0")
    load.admitted("q", "r0", prefill_tokens=500, decode_tokens=10)
    load.prefilled_elsewhere("q")
    away = load.view(0.0).replicas[0].prefill_tokens_outstanding
    load.prefilled_here("q", prefill_tokens=500)
    back = load.view(0.0).replicas[0].prefill_tokens_outstanding
    load.finished("q")
    left = load.view(0.0).replicas[0].prefill_tokens_outstanding
    assert (away, back, left) == (0, 500, 0)


def test_prompt_sent_ahead_does_not_change_what_a_request_of_others_is_taken_for() -> None:
    """It has no answer of its own, and its request counted where it is decoded."""
    told = []
    for ahead in (False, True):
        load = fleet("a", "b")
        for number in range(50):
            load.admitted(f"q{number}", "a", prefill_tokens=100, decode_tokens=200)
            if ahead:
                load.admitted(f"q{number} ahead", "a", prefill_tokens=100, decode_tokens=0)
        load.seen("b", now_s=1.0, kv_used_share=0.5, running=3, waiting=2)
        told.append(work(load.view(2.0).replicas[1]))
    assert told[0] == told[1]
    assert told[0][3] > 0
