"""What moving KV costs is learned per pair, guessed from pairs as near, else as told."""

import pytest

from trimtab.core.handover import NO_LABELS, ReplicaLabels
from trimtab.policies.links import (
    CONNECTION_MS,
    RATE_SMOOTHING,
    Likeness,
    LinkRate,
    Links,
    Nearness,
    Passage,
    likeness,
    nearness,
)

TOLD = LinkRate(setup_ms=5.0, ms_per_token=0.01)
SEEN = Passage(tokens=1000.0, setup_ms=2.0, transfer_ms=20.0, bytes=24e6)
HERE, NEAR = Likeness(near=Nearness.SAME_HOST), Likeness(near=Nearness.SAME_LINK)


def labels(host: str = "", link: str = "") -> ReplicaLabels:
    return ReplicaLabels(host=host, link=link)


@pytest.mark.parametrize(
    ("one", "other", "near"),
    [
        (labels("a"), labels("a"), Nearness.SAME_HOST),
        (labels("a", "ib400"), labels("a", "ib200"), Nearness.SAME_HOST),
        (labels("a", "NVL72"), labels("b", "NVL72"), Nearness.SAME_LINK),
        (labels("", "NVL72"), labels("b", "NVL72"), Nearness.SAME_LINK),
        (labels("a", "ib400"), labels("b", "ib200"), Nearness.APART),
        (labels("a"), labels("b"), Nearness.APART),
        (labels("a", "ib400"), labels("b"), Nearness.UNKNOWN),
        (NO_LABELS, labels("b"), Nearness.UNKNOWN),
        (NO_LABELS, NO_LABELS, Nearness.UNKNOWN),
    ],
)
def test_nearness_follows_labels_and_empty_ones_say_nothing(
    one: ReplicaLabels, other: ReplicaLabels, near: Nearness
) -> None:
    """One host is nearest, then one named link; what no label says is unknown, not near."""
    assert nearness(one, other) is near
    assert nearness(other, one) is near


def test_pair_that_never_handed_over_costs_what_it_was_told() -> None:
    """Without a word it is unknown, never nothing."""
    assert Links(TOLD).rate("p", "d", HERE) == TOLD
    assert Links().rate("p", "d", HERE) is None


def test_pair_learns_from_its_own_hand_overs() -> None:
    """The first one is taken whole where nothing was told, later ones are smoothed in."""
    links = Links()
    links.learn("p", "d", HERE, SEEN)
    rate = links.rate("p", "d", HERE)
    assert rate == LinkRate(setup_ms=2.0, ms_per_token=0.02, samples=1, bytes_per_s=1.2e9)
    links.learn("p", "d", HERE, Passage(tokens=1000.0, setup_ms=2.0, transfer_ms=120.0))
    rate = links.rate("p", "d", HERE)
    assert rate is not None
    assert rate.ms_per_token == pytest.approx(0.02 + RATE_SMOOTHING * 0.1)
    assert (rate.samples, rate.bytes_per_s) == (2, 1.2e9)


def test_new_pair_is_expected_to_cost_what_pairs_as_near_cost() -> None:
    """Pairs of one nearness speak for each other, and for no others."""
    links = Links(TOLD)
    links.learn("p", "d", HERE, SEEN)
    alike = links.rate("q", "d", HERE)
    assert alike is not None
    assert alike.ms_per_token == pytest.approx(0.01 + RATE_SMOOTHING * 0.01)
    assert links.rate("q", "d", NEAR) == TOLD


@pytest.mark.parametrize("told", [None, TOLD])
def test_first_connection_is_kept_apart(told: LinkRate | None) -> None:
    """38 s at first and 2 ms later: the connection is noted and in no expectation, of this pair or of pairs alike."""
    links = Links(told)
    first = Passage(tokens=1000.0, setup_ms=38_000.0, transfer_ms=20.0)
    links.learn("p", "d", HERE, first)
    rate, alike = links.rate("p", "d", HERE), links.rate("q", "d", HERE)
    assert rate is not None
    assert alike is not None
    assert rate.connection_ms == 38_000.0
    assert rate.setup_ms <= 5.0
    assert alike.setup_ms <= 5.0


def test_later_slow_set_up_is_learned() -> None:
    """Only the first hand-over makes the connection."""
    links = Links()
    links.learn("p", "d", HERE, SEEN)
    links.learn("p", "d", HERE, Passage(tokens=1000.0, setup_ms=CONNECTION_MS, transfer_ms=20.0))
    rate = links.rate("p", "d", HERE)
    assert rate is not None
    assert rate.connection_ms is None
    assert rate.setup_ms == pytest.approx(2.0 + RATE_SMOOTHING * (CONNECTION_MS - 2.0))


def test_hand_over_without_tokens_teaches_nothing() -> None:
    """A rate per token needs tokens."""
    links = Links()
    links.learn("p", "d", HERE, Passage(tokens=0.0, setup_ms=2.0, transfer_ms=20.0))
    assert links.rates() == ()


def test_replica_that_left_is_forgotten() -> None:
    """A new one of its name begins with what pairs as near cost."""
    links = Links()
    links.learn("p", "d", HERE, SEEN)
    links.learn("p", "e", HERE, SEEN)
    links.forget("d")
    assert [(source, target) for source, target, _ in links.rates()] == [("p", "e")]


def test_own_hand_overs_go_on_from_what_pairs_alike_cost() -> None:
    """A sample of exactly what was expected changes nothing: what was told at the start is not believed again."""
    links, dear = Links(TOLD), Passage(tokens=1000.0, setup_ms=50.0, transfer_ms=1000.0)
    for _ in range(200):
        links.learn("p", "d", HERE, dear)
    links.learn("p", "e", HERE, dear)
    rate = links.rate("p", "e", HERE)
    assert rate is not None
    assert rate.ms_per_token == pytest.approx(1.0)
    assert rate.setup_ms == pytest.approx(50.0)
    assert rate.samples == 1


def test_pairs_speak_for_those_of_the_same_accelerators_alone() -> None:
    """What copies bytes out and in is the device's: the same host makes no pair of others cost the same."""
    links = Links(TOLD)
    big, small = (ReplicaLabels(host="a", accelerator=name) for name in ("H200", "L4"))
    links.learn("p", "d", likeness(big, big), SEEN)
    assert links.rate("q", "d", likeness(big, big)) != TOLD
    for source, target in ((small, big), (big, small), (small, small)):
        assert links.rate("q", "d", likeness(source, target)) == TOLD


def test_the_same_accelerator_makes_no_two_replicas_near() -> None:
    """There are many of a kind, anywhere."""
    one, other = (ReplicaLabels(host=host, accelerator="H200") for host in "ab")
    assert likeness(one, other).near is Nearness.APART
