"""Pages of metrics into the nouns of served engines: names, versions, units, ranks, what cannot be."""

import pytest

from trimtab.core.ports import EngineFormatError
from trimtab.core.served import Buckets, Counter, Distribution, EngineKind, Gauge, ServerSample
from trimtab.engines import served_series
from trimtab.engines.served import read_sample, read_samples

OLD, NEW = "vllm:gpu_cache_usage_perc", "vllm:kv_cache_usage_perc"


def read(*lines: str) -> ServerSample:
    return read_sample("".join(f"{line}\n" for line in lines).encode(), source="s", at_s=5.0)


def gauge(sample: ServerSample, which: Gauge, rank: str = "") -> float | None:
    return next((one.gauges.get(which) for one in sample.ranks if one.rank == rank), None)


def counter(sample: ServerSample, which: Counter, rank: str = "") -> float | None:
    return next((one.counters.get(which) for one in sample.ranks if one.rank == rank), None)


def told(sample: ServerSample) -> list[tuple[str, str]]:
    return [(note.kind, note.metric) for note in sample.notes]


@pytest.mark.parametrize(
    ("lines", "expected", "name", "version"),
    [
        ([f"{OLD} 0.7"], 0.7, OLD, "V1 before 0.30, by its names"),
        ([f"{OLD} 0.7", f"{NEW} 0.1"], 0.1, NEW, "V1 before 0.30, by its names"),
        ([f"{NEW} 0.4"], 0.4, NEW, "V1, by its names"),
        ([NEW.replace(":", "_") + " 0.4"], 0.4, "vllm_kv_cache_usage_perc", "V1, by its names"),
    ],
)
def test_renamed_gauge_is_read_under_either_name(
    lines: list[str], expected: float, name: str, version: str
) -> None:
    """The newer name goes first, and the version is named by what is there."""
    sample = read(*lines)
    assert (gauge(sample, Gauge.KV_USED_SHARE), sample.version) == (expected, version)
    assert sample.names[Gauge.KV_USED_SHARE] == name


def test_two_names_that_disagree_are_a_conflict() -> None:
    """Both names on one page with different values: the newer is read and the contradiction is shown."""
    assert ("conflict", NEW) in told(read(f"{OLD} 0.7", f"{NEW} 0.1"))
    assert told(read(f"{OLD} 0.7", f"{NEW} 0.7")) == []


def test_ranks_that_contradict_share_one_note() -> None:
    """However many ranks differ, the page says it once, with one for example."""
    lines = [
        f'{name}{{engine="{rank}"}} 0.{value}'
        for rank in range(99)
        for name, value in ((OLD, 7), (NEW, 1))
    ]
    assert [note.text for note in read(*lines).notes] == [
        f"{OLD} says 0.7 where it says 0.1 (rank 0, one of 99 that differ): the newer name was read"
    ]


def test_old_name_alone_is_said_to_be_old() -> None:
    """Who reads the answer learns what newer versions call it."""
    assert told(read(f"{OLD} 0.7")) == [("name", OLD)]


def test_absent_gauge_is_not_zero() -> None:
    """A server that tells no occupancy has none in its sample."""
    assert gauge(read("vllm:num_requests_running 3"), Gauge.KV_USED_SHARE) is None


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('sglang:cache_hit_rate{name="m"} 10.61', 0.1061),
        ('sglang:cache_hit_rate{name="m"} 0.5', 0.005),
        ('sglang:cache_hit_rate{model_name="m"} 0.0075', 0.0075),
        ("sglang:cache_hit_rate 10.61", 0.1061),
        ("sglang_cache_hit_rate 0.5", 0.5),
        ("sglang:cache_hit_rate 1", 1.0),
    ],
)
def test_hit_rate_is_a_share_in_every_version(line: str, expected: float) -> None:
    """The first version gave percents, later ones shares; what is converted is noted."""
    sample = read(line)
    assert gauge(sample, Gauge.PREFIX_HIT_SHARE) == pytest.approx(expected)
    noted = [note.kind for note in sample.notes]
    assert noted == ([] if expected in {0.0075, 0.5, 1.0} else ["unit"])


@pytest.mark.parametrize(("value", "kind"), [("1.3", "unit"), ("101", "broken")])
def test_share_that_cannot_be_told_is_unknown(value: str, kind: str) -> None:
    """Between 1 and 2 it may be either; above 100 percent it is neither."""
    sample = read(f"{NEW} {value}")
    assert (gauge(sample, Gauge.KV_USED_SHARE), told(sample)) == (None, [(kind, NEW)])


