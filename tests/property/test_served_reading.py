"""Laws of reading a page of metrics: order and strangers change nothing, bad input is a typed error or a note."""

import json
import random
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.core.ports import EngineFormatError
from trimtab.core.served import ServerSample
from trimtab.engines.prom import Sample, parse_page
from trimtab.engines.prom_api import read_api
from trimtab.engines.scrape import read_scrape
from trimtab.engines.served import read_sample

BUCKETS = ("0.1", "1", "+Inf")
KNOWN = [
    *(
        f'vllm:{name}{{engine="{rank}",model_name="m"}} {value}'
        for rank in range(3)
        for name, value in (
            ("num_requests_running", rank * 7),
            ("gpu_cache_usage_perc", f"0.{rank}1"),
            ("kv_cache_usage_perc", f"0.{rank}2"),
            ("generation_tokens_total", f"{rank}.1e5"),
            ("num_preemptions_total", "NaN"),
            ("time_to_first_token_seconds_sum", f"3.{rank}"),
            ("time_to_first_token_seconds_count", "6"),
        )
    ),
    *(
        f'vllm:time_to_first_token_seconds_bucket{{engine="{rank}",le="{edge}",model_name="m"}} {2 * n + 1}'
        for rank in range(3)
        for n, edge in enumerate(BUCKETS)
    ),
    'vllm:cache_config_info{block_size="16",engine="1",num_gpu_blocks="7"} 1',
    'vllm:request_success_total{engine="0",finished_reason="error"} 4',
    "process_start_time_seconds 5",
    "sglang:num_running_reqs 4",
    "DCGM_FI_DEV_FB_USED 4",
    "not a sample",
]
# Letters that no prefix of an engine begins with, after a prefix that one has.
STRANGERS = st.from_regex(
    r"(vllm:|sglang:|tgi_|)zz[a-z_]{0,8}(\{[a-z]=\"[a-z0-9]*\"\})? -?[0-9]{1,5}", fullmatch=True
)


def read(lines: list[str]) -> ServerSample:
    return read_sample("".join(f"{line}\n" for line in lines).encode(), source="s", at_s=1.0)


@given(st.permutations(KNOWN))
def test_order_changes_nothing(lines: list[str]) -> None:
    """Families, ranks, buckets and broken lines may come in any order."""
    assert read(lines) == read(KNOWN)


@given(st.permutations(range(3)))
def test_names_of_ranks_only_name_them(places: list[int]) -> None:
    """A rank's values do not depend on which rank it is."""
    moved = [
        line.replace(f'engine="{rank}"', f'engine="x{places[rank]}"').replace("x", "")
        if (rank := next((n for n in range(3) if f'engine="{n}"' in line), None)) is not None
        else line
        for line in KNOWN
    ]
    before = {rank.rank: rank for rank in read(KNOWN).ranks}
    after = {rank.rank: rank for rank in read(moved).ranks}
    for rank, place in enumerate(places):
        assert after[str(place)].gauges == before[str(rank)].gauges
        assert after[str(place)].distributions == before[str(rank)].distributions


@given(st.lists(st.tuples(STRANGERS, st.integers(0, len(KNOWN))), max_size=8))
def test_unknown_metric_changes_nothing(strangers: list[tuple[str, int]]) -> None:
    """A name that no table has is as if it were not there, in whatever place."""
    lines = list(KNOWN)
    for line, place in strangers:
        lines.insert(place, line)
    assert read(lines) == read(KNOWN)


NAMES = st.sampled_from(["vllm:x", "y_total", "z"])
VALUES = st.sampled_from(["1", "-2.5", "NaN", "+Inf", "1e-9", "0x1"])
TEXTS = st.text(alphabet='ab"\\\n{},= #é', max_size=6)


def flat(series: Mapping[str, tuple[Sample, ...]]) -> list[tuple[str, str, str]]:
    return sorted(
        (name, str(sorted(sample.labels.items())), str(float(sample.value)))
        for name, samples in series.items()
        for sample in samples
    )


def escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


