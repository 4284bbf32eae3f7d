"""Laws of the load state: its totals are those of the requests in flight, whatever happens in whatever order."""

from hypothesis import given
from hypothesis import strategies as st

from trimtab.core.types import ReplicaState, Role
from trimtab.policies.loadstate import LoadState

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