def test_ranks_stay_apart_and_add_up() -> None:
    """One series per engine: none is lost, and whoever wants the server's total adds."""
    sample = read(
        'vllm:num_requests_running{engine="0"} 0',
        'vllm:num_requests_running{engine="1"} 40',
        'vllm:num_requests_waiting{engine="0"} 0',
        'vllm:num_requests_waiting{engine="1"} 12',
        f'{NEW}{{engine="0"}} 0.10',
        f'{NEW}{{engine="1"}} 0.97',
    )
    assert [rank.rank for rank in sample.ranks] == ["0", "1"]
    sums = sample.gauge_sum(Gauge.RUNNING), sample.gauge_sum(Gauge.WAITING)
    shares = [gauge(sample, Gauge.KV_USED_SHARE, rank) for rank in ("0", "1")]
    assert (sums, shares) == ((40.0, 12.0), [0.10, 0.97])


def test_ranks_are_in_the_order_of_their_numbers() -> None:
    """10 comes after 9."""
    lines = [f'vllm:num_requests_running{{engine="{rank}"}} 1' for rank in (10, 9, 0)]
    assert [rank.rank for rank in read(*lines).ranks] == ["0", "9", "10"]


def test_created_twins_are_ignored() -> None:
    """`_created` is a time and no value; the process start is read."""
    sample = read(
        'vllm:generation_tokens_total{engine="0"} 7',
        'vllm:generation_tokens_created{engine="0"} 1.7e9',
        "process_start_time_seconds 1.75e9",
    )
    assert counter(sample, Counter.OUTPUT_TOKENS, "0") == 7.0
    assert sample.started_at_s == 1.75e9


@pytest.mark.parametrize("ending", ["", "_total"])
def test_counter_is_read_with_or_without_total(ending: str) -> None:
    """Clients differ in whether they write the ending."""
    sample = read(f"vllm:num_preemptions{ending} 7")
    assert counter(sample, Counter.PREEMPTIONS) == 7.0


def test_aborted_requests_are_neither_finished_nor_failed() -> None:
    """A client that left says nothing of the server."""
    name = "vllm:request_success_total"
    reasons = {"stop": 5, "length": 4, "abort": 3, "error": 2, "new_reason": 1}
    sample = read(*(f'{name}{{finished_reason="{why}"}} {n}' for why, n in reasons.items()))
    found = [counter(sample, one) for one in (Counter.REQUESTS_FINISHED, Counter.REQUESTS_FAILED)]
    assert found == [10.0, 2.0]


def test_capacity_is_told_by_the_configuration() -> None:
    """Tokens if the engine tells them, else blocks times their size; the configuration is kept as text."""
    info = 'vllm:cache_config_info{{engine="0",block_size="16",num_gpu_blocks="10",x="None"{}}} 1'
    blocks, tokens = read(info.format("")), read(info.format(',kv_cache_size_tokens="99"'))
    assert gauge(blocks, Gauge.KV_CAPACITY_TOKENS, "0") == 160.0
    assert gauge(tokens, Gauge.KV_CAPACITY_TOKENS, "0") == 99.0
    assert blocks.configured == {"block_size": "16", "num_gpu_blocks": "10"}


def test_transfer_counts_come_from_the_histograms() -> None:
    """The connector counts transfers, bytes and descriptors as sums and counts of histograms."""
    sample = read(
        "vllm:nixl_xfer_time_seconds_count 4",
        "vllm:nixl_xfer_time_seconds_sum 0.5",
        "vllm:nixl_bytes_transferred_sum 1000",
        "vllm:nixl_num_descriptors_sum 120",
        "vllm:nixl_num_failed_transfers_total 2",
    )
    assert sample.ranks[0].counters == {
        Counter.TRANSFERS: 4.0,
        Counter.TRANSFER_BYTES: 1000.0,
        Counter.TRANSFER_DESCRIPTORS: 120.0,
        Counter.TRANSFER_FAILURES: 2.0,
    }
    assert sample.ranks[0].distributions[Distribution.TRANSFER_TIME].sum == 0.5


