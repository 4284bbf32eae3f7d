"""Several gateways: the same key and the same readings of engines give the same replica, whatever each has open."""

import msgspec
from router_kit import PROMPT, query, router
from routing_kit import COST, fleet, replica
from routing_kit import request as asked

from trimtab.core.decision import RouteReason
from trimtab.policies.home_keys import COUNT_MIN, HomeKeys
from trimtab.policies.routing import PrefixHome

NAMES = tuple(f"r{number}" for number in range(8))


def test_gateways_agree_without_telling_each_other() -> None:
    """Four gateways with other requests in flight and other histories decide 200 requests alike."""
    gateways = [router(*NAMES, policy="prefix_home") for _ in range(4)]
    for number, made in enumerate(gateways):
        for flight in range(5 * number):
            made.load.admitted(
                f"f{flight}", NAMES[flight % 8], prefill_tokens=900, decode_tokens=90
            )
        for at, name in enumerate(NAMES):
            made.load.seen(name, now_s=1.0, kv_used_share=at / 10, running=20 + at, waiting=at // 2)
    for number in range(200):
        prompt = bytes([number]) * 50 + PROMPT[:500]
        chosen = {made.route(query(f"q{number}", prompt)).decision.replica for made in gateways}
        assert len(chosen) == 1


def test_overloaded_home_gives_way_to_the_same_next_one_everywhere() -> None:
    """The home is over by the engines' own counts: every gateway takes the next replica of the key's order."""
    first = router(*NAMES, policy="prefix_home")
    home = first.route(query("q")).decision.replica
    assert home is not None
    found = []
    for gateway in range(3):
        made = router(*NAMES, policy="prefix_home")
        for flight in range(7 * gateway):
            made.load.admitted(f"f{flight}", NAMES[flight % 8], prefill_tokens=9, decode_tokens=9)
        for name in NAMES:
            busy = 200 if name == home else 10
            made.load.seen(name, now_s=1.0, kv_used_share=0.3, running=busy, waiting=0)
        decision = made.route(query("q")).decision
        assert decision.reason is RouteReason.HOME_OVER_BOUND_NEXT
        found.append(decision.replica)
    assert len(set(found)) == 1
    assert home not in found


def test_home_that_is_busy_but_cheaper_than_computing_anew_is_kept() -> None:
    """A little more load than the mean is no reason to compute a long prompt again elsewhere."""
    policy = PrefixHome(cost=COST)
    names = [replica(name, running=20) for name in "abcd"]
    long, short = asked(prompt=5000, output=10), asked(prompt=1, output=500)
    home = policy.decide(fleet(*names), long, 0.0).replica
    busier = [msgspec.structs.replace(one, running=40) if one.id == home else one for one in names]
    assert policy.decide(fleet(*busier), long, 0.0).replica == home
    assert policy.decide(fleet(*busier), short, 0.0).replica != home


def test_home_stays_when_another_replica_leaves() -> None:
    """Only the keys of the replica that left move."""
    policy = PrefixHome(cost=COST)
    whole = fleet(*(replica(name) for name in "abcd"))
    rest = fleet(*(replica(name) for name in "abc"))
    moved = 0
    for number in range(200):
        one = asked(session=f"s{number}")
        before, after = (
            policy.decide(whole, one, 0.0).replica,
            policy.decide(rest, one, 0.0).replica,
        )
        moved += before != after
        assert before in (after, "d")
    assert 20 <= moved <= 80


def test_popular_beginning_is_no_key_and_a_group_is() -> None:
    """A system prompt that all send does not pick the replica; what a group shares behind it does."""
    keys = HomeKeys()
    prompts = [
        (1, 2, 100 + group, 200 + group, 1000 + number)
        for number in range(40)
        for group in range(10)
    ]
    for prompt in prompts:
        keys.saw(prompt)
    assert keys.key((1, 2, 103, 203, 9), replicas=4) == 203
    assert keys.key((1, 2), replicas=4) is None


def test_beginning_that_was_hardly_seen_is_a_key() -> None:
    """At the start every share is large: a few requests do not make a beginning popular."""
    keys = HomeKeys()
    for number in range(COUNT_MIN - 1):
        keys.saw((1, 100 + number))
    assert keys.key((1, 50), replicas=100) == 1
