"""Local or remote prefill per request: what never travels, what both sides are predicted, and how that is scored."""

import msgspec
import pytest

from trimtab.core.cost import CostModel
from trimtab.policies.local_prefill import (
    Corrections,
    DecodeSide,
    PrefillPlace,
    PrefillReason,
    PrefillRequest,
    PrefillRules,
    PrefillSide,
    decide,
    scored,
    shared_ms,
    stall_ms,
    with_mark_raised,
)
from trimtab.policies.recent_arrivals import Arrivals

COST = CostModel(
    prefill_base_ms=0.0,
    prefill_ms_per_token=0.03,
    step_base_ms=10.0,
    step_ms_per_stream=0.1,
    prefill_samples=9,
    step_samples=9,
    source="test",
)
RULES = PrefillRules(chunk_tokens=2048)


def decode(**changes: object) -> DecodeSide:
    """An idle decode side that holds nothing."""
    side = DecodeSide(replica="d0", held_tokens=0, queued_tokens=0, streams=0, cost=COST)
    return msgspec.structs.replace(side, **changes)


def prefill(replica: str = "p0", **changes: object) -> PrefillSide:
    """An idle prefill replica on a link of 40 ms for 30,000 tokens."""
    side = PrefillSide(
        replica=replica,
        held_tokens=0,
        queued_tokens=0,
        cost=COST,
        setup_ms=1.0,
        transfer_ms_per_token=40.0 / 30_000,
    )
    return msgspec.structs.replace(side, **changes)


def asks(prompt_tokens: int, output_tokens: int | None = 500, **changes: object) -> PrefillRequest:
    """A request."""
    return PrefillRequest(
        request_id="q", prompt_tokens=prompt_tokens, output_tokens=output_tokens, **changes
    )


@pytest.mark.parametrize(
    ("prompt", "output", "held", "reason"),
    [
        (1024, 6, 1024, PrefillReason.SHORT_PROMPT),
        (2048, 500, 0, PrefillReason.SHORT_PROMPT),
        (30_000, 500, 29_500, PrefillReason.CACHED),
        (30_000, 500, 30_000, PrefillReason.CACHED),
    ],
)
def test_short_or_cached_prompt_never_travels(
    prompt: int, output: int, held: int, reason: PrefillReason
) -> None:
    """However busy the decode side and however idle the pool."""
    side = decode(held_tokens=held, streams=60, queued_tokens=1e6)
    made = decide(asks(prompt, output), side, (prefill(),), RULES)
    assert (made.place, made.replica, made.reason) == (PrefillPlace.LOCAL, "d0", reason)


def test_short_answer_stays_only_where_its_prompt_keeps_nobody_waiting() -> None:
    """A prompt stalls running streams however short its own answer is; beside none nothing is handed over."""
    alone = decide(asks(30_000, 1), decode(queued_tokens=1e6), (prefill(),), RULES)
    beside = decide(asks(30_000, 1), decode(streams=30), (prefill(),), RULES)
    assert alone.reason is PrefillReason.SHORT_ANSWER
    assert (beside.place, beside.reason) == (PrefillPlace.REMOTE, PrefillReason.REMOTE_FASTER)


def test_prefill_beside_streams_takes_their_tokens_in_every_step_too() -> None:
    """Smaller chunks have more steps to share; without streams there is nobody to share them with."""
    assert shared_ms(COST, 4096, 2048, 30) == pytest.approx(2 * 30 * 0.1)
    assert shared_ms(COST, 4096, 64, 30) == pytest.approx(64 * 30 * 0.1)
    assert shared_ms(COST, 4096, 64, 0) == 0.0


