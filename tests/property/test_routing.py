"""Laws of routing that hold for every fleet and request."""

import msgspec
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from index_kit import held_by
from routing_kit import COST, fleet, replica, request

from trimtab.core.decision import Exclusion, FleetView, ReplicaView, RouteRequest
from trimtab.core.prefix import BlockHasher, PrefixIndex
from trimtab.core.types import ReplicaState
from trimtab.policies.routing import build_policies

POLICIES = build_policies(COST)
NAMES = ("r0", "r1", "r2", "r3")
TOKENS = st.integers(0, 4000)


@st.composite
def replicas(draw: st.DrawFn, name: str) -> ReplicaView:
    return replica(
        name,
        prefill=draw(TOKENS),
        decode=draw(TOKENS),
        running=draw(st.integers(0, 8)),
        waiting=draw(st.integers(0, 9)),
        kv=draw(st.none() | st.floats(0, 1)),
        state=draw(st.sampled_from((ReplicaState.READY, ReplicaState.READY, ReplicaState.FAILED))),
    )


@st.composite
def fleets(draw: st.DrawFn) -> FleetView:
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, unique=True))
    return fleet(*(draw(replicas(name)) for name in names), sequence=draw(st.integers(0, 99)))


@st.composite
def requests(draw: st.DrawFn) -> RouteRequest:
    tokens = st.dictionaries(st.sampled_from(NAMES), TOKENS)
    subset = st.lists(st.sampled_from(NAMES), unique=True).map(tuple)
    return request(
        prompt=draw(st.integers(1, 4000)),
        output=draw(st.integers(0, 500)),
        held=draw(tokens),
        displaced=draw(tokens),
        session=draw(st.none() | st.sampled_from(("s1", "s2", "s3"))),
        allowed=draw(st.none() | subset),
        preferred=draw(subset),
    )


policies = st.sampled_from(sorted(POLICIES)).map(POLICIES.__getitem__)


@given(policies, fleets(), requests())
def test_chosen_is_ready_and_allowed(policy, view, asked) -> None:  # type: ignore[no-untyped-def]
    """None is chosen only if no replica is both."""
    able = {
        one.id
        for one in view.replicas
        if one.state is ReplicaState.READY and (asked.allowed is None or one.id in asked.allowed)
    }
    chosen = policy.decide(view, asked, 0.5).replica
    assert (chosen in able) if able else (chosen is None)


@given(policies, fleets(), requests(), st.floats(0, 0.99))
def test_deciding_changes_nothing_and_repeats(policy, view, asked, draw) -> None:  # type: ignore[no-untyped-def]
    """The same view and request give the same decision, and stay as they were."""
    before = msgspec.json.encode((view, asked))
    first = policy.decide(view, asked, draw)
    assert policy.decide(view, asked, draw) == first
    assert msgspec.json.encode((view, asked)) == before


@given(policies, fleets(), requests())
def test_order_of_replicas_does_not_matter(policy, view, asked) -> None:  # type: ignore[no-untyped-def]
    """A view is a set of replicas."""
    turned = msgspec.structs.replace(view, replicas=view.replicas[::-1])
    assert policy.decide(turned, asked, 0.5) == policy.decide(view, asked, 0.5)


@given(policies, fleets(), requests())
def test_terms_sum_to_the_score_and_every_replica_is_listed(policy, view, asked) -> None:  # type: ignore[no-untyped-def]
    """The explanation is the decision."""
    decision = policy.decide(view, asked, 0.5)
    assert {one.replica for one in decision.candidates} == {one.id for one in view.replicas}
    scored = [one for one in decision.candidates if one.score_ms is not None]
    assert [sum(one.terms.values()) for one in scored] == [one.score_ms for one in scored]


@given(fleets(), requests(), st.data())
def test_removing_a_loser_does_not_change_the_winner(view, asked, data) -> None:  # type: ignore[no-untyped-def]
    """Unless its load is what kept another within the bound, or over it: the mean is the fleet's."""
    policy = POLICIES["prefix_affine"]
    decision = policy.decide(view, asked, 0.5)
    losers = [one.id for one in view.replicas if one.id != decision.replica]
    assume(losers)
    loser = data.draw(st.sampled_from(losers))
    rest = fleet(*(one for one in view.replicas if one.id != loser))
    after = policy.decide(rest, asked, 0.5)

    def over(candidates) -> set[str]:  # type: ignore[no-untyped-def]
        found = {one.replica for one in candidates if one.excluded is Exclusion.OVER_LOAD_BOUND}
        return found - {loser}

    assume(over(decision.candidates) == over(after.candidates))
    assert after.replica == decision.replica


@given(fleets(), requests(), st.data())
def test_removing_one_that_could_not_be_chosen_changes_nothing(view, asked, data) -> None:  # type: ignore[no-untyped-def]
    """Replicas that are down or belong to the other arm do not even count in the mean."""
    policy = POLICIES["prefix_affine"]
    decision = policy.decide(view, asked, 0.5)
    out = [
        one.replica
        for one in decision.candidates
        if one.excluded in (Exclusion.NOT_READY, Exclusion.OTHER_ARM)
    ]
    assume(out)
    gone = data.draw(st.sampled_from(out))
    rest = fleet(*(one for one in view.replicas if one.id != gone))
    assert policy.decide(rest, asked, 0.5).replica == decision.replica


@settings(max_examples=20)
@given(st.integers(0, 20), st.integers(8, 16))
def test_sessions_with_a_common_head_use_every_replica(seed: int, sessions: int) -> None:
    """In a closed loop of growing sessions none of two replicas gets under 30% of the work.

    Two requests are always in flight, all prompts begin with the same 300 tokens, and the index is the
    real one with 8 slots; of all prompt tokens hardly any are computed where another replica held them, and those for
    the sake of load.
    """
    hasher, index = BlockHasher(b"k", 10), PrefixIndex(100_000, 10)
    for name in ("r0", "r1"):
        index.set_slots(name, 8)
    head, texts, flying = b"s" * 300, {}, []
    outputs = {"r0": 0, "r1": 0}
    lost = asked_tokens = 0
    for turn in range(sessions * 6):
        session = (turn * 7 + seed) % sessions
        text = texts.get(session, head) + bytes([session + 1]) * 150
        texts[session] = text
        blocks = hasher.blocks(text)
        held = {one.replica: one for one in held_by(index, blocks, len(text))}
        view = fleet(
            *(
                replica(name, prefill=sum(new for on, _, new in flying if on == name))
                for name in ("r0", "r1")
            ),
            sequence=turn,
        )
        asked = request(
            prompt=len(text),
            held={name: one.tokens for name, one in held.items()},
            displaced={name: one.displaced for name, one in held.items()},
            session=str(session),
        )
        chosen = POLICIES["prefix_affine"].decide(view, asked, 0.5).replica
        assert chosen is not None
        asked_tokens += len(text)
        lost += max(one.tokens for one in held.values()) - held[chosen].tokens
        index.record(chosen, blocks)
        flying.append((chosen, blocks, len(text) - held[chosen].tokens))
        outputs[chosen] += 1
        if len(flying) == 2:
            done, blocks, _ = flying.pop(0)
            index.finished(done, blocks)
    assert min(outputs.values()) >= 0.3 * sum(outputs.values())
    assert lost <= 0.15 * asked_tokens
