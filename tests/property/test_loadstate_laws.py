"""Laws of the load state: its totals are those of the requests in flight, whatever happens in whatever order."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trimtab.core.cost import CostModel
from trimtab.core.types import ReplicaState, Role
from trimtab.policies.loadstate import LoadState
from trimtab.policies.routing_many import Work

REPLICAS = ("a", "b")
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["admit", "first", "chunk", "finish"]),
        st.integers(0, 4),
        st.sampled_from(REPLICAS),
        st.integers(-3, 50),
    ),
    max_size=60,
)


@given(STEPS)
def test_totals_are_those_of_the_requests_in_flight(
    steps: list[tuple[str, int, str, int]],
) -> None:
    """Running, waiting and both outstanding amounts equal a count over all requests, and never fall below 0."""
    load = LoadState()
    for replica in REPLICAS:
        load.set_replica(
            id=replica,
            url="http://x",
            role=Role.MIXED,
            revision="v",
            state=ReplicaState.READY,
            slots=2,
        )
    model: dict[str, list[object]] = {}
    for step, number, replica, tokens in steps:
        name = f"r{number}"
        known = model.get(name)
        if step == "admit" and known is None:
            load.admitted(name, replica, prefill_tokens=tokens, decode_tokens=tokens)
            model[name] = [replica, max(0, tokens), max(0, tokens), False]
        elif step == "first":
            load.prefill_done(name)
            model.update({name: [known[0], 0, known[2], True]} if known else {})
        elif step == "chunk":
            load.chunk_delivered(name)
            left = max(0, known[2] - 1) if known else 0  # type: ignore[operator]
            model.update({name: [known[0], known[1], left, known[3]]} if known else {})
        elif step == "finish":
            load.finished(name)
            model.pop(name, None)
        for view in load.view(0.0).replicas:
            mine = [request for request in model.values() if request[0] == view.id]
            assert (
                view.running,
                view.waiting,
                view.prefill_tokens_outstanding,
                view.decode_tokens_outstanding,
            ) == (
                sum(request[3] is True for request in mine),
                sum(request[3] is False for request in mine),
                sum(request[1] for request in mine),  # type: ignore[misc]
                sum(request[2] for request in mine),  # type: ignore[misc]
            )
        assert load.in_flight == len(model)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["admit", "first", "steps", "finish"]),
            st.integers(0, 4),
            st.integers(0, 12),
        ),
        max_size=60,
    )
)
def test_steps_of_a_replica_are_chunks_of_each_of_its_streams(
    steps: list[tuple[str, int, int]],
) -> None:
    """Being told of steps leaves the same work as being told of every chunk of every stream, first tokens included."""
    by_steps, by_chunks = LoadState(), LoadState()
    for load in (by_steps, by_chunks):
        for replica in REPLICAS:
            load.set_replica(
                id=replica,
                url="http://x",
                role=Role.MIXED,
                revision="v",
                state=ReplicaState.READY,
                slots=2,
            )
    begun: dict[str, bool] = {}
    for step, number, count in steps:
        name = f"r{number}"
        if step == "admit" and name not in begun:
            begun[name] = False
            for load in (by_steps, by_chunks):
                load.admitted(name, REPLICAS[number % 2], prefill_tokens=5, decode_tokens=count)
        elif step == "first" and begun.get(name) is False:
            begun[name] = True
            by_steps.prefill_done(name, stepped=True)
            by_chunks.prefill_done(name)
            by_chunks.chunk_delivered(name)
        elif step == "steps":
            by_steps.stepped(REPLICAS[number % 2], count)
            for other in [other for other, seen in begun.items() if seen]:
                if int(other[1:]) % 2 == number % 2:
                    by_chunks.chunk_delivered(other, tokens=count)
        elif step == "finish":
            begun.pop(name, None)
            by_steps.finished(name)
            by_chunks.finished(name)
        assert by_steps.view(0.0).replicas == by_chunks.view(0.0).replicas


COST = CostModel(
    prefill_base_ms=1.0,
    prefill_ms_per_token=0.2,
    step_base_ms=20.0,
    step_ms_per_stream=5.0,
    prefill_samples=1,
    step_samples=1,
    source="test",
)


@given(STEPS, st.integers(1, 9), st.booleans())
def test_figures_that_are_kept_up_to_date_are_those_of_a_sweep(
    steps: list[tuple[str, int, str, int]], every: int, grows: bool
) -> None:
    """However work changes between two looks, one by one or all at once: loads, waits and batches are the same."""
    load, rules = LoadState(), Work(COST)
    for number, (step, request, replica, tokens) in enumerate(steps):
        name = f"r{request}"
        slots = 1 + (number // 7) % 3 if grows else 2
        load.set_replica(
            id=replica,
            url="http://x",
            role=Role.MIXED,
            revision="v",
            state=ReplicaState.READY,
            slots=slots,
        )
        if step == "admit":
            load.finished(name)
            load.admitted(name, replica, prefill_tokens=tokens, decode_tokens=tokens)
        elif step == "first":
            load.prefill_done(name)
        elif step == "chunk":
            load.chunk_delivered(name)
        else:
            load.finished(name)
            load.seen(replica, now_s=0.0, kv_used_share=None, running=request, waiting=number % 3)
        if number % every == 0:
            columns = load.glance(0.0).columns
            np.testing.assert_allclose(columns.of_work(COST, Work), rules.whole(columns))
