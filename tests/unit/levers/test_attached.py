"""What can be moved on servers of others: routing can, what restarts or adds a server cannot, and that is said."""

import msgspec
from control_kit import Rig
from situations import PREFILL_BOUND, readings, situation

from trimtab.levers.attached import CANNOT_RESTART, CANNOT_START, on_attached
from trimtab.levers.catalog import catalog
from trimtab.levers.prefix_caching import PrefixAffineRouting
from trimtab.runtime.situation import Situations


def test_only_routing_stays_available() -> None:
    """Every lever that was available and restarts or adds something is refused; premises and gains stay."""
    of = situation(readings(**PREFILL_BOUND))
    plain = [lever.assess(of) for lever in catalog().values()]
    found = {each.lever: each for each in on_attached(plain)}
    assert [each.lever for each in found.values() if each.available] == [PrefixAffineRouting.name]
    for before in plain:
        after = found[before.lever]
        assert (after.premise, after.premise_holds) == (before.premise, before.premise_holds)
        assert (after.gain_share, after.moves) == (before.gain_share, before.moves)


def test_reason_says_who_can_move_it() -> None:
    """A restart is for whoever runs the servers; another server is attached."""
    of = situation(readings(**PREFILL_BOUND))
    plain = [
        msgspec.structs.replace(lever.assess(of), available=True) for lever in catalog().values()
    ]
    found = {each.lever: each.because for each in on_attached(plain)}
    assert found["ngram_speculation"].startswith(CANNOT_RESTART)
    assert found["add_replica"].startswith(CANNOT_START)
    assert CANNOT_RESTART not in found[PrefixAffineRouting.name]


def test_choice_on_an_attached_fleet_is_a_lever_that_routing_moves() -> None:
    """The situation carries it; the assessments in the ledger carry the reason."""
    rig = Rig()
    of = msgspec.structs.replace(situation(readings(**PREFILL_BOUND)), attached=True)
    chosen, because, _ = Situations(rig.sink, rig.clock).choose(of, catalog(), cause_id="d")
    assert chosen is not None
    assert chosen.lever == PrefixAffineRouting.name
    refused = [each for each in because.split(". ") if CANNOT_RESTART in each]
    assert refused or "premise does not hold" in because