def test_long_miss_that_would_stall_many_streams_goes_remote_with_both_predictions() -> None:
    """30,000 uncached tokens beside 30 streams, a transfer of 40 ms."""
    made = decide(asks(30_000), decode(streams=30), (prefill(),), RULES)
    assert (made.place, made.replica) == (PrefillPlace.REMOTE, "p0")
    assert made.reason is PrefillReason.REMOTE_FASTER
    assert made.local is not None
    assert made.remote is not None
    assert made.local.terms["prefill"] == pytest.approx(900.0)
    assert made.local.terms["shared"] == pytest.approx(15 * 30 * 0.1)
    assert made.local.terms["stall"] == pytest.approx(0.1 * 30 * (900.0 - 15 * 10.0))
    assert made.remote.ms == pytest.approx(900.0 + 1.0 + 40.0 + 10.0 + 0.1 * 31)


@pytest.mark.parametrize("tokens_per_step", [1.0, 1.5, 3.0])
def test_what_drafts_give_a_step_changes_no_prediction_of_it(tokens_per_step: float) -> None:
    """A cost is told by the token: the same steps that give three tokens have a third of it, and stall as long."""
    drafts = msgspec.structs.replace(
        COST,
        step_base_ms=COST.step_base_ms / tokens_per_step,
        step_ms_per_stream=COST.step_ms_per_stream / tokens_per_step,
        tokens_per_step=tokens_per_step,
    )
    plain = decide(asks(30_000), decode(streams=30), (prefill(),), RULES)
    made = decide(asks(30_000), decode(streams=30, cost=drafts), (prefill(cost=drafts),), RULES)
    assert (made.place, made.reason) == (plain.place, plain.reason)
    assert made.local is not None
    assert plain.local is not None
    assert made.local.terms == pytest.approx(plain.local.terms)
    assert made.remote is not None
    assert plain.remote is not None
    assert made.remote.terms == pytest.approx(plain.remote.terms)


def test_no_stall_is_claimed_where_nobody_counted_what_a_step_gives() -> None:
    """30 streams would be worth a hand-over; how long they usually wait is not known, so its own time decides."""
    untold = msgspec.structs.replace(COST, tokens_per_step=None)
    made = decide(asks(30_000), decode(streams=30, cost=untold), (prefill(cost=untold),), RULES)
    assert made.local is not None
    assert made.local.terms["stall"] == 0.0
    assert (made.place, made.reason) == (PrefillPlace.LOCAL, PrefillReason.LOCAL_FASTER)
    queued = decode(streams=30, cost=untold, queued_tokens=90_000)
    made = decide(asks(30_000), queued, (prefill(cost=untold),), RULES)
    assert made.place is PrefillPlace.REMOTE


def test_raised_mark_keeps_more_prompts_local_and_makes_local_no_dearer() -> None:
    """What stalls streams are the engine's own chunks, wherever the mark stands from which prompts travel."""
    raised = with_mark_raised(with_mark_raised(RULES, 1.0), 4.0)
    told = PrefillRules(chunk_tokens=8192, stall_chunk_tokens=2048)
    before = decide(asks(30_000), decode(streams=30), (prefill(),), RULES)
    after = decide(asks(30_000), decode(streams=30), (prefill(),), raised)
    assert (raised, after.local) == (told, before.local)
    assert decide(asks(8000), decode(streams=30), (prefill(),), raised).reason is (
        PrefillReason.SHORT_PROMPT
    )


def test_long_queue_at_the_pool_keeps_a_prompt_local() -> None:
    """A prefill queue of 12 s is not met blindly."""
    made = decide(asks(30_000), decode(streams=30), (prefill(queued_tokens=400_000),), RULES)
    assert (made.place, made.reason) == (PrefillPlace.LOCAL, PrefillReason.LOCAL_FASTER)
    assert made.remote is not None
    assert made.remote.terms["queue"] == pytest.approx(12_000.0)


def test_idle_decode_side_keeps_its_prompts() -> None:
    """There is nothing to stall, and a transfer is never free."""
    assert decide(asks(30_000), decode(), (prefill(),), RULES).reason is PrefillReason.LOCAL_FASTER