def test_chunk_gap_and_time_per_token_are_two_things() -> None:
    """What vLLM once called time per output token is the gap between chunks."""
    old = read(
        "vllm:time_per_output_token_seconds_count 2", "vllm:time_per_output_token_seconds_sum 1"
    )
    new = read(
        "vllm:inter_token_latency_seconds_count 3",
        "vllm:request_time_per_output_token_seconds_count 4",
    )
    assert {key: one.total for key, one in old.ranks[0].distributions.items()} == {
        Distribution.CHUNK_GAP: 2.0
    }
    assert {key: one.total for key, one in new.ranks[0].distributions.items()} == {
        Distribution.CHUNK_GAP: 3.0,
        Distribution.TPOT: 4.0,
    }


def test_sglang_gap_is_time_per_token_and_says_so() -> None:
    """SGLang divides a gap by its tokens."""
    sample = read("sglang:inter_token_latency_seconds_count 3")
    assert set(sample.ranks[0].distributions) == {Distribution.TPOT}
    assert told(sample) == [("name", "sglang:inter_token_latency_seconds")]


def test_sglang_schedulers_and_front_end_keep_apart() -> None:
    """Data-parallel schedulers tell gauges, the front end counts tokens without a rank."""
    sample = read(
        'sglang:num_running_reqs{dp_rank="0",tp_rank="0"} 2',
        'sglang:num_running_reqs{dp_rank="1",tp_rank="1"} 3',
        'sglang:generation_tokens_total{is_streaming="true"} 10',
        'sglang:generation_tokens_total{is_streaming="false"} 5',
    )
    assert [rank.rank for rank in sample.ranks] == ["0", "1", ""]
    assert sample.gauge_sum(Gauge.RUNNING) == 5.0
    assert counter(sample, Counter.OUTPUT_TOKENS) == 15.0


def test_stages_of_a_pipeline_repeat_each_other() -> None:
    """Every stage tells the same requests; the lowest counts, once."""
    sample = read(*(f'sglang:num_running_reqs{{tp_rank="0",pp_rank="{i}"}} 4' for i in range(3)))
    assert sample.gauge_sum(Gauge.RUNNING) == 4.0
    assert told(sample) == [("limit", "sglang:num_running_reqs")]


@pytest.mark.parametrize(
    ("running", "total"), [((4, 4), 4.0), ((4, 0), 4.0), ((4, 3), 7.0), ((0, 0), 0.0)]
)
def test_tensor_ranks_that_say_the_same_are_one(running: tuple[int, int], total: float) -> None:
    """Ranks without a data-parallel label are copies of one scheduler if they agree, schedulers if they do not."""
    sample = read(
        *(f'sglang:num_running_reqs{{tp_rank="{i}"}} {n}' for i, n in enumerate(running)),
        *(f'sglang:token_usage{{tp_rank="{i}"}} 0.5' for i in range(2)),
    )
    assert sample.gauge_sum(Gauge.RUNNING) == total


def test_queue_by_priority_is_not_counted_twice() -> None:
    """With priorities the engine tells a total without one, and its parts."""
    name = "sglang:num_queue_reqs"
    lines = [f'{name}{{priority="{p}"}} {n}' for p, n in (("", 5), ("1", 2), ("2", 3))]
    assert read(*lines).gauge_sum(Gauge.WAITING) == 5.0


def test_no_speculation_is_no_acceptance() -> None:
    """SGLang says 0 of both where nothing is drafted: that is unknown, not bad drafts."""
    assert read("sglang:spec_accept_length 0", "sglang:spec_accept_rate 0.0").ranks == ()


def test_llamacpp_prompt_tokens_mean_one_thing_in_every_version() -> None:
    """Newer pages leave cached tokens out: they are added, and hits have their base."""
    old = read("llamacpp:prompt_tokens_total 100")
    new = read("llamacpp:prompt_tokens_total 100", "llamacpp:prompt_tokens_cached_total 30")
    names = (Counter.PROMPT_TOKENS, Counter.PREFIX_QUERIES, Counter.PREFIX_HITS)
    assert [counter(old, name) for name in names] == [100.0, None, None]
    assert [counter(new, name) for name in names] == [130.0, 130.0, 30.0]
    assert told(new) == [("unit", "llamacpp:prompt_tokens_total")]


