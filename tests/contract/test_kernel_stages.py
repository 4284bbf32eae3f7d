"""Layouts with stages that are priced by those without, and refusals that are remembered, change no answer."""

import importlib.util
from pathlib import Path

import pytest

from trimtab.core.layout import Layout
from trimtab.core.served import EngineKind
from trimtab.planning.grid_times import GridTimes
from trimtab.planning.kernel_port import NoTimes, Parted, Serving, StepTimes
from trimtab.runtime import kernel_find
from trimtab.runtime.kernel_excerpt import Excerpts
from trimtab.runtime.kernel_find import Configurations
from trimtab.runtime.kernel_sdk import compile_layout
from trimtab.runtime.kernel_tables import PackageTables

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("aiconfigurator_core") is None,
    reason="kernel tables: the extra [plan] is not installed",
)

VLLM, SGLANG, TRTLLM = EngineKind.VLLM, EngineKind.SGLANG, EngineKind.TRTLLM
STAGED = [
    ("meta-llama/Meta-Llama-3.1-70B", "H100", VLLM, Layout(tp=4, pp=2)),
    ("Qwen/Qwen3-30B-A3B", "H200", TRTLLM, Layout(attention_dp=2, pp=4, moe_ep=2)),
    ("deepseek-ai/DeepSeek-V3", "H100", VLLM, Layout(tp=4, attention_dp=2, pp=2, moe_ep=8)),
    ("deepseek-ai/DeepSeek-V3", "H100", SGLANG, Layout(tp=8, pp=8, moe_tp=8)),
    ("deepseek-ai/DeepSeek-V3", "H200", TRTLLM, Layout(attention_dp=8, pp=4, moe_ep=8)),
    ("openai/gpt-oss-120b", "H200", SGLANG, Layout(tp=2, pp=2, moe_ep=2)),
]


def told(times: StepTimes) -> object:
    """All points of a grid, with what is said of it."""
    assert isinstance(times, GridTimes)
    times.complete()
    return times.grid, times.notes, times.extended


def parts_told(found: Parted | NoTimes) -> object:
    """The same of a mixture's parts; a dense model has none."""
    if isinstance(found, NoTimes):
        return found
    return [told(each) for each in (found.whole, found.no_exchange, found.no_experts)]


@pytest.mark.parametrize(
    ("model", "system", "engine", "layout"), STAGED, ids=[f"{one[0]}-{one[2]}" for one in STAGED]
)
def test_stages_priced_by_the_layout_without_take_what_the_package_says_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, system: str,
    engine: EngineKind, layout: Layout,
) -> None:  # fmt: skip
    """At every point of the grid, as 32-bit floats; the layout with stages itself was never compiled."""
    serving = Serving(model=model, system=system, engine=engine, kv_bits=16)
    compiled: list[Layout] = []

    def noted(widths: object, asked: Layout, *rest: object) -> object:
        compiled.append(asked)
        return compile_layout(widths, asked, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(kernel_find, "compile_layout", noted)
    short = parts_told(PackageTables(excerpts=Excerpts(tmp_path)).parted(serving, layout))
    assert compiled
    assert layout not in compiled
    monkeypatch.setattr(Configurations, "_staged", lambda self, serving, layout, filled: None)
    whole = parts_told(PackageTables(excerpts=Excerpts(tmp_path)).parted(serving, layout))
    assert layout in compiled
    assert short == whole


@pytest.mark.parametrize(
    ("system", "engine", "holds"),
    [("H100", SGLANG, True), ("H100", TRTLLM, True), ("A100 SXM 80GB", VLLM, False)],
)
def test_refusal_of_a_width_holds_for_every_layout(
    tmp_path: Path, system: str, engine: EngineKind, *, holds: bool
) -> None:
    """What was remembered of one layout is what each other is told when it is asked first."""
    serving = Serving(model="deepseek-ai/DeepSeek-V3", system=system, engine=engine, kv_bits=16)
    layouts = [
        Layout(tp=8, moe_tp=8),
        Layout(tp=16, moe_ep=16),
        Layout(attention_dp=8, moe_ep=8),
        Layout(tp=2, attention_dp=4, moe_ep=8),
        Layout(tp=4, moe_tp=2, moe_ep=2),
        Layout(),
    ]
    together = Configurations(Excerpts(tmp_path))
    for layout in layouts:
        alone = Configurations(Excerpts(tmp_path))
        found, first = (each.found(serving, layout) for each in (together, alone))
        assert together._refused == alone._refused != {}
        if isinstance(found, NoTimes) or isinstance(first, NoTimes):
            assert found == first
            assert not holds
            continue
        assert holds
        said = [(each.compiled.spec, each.compiled.mode, each.notes) for each in (found, first)]
        assert said[0] == said[1]
