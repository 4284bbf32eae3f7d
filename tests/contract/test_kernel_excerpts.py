"""Excerpts of the kernel tables answer what the whole tables answer, to the last digit."""

import importlib.util
from pathlib import Path

import pytest

from trimtab.core.layout import Layout
from trimtab.core.served import EngineKind
from trimtab.planning.grid_times import GridTimes
from trimtab.planning.kernel_port import NoTimes, Serving, StepTimes
from trimtab.runtime import kernel_find
from trimtab.runtime.kernel_cache import GridCache
from trimtab.runtime.kernel_excerpt import Excerpts
from trimtab.runtime.kernel_find import Configurations
from trimtab.runtime.kernel_sdk import MODES
from trimtab.runtime.kernel_tables import PackageTables

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("aiconfigurator_core") is None,
    reason="kernel tables: the extra [plan] is not installed",
)

VLLM, SGLANG, TRTLLM = EngineKind.VLLM, EngineKind.SGLANG, EngineKind.TRTLLM
ASKED = [
    ("Qwen/Qwen3-32B", "H100", VLLM, "", Layout(tp=4)),
    ("Qwen/Qwen3-32B-FP8", "H200", TRTLLM, "fp8", Layout(tp=2)),
    ("meta-llama/Meta-Llama-3.1-70B", "A100 SXM 80GB", SGLANG, "", Layout(tp=8)),
    ("Qwen/Qwen3-30B-A3B", "H100", SGLANG, "", Layout(attention_dp=4, moe_ep=4)),
    ("openai/gpt-oss-120b", "B200", TRTLLM, "mxfp4", Layout(tp=2, moe_tp=2)),
    ("deepseek-ai/DeepSeek-V3", "H200", VLLM, "", Layout(tp=8, moe_ep=8)),
    ("deepseek-ai/DeepSeek-V3", "H200", TRTLLM, "fp8", Layout(attention_dp=8, moe_ep=8)),
    ("deepseek-ai/DeepSeek-V3", "H100", SGLANG, "", Layout(tp=8, moe_tp=8)),
    ("deepseek-ai/DeepSeek-R1", "B200", VLLM, "fp8", Layout(tp=4, attention_dp=2, moe_ep=8)),
    ("mistral-nemo-2407", "H100", VLLM, "", Layout()),
]


def told(times: StepTimes | NoTimes) -> object:
    """Everything that times say, whole."""
    if isinstance(times, NoTimes):
        return times
    assert isinstance(times, GridTimes)
    times.complete()
    return times.grid, times.notes, times.extended


@pytest.mark.parametrize(
    ("model", "system", "engine", "precision", "layout"),
    ASKED,
    ids=[f"{one[0]}-{one[2].value}" for one in ASKED],
)
def test_excerpt_answers_like_the_whole_tables(
    tmp_path: Path, model: str, system: str, engine: EngineKind, precision: str, layout: Layout
) -> None:
    """At every point of the grid, with the same notes; and it was an excerpt that answered."""
    serving = Serving(
        model=model,
        system=system,
        engine=engine,
        precision=precision,
        kv_bits=8 if precision else 16,
    )
    part = PackageTables(excerpts=Excerpts(tmp_path / "tables"))
    assert told(part.times(serving, layout)) == told(PackageTables().times(serving, layout))
    found = part._configurations.found(serving, layout)
    assert isinstance(found, NoTimes) or found.compiled.root or found.compiled.mode != MODES[0]


def test_excerpt_is_made_once_and_holds_little(tmp_path: Path) -> None:
    """Another layout, and the next process, find it there; it is a fraction of the tables."""
    serving = Serving(model="Qwen/Qwen3-32B", system="H100", engine=VLLM, kv_bits=16)
    tables = PackageTables(excerpts=Excerpts(tmp_path))
    tables.times(serving, Layout(tp=2))
    tables.times(serving, Layout(tp=8))
    (made,) = tmp_path.iterdir()
    stamp = made.stat().st_ino
    PackageTables(excerpts=Excerpts(tmp_path)).times(serving, Layout(tp=4))
    assert [each.stat().st_ino for each in tmp_path.iterdir()] == [stamp]
    own = [each for each in made.rglob("*") if each.is_file() and not each.is_symlink()]
    assert 0 < sum(each.stat().st_size for each in own) < 8_000_000