def test_llamacpp_old_names_of_drafts_are_read() -> None:
    """Drafted and accepted tokens had other names; positions are read in order."""
    sample = read(
        "llamacpp:tokens_drafted_total 10",
        "llamacpp:tokens_drafted_accepted_total 4",
        *(
            f'llamacpp:spec_decode_num_accepted_tokens_per_pos_total{{position="{i}"}} {3 - i}'
            for i in (2, 0, 1)
        ),
    )
    assert counter(sample, Counter.DRAFTED_TOKENS) == 10.0
    assert counter(sample, Counter.ACCEPTED_TOKENS) == 4.0
    assert sample.ranks[0].accepted_by_position == (3.0, 2.0, 1.0)


def test_tgi_is_read_without_totals_and_models() -> None:
    """Counters have no ending, decode steps are one method's, lengths are histograms."""
    sample = read(
        "tgi_queue_size 3",
        "tgi_batch_current_size 5",
        "tgi_request_success 109",
        'tgi_request_failure{err="validation"} 2',
        'tgi_batch_inference_count{method="prefill"} 16',
        'tgi_batch_inference_count{method="decode"} 1509',
        "tgi_request_generated_tokens_sum 700",
        "tgi_request_generated_tokens_count 7",
    )
    assert (sample.engine, sample.model) == (EngineKind.TGI, None)
    assert sample.ranks[0].gauges == {Gauge.RUNNING: 5.0, Gauge.WAITING: 3.0}
    assert sample.ranks[0].counters == {
        Counter.REQUESTS_FINISHED: 109.0,
        Counter.REQUESTS_FAILED: 2.0,
        Counter.DECODE_STEPS: 1509.0,
        Counter.OUTPUT_TOKENS: 700.0,
    }


@pytest.mark.parametrize("prefix", ["trtllm_", "trtllm:"])
def test_trtllm_blocks_become_tokens(prefix: str) -> None:
    """Capacity and hits are told in blocks, whose size is told too."""
    values = {
        "kv_cache_utilization": 0.62,
        "kv_cache_max_blocks": 100,
        "kv_cache_tokens_per_block": 32,
        "kv_cache_reused_blocks_total": 3,
        "kv_cache_missed_blocks_total": 7,
        "num_requests_running": 8,
        "num_requests_waiting": 1,
    }
    sample = read(*(f'{prefix}{name}{{model_name="m"}} {n}' for name, n in values.items()))
    assert (sample.engine, sample.model) == (EngineKind.TRTLLM, "m")
    assert sample.ranks[0].gauges == {
        Gauge.KV_USED_SHARE: 0.62,
        Gauge.RUNNING: 8.0,
        Gauge.WAITING: 1.0,
        Gauge.KV_CAPACITY_TOKENS: 3200.0,
    }
    assert sample.ranks[0].counters == {Counter.PREFIX_HITS: 96.0, Counter.PREFIX_QUERIES: 320.0}


@pytest.mark.parametrize(
    ("prompt", "cached"),
    [
        ("sglang:prompt_tokens_total", 'sglang:cached_tokens_total{cache_source="device"}'),
        ("trtllm_prompt_tokens_total", "trtllm_prompt_cached_tokens_total"),
        ("dynamo_frontend_input_sequence_tokens_sum", "dynamo_frontend_cached_tokens_sum"),
    ],
)
def test_cached_tokens_are_hits_of_prompt_tokens(prompt: str, cached: str) -> None:
    """Engines without counters of queries and hits tell both by their tokens, under those names."""
    sample = read(f"{prompt} 1000", f"{cached} 900")
    found = [counter(sample, one) for one in (Counter.PREFIX_QUERIES, Counter.PREFIX_HITS)]
    assert found == [1000.0, 900.0]
    assert sample.names[Counter.PREFIX_QUERIES] == prompt


def test_dynamo_front_end_counts_the_queue_apart() -> None:
    """Requests in flight include the queued ones there, not here; failures leave clients that went out."""
    sample = read(
        'dynamo_frontend_inflight_requests{model="m"} 10',
        'dynamo_frontend_queued_requests{model="m"} 4',
        'dynamo_frontend_requests_total{model="m",status="success",error_type=""} 90',
        'dynamo_frontend_requests_total{model="m",status="error",error_type="cancelled"} 7',
        'dynamo_frontend_requests_total{model="m",status="error",error_type="internal"} 2',
        'dynamo_frontend_model_total_kv_blocks{model="m"} 50',
        'dynamo_frontend_model_kv_cache_block_size{model="m"} 16',
    )
    assert sample.engine is EngineKind.DYNAMO_FRONTEND
    assert sample.ranks[0].gauges == {
        Gauge.RUNNING: 6.0,
        Gauge.WAITING: 4.0,
        Gauge.KV_CAPACITY_TOKENS: 800.0,
    }
    assert sample.ranks[0].counters == {
        Counter.REQUESTS_FINISHED: 90.0,
        Counter.REQUESTS_FAILED: 2.0,
    }


