"""Memory against start-up reports of vLLM that others published: weights, KV tokens, and what is left for KV.

Each fact in `tests/data/startup_logs.json` has the address where it was published. The log's own free memory is given
where tokens are compared, so that an error of one is not hidden by the other.
"""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from trimtab.core.layout import Layout
from trimtab.core.model_parts import PartName
from trimtab.core.served import EngineKind, ModelShape
from trimtab.engines.model_config import shape_of_config
from trimtab.engines.model_names import find_model_shape
from trimtab.planning.activations import (
    GIB,
    SAMPLER_BYTES,
    SAMPLER_BYTES_BEFORE_0_17,
    activation_bytes,
    graph_bytes,
    library_bytes,
    position_table_bytes,
    unpacked_latent_bytes,
)
from trimtab.planning.memory import kv_need
from trimtab.planning.model_parts import rank_weights, stage_weights
from trimtab.planning.precision import with_precision

TOLERANCE = 0.03
DATA = Path(__file__).parents[1] / "data"
FACTS: list[dict[str, Any]] = json.loads((DATA / "startup_logs.json").read_text())
OWN: list[dict[str, Any]] = json.loads((DATA / "startup_logs_own.json").read_text())
"""Reports of servers that were launched for this project, on CPU, with the configurations of their models."""
FAST_LINK = 450e9


def test_at_least_ten_published_start_up_reports_are_cited() -> None:
    """Each by the address where it stands."""
    assert all(fact["source"].startswith("https://") for fact in FACTS)
    assert len(FACTS) >= 10
    assert len({fact["source"] for fact in FACTS}) >= 10


def shape(fact: dict[str, Any]) -> ModelShape:
    model = find_model_shape(fact["model"])
    assert model is not None, fact["model"]
    if "precision" in fact:
        model = with_precision(model, fact["precision"])
    if "self_attn" in fact.get("left_out", ()):
        wide = (PartName.ATTENTION, PartName.KEY_VALUE)
        parts = tuple(
            msgspec.structs.replace(part, bits=16.0 if part.name in wide else part.bits)
            for part in model.parts
        )
        model = msgspec.structs.replace(model, parts=parts)
    return model


def weights_gib(fact: dict[str, Any]) -> float:
    model, layout = shape(fact), Layout(**fact["layout"])
    found = rank_weights(model, layout)
    if "stage" in fact:
        found = next(s for s in stage_weights(model, layout) if s.stage == fact["stage"])
    assert found is not None
    beside = position_table_bytes(model) + unpacked_latent_bytes(model, layout, found.layers)
    return (found.total_bytes + beside) / GIB


def name(fact: dict[str, Any]) -> str:
    return f"{fact['model']} {Layout(**fact['layout']).label} {fact['engine_version']}"


def having(*keys: str) -> list[Any]:
    return [pytest.param(f, id=name(f)) for f in FACTS if all(key in f for key in keys)]


def test_there_are_ten_published_reports_of_several_families() -> None:
    """Different addresses, each a page that anybody can open."""
    assert len({fact["source"] for fact in FACTS}) >= 10
    assert all(fact["source"].startswith("https://github.com/") for fact in FACTS)
    assert len({fact["model"] for fact in FACTS}) >= 10


@pytest.mark.parametrize("fact", having("weights_gib"))
def test_weights_of_a_rank_are_those_reported(fact: dict[str, Any]) -> None:
    """What a rank loads is within 3% of "Model loading took"."""
    assert weights_gib(fact) == pytest.approx(fact["weights_gib"], rel=TOLERANCE)


@pytest.mark.parametrize("fact", having("kv_gib", "kv_tokens"))
def test_tokens_of_the_reported_free_memory_are_those_reported(fact: dict[str, Any]) -> None:
    """ "GPU KV cache size" follows from "Available KV cache memory" within 3%."""
    need = kv_need(shape(fact), Layout(**fact["layout"]), 8192, kv_bits=fact.get("kv_bits", 16))
    assert need is not None
    tokens = fact["kv_gib"] * GIB / need.token_bytes
    assert tokens == pytest.approx(fact["kv_tokens"], rel=TOLERANCE)


