"""Transfers and hand-offs as servers' own pages tell them, through the public command.

Each case comes with other numbers, with another engine's names, with a needed fact missing, and with a silent one.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
from engine_pages import tgi, trtllm
from scrape_kit import (
    Hist,
    Load,
    Told,
    apart,
    diagnose,
    facts,
    judgement,
    kinds,
    lever,
    proposed,
    sglang,
    vllm,
)

Page = Callable[..., str]

TRANSFER = "what binds the transfer"
HAND_OFF = "a hand-off that went wrong"
LEAK = "blocks kept by failed hand-offs"
GAPS = "first gap and steady gaps"
RUNS = Load(running=4, waiting=0, kv=0.3)


def subjects(told: Told) -> set[str]:
    """What is judged at all."""
    return {each["subject"] for each in told.answer["judgements"]}


def linked(bytes_per_s: float, more: str = "") -> str:
    return f"[transfer]\nlink_bytes_per_s = {bytes_per_s}\n{more}"


def moved(count: float, mean_s: float, size: float, at_s: float | None = None) -> Load:
    """Transfers of a mean time and size; `at_s`: in whose bucket most of the times lie."""
    return RUNS.but(transfer=Hist(count, mean_s, at_s), transfer_bytes=Hist(count, size))


MIB = 2.0**20


def sglang_moved(load: Load) -> str:
    """A page of SGLang with transfers, which it tells in milliseconds and MiB."""
    assert load.transfer is not None
    assert load.transfer_bytes is not None
    spent, size = load.transfer, load.transfer_bytes
    where = spent.mean if spent.at is None else spent.at
    labels = 'model_name="m"'
    lines = Hist(spent.count, 1000 * spent.mean, 1000 * where).lines(
        "sglang:kv_transfer_latency_ms", (1, 10, 100, 250, 500, 1000, 10_000, 60_000), labels
    )
    lines += Hist(size.count, size.mean / MIB).lines(
        "sglang:kv_transfer_total_mb", (1, 10, 100, 1000, 10_000), labels
    )
    return sglang(load.without("transfer", "transfer_bytes")) + "\n".join(lines) + "\n"


ENGINES = pytest.mark.parametrize("page", [vllm, sglang_moved, trtllm])


@ENGINES
@pytest.mark.parametrize(
    ("load", "text", "answer"),
    [
        (moved(50, 0.01, 230e6), linked(25e9), "bandwidth"),
        (moved(50, 0.02, 900e6), linked(50e9), "bandwidth"),
        (moved(50, 0.01, 100e6), linked(25e9), "nothing binds"),
        (moved(50, 0.01, 230e6), "", None),
        (moved(50, 0.2, 100e6), '[transfer]\ntransport = "tcp"\nsame_node = true\n', "transport"),
        (moved(50, 0.1, 90e6), '[transfer]\ntransport = "TCP"\nsame_node = true\n', "transport"),
        (moved(50, 0.2, 100e6), '[transfer]\ntransport = "rdma"\nsame_node = true\n', None),
        (moved(50, 0.01, 200e6), linked(25e9, 'transport = "tcp"\n'), "bandwidth"),
        (moved(50, 0.174, 313e6), linked(400e9), None),
        (RUNS.but(transfer=Hist(50, 0.01)), linked(25e9), None),
    ],
    ids=["23 of 25", "45 of 50", "10 of 25", "no link told", "tcp", "tcp too", "no socket", "a fast socket",
         "far below, nothing else told", "size unknown"],
)  # fmt: skip
def test_what_binds_a_transfer_by_each_engines_names(
    tmp_path: Path, page: Page, load: Load, text: str, answer: str | None
) -> None:
    """Bytes over time against what the link carries; a rate far below it is only explained by what is told."""
    if load.transfer_bytes is None and page is sglang_moved:
        load = load.but(transfer_bytes=Hist(0, 0.0))
    told = diagnose(tmp_path, page(load), options=facts(tmp_path, text))
    assert judgement(told, TRANSFER)["answer"] == answer


@ENGINES
@pytest.mark.parametrize(
    ("load", "answer"),
    [
        (moved(100, 0.7, 3e9, at_s=0.0625), "set-up"),
        (moved(40, 3.0, 9e9, at_s=0.4), "set-up"),
        (moved(100, 0.07, 3e8, at_s=0.0625), "bandwidth"),
    ],
    ids=["one of 38 s", "other numbers", "even"],
)
def test_few_slow_transfers_are_set_up(tmp_path: Path, page: Page, load: Load, answer: str) -> None:
    """A mean far above the median's bucket is made by few: the first connections, excluded and noted."""
    told = diagnose(tmp_path, page(load), options=facts(tmp_path, linked(5e9)))
    found = judgement(told, TRANSFER)
    assert (found["answer"], "warm up" in found["because"]) == (answer, answer == "set-up")