def test_excerpt_cuts_every_large_table_that_it_has(tmp_path: Path) -> None:
    """None is linked whole for want of a way to read it, and no table of another engine is there but what is lent."""
    serving = Serving(model="Qwen/Qwen3-30B-A3B", system="H100", engine=VLLM, kv_bits=16)
    PackageTables(excerpts=Excerpts(tmp_path)).times(serving, Layout(tp=2, moe_tp=2))
    (made,) = tmp_path.iterdir()
    found = {each.name: each for each in made.glob("data/*/*/vllm/*/*.parquet")}
    for name in ("gemm", "moe", "context_attention", "generation_attention"):
        assert not found[f"{name}_perf.parquet"].is_symlink()
    assert not list(made.glob("data/*/*/sglang"))
    assert not list(made.glob("data/*/*/*/*/*mla*"))


def test_folder_that_cannot_be_written_reads_the_whole_tables(tmp_path: Path) -> None:
    """An excerpt saves time and nothing else."""
    (tmp_path / "file").write_text("in the way")
    serving = Serving(model="Qwen/Qwen3-32B", system="H100", engine=VLLM, kv_bits=16)
    found = PackageTables(excerpts=Excerpts(tmp_path / "file" / "tables"))
    assert not isinstance(found.times(serving, Layout(tp=2)), NoTimes)


@pytest.mark.parametrize(
    ("model", "system", "engine", "layout"),
    [
        ("openai/gpt-oss-120b", "H100", TRTLLM, Layout(tp=2, moe_tp=2)),
        ("openai/gpt-oss-120b", "H100", TRTLLM, Layout()),
        ("openai/gpt-oss-120b", "H200", TRTLLM, Layout(tp=4, moe_tp=4)),
    ],
)
def test_experts_that_an_excerpt_lacks_are_not_in_the_whole_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, system: str, engine: EngineKind,
    layout: Layout,
) -> None:  # fmt: skip
    """So such a refusal is believed: asking the whole tables as well would end in the same words."""
    serving = Serving(model=model, system=system, engine=engine, kv_bits=16)
    excerpt = Configurations(Excerpts(tmp_path)).measured(serving, layout)
    monkeypatch.setattr(kernel_find, "names_experts_alone", lambda refusal: False)
    whole = Configurations(Excerpts(None)).measured(serving, layout)
    assert isinstance(excerpt, NoTimes)
    assert isinstance(whole, NoTimes)
    assert "MoE data missing" in excerpt.because
    assert excerpt == whole


def test_gaps_are_filled_only_where_no_engine_measured_a_layout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agreement takes no extended times beside measured ones; alone they are there, and kept they change nothing."""
    servings = [
        Serving(model="openai/gpt-oss-120b", system="H100", engine=each, kv_bits=16)
        for each in (VLLM, TRTLLM)
    ]
    layout = Layout(tp=2, moe_tp=2)
    cache, excerpts = GridCache(tmp_path / "kept"), Excerpts(tmp_path / "tables")
    tables = PackageTables(cache, excerpts)
    own, other = tables.times_of_all(servings, layout)
    assert not isinstance(own, NoTimes)
    assert isinstance(other, NoTimes)
    (alone,) = tables.times_of_all(servings[1:], layout)
    assert not isinstance(alone, NoTimes)
    assert alone.extended
    assert own.decode_ms(8, 1024) > 0.0
    assert alone.decode_ms(8, 1024) > 0.0
    tables.keep()
    monkeypatch.setattr(kernel_find, "compile_layout", None)
    again = PackageTables(GridCache(tmp_path / "kept"), excerpts)
    assert isinstance(again.times_of_all(servings, layout)[1], NoTimes)
    (kept,) = again.times_of_all(servings[1:], layout)
    assert not isinstance(kept, NoTimes)
    assert kept.decode_ms(8, 1024) == alone.decode_ms(8, 1024)
