"""The roofline against servers that were really measured: nothing runs faster than its facts allow."""

import csv
from collections.abc import Iterator
from pathlib import Path

import pytest

from trimtab.core.accelerators import find_accelerator
from trimtab.diagnosis.roofline import Achieved, achieved, decode_work, floors_of
from trimtab.engines.model_names import find_model_shape

SYSTEMS = {
    "b200_sxm": "B200",
    "b300_sxm": "B300",
    "gb200": "GB200",
    "h100_sxm": "H100 SXM",
    "h200_sxm": "H200 SXM",
}
SUFFIXES = {"fp8": "-FP8", "fp4": "-NVFP4"}
STORED_AS_THEY_ARE = ("gpt-oss", "DeepSeek")


def shares(path: Path) -> Iterator[tuple[str, Achieved]]:
    """The shares of the ceilings that each measured decode step reached, for models and layouts that are known.

    The running batch is taken to be the clients' concurrency, which it never exceeds.
    """
    for row in csv.DictReader(path.read_text().splitlines()):
        name = row["model"].rpartition("/")[2].removesuffix("-FP8").removesuffix("-NVFP4")
        as_is = name.startswith(STORED_AS_THEY_ARE) and row["precision"] != "fp4"
        suffix = "" if as_is or "gpt-oss" in name else SUFFIXES.get(row["precision"], "")
        shape = find_model_shape(name + suffix)
        if shape is None or row["tp"] != row["gpus"] or row["attention_dp"] != "1":
            continue
        work = decode_work(
            shape,
            batch=float(row["concurrency"]),
            context_tokens=float(row["isl"]) + float(row["osl"]) / 2.0,
            devices=int(row["tp"]),
        )
        floors = floors_of(work, find_accelerator(SYSTEMS[row["system"]]))
        yield row["id"], achieved(floors, float(row["tpot_ms"]))


def test_measured_servers_stay_under_the_ceilings(public_data: Path) -> None:
    """Of over 1,000 layouts at most one in a hundred is faster than its facts allow (an FP8 cache, a queue)."""
    found = dict(shares(public_data / "serving" / "measured_layouts.csv"))
    broken = [name for name, share in found.items() if share.broken]
    assert len(found) > 1_000
    assert len(broken) <= len(found) // 100, broken


def test_measured_servers_come_near_the_bandwidth(public_data: Path) -> None:
    """Decode reads memory: half of the layouts reach over a quarter of its bandwidth, few more of compute than that."""
    found = [each for _, each in shares(public_data / "serving" / "measured_layouts.csv")]
    memory = sorted(each.memory_share for each in found)
    assert memory[len(memory) // 2] > 0.25
    nearer = [each for each in found if each.memory_share > each.compute_share]
    assert len(nearer) > 0.95 * len(found)


def test_recorded_run_reads_as_bandwidth_bound(public_data: Path) -> None:
    """Llama 3.1 8B on an RTX PRO 6000 at up to 128 streams: TPOT 32.5 ms, much of it reading weights and KV."""
    folder = public_data / "serving" / "llmservingsim" / "Llama-3.1-8B" / "vllm"
    rows = list(csv.DictReader((folder / "timeseries.csv").read_text().splitlines()))
    running = [float(row["running"]) for row in rows if float(row["running"]) > 0]
    shape = find_model_shape("Llama-3.1-8B")
    assert shape is not None
    work = decode_work(shape, batch=sum(running) / len(running), context_tokens=500)
    found = achieved(floors_of(work, find_accelerator("RTX PRO 6000 Server")), 32.5)
    assert not found.broken
    assert found.memory_share > found.compute_share
    assert found.memory_share > 0.3


@pytest.mark.parametrize("system", SYSTEMS.values())
def test_systems_of_the_data_are_known(system: str) -> None:
    """Each has the rates that the comparison needs."""
    found = find_accelerator(system)
    assert None not in (found.flops_16bit, found.memory_bytes_per_s, found.link_bytes_per_s)