POSTED = RUNS.but(
    transfer=Hist(50, 0.174),
    post=Hist(50, 0.129),
    transfer_bytes=Hist(50, 313e6),
    descriptors=Hist(50, 40_064),
)


@pytest.mark.parametrize(
    ("load", "answer"),
    [
        (POSTED, "descriptors"),
        (POSTED.but(post=Hist(50, 0.1), descriptors=Hist(50, 112_000)), "descriptors"),
        (POSTED.but(descriptors=Hist(50, 30)), None),
        (POSTED.without("descriptors"), None),
        (POSTED.but(post=Hist(50, 0.002)), None),
    ],
    ids=["40,064", "112,000", "few large ones", "not counted", "posting is short"],
)
def test_posting_of_many_small_descriptors_binds(
    tmp_path: Path, load: Load, answer: str | None
) -> None:
    """Only many small ones are blamed: posting few large blocks is the copy itself."""
    told = diagnose(tmp_path, vllm(load), options=facts(tmp_path, linked(400e9)))
    assert judgement(told, TRANSFER)["answer"] == answer


@pytest.mark.parametrize("page", [vllm, sglang, trtllm, tgi])
def test_server_that_moves_nothing_is_asked_nothing(tmp_path: Path, page: Page) -> None:
    """Silence of every rule about transfers."""
    told = diagnose(tmp_path, page(RUNS))
    assert not {TRANSFER, HAND_OFF, LEAK, GAPS} & subjects(told)


FETCHED = POSTED.but(external_queries=32_768 * 50, external_hits=32_768 * 50)


@pytest.mark.parametrize(
    ("load", "answer"),
    [
        (FETCHED.but(external_hits=0), "failed transfer"),
        (FETCHED.but(external_queries=8_000, external_hits=16), "failed transfer"),
        (FETCHED.without("external_hits"), None),
        (FETCHED, "silent"),
        (FETCHED.but(external_hits=32_768), "silent"),
        (FETCHED.without("transfer", "post", "transfer_bytes", "descriptors").but(external_hits=0), "silent"),
    ],
    ids=["0 of 32,768", "16 of 8,000", "not counted", "all", "some prompts are never moved", "nothing moved"],
)  # fmt: skip
def test_transfer_that_the_decode_server_does_not_use_has_failed(
    tmp_path: Path, load: Load, answer: str | None
) -> None:
    """Transfers that end well, and prompts computed again: failed, although every request ends with status 200."""
    told = diagnose(tmp_path, vllm(load))
    if answer == "silent":
        assert HAND_OFF not in subjects(told)
        return
    assert judgement(told, HAND_OFF)["answer"] == answer


@pytest.mark.parametrize("page", [sglang_moved, trtllm])
def test_engine_that_does_not_count_what_arrived_cannot_tell(tmp_path: Path, page: Page) -> None:
    """Without such a counter a page says nothing of it; a person who saw it may."""
    load = moved(50, 0.01, 100e6)
    assert judgement(diagnose(tmp_path, page(load)), HAND_OFF)["answer"] is None
    seen = facts(tmp_path, "[hand_off]\nmoved_tokens = 32768\ncached_on_decode = 0\n")
    told = diagnose(tmp_path, page(load), options=seen)
    assert judgement(told, HAND_OFF)["answer"] == "failed transfer"


@pytest.mark.parametrize("page", [vllm, sglang])
@pytest.mark.parametrize("failed", [1, 40])
def test_failed_transfers_are_warned_of(tmp_path: Path, page: Page, failed: float) -> None:
    """Each must end in a local prefill or in one error; none of them, no warning."""
    assert "transfer_failures" in kinds(diagnose(tmp_path, page(RUNS.but(failures=failed))))
    assert "transfer_failures" not in kinds(diagnose(tmp_path, page(RUNS.but(failures=0))))


