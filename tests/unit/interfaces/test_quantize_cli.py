"""Which KV precisions `trimtab quantize` can be asked for."""

import pytest
from click.testing import CliRunner

from trimtab.engines.kv_types import BY_ENGINE
from trimtab.engines.vllm_checks import GARBAGE_KV_TYPES
from trimtab.interfaces.cli import main
from trimtab.interfaces.quantize_cli import KV_TYPES, ORIGINALS, UNASKED
from trimtab.runtime.model import KV_BYTES
from trimtab.runtime.quantize_ask import WalkEngine


@pytest.mark.parametrize("engine", list(WalkEngine))
def test_every_kv_type_that_a_lever_record_may_name_can_be_measured(engine: WalkEngine) -> None:
    """One table says what an engine holds; beyond it stands only what the walk is to refuse."""
    held, able = set(BY_ENGINE[engine]), set(KV_TYPES[engine])
    assert able - held == (GARBAGE_KV_TYPES if engine is WalkEngine.VLLM else set())
    assert held - able == set()
    assert {ORIGINALS[engine], UNASKED[engine]} <= held


def test_bytes_of_every_kv_type_of_llamacpp_are_known() -> None:
    """A rung's bytes of KV are reckoned from its type."""
    assert set(KV_TYPES[WalkEngine.LLAMACPP]) == set(KV_BYTES)


def test_kv_type_of_another_engine_is_refused_with_the_engines_own() -> None:
    """Before anything is read or started."""
    told = CliRunner().invoke(main, ["quantize", "--kv", "fp8_e4m3"])
    assert told.exit_code == 2
    assert "llamacpp has no KV type fp8_e4m3: f16, bf16, q8_0, q4_0" in told.output
