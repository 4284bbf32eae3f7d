"""Start-up logs of real vLLM servers: what each rank of each layout took."""

from pathlib import Path

import pytest

from trimtab.engines.vllm_log import read_start_log, start_stage

FOLDER = Path(__file__).parent / "transcripts" / "vllm" / "0.32"
LAYOUTS = ("single", "tp2", "pp2", "dp2", "tp2-ep")
Rank = tuple[str, int | None, int | None]
KV_CACHE = 2**28


def text(layout: str) -> str:
    return (FOLDER / f"start-{layout}.log").read_text()


@pytest.mark.parametrize(
    ("layout", "ranks", "kv_tokens", "concurrency"),
    [
        ("single", [("Worker", 270_079_072, KV_CACHE)], 11_648, 2.84),
        (
            "tp2",
            [("Worker_TP0", 51_397_760, KV_CACHE), ("Worker_TP1", 51_397_760, KV_CACHE)],
            65_536,
            16.0,
        ),
        (
            "pp2",
            # vLLM rounds the eighth of a GiB that was asked for to 0.12.
            [("Worker_PP0", 76_554_304, 128_849_019), ("Worker_PP1", 76_555_328, 128_849_019)],
            32_768,
            8.0,
        ),
        (
            "dp2",
            [("Worker", 101_729_408, KV_CACHE), ("Worker", 101_729_408, KV_CACHE)],
            32_768,
            8.0,
        ),
        (
            "tp2-ep",
            [("Worker_TP0_EP0", 68_746_016, KV_CACHE), ("Worker_TP1_EP1", 68_746_016, KV_CACHE)],
            87_296,
            21.31,
        ),
    ],
)
def test_every_rank_of_a_layout_tells_what_it_took(
    layout: str, ranks: list[Rank], kv_tokens: int, concurrency: float
) -> None:
    """Weights to the byte and KV cache by rank; capacity of one engine; nothing is profiled on a CPU."""
    report = read_start_log(text(layout))
    assert [(rank.process, rank.weights, rank.kv_cache) for rank in report.ranks] == ranks
    assert (report.kv_tokens, report.concurrency_max) == (kv_tokens, concurrency)
    assert [(rank.activation_peak, rank.graphs, rank.consumed) for rank in report.ranks] == [
        (None, None, None)
    ] * len(ranks)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_effective_settings_are_in_every_log(layout: str) -> None:
    """The engine says what it runs, whatever the layout."""
    report = read_start_log(text(layout))
    wanted = {
        "dtype": "bfloat16",
        "context_tokens": "4096",
        "tensor_parallel": "2" if layout.startswith("tp2") else "1",
        "pipeline_parallel": "2" if layout == "pp2" else "1",
        "kv_dtype": "auto",
        "prefix_caching": "True",
        "speculation": "None",
    }
    assert {name: report.settings[name] for name in wanted} == wanted
    assert report.version == "0.32.0"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_stages_of_a_start_come_in_order(layout: str) -> None:
    """Progress begins with the options and ends with answers."""
    stages = [stage for line in text(layout).splitlines() if (stage := start_stage(line))]
    assert (stages[0], stages[-1]) == ("reading options", "answering")
    assert stages.index("starting the engine") < stages.index("weights loaded")
    assert stages.index("weights loaded") < stages.index("engine ready")
