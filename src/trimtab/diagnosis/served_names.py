"""What the readings of a server that somebody else runs are called.

A name ends with its unit and then its qualifier. A reading over several sources carries the plain name; the same of
one source alone is `of_source(name, source)`, and of one rank `of_rank(name, rank)`.
"""

from enum import StrEnum


class ServedName(StrEnum):
    """Every reading the rules about servers may ask for. Shares are 0 to 1; times in milliseconds; sizes in tokens."""

    RUNNING_MEAN = "running_mean"
    RUNNING_MAX = "running_max"
    WAITING_MEAN = "waiting_mean"
    WAITING_MAX = "waiting_max"
    WAITING_MIN = "waiting_min"
    SWAPPED_MEAN = "swapped_mean"
    REQUESTS_MAX = "requests_max"
    CONTEXT_TOKENS_MAX = "context_tokens_max"
    BATCH_TOKENS_MAX = "batch_tokens_max"
    SLOTS_BUSY_PER_STEP = "slots_busy_per_step"

    KV_USED_SHARE_MEAN = "kv_used_share_mean"
    KV_USED_SHARE_MAX = "kv_used_share_max"
    KV_CAPACITY_TOKENS = "kv_capacity_tokens"
    PREEMPTIONS_PER_S = "preemptions_per_s"
    PREEMPTIONS = "preemptions"

    REQUESTS_FINISHED_PER_S = "requests_finished_per_s"
    REQUESTS_FAILED_SHARE = "requests_failed_share"
    PROMPT_TOKENS_PER_S = "prompt_tokens_per_s"
    OUTPUT_TOKENS_PER_S = "output_tokens_per_s"
    OUTPUT_GAUGE_TOKENS_PER_S = "output_gauge_tokens_per_s"
    OUTPUT_IMPLIED_TOKENS_PER_S = "output_implied_tokens_per_s"
    COMPUTED_PROMPT_TOKENS_PER_S = "computed_prompt_tokens_per_s"

    PREFIX_HIT_SHARE = "prefix_hit_share"
    PREFIX_HIT_SHARE_LIFETIME = "prefix_hit_share_lifetime"
    PREFIX_QUERIES_TOKENS = "prefix_queries_tokens"
    EXTERNAL_HIT_SHARE = "external_hit_share"

    TTFT_MS_MEAN = "ttft_ms_mean"
    TTFT_MS_P50 = "ttft_ms_p50"
    TTFT_MS_P99 = "ttft_ms_p99"
    FRONT_TTFT_MS_MEAN = "front_ttft_ms_mean"
    QUEUE_MS_MEAN = "queue_ms_mean"
    QUEUE_MS_P50 = "queue_ms_p50"
    PREFILL_MS_MEAN = "prefill_ms_mean"
    DECODE_MS_MEAN = "decode_ms_mean"
    E2E_MS_MEAN = "e2e_ms_mean"
    TPOT_MS_MEAN = "tpot_ms_mean"
    TPOT_MS_P50 = "tpot_ms_p50"
    TPOT_MS_P99 = "tpot_ms_p99"
    CHUNK_GAP_MS_MEAN = "chunk_gap_ms_mean"
    CHUNK_GAP_MS_P50 = "chunk_gap_ms_p50"
    TOKENS_PER_CHUNK_MEAN = "tokens_per_chunk_mean"

    PROMPT_LENGTH_MEAN = "prompt_length_mean"
    PROMPT_LENGTH_P99 = "prompt_length_p99"
    OUTPUT_LENGTH_MEAN = "output_length_mean"
    STEP_TOKENS_MEAN = "step_tokens_mean"

    DRAFT_ACCEPTANCE_SHARE = "draft_acceptance_share"
    ACCEPTED_LENGTH_WITH_BONUS = "accepted_length_with_bonus"
    ACCEPTED_LENGTH_WITHOUT_BONUS = "accepted_length_without_bonus"
    DRAFTED_SHARE_OF_STEPS = "drafted_share_of_steps"
    DRAFTED_LENGTH_MEAN = "drafted_length_mean"
    ACCEPTED_SHARE_OF_OUTPUT = "accepted_share_of_output"

    TRANSFER_MS_MEAN = "transfer_ms_mean"
    TRANSFER_MS_P50 = "transfer_ms_p50"
    TRANSFER_POST_MS_MEAN = "transfer_post_ms_mean"
    TRANSFER_BYTES_MEAN = "transfer_bytes_mean"
    TRANSFER_BYTES_PER_S = "transfer_bytes_per_s"
    TRANSFER_DESCRIPTORS_MEAN = "transfer_descriptors_mean"
    TRANSFER_FAILURES = "transfer_failures"
    TRANSFER_FAILURES_PER_S = "transfer_failures_per_s"
    TRANSFERS_EXPIRED = "transfers_expired"
    TRANSFERS_EXPIRED_PER_S = "transfers_expired_per_s"

    GPU_MEMORY_USED_SHARE = "gpu_memory_used_share"
    GPU_BUSY_SHARE = "gpu_busy_share"
    HOST_MEMORY_USED_SHARE = "host_memory_used_share"

    RANKS = "ranks"
    RANKS_SATURATED = "ranks_saturated"
    RANKS_LOST = "ranks_lost"
    RESTARTS = "restarts"
    COUNTERS_GROWN = "counters_grown"

    QUEUE_SHARE = "queue_share"
    PREFILL_SHARE = "prefill_share"
    DECODE_SHARE = "decode_share"
    TRANSFER_SHARE = "transfer_share"
    UNACCOUNTED_SHARE = "unaccounted_share"
    FIRST_TOKEN_SHARE = "first_token_share"


def low_of(name: str) -> str:
    """Return the name of the lower end of a quantile's bucket."""
    return f"{name}_low"


def high_of(name: str) -> str:
    """Return the name of the upper end of a quantile's bucket; it is unknown above the last edge."""
    return f"{name}_high"


def of_position(name: str, position: int) -> str:
    """Return the name of a reading of one position in a draft, counted from 1."""
    return f"{name}_at_{position}"


def of_source(name: str, source: str) -> str:
    """Return the name of a reading of one source alone."""
    return f"{name}@{source}"


def of_rank(name: str, rank: str) -> str:
    """Return the name of a reading of one rank alone; the rank is written `source/rank` where sources are several."""
    return f"{name}#{rank}"