def test_workers_that_a_front_end_tells_of_replace_its_own_counts() -> None:
    """A request is counted once: at its worker."""
    labels = '{{worker_id="{}",dp_rank="0",worker_type="decode"}}'
    sample = read(
        'dynamo_frontend_inflight_requests{model="m"} 10',
        *(f"dynamo_frontend_worker_request_active_slots{labels.format(i)} 4" for i in (7, 8)),
    )
    assert sample.engine is EngineKind.DYNAMO_FRONTEND
    assert [rank.rank for rank in sample.ranks] == ["7/0", "8/0"]
    assert sample.gauge_sum(Gauge.RUNNING) == 8.0


def test_dynamo_worker_calls_a_share_a_percent() -> None:
    """Its own page is read by data-parallel rank; the occupancy is a share whatever its name says."""
    sample = read(
        'dynamo_component_gpu_cache_usage_percent{dp_rank="1",dynamo_component="backend"} 0.5',
        'dynamo_component_inflight_requests{dynamo_component="backend"} 3',
    )
    assert sample.engine is EngineKind.DYNAMO_WORKER
    assert gauge(sample, Gauge.KV_USED_SHARE, "1") == 0.5
    assert gauge(sample, Gauge.RUNNING) == 3.0


def test_engine_inside_a_worker_is_read_first() -> None:
    """The engine says more than what stands around it, and what else is there is said."""
    page = b"dynamo_component_inflight_requests 3\nvllm:num_requests_running 2\n"
    sample = read_sample(page, source="s", at_s=0.0)
    assert (sample.engine, told(sample)) == (EngineKind.VLLM, [("limit", "")])
    kinds = [one.engine for one in read_samples(page, source="s", at_s=0.0)]
    assert kinds == [EngineKind.VLLM, EngineKind.DYNAMO_WORKER]


def test_names_of_two_engines_are_a_conflict() -> None:
    """The one that says more is read."""
    sample = read(
        "vllm:num_requests_running 2", "sglang:num_running_reqs 3", "sglang:token_usage 0"
    )
    assert (sample.engine, told(sample)) == (EngineKind.SGLANG, [("conflict", "")])


def test_dcgm_counts_mebibytes_and_percents() -> None:
    """Memory in bytes with its total, use as a share, a rank per device, the device's name."""
    labels = '{gpu="1",UUID="u",modelName="NVIDIA H200"}'
    sample = read(
        f"DCGM_FI_DEV_FB_USED{labels} 100",
        f"DCGM_FI_DEV_FB_FREE{labels} 50",
        f"DCGM_FI_DEV_FB_RESERVED{labels} 10",
        f"DCGM_FI_DEV_GPU_UTIL{labels} 1",
    )
    assert (sample.engine, sample.configured) == (EngineKind.DCGM, {"accelerator": "NVIDIA H200"})
    assert sample.ranks[0].rank == "1"
    assert sample.ranks[0].gauges == {
        Gauge.GPU_MEMORY_USED_BYTES: 100 * 2.0**20,
        Gauge.GPU_MEMORY_TOTAL_BYTES: 160 * 2.0**20,
        Gauge.GPU_BUSY_SHARE: 0.01,
    }


def test_node_exporter_tells_memory_of_host_and_devices() -> None:
    """Host memory is not accelerator memory; a device's is."""
    sample = read(
        "node_memory_MemTotal_bytes 1000",
        "node_memory_MemAvailable_bytes 400",
        'node_drm_memory_vram_used_bytes{card="card0"} 7',
        'node_drm_memory_vram_size_bytes{card="card0"} 9',
    )
    assert sample.engine is EngineKind.NODE
    by_rank = {rank.rank: rank.gauges for rank in sample.ranks}
    assert by_rank == {
        "": {Gauge.HOST_MEMORY_TOTAL_BYTES: 1000.0, Gauge.HOST_MEMORY_USED_BYTES: 600.0},
        "card0": {Gauge.GPU_MEMORY_USED_BYTES: 7.0, Gauge.GPU_MEMORY_TOTAL_BYTES: 9.0},
    }


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "-1"])
def test_value_that_cannot_be_is_unknown(value: str) -> None:
    """Neither a gauge nor a counter is read from it, and the page says why."""
    sample = read(f"vllm:num_requests_running {value}", f"vllm:num_preemptions_total {value}")
    assert (sample.engine, sample.ranks) == (EngineKind.VLLM, ())
    assert [note.kind for note in sample.notes] == ["broken", "broken"]


