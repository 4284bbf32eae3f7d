"""Laws of what is learned of links: never outside of what was seen or told, and of no pair but by its nearness."""

from hypothesis import given
from hypothesis import strategies as st

from trimtab.core.handover import ReplicaLabels
from trimtab.policies.links import (
    CONNECTION_MS,
    Likeness,
    LinkRate,
    Links,
    Nearness,
    Passage,
    nearness,
)

NUMBERS = st.floats(0.0, 900.0)
PASSAGES = st.builds(
    Passage, tokens=st.floats(1.0, 1e5), setup_ms=NUMBERS, transfer_ms=NUMBERS, bytes=st.none()
)
PAIRS = st.tuples(st.sampled_from("ab"), st.sampled_from("cd"))
KINDS = st.sampled_from(("", "x"))
LIKE = st.builds(Likeness, near=st.sampled_from(Nearness), source=KINDS, target=KINDS)
WORDS = st.sampled_from(("", "x", "y"))
LABELS = st.builds(ReplicaLabels, host=WORDS, accelerator=WORDS, link=WORDS)
HERE, APART = Likeness(near=Nearness.SAME_HOST), Likeness(near=Nearness.APART)
TOLD = LinkRate(setup_ms=5.0, ms_per_token=0.02)


@given(seen=st.lists(PASSAGES, min_size=1, max_size=8), told=st.none() | st.just(TOLD))
def test_rate_stays_between_the_least_and_the_most_that_was_seen(
    seen: list[Passage], told: LinkRate | None
) -> None:
    """Smoothing never goes beyond its samples."""
    links = Links(told)
    for one in seen:
        links.learn("a", "c", HERE, one)
    rate = links.rate("a", "c", HERE)
    assert rate is not None
    per_token = [one.transfer_ms / one.tokens for one in seen] + ([0.02] if told else [])
    assert min(per_token) - 1e-9 <= rate.ms_per_token <= max(per_token) + 1e-9
    assert rate.samples == len(seen)


@given(steps=st.lists(st.tuples(PAIRS, LIKE, PASSAGES), max_size=12), pair=PAIRS, like=LIKE)
def test_pair_is_judged_by_itself_else_by_pairs_as_near_else_as_told(
    steps: list[tuple[tuple[str, str], Likeness, Passage]], pair: tuple[str, str], like: Likeness
) -> None:
    """No pair of another nearness or of other accelerators speaks for it."""
    links = Links(TOLD)
    for (source, target), at, one in steps:
        links.learn(source, target, at, one)
    rate = links.rate(*pair, like)
    known = any(pair == learned for learned, _, _ in steps)
    alike = any(at == like for _, at, _ in steps)
    assert (rate == TOLD) is not (known or alike)


@given(first=PASSAGES, later=st.lists(PASSAGES, max_size=5), setup_ms=st.floats(CONNECTION_MS, 1e6))
def test_first_connection_is_in_no_expectation(
    first: Passage, later: list[Passage], setup_ms: float
) -> None:
    """However long it took, hand-overs to come are not charged for it."""
    links = Links()
    connecting = Passage(
        tokens=first.tokens, setup_ms=setup_ms, transfer_ms=first.transfer_ms, bytes=None
    )
    for one in (connecting, *later):
        links.learn("a", "c", APART, one)
    for pair in (("a", "c"), ("b", "c")):
        rate = links.rate(*pair, APART)
        assert rate is not None
        assert rate.setup_ms <= max((one.setup_ms for one in later), default=0.0) + 1e-9


@given(one=LABELS, other=LABELS)
def test_nearness_is_mutual_and_a_replica_is_never_apart_from_itself(
    one: ReplicaLabels, other: ReplicaLabels
) -> None:
    """Labels are compared, not ordered."""
    assert nearness(one, other) is nearness(other, one)
    assert nearness(one, one) is not Nearness.APART
