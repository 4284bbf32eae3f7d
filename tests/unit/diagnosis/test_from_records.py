"""Readings from request records: what they say, and what they leave unknown."""

import msgspec
import pytest
from situations import FLEET, WINDOW, request

from trimtab.core.evidence import Evidence, Readings, Unknown
from trimtab.core.record import Drafting, Phases, RequestRecord, Tokens
from trimtab.core.types import ErrorClass
from trimtab.diagnosis.from_records import readings_from_records
from trimtab.diagnosis.names import Name, PerLabel, labels_in


def read(*records: RequestRecord) -> Readings:
    return readings_from_records(records, window=WINDOW, id_prefix="t", fleet=FLEET)


def test_time_by_phase_adds_up_to_one() -> None:
    """The shares of queue, prefill, transfer and decode are of the time of all requests."""
    found = read(
        request(1.0, queue_ms=300.0, prefill_ms=200.0, decode_ms=500.0),
        request(50.0, queue_ms=100.0, prefill_ms=400.0, decode_ms=500.0, replica="replica-2"),
    )
    names = (Name.QUEUE_SHARE, Name.PREFILL_SHARE, Name.TRANSFER_SHARE, Name.DECODE_SHARE)
    assert [found.value(name) for name in names] == pytest.approx([0.2, 0.3, 0.0, 0.5])
    assert found.value(Name.REQUEST_MS_TOTAL) == 2000.0
    assert found.value(Name.UNACCOUNTED_SHARE) == 0.0


def test_share_carries_n_and_an_interval_over_blocks() -> None:
    """A share from several blocks of time says how sure it is; one block cannot."""
    many = read(*(request(10.0 * i, prefill_ms=100.0 + 10.0 * i) for i in range(8)))
    share = many.get(Name.PREFILL_SHARE)
    assert isinstance(share, Evidence)
    assert share.samples == 8
    assert share.interval is not None
    assert share.interval.low < share.value < share.interval.high
    one = read(request(1.0), request(1.5)).get(Name.PREFILL_SHARE)
    assert isinstance(one, Evidence)
    assert one.interval is None


def test_phases_known_for_few_requests_are_unknown() -> None:
    """Shares are not computed from the minority of requests whose engine reports phases."""
    silent = [request(float(i), phases=Phases()) for i in range(3)]
    found = read(request(9.0), *silent)
    queue = found.get(Name.QUEUE_SHARE)
    assert isinstance(queue, Unknown)
    assert queue.reason == "phases are known for 1 of 4 requests"


def test_failed_and_aborted_requests_count_only_as_such() -> None:
    """Errors and aborts have shares of their own and no part in latencies."""
    found = read(
        request(1.0),
        request(2.0, status=500, error=ErrorClass.UPSTREAM_STATUS, prefill_ms=9_000.0),
        request(3.0, client_aborted=True, prefill_ms=9_000.0),
        request(4.0),
    )
    assert found.value(Name.ERROR_SHARE) == 0.25
    assert found.value(Name.ABORT_SHARE) == 0.25
    assert found.value(Name.PREFILL_MS_MEAN) == 100.0
    assert found.value(Name.REQUESTS) == 2.0


def test_tokens_lost_are_a_share_of_those_computed() -> None:
    """Lost = held by the best replica minus delivered; the share is of computed tokens, not of prompts."""
    found = read(
        request(
            1.0,
            tokens=Tokens(
                prompt=100, predicted=20, captured=20, delivered=20, held_best=60, output=10
            ),
        ),
        request(
            2.0,
            tokens=Tokens(prompt=100, predicted=0, captured=0, delivered=0, held_best=0, output=10),
        ),
    )
    assert found.value(Name.SKIPPED_TOKENS_LOST) == 40.0
    assert found.value(Name.COMPUTED_TOKENS) == 180.0
    assert found.value(Name.SKIPPED_LOST_SHARE) == pytest.approx(40.0 / 180.0)
    assert found.value(Name.DELIVERED_SHARE) == pytest.approx(0.1)
    assert found.value(Name.DELIVERED_OVER_PREDICTED) == 1.0


def test_tokens_that_nobody_reports_are_unknown_not_zero() -> None:
    """Without an engine report there is no count of computed or lost tokens."""
    found = read(request(1.0, tokens=Tokens(output=10)))
    for name in (Name.COMPUTED_TOKENS, Name.SKIPPED_TOKENS_LOST, Name.DELIVERED_SHARE):
        assert isinstance(found.get(name), Unknown)


def test_queue_behind_a_prefill_is_told_from_a_queue_for_slots() -> None:
    """A request queued while another's prefill ran on its replica waited behind that prefill."""
    found = read(
        request(0.0, prefill_ms=2_000.0, decode_ms=1_000.0),
        request(0.5, queue_ms=1_500.0, prefill_ms=500.0, decode_ms=1_000.0),
        request(0.5, prefill_ms=10.0, decode_ms=10.0, replica="replica-2"),
    )
    assert found.value(Name.QUEUE_BEHIND_PREFILL_SHARE) == pytest.approx(1.0)
    assert found.value(Name.QUEUE_SLOTS_FULL_SHARE) == 0.0


def test_queue_while_every_slot_is_taken_is_told() -> None:
    """With all slots decoding, a queued request waits for a slot and behind no prefill."""
    running = [
        request(0.001 * i, prefill_ms=1.0, decode_ms=3_000.0, request_id=f"r{i}")
        for i in range(FLEET.slots)
    ]
    found = read(*running, request(1.0, queue_ms=1_500.0))
    assert found.value(Name.QUEUE_SLOTS_FULL_SHARE) == pytest.approx(1.0)
    assert found.value(Name.QUEUE_BEHIND_PREFILL_SHARE) == 0.0


