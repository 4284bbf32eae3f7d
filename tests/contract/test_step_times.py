"""What every source of step times promises, and what the package of kernel tables must not do to us."""

import importlib
import importlib.util
import socket
from pathlib import Path

import msgspec
import pytest

from trimtab.core.accelerators import find_accelerator
from trimtab.core.layout import Demand, EstimateSource, Layout
from trimtab.core.served import EngineKind
from trimtab.engines.model_names import find_model_shape
from trimtab.planning.kernel_port import NoTimes, Serving, StepTimes
from trimtab.planning.roofline_times import RooflineTimes
from trimtab.runtime import kernel_find
from trimtab.runtime.kernel_cache import GridCache
from trimtab.runtime.kernel_sdk import MODES, open_tables
from trimtab.runtime.kernel_tables import PackageTables
from trimtab.runtime.plan_estimator import build_estimator

WHY = "kernel tables: the extra [plan] is not installed"
needs_tables = pytest.mark.skipif(
    importlib.util.find_spec("aiconfigurator_core") is None, reason=WHY
)
DENSE = Serving(model="Qwen/Qwen3-32B", system="H100", engine=EngineKind.VLLM)
MIXTURE = Serving(model="Qwen/Qwen3-30B-A3B", system="H100", engine=EngineKind.VLLM)


@pytest.fixture(scope="module")
def tables() -> PackageTables:
    return PackageTables()


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any attempt to connect fails the test."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("it reached for the network")

    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def check_promises(times: StepTimes) -> None:
    one, many = times.decode_ms(1, 1024), times.decode_ms(128, 1024)
    assert 0.0 < one < many
    assert times.decode_ms(16, 8192) > times.decode_ms(16, 1024)
    assert times.prefill_ms(4096, 0) > times.prefill_ms(1024, 0)
    assert times.prefill_ms(4096, 3072) < times.prefill_ms(4096, 0)
    assert times.beside_ms(1024, 1024, 0, 15) >= 0.0
    collectives = times.communication_ms(16, 1024)
    assert collectives is None or 0.0 <= collectives < times.decode_ms(16, 1024)
    assert times.notes


def test_roofline_keeps_what_step_times_promise() -> None:
    """More streams, longer contexts and longer prompts take longer; cached tokens save."""
    model = find_model_shape("qwen3-32b")
    assert model is not None
    check_promises(RooflineTimes(model, find_accelerator("H100"), Layout(tp=2), link=None))


@needs_tables
@pytest.mark.parametrize("serving", [DENSE, MIXTURE], ids=["dense", "mixture"])
def test_tables_keep_what_step_times_promise(tables: PackageTables, serving: Serving) -> None:
    """The same of measured kernels."""
    layout = Layout(tp=2) if serving is DENSE else Layout(tp=2, moe_ep=2)
    found = tables.times(serving, layout)
    assert not isinstance(found, NoTimes), found
    check_promises(found)


@needs_tables
def test_model_that_only_our_names_know_is_measured_by_its_sizes(tables: PackageTables) -> None:
    """Its matrices are shapes like any others; a model with fewer parameters takes less."""
    small = tables.times(
        Serving(model="llama-3.2-3b", system="H100", engine=EngineKind.VLLM), Layout()
    )
    large = tables.times(
        Serving(model="mistral-nemo-2407", system="H100", engine=EngineKind.VLLM), Layout()
    )
    assert not isinstance(small, NoTimes), small
    assert not isinstance(large, NoTimes), large
    check_promises(small)
    assert small.decode_ms(1, 1024) < large.decode_ms(1, 1024)


@needs_tables
def test_models_asked_in_turn_do_not_answer_for_each_other(tables: PackageTables) -> None:
    """A backend object that is used again would return the numbers of the model before."""
    fresh = PackageTables().times(DENSE, Layout(tp=4))
    tables.times(MIXTURE, Layout(tp=4, moe_tp=4))
    again = tables.times(DENSE, Layout(tp=4))
    assert not isinstance(fresh, NoTimes)
    assert not isinstance(again, NoTimes)
    assert again.decode_ms(16, 2000) == fresh.decode_ms(16, 2000)