@pytest.mark.parametrize(
    ("pool", "reason"),
    [
        ((), PrefillReason.NO_PREFILL_REPLICA),
        ((prefill(pairs=False),), PrefillReason.KV_KEYS_DIFFER),
        ((prefill(cost=None),), PrefillReason.UNKNOWN_COST),
        ((prefill(setup_ms=None),), PrefillReason.UNKNOWN_TRANSFER),
        ((prefill(transfer_ms_per_token=None),), PrefillReason.UNKNOWN_TRANSFER),
    ],
)
def test_unknowns_and_dead_pools_go_local(
    pool: tuple[PrefillSide, ...], reason: PrefillReason
) -> None:
    """With the local prediction kept."""
    made = decide(asks(30_000), decode(streams=60), pool, RULES)
    assert (made.place, made.reason, made.local is not None) == (PrefillPlace.LOCAL, reason, True)


def test_request_whose_hand_over_failed_is_not_sent_again() -> None:
    """It is prefilled where it is decoded."""
    made = decide(asks(30_000, failed_before=True), decode(streams=60), (prefill(),), RULES)
    assert made.reason is PrefillReason.AFTER_FAILURE


def test_best_of_the_pool_is_taken_and_ties_go_to_the_lower_id() -> None:
    """By queue, cache, and hand-overs that share the link."""
    pool = (prefill("p2"), prefill("p1"), prefill("p0", transfers=8))
    made = decide(asks(30_000), decode(streams=30), pool, RULES)
    assert (made.replica, [one.replica for one in made.others]) == ("p1", ["p2", "p0"])
    warm = decide(
        asks(30_000), decode(streams=30), (*pool, prefill("p3", held_tokens=20_000)), RULES
    )
    assert warm.replica == "p3"


def test_chunks_give_streams_a_token_so_that_only_the_excess_stalls() -> None:
    """Never below nothing."""
    assert stall_ms(COST, 4096, 2048) == pytest.approx(4096 * 0.03 - 20.0)
    assert stall_ms(COST, 100, 64) == 0.0


def test_outcomes_correct_predictions_within_limits_and_count_pegging() -> None:
    """Twice as slow doubles in the end; ten times as slow pegs at the limit."""
    corrections = Corrections()
    for _ in range(200):
        made = decide(asks(30_000), decode(), (), RULES, corrections)
        corrections = scored(corrections, made, 1350.0)
    assert corrections.local == pytest.approx(1.5, rel=1e-3)
    assert (corrections.scored, corrections.pegged, corrections.remote) == (200, 0, 1.0)
    for _ in range(100):
        made = decide(asks(30_000), decode(), (), RULES, corrections)
        corrections = scored(corrections, made, 9000.0)
    assert corrections.local <= 2.0
    assert corrections.pegged == 100
    assert corrections.error_mean is not None


def test_stall_of_others_is_not_scored_against_the_requests_own_wait() -> None:
    """An outcome that equals the own part teaches nothing new."""
    made = decide(asks(30_000), decode(streams=5), (), RULES)
    assert made.local is not None
    own_ms = 900.0 + made.local.terms["shared"]
    assert scored(Corrections(), made, own_ms).local == pytest.approx(1.0)
    unknown = decide(asks(100), decode(), (), RULES)
    assert scored(Corrections(), unknown, 900.0) == Corrections()


def test_prompt_that_kv_cannot_stand_for_stays_wherever_it_was_told_to_go() -> None:
    """Several answers to one prompt need it where it is decoded, also where every prompt is to travel."""
    rules = PrefillRules(chunk_tokens=64, always=PrefillPlace.REMOTE)
    made = decide(asks(4000, can_travel=False), decode(streams=9), [prefill()], rules)
    assert (made.place, made.reason) == (PrefillPlace.LOCAL, PrefillReason.CANNOT_TRAVEL)