def test_batch_that_a_stream_meets_is_larger_than_that_of_a_step() -> None:
    """Two streams side by side for half of their time meet a batch of 1.5; a step has 4 stream-seconds in 3."""
    found = read(
        request(0.0, prefill_ms=0.0, decode_ms=2_000.0),
        request(1.0, prefill_ms=0.0, decode_ms=2_000.0),
    )
    assert found.value(Name.DECODE_BATCH_MEAN) == pytest.approx(1.5)
    assert found.value(Name.DECODE_BATCH_PER_STEP) == pytest.approx(4 / 3)
    assert found.value(Name.DECODE_BATCH_P95) == 2.0


def test_prefills_that_share_a_batch_are_not_counted_twice() -> None:
    """Two prefills computed in the same second cost one second of the replica, not two."""
    found = read(
        request(0.0, prefill_ms=1_000.0), request(0.0, prefill_ms=1_000.0, request_id="second")
    )
    assert found.value(Name.PREFILL_MS_PER_TOKEN) == pytest.approx(1_000.0 / 200.0)
    assert found.value(Name.PREFILL_RUNNING_SHARE) == pytest.approx(1.0 / 200.0)


def test_chunk_gaps_beside_a_prefill_are_kept_apart() -> None:
    """Streams that met a prefill and streams that did not have a mean of their own."""
    found = read(
        request(0.0, decode_ms=3_000.0, chunk_gap_ms_max=900.0),
        request(1.0, prefill_ms=800.0, decode_ms=100.0, chunk_gap_ms_max=30.0),
    )
    assert found.value(Name.CHUNK_GAP_MS_BESIDE_PREFILL) == 900.0
    assert found.value(Name.CHUNK_GAP_MS_ALONE) == 30.0


def test_tpot_growth_needs_more_than_one_batch() -> None:
    """How TPOT grows with the batch is unknown until requests were admitted at different batches."""
    alike = [request(float(i)) for i in range(5)]
    assert isinstance(read(*alike).get(Name.TPOT_GROWTH_PER_STREAM), Unknown)
    more = [request(20.0 + i, decode_ms=1_800.0, batch_at_admission=3) for i in range(5)]
    assert read(*alike, *more).value(Name.TPOT_GROWTH_PER_STREAM) == pytest.approx(0.5)


def test_drafts_of_looping_outputs_do_not_count_for_a_label() -> None:
    """A loop is perfectly predictable; it would promise a gain that no user wants."""
    drafting = Drafting(drafted=20, accepted=20)
    tokens = Tokens(prompt=10, delivered=0, output=40)
    found = read(
        request(1.0, label="edit", tokens=tokens, drafting=Drafting(drafted=20, accepted=4)),
        request(2.0, label="edit", tokens=tokens, drafting=drafting, looping=True),
        request(3.0, label="question", tokens=tokens),
    )
    assert labels_in(found) == ("edit", "question")
    assert found.value(PerLabel.COVERAGE.of("edit")) == pytest.approx(0.1)
    assert isinstance(found.get(PerLabel.COVERAGE.of("question")), Unknown)
    assert found.value(PerLabel.REQUEST_SHARE.of("edit")) == pytest.approx(2 / 3)


def test_no_records_are_unknown_throughout() -> None:
    """An empty window is not a calm one."""
    found = read()
    known = [item.name for item in found.items if isinstance(item, Evidence)]
    assert known == [Name.REQUESTS]
    assert found.value(Name.REQUESTS) == 0.0


def test_evidence_ids_are_unique_and_prefixed() -> None:
    """Diagnoses cite readings by id, so two readings of one set never share one."""
    found = read(request(1.0, label="edit"), request(2.0, label="question"))
    ids = [item.id for item in found.items if isinstance(item, Evidence)]
    assert len(ids) == len(set(ids))
    assert all(one.startswith("t/") for one in ids)


def test_kv_of_running_requests_is_a_share_of_all_slots() -> None:
    """One request of 1,024 tokens for half of the window fills 1/64 of two replicas of 8 x 2,048."""
    tokens = Tokens(prompt=1_000, delivered=0, output=24)
    found = read(request(0.0, prefill_ms=10_000.0, decode_ms=40_000.0, tokens=tokens))
    assert found.value(Name.KV_RUNNING_SHARE) == pytest.approx(1_024 / (8 * 2_048) / 4)
    assert found.value(Name.KV_RUNNING_SHARE_P95) == pytest.approx(1_024 / (8 * 2_048))


def test_uncached_tokens_of_long_prompts_are_a_share_of_all_that_were_computed() -> None:
    """Cached ones are no work; of a prompt that was sent ahead, what the other side computed counts."""
    fleet = msgspec.structs.replace(FLEET, travel_tokens=256)
    records = (
        request(1.0, tokens=Tokens(prompt=1000, delivered=0, output=31)),
        request(2.0, tokens=Tokens(prompt=5000, delivered=4900, output=31)),
        request(3.0, tokens=Tokens(prompt=256, delivered=0, output=31)),
        request(
            4.0,
            tokens=Tokens(prompt=700, delivered=699, ahead=644, output=31),
            prefill_replica="replica-2",
        ),
        request(5.0, tokens=Tokens(output=31)),
    )
    found = readings_from_records(records, window=WINDOW, id_prefix="t", fleet=fleet)
    share = found.get(Name.LONG_UNCACHED_SHARE)
    assert isinstance(share, Evidence)
    assert (share.value, share.samples) == (pytest.approx(1644 / 2000), 4)
    unsaid = read(*records).get(Name.LONG_UNCACHED_SHARE)
    assert isinstance(unsaid, Unknown)
    assert "from how many tokens on" in unsaid.reason
