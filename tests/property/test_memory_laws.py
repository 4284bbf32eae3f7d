"""Laws of the memory account that hold for every known model, device and layout."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from trimtab.core.accelerators import ACCELERATORS
from trimtab.core.layout import Demand, Layout
from trimtab.core.served import EngineKind, ModelShape
from trimtab.diagnosis.roofline_layout import layout_sizes
from trimtab.engines.model_names import find_model_shape, known_names
from trimtab.planning.memory import kv_need, memory_fit
from trimtab.planning.model_parts import rank_weights, stage_weights

MODELS = tuple(shape for name in known_names() if (shape := find_model_shape(name)) is not None)
DEVICES = tuple(each for each in ACCELERATORS if each.visible_bytes or each.memory_bytes)
ENGINES = (EngineKind.VLLM, EngineKind.SGLANG, EngineKind.TRTLLM)


@st.composite
def placed(draw: st.DrawFn) -> tuple[ModelShape, Layout]:
    """A model with a layout that its sizes allow."""
    model = draw(st.sampled_from(MODELS))
    tp = draw(st.sampled_from(layout_sizes(model.heads or 1, model.kv_heads, 16).allowed))
    pp = draw(st.integers(1, min(8, model.layers or 1)))
    dp = draw(st.sampled_from([1, 2, 4])) if model.experts else 1
    whole = bool(model.experts) and (model.experts or 1) % (tp * dp) == 0 and draw(st.booleans())
    if not model.experts:
        return model, Layout(tp=tp, pp=pp)
    ep = tp * dp if whole else 1
    return model, Layout(tp=tp, pp=pp, attention_dp=dp, moe_ep=ep, moe_tp=tp * dp // ep)


@given(placed())
def test_ranks_together_hold_the_whole_model(case: tuple[ModelShape, Layout]) -> None:
    """Copies may add to it, nothing may be lost: ranks x the fullest rank is at least the model."""
    model, layout = case
    found = rank_weights(model, layout)
    assert found is not None
    assert found.total_bytes * layout.devices_per_replica >= (model.weight_bytes or 0.0) * 0.999999


@given(placed())
def test_no_stage_is_fuller_than_the_fullest(case: tuple[ModelShape, Layout]) -> None:
    """The fullest of the stages that can be is what counts."""
    model, layout = case
    fullest = rank_weights(model, layout)
    assert fullest is not None
    assert all(fullest.total_bytes >= stage.total_bytes for stage in stage_weights(model, layout))


@given(placed())
def test_more_tensor_parallel_never_adds_weights_or_kv_to_a_rank(
    case: tuple[ModelShape, Layout],
) -> None:
    """Doubling a group that may be doubled leaves each rank with no more."""
    model, layout = case
    wider = msgspec.structs.replace(
        layout, tp=2 * layout.tp, moe_tp=2 * layout.moe_tp if model.experts else 1
    )
    before, after = rank_weights(model, layout), rank_weights(model, wider)
    kv_before, kv_after = kv_need(model, layout, 1000), kv_need(model, wider, 1000)
    assert before is not None
    assert after is not None
    assert kv_before is not None
    assert kv_after is not None
    assert after.total_bytes <= before.total_bytes * 1.000001
    assert kv_after.stream_bytes <= kv_before.stream_bytes * 1.000001


@given(placed(), st.sampled_from(DEVICES), st.sampled_from(ENGINES), st.integers(1, 4000))
def test_longer_contexts_never_hold_more_streams(
    case: tuple[ModelShape, Layout], device: object, engine: EngineKind, tokens: int
) -> None:
    """Memory is finite: a stream of twice the context needs at least as much."""
    model, layout = case
    short, long = (
        memory_fit(
            model,
            device,  # type: ignore[arg-type]
            layout,
            Demand(input_tokens=1, output_tokens=1, context_tokens=context),
            engine=engine,
        )
        for context in (min(tokens, 1000), min(2 * tokens, 2000) + 1)
    )
    assert long.streams <= short.streams * 1.000001
    assert all(part.bytes >= 0.0 and part.because for part in short.parts)
    assert short.fits == (short.streams >= layout.attention_dp)


@given(placed(), st.sampled_from([4.0, 8.0, 16.0]))
def test_narrower_kv_never_takes_more(case: tuple[ModelShape, Layout], bits: float) -> None:
    """Half the bits, at most as many bytes."""
    model, layout = case
    wide, narrow = kv_need(model, layout, 1000), kv_need(model, layout, 1000, kv_bits=bits)
    assert wide is not None
    assert narrow is not None
    assert narrow.stream_bytes <= wide.stream_bytes