def test_replica_that_sends_all_of_a_prompt_is_charged_for_all_of_it() -> None:
    """What the decode side holds is moved too where KV goes over whole."""
    there = decode(held_tokens=1000, streams=1)
    parts = decide(asks(4000), there, [prefill()], RULES)
    whole = decide(asks(4000), there, [prefill(sends_whole=True)], RULES)
    assert parts.remote is not None
    assert whole.remote is not None
    expected = parts.remote.terms["transfer"] * 4000 / 3000
    assert whole.remote.terms["transfer"] == pytest.approx(expected)


def test_prompt_that_comes_from_elsewhere_waits_for_those_that_fill_the_decode_sides_steps() -> (
    None
):
    """What is left of them when its KV gets there; nothing where its own prefill takes longer."""
    busy = decode(streams=1, queued_tokens=60_000)
    late = decide(asks(30_000), busy, [prefill()], RULES)
    soon = decide(asks(30_000), decode(streams=1, queued_tokens=20_000), [prefill()], RULES)
    assert late.remote is not None
    assert soon.remote is not None
    assert late.remote.terms["room"] == pytest.approx(1800.0 - 900.0)
    assert soon.remote.terms["room"] == 0.0


def test_long_prompt_leaves_an_idle_decode_side_to_which_others_come() -> None:
    """0.9 s of prefill would make two a second wait 0.4 s each; with nobody coming it stays."""
    coming = Arrivals(per_s=2.0, tokens=0.0)
    alone = decide(asks(30_000), decode(), (prefill(),), RULES)
    made = decide(asks(30_000), decode(coming=coming), (prefill(),), RULES)
    assert (alone.place, made.place) == (PrefillPlace.LOCAL, PrefillPlace.REMOTE)
    assert made.local is not None
    assert made.local.terms["coming"] == pytest.approx(2.0 * 0.9 * 900.0 / 2.0)


def test_who_comes_waits_only_for_what_is_left_when_its_own_prompt_is_there() -> None:
    """A prompt of 0.6 s is computed elsewhere meanwhile, so that 0.3 s of 0.9 are left; of one as long nothing is."""

    def coming(tokens: float) -> float:
        side = decode(coming=Arrivals(per_s=2.0, tokens=tokens))
        made = decide(asks(30_000), side, (prefill(),), RULES)
        assert made.local is not None
        return made.local.terms["coming"]

    assert coming(20_000) == pytest.approx(2.0 * 0.3 * 300.0 / 2.0)
    assert coming(30_000) == 0.0
    assert coming(90_000) == 0.0


def test_those_who_wait_at_the_pool_keep_a_prompt_where_nobody_would() -> None:
    """The same law on both sides."""
    busy = prefill(coming=Arrivals(per_s=2.0, tokens=30_000))
    here = decode(coming=Arrivals(per_s=2.0, tokens=0.0))
    made = decide(asks(30_000), here, (busy, prefill("p1")), RULES)
    assert made.replica == "p1"
    assert decide(asks(30_000), here, (busy,), RULES).place is PrefillPlace.LOCAL


def test_what_others_wait_is_no_part_of_the_requests_own_wait() -> None:
    """Neither of those that run nor of those that come."""
    side = decode(streams=5, coming=Arrivals(per_s=2.0, tokens=0.0))
    made = decide(asks(30_000), side, (), RULES)
    assert made.local is not None
    assert made.local.own_ms == pytest.approx(900.0 + made.local.terms["shared"])


def test_first_outcomes_put_a_prediction_right_at_once() -> None:
    """Eight outcomes of half of what was measured at the start bring the factor within a tenth of a half."""
    corrections = Corrections()
    for _ in range(8):
        made = decide(asks(30_000), decode(), (), RULES, corrections)
        corrections = scored(corrections, made, 540.0)
    assert corrections.local == pytest.approx(0.6, abs=0.06)
    assert (corrections.scored_local, corrections.scored, corrections.remote) == (8, 8, 1.0)
