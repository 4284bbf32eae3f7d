"""Roofline arithmetic against figures worked out by hand, and layouts of heads over ranks."""

import msgspec
import pytest

from trimtab.core.accelerators import find_accelerator
from trimtab.core.served import ModelShape
from trimtab.core.types import Resource
from trimtab.diagnosis.roofline import (
    Floors,
    achieved,
    decode_work,
    experts_touched_share,
    floors_of,
    kv_bytes_of,
    kv_capacity_tokens,
    prefill_work,
)
from trimtab.diagnosis.roofline_layout import (
    kv_bytes_per_rank,
    kv_copies,
    kv_heads_per_rank,
    largest_layout,
    layout_sizes,
    why_not,
)

# 10 layers, 100 hidden, vocabulary 1,000, untied: 1.2 million parameters, of which 0.1 looked up
SMALL = ModelShape(
    name="small",
    source="a test",
    layers=10,
    hidden=100,
    heads=10,
    kv_heads=2,
    head_size=10,
    vocabulary=1_000,
    parameters=1.2e6,
    active_parameters=1.2e6,
    lookup_parameters=1e5,
    lookup_bytes=2e5,
    weight_bytes=2.4e6,
    kv_bytes_per_token=10 * 2 * 10 * 2 * 2.0,
)
MOE = msgspec.structs.replace(
    SMALL, experts=8, experts_per_token=2, active_parameters=4.5e5, expert_bytes=2e6
)
H100 = find_accelerator("H100 SXM")


def test_decode_step_of_one_stream_by_hand() -> None:
    """2 x 1.1e6 multiplied + 4 x 10 x 10 x 10 layers x 50 tokens; 2.2 MB of weights and 50 tokens of KV."""
    work = decode_work(SMALL, batch=1, context_tokens=50)
    assert work.operations == 2.2e6 + 4 * 100 * 10 * 50
    assert (work.weight_bytes, work.kv_bytes) == (2.2e6, 50 * 800.0)
    assert (work.bytes, work.collective_bytes) == (2.24e6, 0.0)


def test_batch_multiplies_work_but_not_weights() -> None:
    """Weights are read once a step whatever the batch."""
    one, eight = (decode_work(SMALL, batch=n, context_tokens=50) for n in (1, 8))
    assert eight.operations == 8 * one.operations
    assert eight.kv_bytes == 8 * one.kv_bytes
    assert eight.weight_bytes == one.weight_bytes


def test_tensor_parallel_divides_work_and_adds_collectives() -> None:
    """Four ranks over two KV heads: each still holds one head, so KV halves only."""
    one, four = (decode_work(SMALL, batch=2, context_tokens=50, devices=n) for n in (1, 4))
    assert four.operations == one.operations / 4
    assert four.weight_bytes == one.weight_bytes / 4
    assert four.kv_bytes == one.kv_bytes / 2
    assert four.collective_bytes == 4 * 10 * 2 * 100 * 2.0 * 3 / 4


def test_prefill_by_hand() -> None:
    """Each of 20 tokens multiplies all but the output matrix, and sees 100 cached and half of the new ones."""
    work = prefill_work(SMALL, tokens=20, cached_tokens=100)
    assert work.operations == 20 * (2 * 1e6 + 4 * 100 * 10 * 110) + 2 * 1e5
    assert (work.weight_bytes, work.kv_bytes) == (2.2e6, 100 * 800.0)


def test_window_bounds_the_kv_of_its_layers() -> None:
    """Six of ten layers keep 100 of 1,000 tokens."""
    windowed = msgspec.structs.replace(SMALL, window_tokens=100, windowed_layers=6)
    assert kv_bytes_of(windowed, 1_000) == 80.0 * (4 * 1_000 + 6 * 100)
    assert kv_bytes_of(windowed, 50) == kv_bytes_of(SMALL, 50)


def test_batch_touches_more_experts() -> None:
    """Two of eight at one token, all but surely all at many."""
    assert experts_touched_share(MOE, 1) == 0.25
    assert experts_touched_share(MOE, 2) == 1 - 0.75**2
    assert experts_touched_share(MOE, 100) == pytest.approx(1.0)
    one, many = (decode_work(MOE, batch=n, context_tokens=1) for n in (1, 100))
    assert one.weight_bytes == 2.4e6 - 2e5 - 2e6 + 0.25 * 2e6
    assert many.weight_bytes == pytest.approx(2.2e6)


def test_small_batch_is_bound_by_bandwidth_and_long_prefill_by_compute() -> None:
    """An 8B model at 16 bit on an H100: 15 GB of weights take 4.5 ms, 8,000 tokens of prefill 122 ms."""
    shape = msgspec.structs.replace(
        SMALL,
        layers=32,
        hidden=4096,
        heads=32,
        kv_heads=8,
        head_size=128,
        vocabulary=128_256,
        parameters=8.03e9,
        active_parameters=8.03e9,
        lookup_parameters=0.525e9,
        lookup_bytes=1.05e9,
        weight_bytes=16.06e9,
        kv_bytes_per_token=131_072.0,
    )
    decode = floors_of(decode_work(shape, batch=1, context_tokens=500), H100)
    assert decode.by_resource[0][0] is Resource.MEMORY_BANDWIDTH
    assert decode.floor_ms == pytest.approx(4.5, abs=0.05)
    prefill = floors_of(prefill_work(shape, tokens=8_000), H100)
    assert prefill.by_resource[0][0] is Resource.COMPUTE
    assert prefill.floor_ms == pytest.approx(130, rel=0.05)
    half = floors_of(prefill_work(shape, tokens=8_000), H100, operand_bits=8)
    assert half.compute_ms == pytest.approx(prefill.compute_ms / 2, rel=1e-3)