@needs_tables
def test_kept_times_answer_as_fresh_ones_and_load_no_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second run reads what the first was told, for any lower load, and asks the package nothing."""
    asked = Serving(model="Qwen/Qwen3-32B", system="H100", engine=EngineKind.VLLM, kv_bits=16)
    tables = PackageTables(GridCache(tmp_path))
    first = tables.times(asked, Layout(tp=2))
    assert not isinstance(first, NoTimes)
    told = (first.decode_ms(25, 3333), first.prefill_ms(777, 0))
    tables.keep()
    assert list(tmp_path.glob("*.times"))
    monkeypatch.setattr(kernel_find, "compile_layout", None)
    second = PackageTables(GridCache(tmp_path)).times(asked, Layout(tp=2))
    assert not isinstance(second, NoTimes)
    assert (second.decode_ms(25, 3333), second.prefill_ms(777, 0)) == told
    assert second.decode_ms(7, 5000) == first.decode_ms(7, 5000)
    assert second.notes == first.notes


@needs_tables
def test_kept_times_of_another_grid_are_asked_anew(tmp_path: Path) -> None:
    """A file with other points neither answers nor stops a plan."""
    asked = Serving(model="Qwen/Qwen3-32B", system="H100", engine=EngineKind.VLLM, kv_bits=16)
    tables = PackageTables(GridCache(tmp_path))
    first = tables.times(asked, Layout(tp=2))
    assert not isinstance(first, NoTimes)
    first.decode_ms(24, 3000)
    tables.keep()
    (path,) = tmp_path.glob("*.times")
    kept = msgspec.msgpack.decode(path.read_bytes())
    (layout,) = kept.values()
    layout["times"]["grids"][0]["decode"] = layout["times"]["grids"][0]["decode"][:-4]
    path.write_bytes(msgspec.msgpack.encode(kept))
    again = PackageTables(GridCache(tmp_path)).times(asked, Layout(tp=2))
    assert not isinstance(again, NoTimes)
    assert again.decode_ms(24, 3000) == first.decode_ms(24, 3000)


@needs_tables
def test_order_of_attention_kernels_is_the_one_that_the_package_finds() -> None:
    """What comes with us spares probing its tables; it is the same to the letter for one device and engine."""
    tables = open_tables("h100_sxm", "sglang", MODES[0])
    known = tables.__dict__.pop("_attention_lane_density_cache")
    probed = importlib.import_module("aiconfigurator_core.sdk.engine_table_view")
    for (table, shared), density in known[1].items():
        found = probed.fetch_attention_lane_density(tables, table, shared_layer=shared)
        assert found == density


@needs_tables
@pytest.mark.parametrize("system", ["h100_sxm", "b200_sxm", "h100_pcie"])
def test_tables_opened_directly_are_those_of_the_package(system: str) -> None:
    """The same version, mode and sources as by the package's own way; nothing where it has nothing."""
    database = importlib.import_module("aiconfigurator_core.sdk.perf_database")
    for mode in MODES:
        found = open_tables(system, "vllm", mode)
        try:
            own = database.get_database_view(system, "vllm", "current", database_mode=mode)
        except ValueError:  # how it says that it has nothing
            own = None
        assert (found is None) is (own is None)
        if own is not None:
            told = [
                (each.version, each.get_default_database_mode(), each.enable_shared_layer)
                for each in (found, own)
            ]
            assert told[0] == told[1]


@needs_tables
def test_parts_of_a_mixture_add_up_to_its_step(tables: PackageTables) -> None:
    """Without the exchange a step is shorter, without the experts shorter still."""
    found = tables.parted(MIXTURE, Layout(attention_dp=4, moe_ep=4))
    assert not isinstance(found, NoTimes), found
    times = [
        each.decode_ms(64, 1024) for each in (found.no_experts, found.no_exchange, found.whole)
    ]
    assert 0.0 < times[0] < times[1] < times[2]


@needs_tables
def test_tables_say_which_version_answers_for_the_one_asked(tables: PackageTables) -> None:
    """Only the package's own versions can be asked; a reader sees which it was."""
    asked = Serving(
        model="Qwen/Qwen3-32B", system="H100", engine=EngineKind.VLLM, engine_version="0.12.0"
    )
    found = tables.times(asked, Layout(tp=2))
    assert not isinstance(found, NoTimes)
    assert any(
        note.startswith("engine 0.12.0 was asked for, tables are of") for note in found.notes
    )


@needs_tables
@pytest.mark.parametrize(
    ("serving", "said"),
    [
        (Serving(model="somebody/unknown-9b", system="H100", engine=EngineKind.VLLM), "the model"),
        (Serving(model="Qwen/Qwen3-32B", system="T4", engine=EngineKind.VLLM), "tables for T4"),
        (Serving(model="Qwen/Qwen3-32B", system="H100", engine=EngineKind.TGI), "the engine tgi"),
    ],
)
def test_what_tables_do_not_know_is_refused_before_anybody_is_asked(
    tables: PackageTables, serving: Serving, said: str
) -> None:
    """Unknown models, devices and engines are an answer, not a download."""
    found = tables.times(serving, Layout())
    assert isinstance(found, NoTimes)
    assert said in found.because


@needs_tables
def test_estimator_rests_on_tables_for_every_size_of_a_replica() -> None:
    """No size falls back to the roofline unnoticed."""
    model = find_model_shape("qwen3-32b")
    assert model is not None
    estimator = build_estimator(
        model, find_accelerator("H100"), model_name="Qwen/Qwen3-32B", engine=EngineKind.VLLM
    )
    for tp in (1, 2, 4, 8):
        for clients in (1, 4, 16, 64):
            demand = Demand(input_tokens=1024, output_tokens=256, concurrency=clients)
            found = estimator.expected(Layout(tp=tp), demand)
            assert found.source is EstimateSource.KERNEL_TABLES
            assert found.tpot_ms.value > 0.0


def test_device_without_tables_is_estimated_by_the_roofline() -> None:
    """And labelled so."""
    model = find_model_shape("llama-3.1-8b")
    assert model is not None
    estimator = build_estimator(model, find_accelerator("MI300X"), model_name="llama-3.1-8b")
    found = estimator.expected(
        Layout(), Demand(input_tokens=1024, output_tokens=256, concurrency=8)
    )
    assert found.source is EstimateSource.ROOFLINE
