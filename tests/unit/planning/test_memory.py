"""The account of a rank's memory: what is in it, what is left, and what a question may not ask."""

import msgspec
import pytest

from trimtab.core.accelerators import find_accelerator
from trimtab.core.layout import Demand, Layout, MemoryFit, PlanInputError
from trimtab.core.served import Accelerator, EngineKind, ModelShape
from trimtab.engines.model_names import find_model_shape
from trimtab.planning.activations import GIB
from trimtab.planning.memory import kv_need, memory_fit, step_defaults

DEMAND = Demand(input_tokens=3072, output_tokens=1024)
H100 = find_accelerator("H100 SXM")


def model(name: str) -> ModelShape:
    found = find_model_shape(name)
    assert found is not None
    return found


def fit(name: str, demand: Demand = DEMAND, **sizes: int) -> MemoryFit:
    return memory_fit(model(name), H100, Layout(**sizes), demand)


ENGINES = [EngineKind.VLLM, EngineKind.SGLANG, EngineKind.TRTLLM, EngineKind.LLAMACPP]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("name", "tp"), [("llama-3.1-8b", 1), ("qwen3-32b", 4), ("qwen3-32b", 1)])
def test_every_byte_of_the_device_is_accounted_for(name: str, tp: int, engine: EngineKind) -> None:
    """Parts and KV sum up to what is usable, and with what is kept free to the device, whatever shares are of."""
    found = memory_fit(model(name), H100, Layout(tp=tp), DEMAND, engine=engine)
    taken = sum(part.bytes for part in found.parts) + found.kv_bytes
    assert taken == pytest.approx(found.usable_bytes)
    assert taken + found.kept.bytes == pytest.approx(found.device_bytes)
    assert min(found.kept.bytes, *(part.bytes for part in found.parts)) >= 0.0
    assert found.kept.because
    assert f"of {found.usable_bytes / GIB:.1f} GiB usable" in found.because


@pytest.mark.parametrize("engine", ENGINES)
def test_too_large_a_model_is_accounted_for_too(engine: EngineKind) -> None:
    """What is missing is KV below zero: the sum is still the device."""
    found = memory_fit(model("llama-3.1-70b"), H100, Layout(), DEMAND, engine=engine)
    taken = sum(part.bytes for part in found.parts) + found.kv_bytes
    assert (found.fits, found.kv_bytes < 0.0) == (False, True)
    assert taken + found.kept.bytes == pytest.approx(found.device_bytes)


def test_share_of_vllm_is_one_of_the_whole_device() -> None:
    """0.9 of what the driver gives to programs."""
    assert fit("llama-3.1-8b").usable_bytes == pytest.approx(0.9 * 79.19 * GIB)


def test_streams_are_those_that_the_kv_memory_holds() -> None:
    """131,072 bytes a token: a context of 4,096 takes half a GiB."""
    found = fit("llama-3.1-8b")
    assert found.kv_bytes_per_token_rank == 131_072
    assert found.streams == pytest.approx(found.kv_bytes / (0.5 * GIB))
    assert found.kv_tokens == pytest.approx(found.streams * 4096)


def test_model_that_does_not_fit_says_how_much_is_missing() -> None:
    """70 billion parameters of 16 bit do not fit one H100."""
    found = fit("llama-3.1-70b")
    assert not found.fits
    assert found.kv_bytes < 0
    assert "are missing" in found.because


def test_tensor_parallel_beyond_the_kv_heads_saves_no_kv() -> None:
    """64 heads and 8 KV heads: 16 ranks hold as much KV each as 8, and twice as much in all."""
    eight, sixteen = fit("llama-3.1-70b", tp=8), fit("llama-3.1-70b", tp=16)
    assert eight.kv_bytes_per_token_rank == sixteen.kv_bytes_per_token_rank
    assert "2 copies" in sixteen.because


def test_latent_kv_is_whole_on_each_rank() -> None:
    """MLA over 8 ranks: eight copies, so a rank holds what one device would."""
    one = kv_need(model("deepseek-v3"), Layout(), 4096)
    eight = kv_need(model("deepseek-v3"), Layout(tp=8, moe_tp=8), 4096)
    assert one is not None
    assert eight is not None
    assert one.token_bytes == eight.token_bytes
    assert "copied on 8 ranks" in eight.because


def test_attention_groups_hold_different_streams() -> None:
    """With attention data-parallel over 8 ranks a replica holds eight times what a rank does."""
    h200 = find_accelerator("H200 SXM")
    groups = memory_fit(model("deepseek-v3"), h200, Layout(attention_dp=8, moe_ep=8), DEMAND)
    each = groups.kv_bytes / (groups.kv_bytes_per_token_rank * 4096)
    assert groups.streams == pytest.approx(8 * each)


