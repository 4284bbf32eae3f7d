"""What must be known before a reading is believed: a page that raises each warning, and its neighbour that does not."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from engine_pages import tgi, trtllm, vllm_v0
from scrape_kit import Hist, Load, Told, diagnose, facts, invoke, kinds, sglang, vllm

Page = Callable[..., str]
Pages = Sequence[str]

DAY = Load(
    running=8,
    waiting=0,
    kv=0.3,
    preemptions=0,
    queries=10_000,
    hits=5_000,
    prompt_tokens=10_000,
    output_tokens=20_000,
    finished=100,
    ttft=Hist(100, 0.2),
    queue=Hist(100, 0.01),
    e2e=Hist(100, 3.0),
    tpot=Hist(100, 0.02),
)


def after(load: Load, part: float = 2.0) -> Load:
    """The same server when everything that it counts has grown by this factor."""
    grown = {
        name: replace(value, count=value.count * part) if isinstance(value, Hist) else value * part
        for name, value in vars(load).items()
        if value is not None and name not in {"running", "waiting", "kv", "output_gauge"}
    }
    return load.but(**grown)


def window(page: Page, load: Load, last: Load | None = None) -> Pages:
    return (page(load), page(after(load) if last is None else last))


def failing(count: int) -> str:
    return vllm(DAY) + (
        "# TYPE vllm:request_success_total counter\n"
        f'vllm:request_success_total{{engine="0",model_name="m",finished_reason="error"}} {count}\n'
    )


CEILINGS = ("--model", "meta-llama/Llama-3.1-8B", "--hardware", "H100")
LATE = DAY.but(ttft=Hist(100, 0.2), queue=Hist(100, 5.0))

CASES: tuple[tuple[str, Pages, Pages, tuple[str, ...]], ...] = (
    ("ttft_without_queue", (sglang(LATE),), (sglang(DAY),), ()),
    ("ttft_without_queue", (vllm_v0(LATE),), (vllm_v0(LATE.without("queue")),), ()),
    ("failures", (failing(40),), (failing(0),), ()),
    (
        "restarted",
        window(vllm, DAY, after(DAY, 0.1)),
        window(vllm, DAY),
        (),
    ),
    ("restarted", window(trtllm, DAY, after(DAY, 0.1)), window(trtllm, DAY), ()),
    ("since_start", (vllm(DAY),), window(vllm, DAY), ()),
    ("since_start", (tgi(DAY),), window(tgi, DAY), ()),
    ("stale", (vllm(DAY), vllm(DAY)), window(vllm, DAY), ()),
    ("stale", (sglang(DAY), sglang(DAY)), window(sglang, DAY.but(running=0)), ()),
    (
        "below_ceilings",
        window(vllm, DAY.but(tpot=Hist(100, 0.4))),
        window(vllm, DAY.but(tpot=Hist(100, 0.012))),
        CEILINGS,
    ),
    (
        "below_ceilings",
        window(trtllm, DAY.but(tpot=Hist(100, 0.4))),
        window(trtllm, DAY.but(tpot=Hist(100, 0.4)).without("running")),
        CEILINGS,
    ),
)


@pytest.mark.parametrize(("kind", "raising", "silent", "options"), CASES)
def test_warning_is_raised_and_is_silent(
    tmp_path: Path, kind: str, raising: Pages, silent: Pages, options: tuple[str, ...]
) -> None:
    """One page has it, and its nearest neighbour does not."""
    between = ("--between", "60") if len(raising) > 1 else ()
    assert kind in kinds(diagnose(tmp_path, *raising, options=(*between, *options)))
    between = ("--between", "60") if len(silent) > 1 else ()
    assert kind not in kinds(diagnose(tmp_path, *silent, options=(*between, *options)))


def configured(folder: Path, effective: str, wanted: str) -> Told:
    page = (
        vllm(DAY)
        + f'vllm:cache_config_info{{engine="0",enable_prefix_caching="{effective}"}} 1.0\n'
    )
    text = f'[requested]\nenable_prefix_caching = "{wanted}"\n'
    return diagnose(folder, page, options=facts(folder, text))


@pytest.mark.parametrize(
    ("effective", "wanted", "differs"),
    [("False", "true", True), ("True", "true", False), ("None", "true", False)],
    ids=["differs", "agrees", "untold"],
)
def test_requested_and_effective_configuration_are_compared(
    tmp_path: Path, effective: str, wanted: str, differs: bool
) -> None:
    """What the page says is held against what was asked for; what it does not say is no difference."""
    assert ("configuration_differs" in kinds(configured(tmp_path, effective, wanted))) is differs


def test_text_names_each_warning_once(tmp_path: Path) -> None:
    """The terminal repeats no warning, whatever number of sources has it."""
    for name in ("a", "b"):
        (tmp_path / name).write_text(vllm(DAY))
    ran = invoke(f"a={tmp_path}/a", f"b={tmp_path}/b", "--json")
    texts = [each["text"] for each in json.loads(ran.stdout)["warnings"]]
    assert len(texts) == len(set(texts))