def test_several_models_are_ranks_of_their_own() -> None:
    """Shares of two models cannot be added; each keeps its name."""
    sample = read(
        *(f'{NEW}{{model_name="{name}",engine="0"}} 0.{n}' for n, name in ((1, "a"), (2, "b")))
    )
    assert [(rank.rank, rank.gauges) for rank in sample.ranks] == [
        ("a/0", {Gauge.KV_USED_SHARE: 0.1}),
        ("b/0", {Gauge.KV_USED_SHARE: 0.2}),
    ]
    assert (sample.model, told(sample)) == (None, [("conflict", "")])


def test_too_many_ranks_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks are bounded like series."""
    monkeypatch.setattr(served_series, "RANKS_MAX", 2)
    with pytest.raises(EngineFormatError, match="more than 2 ranks"):
        read(*(f'vllm:num_requests_running{{engine="{rank}"}} 1' for rank in range(3)))


def test_page_of_nobody_known_is_of_an_unknown_engine() -> None:
    """It is a page, so it is no error; it says nothing, so it has no ranks."""
    sample = read("go_goroutines 7", "process_start_time_seconds 100")
    expected = ServerSample(source="s", at_s=5.0, engine=EngineKind.UNKNOWN, started_at_s=100.0)
    assert sample == expected


def histogram(*lines: str) -> tuple[Buckets | None, list[str]]:
    sample = read(*(f"vllm:time_to_first_token_seconds{line}" for line in lines))
    found = [one.distributions.get(Distribution.TTFT) for one in sample.ranks]
    return (found[0] if found else None), [note.kind for note in sample.notes]


def test_histogram_keeps_what_lies_above_the_last_edge() -> None:
    """The +Inf bucket is the total and no edge."""
    found = histogram(
        '_bucket{le="30"} 2', '_bucket{le="+Inf"} 9', '_bucket{le="0.50"} 1', "_sum 700", "_count 9"
    )
    assert found == (Buckets(edges=(0.5, 30.0), cumulative=(1.0, 2.0), total=9.0, sum=700.0), [])


def test_histograms_of_one_rank_are_added_at_common_edges() -> None:
    """Series that differ in other labels are one population, at the edges where each is exact."""
    found = histogram(
        *(f'_bucket{{is="a",le="{edge}"}} {n}' for edge, n in ((1, 1), (2, 3), ("+Inf", 4))),
        *(f'_bucket{{is="b",le="{edge}"}} {n}' for edge, n in ((2, 5), (3, 6), ("+Inf", 6))),
        '_sum{is="a"} 8',
        '_sum{is="b"} 9',
    )
    assert found == (Buckets(edges=(2.0,), cumulative=(8.0,), total=10.0, sum=17.0), [])


@pytest.mark.parametrize(
    ("lines", "expected", "notes"),
    [
        (['_bucket{le="1"} 2', "_count 3"], Buckets(edges=(1.0,), cumulative=(2.0,), total=3.0), 1),
        (
            ['_bucket{le="1"} 2', '_bucket{le="+Inf"} 1'],
            Buckets(edges=(), cumulative=(), total=1.0),
            1,
        ),
        (['_bucket{le="1"} NaN', "_count 3"], Buckets(edges=(), cumulative=(), total=3.0), 2),
        (["_count 3", "_sum -1"], Buckets(edges=(), cumulative=(), total=3.0), 1),
        (
            ['{quantile="0.5"} 1', "_count 3", "_sum 6"],
            Buckets(edges=(), cumulative=(), total=3.0, sum=6.0),
            0,
        ),
        (['_bucket{le="1"} 2'], None, 1),
        (['_bucket{le="x"} 2', "_bucket 3"], None, 1),
    ],
    ids=["no inf", "falls", "nan", "bad sum", "summary", "no total", "no edge"],
)
def test_broken_histogram_keeps_what_can_be_told(
    lines: list[str], expected: Buckets | None, notes: int
) -> None:
    """Nothing is repaired; count and sum survive what befell the buckets."""
    assert histogram(*lines) == (expected, ["broken"] * notes)