BLOCKS = '# TYPE vllm:cache_config_info gauge\nvllm:cache_config_info{{block_size="16",num_gpu_blocks="{}"}} 1\n'
TOKENS = (
    '# TYPE sglang:max_total_num_tokens gauge\nsglang:max_total_num_tokens{{model_name="m"}} {}\n'
)
PROMPTS = RUNS.but(prompt_length=Hist(100, 6400), finished=10)
HELD = "[hand_off]\nhold_s = {}\ntimeout_s = 20\n"


def blocks(load: Load, pool: int) -> str:
    return vllm(load) + BLOCKS.format(pool)


def tokens(load: Load, pool: int) -> str:
    return sglang(load) + TOKENS.format(pool * 16)


@pytest.mark.parametrize(
    ("page", "kept"), [(blocks, "expired"), (blocks, "failures"), (tokens, "failures")]
)
@pytest.mark.parametrize(
    ("a_minute", "pool", "hold_s", "minutes"),
    [(50, 60_000, 300, 3.0), (10, 8_000, 600, 2.0), (2, 60_000, 300, None)],
)
def test_blocks_that_nobody_fetched_exhaust_the_pool_of_the_page(
    tmp_path: Path,
    page: Callable[[Load, int], str],
    kept: str,
    a_minute: float,
    pool: int,
    hold_s: float,
    minutes: float | None,
) -> None:
    """Hand-offs that failed in a minute, blocks of a mean prompt, and the engine's capacity predict the moment."""
    text = HELD.format(hold_s)
    before = PROMPTS.but(prompt_length=Hist(0, 0.0), **{kept: 0})
    after = PROMPTS.but(**{kept: a_minute})
    told = apart(tmp_path, page(before, pool), page(after, pool), *facts(tmp_path, text))
    found = judgement(told, LEAK)
    assert found["answer"] == ("stays bounded" if minutes is None else "exhausts the pool")
    if minutes is not None:
        assert found["numbers"]["minutes_until_exhausted"] == pytest.approx(minutes)
        assert "disaggregation off" in found["because"]


@pytest.mark.parametrize(
    ("lost", "word"),
    [("expired", "failed hand-offs"), ("prompt_length", "blocks of each"), ("pool", "pool")],
)
def test_leak_needs_all_of_its_parts(tmp_path: Path, lost: str, word: str) -> None:
    """Without rate, prompt length or capacity nothing is predicted."""
    kept = PROMPTS.but(prompt_tokens=None)
    kept = kept if lost == "pool" else kept.without(lost)
    first = kept if lost == "expired" else kept.but(expired=0)
    last = kept if lost == "expired" else kept.but(expired=50)
    page = vllm if lost == "pool" else lambda load: blocks(load, 60_000)
    told = apart(tmp_path, page(first), page(last), *facts(tmp_path, HELD.format(300)))
    found = judgement(told, LEAK)
    assert (found["answer"], word in found["would_tell"]) == (None, True)


def test_one_page_has_no_rate_of_failures(tmp_path: Path) -> None:
    """A count since the start is no rate; and without a time to hold them nothing is asked."""
    page = blocks(PROMPTS.but(expired=50), 60_000)
    told = diagnose(tmp_path, page, options=facts(tmp_path, HELD.format(300)))
    assert judgement(told, LEAK)["answer"] is None
    assert LEAK not in subjects(diagnose(tmp_path, page))


STALLS = Load(
    running=8,
    waiting=0,
    kv=0.4,
    queries=3_000_000,
    hits=0,
    prompt_tokens=3_000_000,
    output_tokens=50_000,
    finished=100,
    ttft=Hist(100, 3.0),
    queue=Hist(100, 0.01),
    prefill=Hist(100, 3.0),
    decode=Hist(100, 20.0),
    e2e=Hist(100, 23.0),
    tpot=Hist(50_000, 0.04),
    prompt_length=Hist(100, 30_000),
    output_length=Hist(100, 500),
)
CEILINGS = ("--model", "Llama-3.1-8B", "--hardware", "H100")


