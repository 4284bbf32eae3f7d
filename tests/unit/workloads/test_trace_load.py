"""A trace as a load: lengths, the busiest window, what prompts share."""

import pytest

from trimtab.workloads.base import WorkloadError
from trimtab.workloads.trace_files import azure_records, mooncake_records
from trimtab.workloads.trace_load import load_of_trace

AZURE = ["TIMESTAMP,ContextTokens,GeneratedTokens"] + [
    f"2023-11-16 18:{at // 60:02d}:{at % 60:02d}.0000000,{100 + at},{10}"
    for at in (0, 10, 20, 61, 62, 63, 64, 65, 66, 125, 180)
]


def test_rate_of_the_busiest_window_is_found() -> None:
    """Three requests in the first minute, six in the second, one in the third."""
    load = load_of_trace(azure_records(AZURE, file="a.csv"), source="a.csv", block_tokens=512)
    assert load.rates_per_s == (3 / 60, 6 / 60, 1 / 60)
    assert load.rate_per_s_max == 6 / 60
    assert (load.requests, load.output_tokens, load.context_tokens_max) == (11, 10, 290)
    assert load.prefix_share_max == 0.0


def test_shared_blocks_count_only_behind_shared_blocks() -> None:
    """The second prompt shares its first block of two; the third shares a block that its start does not lead to."""
    lines = [
        '{"timestamp": 0, "input_length": 1024, "output_length": 5, "hash_ids": [1, 2]}',
        '{"timestamp": 1000, "input_length": 1024, "output_length": 5, "hash_ids": [1, 3]}',
        '{"timestamp": 2000, "input_length": 1024, "output_length": 5, "hash_ids": [4, 2]}',
    ]
    load = load_of_trace(mooncake_records(lines, file="m"), source="m", block_tokens=512)
    assert load.prefix_share_max == pytest.approx(512 / 3072)


def test_trace_without_time_tells_no_rate() -> None:
    """Requests that all come at once have no rate."""
    lines = ['{"timestamp": 0, "input_length": 1, "output_length": 5, "hash_ids": [1]}'] * 2
    with pytest.raises(WorkloadError, match="all requests come at once"):
        load_of_trace(mooncake_records(lines, file="m"), source="m", block_tokens=512)
    with pytest.raises(WorkloadError, match="at least two"):
        load_of_trace(mooncake_records(lines[:1], file="m"), source="m", block_tokens=512)