def test_windowed_layers_hold_no_more_than_their_window() -> None:
    """gpt-oss: half of the layers see 128 tokens, so long contexts take about half."""
    need = kv_need(model("gpt-oss-120b"), Layout(), 131_072, batch_tokens_max=1024)
    assert need is not None
    assert need.stream_bytes / (need.token_bytes * 131_072) == pytest.approx(0.504, abs=0.002)


def test_linear_attention_keeps_a_state_instead_of_kv() -> None:
    """Qwen3.5 397B: 15 of 60 layers keep KV, the others 183 MiB a stream whatever its length."""
    shape = model("Qwen3.5-397B-A17B")
    short, long = kv_need(shape, Layout(), 1), kv_need(shape, Layout(), 10_001)
    assert short is not None
    assert long is not None
    assert long.stream_bytes - short.stream_bytes == pytest.approx(10_000 * 15 * 2 * 2 * 256 * 2)
    assert short.stream_bytes == pytest.approx(183.2 * 2**20, rel=1e-2)


def test_narrow_kv_holds_twice_as_much() -> None:
    """FP8 cache: half the bytes a token."""
    wide = memory_fit(model("llama-3.1-8b"), H100, Layout(), DEMAND)
    narrow = memory_fit(model("llama-3.1-8b"), H100, Layout(), DEMAND, kv_bits=8)
    assert narrow.kv_tokens == pytest.approx(2 * wide.kv_tokens)


def test_stage_with_the_least_room_is_the_answer() -> None:
    """The last stage samples and holds the output matrix: it limits the replica."""
    found = fit("llama-3.1-70b", tp=4, pp=2)
    assert any("stage 2 of 2" in part.because for part in found.parts)


def test_reserved_kv_is_taken_as_given() -> None:
    """On CPU the space for KV is a setting, not what is left."""
    found = memory_fit(
        model("smollm2-135m"),
        Accelerator(
            name="host",
            flops_16bit=None,
            flops_8bit=None,
            memory_bytes=24 * GIB,
            memory_bytes_per_s=None,
            link_bytes_per_s=None,
            source="a test",
        ),
        Layout(),
        DEMAND,
        kv_space_bytes=2 * GIB,
    )
    assert found.kv_bytes == 2 * GIB
    assert found.kv_tokens == pytest.approx(2 * GIB / 23_040)


@pytest.mark.parametrize("engine", ENGINES)
def test_no_engine_takes_more_than_the_device_has(engine: EngineKind) -> None:
    """Whatever share an engine takes for what, everything fits into the memory."""
    found = memory_fit(model("llama-3.1-8b"), H100, Layout(), DEMAND, engine=engine)
    assert sum(part.bytes for part in found.parts) + found.kv_bytes <= found.device_bytes
    assert found.fits


def test_context_beyond_the_model_names_the_field_and_the_longest() -> None:
    """131,072 tokens are what Llama 3.1 was made for."""
    with pytest.raises(PlanInputError) as caught:
        fit("llama-3.1-8b", Demand(input_tokens=200_000, output_tokens=1))
    assert caught.value.field == "context"
    assert caught.value.nearest == ("131072",)


def test_longest_context_asked_for_counts_not_the_mean() -> None:
    """Means say nothing of what must be possible."""
    demand = msgspec.structs.replace(DEMAND, context_tokens=32_768)
    assert fit("llama-3.1-8b", demand).streams == pytest.approx(fit("llama-3.1-8b").streams / 8)


def test_device_of_unknown_memory_is_refused() -> None:
    """A guess would be believed."""
    bare = msgspec.structs.replace(H100, memory_bytes=None, visible_bytes=None)
    with pytest.raises(PlanInputError) as caught:
        memory_fit(model("llama-3.1-8b"), bare, Layout(), DEMAND)
    assert caught.value.field == "hardware"


def test_model_of_unknown_size_is_refused() -> None:
    """Neither weights nor KV can be invented."""
    with pytest.raises(PlanInputError) as caught:
        memory_fit(ModelShape(name="m", source="a test"), H100, Layout(), DEMAND)
    assert caught.value.field == "model"


def test_large_devices_take_larger_steps_by_default() -> None:
    """As vLLM's server does from 70 GiB on."""
    large, small = step_defaults(79 * GIB), step_defaults(24 * GIB)
    assert (large.batch_tokens, large.streams) == (8192, 1024)
    assert (small.batch_tokens, small.streams) == (2048, 256)


def test_sglang_keeps_as_much_kv_as_it_was_seen_to() -> None:
    """Qwen3-235B-A22B-FP8 on 4 H100 at 0.93: 367,404 tokens of KV in 16.46 GB (vLLM issue 21348)."""
    found = memory_fit(
        model("Qwen3-235B-A22B-FP8"),
        H100,
        Layout(tp=4, moe_tp=4),
        DEMAND,
        utilisation=0.93,
        engine=EngineKind.SGLANG,
    )
    assert found.kv_bytes_per_token_rank * 367_404 == pytest.approx(16.46 * GIB, rel=0.01)
    assert abs(found.kv_bytes - 16.46 * GIB) / found.usable_bytes < 0.03
