"""What shares a link, and what a hand-over that shared it says of it."""

from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from control_kit import HandClock, SpySink

from trimtab.core.handover import (
    Delivery,
    HandOver,
    HandOverOutcome,
    PrefillDecision,
    PrefillPlace,
    PrefillPrediction,
    PrefillReason,
)
from trimtab.runtime.handover_books import HandOverBooks
from trimtab.runtime.handover_links import OnLinks
from trimtab.runtime.handover_passage import Passage

FETCHED = Delivery(target="d", fields={}, tokens=100)
MOVED = msgspec.structs.replace(FETCHED, transfer_ms=3.0)
TERMS = {"setup": 500.0, "transfer": 1500.0, "prefill": 9000.0}
DECISION = PrefillDecision(
    request_id="q",
    place=PrefillPlace.REMOTE,
    replica="p",
    reason=PrefillReason.REMOTE_FASTER,
    remote=PrefillPrediction(replica="p", terms=TERMS),
)


def passage() -> Passage:
    source, target = SimpleNamespace(id="p"), SimpleNamespace(id="d")
    return Passage(DECISION, cast(Any, source), cast(Any, target), cast(Any, None), 0.0)


def written(pool: SimpleNamespace) -> HandOverBooks:
    clock = HandClock()
    return HandOverBooks(cast(Any, pool), SpySink(clock), clock.wall_s)


def test_what_the_gateway_moves_is_on_its_link_until_it_has_come() -> None:
    """Each knows how many were there when it began."""
    links = OnLinks(HandClock().mono_s)
    first, second = passage(), passage()
    links.began(first)
    links.began(second)
    assert (first.sharing, second.sharing, links.count("p"), links.count("other")) == (0, 1, 2, 0)
    first.delivery = MOVED
    links.delivered(first, streams=True)
    links.ended(second)
    links.ended(second)
    assert links.count("p") == 0


def test_what_an_engine_fetches_is_on_its_link_until_the_first_token() -> None:
    """The gateway named it in an instant, and not a byte has moved."""
    clock = HandClock()
    links, one = OnLinks(clock.mono_s), passage()
    links.began(one)
    one.delivery = FETCHED
    links.delivered(one, streams=True)
    clock.pass_s(100.0)
    assert links.count("p") == 1
    one.has_come = lambda: True
    assert links.count("p") == 0


def test_answer_in_one_piece_is_taken_to_be_fetched_for_as_long_as_was_predicted() -> None:
    """Its end says nothing of its KV: two seconds of set-up and bytes, and not the prefill before them."""
    clock = HandClock()
    links, one = OnLinks(clock.mono_s), passage()
    links.began(one)
    one.delivery = FETCHED
    links.delivered(one, streams=False)
    clock.pass_s(1.9)
    before = links.count("p")
    clock.pass_s(0.2)
    assert (before, links.count("p")) == (1, 0)


@pytest.mark.parametrize(("sharing", "learned_ms"), [(0, 40.0), (2, 20.0)])
def test_link_learns_what_a_hand_over_would_have_taken_alone(
    sharing: int, learned_ms: float
) -> None:
    """30 ms beside two others is 10 ms; a prompt is saved alone, whoever shares the link afterwards."""
    learned: list[float] = []
    pool = SimpleNamespace(sends_whole=True, moved=lambda *_, ms, **__: learned.append(ms))
    books, one, heard = written(pool), passage(), []
    one.sharing = sharing
    told = HandOver(
        request_id="q",
        source="p",
        target="d",
        outcome=HandOverOutcome.DELIVERED,
        tokens_sent=100,
        export_ms=10.0,
        transfer_ms=30.0,
    )
    books.listen(heard.append)
    books.tell(one, told, "e")
    assert (learned, heard) == ([learned_ms], [told])


@pytest.mark.parametrize(
    ("sends_whole", "held", "learned_from"),
    [(True, 80, 100.0), (False, 80, 20.0), (False, None, 100.0)],
)
def test_link_learns_from_the_tokens_that_it_carried(
    sends_whole: bool, held: int | None, learned_from: float
) -> None:
    """An engine that fetches leaves out what it holds; to divide by it too would make its link five times as fast."""
    learned: list[float] = []
    pool = SimpleNamespace(
        sends_whole=sends_whole, moved=lambda *_, tokens, **__: learned.append(tokens)
    )
    told = HandOver(
        request_id="q",
        source="p",
        target="d",
        outcome=HandOverOutcome.DELIVERED,
        tokens_sent=100,
        held_tokens=held,
        transfer_ms=30.0,
    )
    written(pool).tell(passage(), told, "e")
    assert learned == [learned_from]
