"""The names of the readings that a diagnosis is made of, and what is known of a fleet beforehand.

One closed set for all engines: an engine's own metric names never get past its wire format.
"""

from enum import StrEnum

import msgspec

from trimtab.core.evidence import Evidence, Reading, Readings
from trimtab.diagnosis.disputes import disagreement


class Name(StrEnum):
    """A reading by name. Shares are 0 to 1; `*_share` of time are of the time of all requests."""

    REQUESTS = "requests"
    ERROR_SHARE = "error_share"
    ABORT_SHARE = "abort_share"
    LOOPING_SHARE = "looping_share"
    REQUEST_MS_TOTAL = "request_ms_total"
    QUEUE_SHARE = "queue_share"
    PREFILL_SHARE = "prefill_share"
    TRANSFER_SHARE = "transfer_share"
    DECODE_SHARE = "decode_share"
    UNACCOUNTED_SHARE = "unaccounted_share"
    QUEUE_MS_MEAN = "queue_ms_mean"
    PREFILL_MS_MEAN = "prefill_ms_mean"
    TRANSFER_MS_MEAN = "transfer_ms_mean"
    DECODE_MS_MEAN = "decode_ms_mean"
    HAND_OVERS = "hand_overs"
    HAND_OVER_FAILED_SHARE = "hand_over_failed_share"
    HAND_OVER_MS_MEAN = "hand_over_ms_mean"
    HAND_OVER_SETUP_MS_MEAN = "hand_over_setup_ms_mean"
    HAND_OVER_BYTES_MEAN = "hand_over_bytes_mean"
    HAND_OVER_BYTES_PER_S = "hand_over_bytes_per_s"
    TTFT_MS_MEAN = "ttft_ms_mean"
    TPOT_MS_MEAN = "tpot_ms_mean"
    E2E_MS_MEAN = "e2e_ms_mean"
    CHUNK_GAP_MS_MEAN = "chunk_gap_ms_max_mean"
    PROMPT_TOKENS = "prompt_tokens"
    COMPUTED_TOKENS = "computed_tokens"
    OUTPUT_TOKENS = "output_tokens"
    DELIVERED_TOKENS = "delivered_tokens"
    DELIVERED_SHARE = "delivered_share"
    LONG_UNCACHED_SHARE = "long_uncached_share"
    PREDICTED_TOKENS = "predicted_tokens"
    CAPTURED_TOKENS = "captured_tokens"
    DELIVERED_OVER_PREDICTED = "delivered_over_predicted"
    SKIPPED_TOKENS_LOST = "skipped_tokens_lost"
    SKIPPED_LOST_SHARE = "skipped_lost_share"
    PREFILL_MS_PER_TOKEN = "prefill_ms_per_token"
    DECODE_MS_PER_TOKEN = "decode_ms_per_token"
    DECODE_BATCH_MEAN = "decode_batch_mean"
    DECODE_BATCH_PER_STEP = "decode_batch_per_step"
    DECODE_BATCH_P50 = "decode_batch_p50"
    DECODE_BATCH_P95 = "decode_batch_p95"
    TPOT_GROWTH_PER_STREAM = "tpot_growth_per_stream"
    DRAFTS = "drafts"
    DRAFTED_TOKENS = "drafted_tokens"
    ACCEPTED_TOKENS = "accepted_tokens"
    DRAFT_ACCEPTANCE = "draft_acceptance"
    DRAFT_COVERAGE = "draft_coverage"
    ACCEPTED_PER_STEP = "accepted_per_step"
    PREFILL_RUNNING_SHARE = "prefill_running_share"
    DECODE_RUNNING_SHARE = "decode_running_share"
    BUSY_SHARE = "busy_share"
    QUEUE_BEHIND_PREFILL_SHARE = "queue_behind_prefill_share"
    QUEUE_SLOTS_FULL_SHARE = "queue_slots_full_share"
    DECODE_BESIDE_PREFILL_SHARE = "decode_beside_prefill_share"
    CHUNK_GAP_MS_BESIDE_PREFILL = "chunk_gap_ms_max_beside_prefill"
    CHUNK_GAP_MS_ALONE = "chunk_gap_ms_max_alone"
    SLOTS_BUSY_SHARE = "slots_busy_share"
    WAITING_SHARE = "waiting_share"
    WAITING_SLOTS_FULL_SHARE = "waiting_slots_full_share"
    KV_RUNNING_SHARE = "kv_running_share"
    KV_RUNNING_SHARE_P95 = "kv_running_share_p95"
    REQUESTS_DEFERRED = "requests_deferred"
    CPU_BUSY_SHARE = "cpu_busy_share"
    MEMORY_RESIDENT_BYTES = "memory_resident_bytes"
    PREEMPTIONS_PER_S = "preemptions_per_s"


class PerLabel(StrEnum):
    """A reading that exists once per workload label; `of` gives its name for one label."""

    REQUEST_SHARE = "label_request_share"
    DECODE_SHARE = "label_decode_share"
    REPETITION = "label_repetition"
    ACCEPTANCE = "label_acceptance"
    COVERAGE = "label_coverage"

    def of(self, label: str) -> str:
        """Return the name of this reading for one label."""
        return f"{self.value}:{label}"


TPOT_MS_BY_BATCH = "tpot_ms_batch"
"""Mean TPOT per batch bucket: `tpot_ms_batch:3-5`."""


class FleetFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a fleet without measuring it. Slots, context and threads are per replica.

    Slots are those of replicas that decode; threads are a mean, as roles may have their own.

    `memory_available_bytes`: what all replicas may use together; `travel_tokens`: uncached tokens above which a prompt
    may be computed on another replica. None is unknown.
    """

    replicas: int
    slots: int
    context_tokens: int
    threads: float = 1.0
    memory_available_bytes: int | None = None
    travel_tokens: int | None = None


def labels_in(readings: Readings) -> tuple[str, ...]:
    """Return the workload labels that readings know of, sorted."""
    head = PerLabel.REQUEST_SHARE.of("")
    return tuple(
        sorted(
            item.name.removeprefix(head) for item in readings.items if item.name.startswith(head)
        )
    )


def merged(*parts: Readings) -> Readings:
    """Join readings; where two parts know a name the later evidence counts, and evidence beats unknown.

    Where two of them disagree about it, the later one says so (`Evidence.disputed`).
    """
    found: dict[str, Reading] = {}
    for item in (item for part in parts for item in part.items):
        before = found.get(item.name)
        if isinstance(item, Evidence) and isinstance(before, Evidence):
            said = disagreement(item, before) or item.disputed
            found[item.name] = msgspec.structs.replace(item, disputed=said)
        elif isinstance(item, Evidence) or before is None:
            found[item.name] = item
    return Readings(tuple(found.values()))