@given(
    st.lists(st.tuples(NAMES, st.dictionaries(st.sampled_from("lmn"), TEXTS), VALUES), max_size=6)
)
def test_series_are_those_of_the_ecosystems_parser(
    series: list[tuple[str, dict[str, str], str]],
) -> None:
    """Quick reading of plain lines is the same reading, whatever stands in a label."""
    text = "b 1\n"
    seen = set()
    for name, labels, value in series:
        key = (name, frozenset(labels.items()))
        if value == "0x1" or key in seen:
            continue
        seen.add(key)
        inner = ",".join(f'{label}="{escaped(own)}"' for label, own in labels.items())
        text += f"{name}{{{inner}}} {value}\n"
    ours = read_scrape(text.encode(), wanted=frozenset({"vllm:x", "y_total", "z", "b"}))
    theirs = parse_page(text)
    # As text, in which one NaN is like another.
    assert flat(ours.series) == flat(theirs.samples)


def damaged(chance: random.Random) -> bytes:
    """A page with a few bytes changed, lines cut, repeated or swapped, or made of noise alone."""
    lines = list(KNOWN)
    for _ in range(chance.randrange(1, 30)):
        at = chance.randrange(len(lines))
        match chance.randrange(6):
            case 0:
                lines[at] = lines[at][: chance.randrange(len(lines[at]) + 1)]
            case 1:
                lines.append(
                    lines[at].rpartition(" ")[0] + chance.choice([" -5", " NaN", " 1e999", " "])
                )
            case 2:
                lines[at] = lines[at].replace('"', chance.choice(["", "'", '""', "\\"]), 1)
            case 3:
                lines.insert(at, bytes(chance.randrange(256) for _ in range(20)).decode("latin-1"))
            case 4:
                lines[at] = lines[at].replace("le=", "el=").replace("+Inf", "-Inf")
            case _:
                lines.pop(at)
                lines = lines or ["#"]
    page = "\n".join(lines).encode(chance.choice(["utf-8", "latin-1", "utf-16"]))
    return chance.randbytes(200) if chance.random() < 0.1 else page


@pytest.mark.parametrize("seed", range(200))
def test_bad_input_is_a_typed_error_or_a_sample(seed: int) -> None:
    """Whatever befell a page or an answer, nothing but the typed error comes out, and no value that cannot be."""
    body = damaged(random.Random(seed))
    try:
        sample = read_sample(body, source="s", at_s=1.0)
    except EngineFormatError:
        pass
    else:
        values = [
            value
            for rank in sample.ranks
            for value in (*rank.gauges.values(), *rank.counters.values())
        ]
        assert all(0 <= value < float("inf") for value in values)
        for rank in sample.ranks:
            for buckets in rank.distributions.values():
                counts = [*buckets.cumulative, buckets.total]
                assert counts == sorted(counts)
                assert list(buckets.edges) == sorted(set(buckets.edges))
    with pytest.raises(EngineFormatError):
        read_api(body, source="s", at_s=1.0)


def api_answer() -> bytes:
    name = ("vllm:num_requests_running", "vllm:time_to_first_token_seconds_bucket")
    result = [
        {
            "metric": {"__name__": name[n % 2], "instance": "a", "engine": str(n), "le": "+Inf"},
            "values": [[n, str(n)], [n + 1, "NaN"]],
        }
        for n in range(6)
    ]
    return json.dumps(
        {"status": "success", "data": {"resultType": "matrix", "result": result}}
    ).encode()


@pytest.mark.parametrize("seed", range(200))
def test_bad_answer_of_the_api_is_a_typed_error_or_samples(seed: int) -> None:
    """An answer with changed, lost and repeated bytes."""
    chance = random.Random(seed)
    body = bytearray(api_answer())
    for _ in range(chance.randrange(1, 6)):
        at = chance.randrange(len(body))
        match chance.randrange(3):
            case 0:
                body[at] = chance.randrange(256)
            case 1:
                del body[at : at + chance.randrange(1, 9)]
            case _:
                body[at:at] = body[at : at + chance.randrange(1, 40)]
    try:
        samples = read_api(bytes(body), source="s", at_s=1.0)
    except EngineFormatError:
        return
    assert all(sample.source.startswith("s") for sample in samples)


@settings(max_examples=200)
@given(st.binary(max_size=300))
def test_noise_is_a_typed_error_or_a_sample(body: bytes) -> None:
    """Any bytes at all."""
    try:
        sample = read_sample(body, source="s", at_s=1.0)
    except EngineFormatError:
        return
    assert sample.source == "s"