@pytest.mark.parametrize("fact", having("kv_gib", "device_gib", "streams"))
def test_memory_left_for_kv_is_what_was_reported(fact: dict[str, Any]) -> None:
    """The whole account, device to KV, is within 3% of the memory that the engine may take."""
    model, layout = shape(fact), Layout(**fact["layout"])
    version = tuple(int(part) for part in fact["engine_version"].split("."))
    old = version < (0, 17)
    peak = activation_bytes(
        model,
        layout,
        batch_tokens=fact["batch_tokens"],
        streams=fact["streams"],
        sampler_bytes=SAMPLER_BYTES_BEFORE_0_17 if old else SAMPLER_BYTES,
    )
    assert peak is not None
    graphs = graph_bytes(model.layers or 0, EngineKind.VLLM) if version >= (0, 21) else 0.0
    taken = weights_gib(fact) + (peak + graphs + library_bytes(layout, FAST_LINK)) / GIB
    usable = fact["device_gib"] * fact["utilisation"]
    error = abs(usable - taken - fact["kv_gib"]) / usable
    assert error < TOLERANCE, f"{usable - taken:.2f} GiB for KV instead of {fact['kv_gib']}"


@pytest.mark.parametrize("fact", having("activations_gib", "libraries_gib", "streams"))
def test_memory_before_kv_is_what_was_reported(fact: dict[str, Any]) -> None:
    """Weights, activations and libraries together are within 3% of the device's memory."""
    model, layout = shape(fact), Layout(**fact["layout"])
    old = tuple(int(part) for part in fact["engine_version"].split(".")) < (0, 17)
    peak = activation_bytes(
        model,
        layout,
        batch_tokens=fact["batch_tokens"],
        # The first stage's report: it does not sample.
        streams=fact["streams"] if layout.pp == 1 else 0,
        sampler_bytes=SAMPLER_BYTES_BEFORE_0_17 if old else SAMPLER_BYTES,
    )
    assert peak is not None
    taken = weights_gib(fact) + (peak + library_bytes(layout, FAST_LINK)) / GIB
    told = fact["weights_gib"] + fact["activations_gib"] + fact["libraries_gib"]
    assert abs(taken - told) / fact["device_gib"] < TOLERANCE


def own(*keys: str) -> list[Any]:
    return [
        pytest.param(f, id=f"{f['model']} {Layout(**f['layout']).label}")
        for f in OWN
        if all(key in f for key in keys)
    ]


def own_shape(fact: dict[str, Any]) -> ModelShape:
    return shape_of_config(fact["config"], source="a checkpoint made for tests")


@pytest.mark.parametrize("fact", own("weights_bytes"))
def test_weights_of_a_launched_rank_are_those_counted(fact: dict[str, Any]) -> None:
    """What each rank says that it holds, and the account of the stage that it is."""
    model, layout = own_shape(fact), Layout(**fact["layout"])
    stages = {stage.stage: stage.total_bytes for stage in stage_weights(model, layout)}
    for told in fact["weights_bytes"]:
        counted = stages[told["stage"]] + position_table_bytes(model)
        assert counted == pytest.approx(told["bytes"], rel=TOLERANCE / 10)


@pytest.mark.parametrize("fact", own("kv_tokens"))
def test_tokens_of_a_launched_server_are_those_counted(fact: dict[str, Any]) -> None:
    """KV that is reserved outright holds as many tokens as reported, but for the last block."""
    model, layout = own_shape(fact), Layout(**fact["layout"])
    need = kv_need(model, layout, 4096)
    assert need is not None
    tokens = fact["kv_space_bytes"] / need.token_bytes
    assert tokens // fact["block_tokens"] * fact["block_tokens"] == fact["kv_tokens"]