def test_share_of_a_ceiling_says_what_binds() -> None:
    """Near: it binds. Far from all: something else takes the time. Above 1: a fact is wrong."""
    floors = Floors(compute_ms=1.0, memory_ms=4.5, communication_ms=0.0)
    near, far, wrong = (achieved(floors, ms) for ms in (6.0, 50.0, 3.0))
    assert (near.binds, near.broken, near.memory_share) == (Resource.MEMORY_BANDWIDTH, False, 0.75)
    assert (far.binds, far.broken) == (None, False)
    assert (wrong.binds, wrong.broken) == (None, True)
    assert "a fact is wrong" in wrong.because


def test_unknown_facts_stay_unknown() -> None:
    """No model size, no device rate: no floor, no verdict, and the reason."""
    bare = ModelShape(name="bare", source="a test")
    work = decode_work(bare, batch=4, context_tokens=100)
    assert (work.operations, work.bytes, work.intensity) == (None, None, None)
    floors = floors_of(work, H100)
    assert (floors.floor_ms, floors.compute_ms, floors.memory_ms) == (None, None, None)
    known = msgspec.structs.replace(H100, flops_16bit=None)
    half = floors_of(decode_work(SMALL, batch=1, context_tokens=1), known)
    found = achieved(half, 1.0)
    assert (half.compute_ms, half.floor_ms, found.compute_share) == (None, None, None)
    assert "ceiling of compute is unknown" in found.because
    none = achieved(Floors(compute_ms=None, memory_ms=None, communication_ms=None), 1.0)
    assert (none.binds, none.because) == (
        None,
        "neither the model's work nor the device's rates are known",
    )


@pytest.mark.parametrize(("batch", "devices"), [(0, 1), (-1, 1), (1, 0)])
def test_step_without_tokens_or_device_is_refused(batch: float, devices: int) -> None:
    """A caller's mistake is no result."""
    with pytest.raises(ValueError, match="needs tokens and a device"):
        decode_work(SMALL, batch=batch, context_tokens=1, devices=devices)


def test_kv_that_fits_beside_the_weights() -> None:
    """90% of 80 GB less 2.4 MB, at 800 bytes a token; weights that do not fit leave none."""
    assert kv_capacity_tokens(SMALL, H100) == (72e9 - 2.4e6) / 800
    large = msgspec.structs.replace(SMALL, weight_bytes=1e12)
    assert kv_capacity_tokens(large, H100) == 0.0
    assert kv_capacity_tokens(large, find_accelerator("B300")) is None


def test_kv_per_rank_stops_falling_at_the_kv_heads() -> None:
    """64 heads, 8 KV heads: from 8 to 16 ranks the bytes per rank stay and the total doubles."""
    shape = msgspec.structs.replace(SMALL, heads=64, kv_heads=8, kv_bytes_per_token=80_000.0)
    assert [kv_heads_per_rank(8, size) for size in (1, 4, 8, 16)] == [8, 2, 1, 1]
    assert [kv_bytes_per_rank(shape, size) for size in (4, 8, 16)] == [20_000, 10_000, 10_000]
    assert [kv_copies(shape, size) for size in (1, 8, 16)] == [1, 1, 2]


def test_latent_kv_is_copied_to_every_rank() -> None:
    """One KV head over eight ranks: eight whole copies."""
    shape = msgspec.structs.replace(SMALL, kv_heads=1, latent_kv=True)
    assert kv_bytes_per_rank(shape, 8) == shape.kv_bytes_per_token
    assert kv_copies(shape, 8) == 8


def test_heads_decide_the_sizes() -> None:
    """28 heads and 4 KV heads on 8 devices: 1, 2 and 4; 7 only with support for its KV; best 4 twice."""
    found = layout_sizes(28, 4, 8)
    assert found.allowed == (1, 2, 4)
    assert [each.size for each in found.refused if each.with_kv_support] == [7]
    assert largest_layout(28, 4, 8) == (4, 2)
    assert why_not(28, 4, 14) is not None
    assert why_not(28, 4, 28) is None


def test_refused_size_names_its_neighbours() -> None:
    """52 heads over 3 ranks: no; 2 or 4."""
    refused = why_not(52, None, 3)
    assert refused is not None
    assert refused.because == "52 heads do not divide over 3 ranks"
    assert layout_sizes(52, None, 8).nearest(3) == (2, 4)


def test_kv_heads_unknown_do_not_refuse() -> None:
    """What is not known is no reason."""
    assert layout_sizes(64, None, 8).allowed == (1, 2, 4, 8)
    assert kv_bytes_per_rank(ModelShape(name="bare", source="a test"), 2) is None