@pytest.mark.parametrize("page", [vllm, trtllm, sglang])
@pytest.mark.parametrize(
    ("length", "answer"), [(30_000, True), (12_000, True), (1_024, False), (200, False)]
)
def test_prefill_is_split_off_only_for_prompts_longer_than_a_chunk(
    tmp_path: Path, page: Page, length: float, answer: bool
) -> None:
    """Long uncached prompts that stall decode are moved away; what fits one chunk has nothing to hide behind."""
    count = 3_000_000 / length
    load = STALLS.but(
        prompt_length=Hist(count, length), output_length=Hist(count, 50_000 / count), finished=count
    )
    told = apart(tmp_path, page(RUNS_EMPTY), page(load), *CEILINGS)
    assert lever(told, "split_prefill_and_decode")["proposed"] is answer


RUNS_EMPTY = STALLS.but(
    **dict.fromkeys(("queries", "hits", "prompt_tokens", "output_tokens", "finished"), 0),
    **{
        name: Hist(0, 0.0)
        for name in ("ttft", "queue", "prefill", "decode", "e2e", "tpot", "prompt_length", "output_length")
    },
)  # fmt: skip


def test_split_needs_what_a_prefill_stalls(tmp_path: Path) -> None:
    """Without ceilings the stall is unknown, and so is the premise; nothing is split for a queue."""
    told = diagnose(tmp_path, vllm(STALLS.without("tpot", "decode", "queries", "hits")))
    assert lever(told, "split_prefill_and_decode")["proposed"] is None
    queued = diagnose(tmp_path, vllm(Load(running=64, waiting=900, kv=0.3)))
    assert "split_prefill_and_decode" not in proposed(queued)


def against(folder: Path, before: str, after: str) -> Told:
    """Diagnose a page beside an earlier one."""
    path = folder / "before.prom"
    path.write_text(before)
    return diagnose(folder, after, options=("--before", str(path)))


WHOLE = RUNS.but(chunk_gap=Hist(10_000, 0.020, 0.018))
SPLIT = RUNS.but(chunk_gap=Hist(10_000, 0.031, 0.012), transfer=Hist(50, 0.1))


@pytest.mark.parametrize(
    ("before", "after", "answer"),
    [
        (WHOLE, SPLIT, "the first gap"),
        (WHOLE, SPLIT.but(chunk_gap=Hist(10_000, 0.060, 0.009)), "the first gap"),
        (WHOLE, SPLIT.but(chunk_gap=Hist(10_000, 0.031, 0.028)), "the steady gaps"),
        (WHOLE, SPLIT.but(chunk_gap=Hist(10_000, 0.012, 0.012)), "unchanged"),
        (WHOLE, SPLIT.but(chunk_gap=Hist(10_000, 0.090, 0.018)), "the first gap"),
        (WHOLE, SPLIT.but(chunk_gap=Hist(10_000, 0.024, 0.018)), None),
        (WHOLE, SPLIT.without("transfer"), "silent"),
        (WHOLE.without("chunk_gap"), SPLIT, "silent"),
    ],
    ids=["31 and 12", "60 and 9", "both up", "both down", "far up in one bucket", "up a little in one bucket",
         "no transfer", "not told before"],
)  # fmt: skip
def test_first_gap_of_a_decode_server_is_told_from_steady_ones(
    tmp_path: Path, before: Load, after: Load, answer: str | None
) -> None:
    """A mean up with a median down is the first step that waits; medians in one bucket have no order."""
    told = against(tmp_path, vllm(before), vllm(after))
    if answer == "silent":
        assert GAPS not in subjects(told)
        return
    assert judgement(told, GAPS)["answer"] == answer


@pytest.mark.parametrize(
    ("mean", "at", "answer"), [(0.031, 0.012, "the first gap"), (0.031, 0.028, "the steady gaps")]
)
def test_gaps_of_trtllm_are_told_by_its_times_per_token(
    tmp_path: Path, mean: float, at: float, answer: str
) -> None:
    """An engine without chunk gaps has times per token."""
    before = RUNS.but(tpot=Hist(10_000, 0.020, 0.018))
    after = RUNS.but(tpot=Hist(10_000, mean, at), transfer=Hist(50, 0.1))
    assert judgement(against(tmp_path, trtllm(before), trtllm(after)), GAPS)["answer"] == answer
