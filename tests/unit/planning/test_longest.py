"""The longest request of a server: asked for, the model's own, or what its cache holds."""

import msgspec
import pytest

from trimtab.core.layout import Demand, Layout
from trimtab.core.served import ModelShape
from trimtab.engines.model_names import find_model_shape
from trimtab.planning.longest import (
    BLOCK_TOKENS,
    MARGIN,
    TRUSTED_SHARE,
    CacheRoom,
    longest_request,
    stream_bytes,
)

MEAN = Demand(input_tokens=2000, output_tokens=300)
ASKED = "as asked"


def model(name: str) -> ModelShape:
    found = find_model_shape(name)
    assert found is not None
    return found


def room(gib: float, kv_bits: float = 16.0) -> CacheRoom:
    return CacheRoom(kv_bytes=gib * 2**30, device_bytes=80e9, kv_bits=kv_bits)


def test_context_that_was_asked_for_stands() -> None:
    """The plan's memory was counted for it."""
    demand = msgspec.structs.replace(MEAN, context_tokens=5000)
    found = longest_request(model("qwen3-8b"), Layout(), demand, room(50), asked_by=ASKED)
    assert (found.tokens, found.because) == (5000, ASKED)


def test_models_own_limit_where_the_cache_holds_it() -> None:
    """And that the plan counted less is said."""
    found = longest_request(model("qwen3-8b"), Layout(), MEAN, room(50), asked_by=ASKED)
    assert found.tokens == 40960
    assert "2,300" in found.because


@pytest.mark.parametrize("name", ["llama-3.1-8b", "gemma-3-27b", "deepseek-v2-lite"])
@pytest.mark.parametrize("tp", [1, 2])
def test_cut_limit_is_the_largest_that_the_trusted_cache_holds(name: str, tp: int) -> None:
    """One block more would not fit: with plain, windowed and latent attention."""
    shape, layout, small = model(name), Layout(tp=tp), room(1.5)
    found = longest_request(shape, layout, MEAN, small, asked_by=ASKED)
    held = TRUSTED_SHARE * small.kv_bytes
    assert MEAN.input_tokens + MEAN.output_tokens < found.tokens < (shape.context_tokens_max or 0)
    assert stream_bytes(shape, layout, found.tokens, small) <= held
    assert stream_bytes(shape, layout, found.tokens + BLOCK_TOKENS, small) > held


def test_narrower_cache_holds_longer_requests() -> None:
    """Half the bits, twice the tokens."""
    wide, narrow = (
        longest_request(model("llama-3.1-8b"), Layout(), MEAN, room(1, bits), asked_by=ASKED).tokens
        for bits in (16.0, 8.0)
    )
    assert narrow == pytest.approx(2 * wide, abs=2 * BLOCK_TOKENS)


def test_unknown_limit_of_a_model_is_a_stated_margin() -> None:
    """A multiple of the mean, and it says so."""
    shape = msgspec.structs.replace(model("qwen3-8b"), context_tokens_max=None)
    found = longest_request(shape, Layout(), MEAN, room(50), asked_by=ASKED)
    assert found.tokens == MARGIN * 2300
    assert "times the mean" in found.because
