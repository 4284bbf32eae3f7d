"""What binds a transfer of KV, when it is worth one, and what failed ones leave, through the public command."""

from pathlib import Path

import pytest
from scrape_kit import Hist, Load, Told, diagnose, facts, judgement, vllm

TRANSFER = "what binds the transfer"
HAND_OFF = "a hand-off that went wrong"
PLACE = "local or remote prefill"
LEAK = "blocks kept by failed hand-offs"
GAPS = "first gap and steady gaps"

RUNS = Load(running=4, waiting=0, kv=0.3)
MANY = RUNS.but(
    transfer=Hist(50, 0.174),
    post=Hist(50, 0.129),
    transfer_bytes=Hist(50, 313e6),
    descriptors=Hist(50, 40_064),
)
SGLANG = """\
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{{model_name="m"}} 4
# TYPE sglang:kv_transfer_latency_ms histogram
sglang:kv_transfer_latency_ms_bucket{{model_name="m",le="10000"}} 50
sglang:kv_transfer_latency_ms_bucket{{model_name="m",le="+Inf"}} 50
sglang:kv_transfer_latency_ms_sum{{model_name="m"}} {ms}
sglang:kv_transfer_latency_ms_count{{model_name="m"}} 50
# TYPE sglang:kv_transfer_total_mb histogram
sglang:kv_transfer_total_mb_bucket{{model_name="m",le="10000"}} 50
sglang:kv_transfer_total_mb_bucket{{model_name="m",le="+Inf"}} 50
sglang:kv_transfer_total_mb_sum{{model_name="m"}} {mb}
sglang:kv_transfer_total_mb_count{{model_name="m"}} 50
"""


def judged(folder: Path, text: str, page: str = "") -> Told:
    """Diagnose a page with a file of facts."""
    return diagnose(folder, page or vllm(RUNS), options=facts(folder, text))


def linked(bytes_per_s: float, more: str = "") -> str:
    return f"[transfer]\nlink_bytes_per_s = {bytes_per_s}\n{more}"


@pytest.mark.parametrize(
    ("load", "link"),
    [
        (MANY, 400e9),
        (MANY.but(transfer=Hist(9, 0.9), post=Hist(9, 0.8), descriptors=Hist(9, 112_000)), 50e9),
    ],
    ids=["40,064 descriptors", "other numbers"],
)
def test_many_descriptors_bind_and_not_the_link(tmp_path: Path, load: Load, link: float) -> None:
    """Posting takes most of the time: larger blocks, and the link is not the limit."""
    found = judgement(judged(tmp_path, linked(link), vllm(load)), TRANSFER)
    assert found["answer"] == "descriptors"
    assert "the link" in found["because"]
    assert "is not the limit" in found["because"]


def test_descriptors_that_nobody_counts_cannot_be_blamed(tmp_path: Path) -> None:
    """Posting is long, for how many descriptors is unknown: no claim."""
    found = judgement(judged(tmp_path, linked(400e9), vllm(MANY.without("descriptors"))), TRANSFER)
    assert found["answer"] is None
    assert "descriptors" in found["would_tell"]


def moving(rate: float, seconds: float = 0.2) -> Load:
    """Transfers at so many bytes per second, hardly any of the time in posting."""
    return RUNS.but(
        transfer=Hist(50, seconds),
        post=Hist(50, 0.001),
        transfer_bytes=Hist(50, rate * seconds),
        descriptors=Hist(50, 30),
    )


@pytest.mark.parametrize("rate", [0.5e9, 0.9e9])
def test_socket_on_one_node_is_the_wrong_transport(tmp_path: Path, rate: float) -> None:
    """Half a gigabyte a second over TCP between neighbours: transport or direction, not the network."""
    text = '[transfer]\ntransport = "tcp"\nsame_node = true\n'
    found = judgement(judged(tmp_path, text, vllm(moving(rate))), TRANSFER)
    assert found["answer"] == "transport"


def test_socket_transport_is_judged_by_sglangs_names_too(tmp_path: Path) -> None:
    """100 MiB in 200 ms is half a gigabyte a second."""
    text = '[transfer]\ntransport = "tcp"\nsame_node = true\n'
    page = SGLANG.format(ms=50 * 200, mb=50 * 100)
    assert judgement(judged(tmp_path, text, page), TRANSFER)["answer"] == "transport"


def test_slow_transfer_without_transport_or_link_cannot_be_told(tmp_path: Path) -> None:
    """A rate alone says nothing of what binds it."""
    found = judgement(judged(tmp_path, "", vllm(moving(0.5e9))), TRANSFER)
    assert found["answer"] is None
    assert "link" in found["would_tell"]


@pytest.mark.parametrize(
    ("rate", "link", "answer"),
    [
        (23e9, 25e9, "bandwidth"),
        (45e9, 50e9, "bandwidth"),
        (10e9, 25e9, "nothing binds"),
    ],
)
def test_link_binds_only_near_its_rate(
    tmp_path: Path, rate: float, link: float, answer: str
) -> None:
    """23 of 25 GB/s is the link; 10 of 25 is not."""
    found = judgement(judged(tmp_path, linked(link), vllm(moving(rate, 0.01))), TRANSFER)
    assert found["answer"] == answer


def test_link_binds_by_sglangs_names_too(tmp_path: Path) -> None:
    """2,200 MiB in 100 ms is 23 GB/s."""
    page = SGLANG.format(ms=50 * 100, mb=50 * 2200)
    assert judgement(judged(tmp_path, linked(25e9), page), TRANSFER)["answer"] == "bandwidth"


@pytest.mark.parametrize(
    ("first_ms", "answer"), [(38_000, "set-up"), (12_000, "set-up"), (350, "nothing binds")]
)
def test_first_transfer_is_set_up_and_excluded(
    tmp_path: Path, first_ms: float, answer: str
) -> None:
    """38 s at first and 0.3 s later is set-up; 0.35 s is nothing of the kind."""
    page = vllm(moving(10e9, 0.3))
    found = judgement(judged(tmp_path, linked(25e9, f"first_ms = {first_ms}\n"), page), TRANSFER)
    assert found["answer"] == answer


def test_server_without_transfers_raises_no_judgement(tmp_path: Path) -> None:
    """Silence where nothing moves."""
    assert judged(tmp_path, "").answer["judgements"] == []


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("uncached_tokens = 1800\nlocal_limit_tokens = 2048\nretries_left = 1\n", "local"),
        ("uncached_tokens = 30000\nlocal_limit_tokens = 2048\nretries_left = 0\n", "one error"),
        ("uncached_tokens = 1800\n", None),
    ],
    ids=["small", "large", "no limit told"],
)
def test_failed_transfer_is_prefilled_locally_or_fails_once(
    tmp_path: Path, text: str, answer: str | None
) -> None:
    """Never a decode on part of the KV, never more attempts than the budget."""
    told = judged(tmp_path, f"[hand_off]\ntransfer_failed = true\n{text}")
    assert judgement(told, HAND_OFF)["answer"] == answer


@pytest.mark.parametrize(
    ("cached", "answer"),
    [(0, "failed transfer"), (128, "failed transfer"), (32_768, "delivered"), (None, None)],
)
def test_status_200_without_cached_tokens_is_a_failed_transfer(
    tmp_path: Path, cached: int | None, answer: str | None
) -> None:
    """What counts is what the decode server had of the prompt."""
    text = "[hand_off]\nmoved_tokens = 32768\n"
    text += "" if cached is None else f"cached_on_decode = {cached}\n"
    assert judgement(judged(tmp_path, text), HAND_OFF)["answer"] == answer


LOST = "[hand_off]\nfailed_per_min = {0}\nblocks_each = {1}\nblocks_pool = {2}\nhold_s = {3}\ntimeout_s = 20\n"


@pytest.mark.parametrize(
    ("numbers", "answer", "minutes"),
    [
        ((50, 400, 60_000, 300), "exhausts the pool", 3.0),
        ((10, 1000, 20_000, 600), "exhausts the pool", 2.0),
        ((2, 400, 60_000, 300), "stays bounded", None),
    ],
)
def test_blocks_of_failed_hand_offs_exhaust_the_pool(
    tmp_path: Path, numbers: tuple[int, ...], answer: str, minutes: float | None
) -> None:
    """Failures per minute times blocks each, held for minutes, against the pool."""
    found = judgement(judged(tmp_path, LOST.format(*numbers)), LEAK)
    assert found["answer"] == answer
    if minutes is not None:
        assert found["numbers"]["minutes_until_exhausted"] == pytest.approx(minutes)
        assert "disaggregation off" in found["because"]


def test_pool_that_nobody_tells_cannot_be_judged(tmp_path: Path) -> None:
    """Without the pool's size nothing is predicted."""
    text = LOST.format(50, 400, 60_000, 300).replace("blocks_pool = 60000\n", "")
    found = judgement(judged(tmp_path, text), LEAK)
    assert (found["answer"], "pool" in found["would_tell"]) == (None, True)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("prompt_tokens = 1024\nuncached_tokens = 0\noutput_tokens = 6\n", "local"),
        (
            "uncached_tokens = 30000\noutput_tokens = 500\ntransfer_ms = 40\nlocal_stall_ms = 900\n"
            "stalled_streams = 30\n",
            "remote",
        ),
        (
            "uncached_tokens = 20000\noutput_tokens = 200\ntransfer_ms = 900\nlocal_stall_ms = 600\n"
            "stalled_streams = 4\n",
            "local",
        ),
        ("uncached_tokens = 30000\nprefill_queue_ms = 12000\n", "local"),
        ("uncached_tokens = 30000\ntransfer_ms = 40\n", None),
    ],
    ids=[
        "all cached",
        "long and stalling",
        "dearer than the stall",
        "pool queues",
        "stall unknown",
    ],
)
def test_prompt_is_moved_only_where_that_saves_more_than_it_costs(
    tmp_path: Path, text: str, answer: str | None
) -> None:
    """Uncached length, what a local prefill would stall, and what moving costs."""
    assert judgement(judged(tmp_path, f"[hand_off]\n{text}"), PLACE)["answer"] == answer


GAP = "[gaps]\nmean_before = {0}\nmean_after = {1}\nmedian_before = {2}\nmedian_after = {3}\n"


@pytest.mark.parametrize(
    ("numbers", "answer"),
    [
        ((20.0, 31.0, 18.0, 15.0), "the first gap"),
        ((20.0, 60.0, 18.0, 17.0), "the first gap"),
        ((20.0, 31.0, 18.0, 25.0), "steady gaps"),
        ((20.0, 18.0, 18.0, 17.0), "unchanged"),
    ],
)
def test_first_gap_is_told_from_steady_ones(
    tmp_path: Path, numbers: tuple[float, ...], answer: str
) -> None:
    """A mean up with a median down is the first step waiting for the transfer."""
    found = judgement(judged(tmp_path, GAP.format(*numbers)), GAPS)
    assert answer in found["answer"]


def test_mean_alone_cannot_tell_which_gap_grew(tmp_path: Path) -> None:
    """Without medians the two are one number."""
    found = judgement(judged(tmp_path, "[gaps]\nmean_before = 20.0\nmean_after = 31.0\n"), GAPS)
    assert found["answer"] is None
