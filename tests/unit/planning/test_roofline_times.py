"""Step times from a roofline at usual rates."""

import msgspec
import pytest
from plan_kit import dense

from trimtab.core.accelerators import find_accelerator
from trimtab.core.layout import EstimateSource, Layout, Link
from trimtab.engines.model_names import find_model_shape
from trimtab.planning.calibrate import calibrate
from trimtab.planning.correction import Phase
from trimtab.planning.measured import Load
from trimtab.planning.measured_errors import ERRORS
from trimtab.planning.roofline_times import RooflineTimes, collective_ms

FAST = Link(name="fast", bytes_per_s=450e9, latency_us=5.0, peer_access=True, source="test")
SLOW = Link(name="slow", bytes_per_s=12.5e9, latency_us=30.0, peer_access=None, source="test")


def times(layout: Layout, link: Link = FAST, name: str = "llama-3.1-8b") -> RooflineTimes:
    model = find_model_shape(name)
    assert model is not None
    return RooflineTimes(model, find_accelerator("H100"), layout, link=link)


def test_small_decode_step_takes_the_reading_of_the_weights() -> None:
    """An 8B model of 16 bit reads 15 GB at three quarters of 3.35 TB/s: 6 ms and the time of 32 layers."""
    assert times(Layout()).decode_ms(1, 100) == pytest.approx(6.6, rel=0.05)


def test_long_prefill_takes_its_operations() -> None:
    """8,192 tokens of 7.5 G multiplied parameters at 0.6 of 989 Tflop/s and attention."""
    assert times(Layout()).prefill_ms(8192, 0) == pytest.approx(230.0, rel=0.1)


def test_more_ranks_shorten_a_step_until_messages_take_over() -> None:
    """Four ranks on a fast link help; on a slow one their messages cost more than they save."""
    alone = times(Layout()).decode_ms(1, 100)
    assert times(Layout(tp=4)).decode_ms(1, 100) < alone
    assert times(Layout(tp=4), SLOW).decode_ms(1, 100) > times(Layout(tp=4)).decode_ms(1, 100)


def test_collectives_of_one_rank_take_nothing() -> None:
    """There is nobody to talk to."""
    assert collective_ms(dense(), 1, 100.0, SLOW) == 0.0
    assert times(Layout()).communication_ms(8, 100) == 0.0


def test_mixture_with_more_tokens_reads_more_experts() -> None:
    """One token meets eight experts, a large batch nearly all: the step grows far more than a dense one."""
    mixture = times(Layout(tp=4, moe_tp=4), name="qwen3-30b-a3b")
    dense_times = times(Layout(tp=4))
    grown = mixture.decode_ms(64, 100) / mixture.decode_ms(1, 100)
    assert grown > 1.5 * dense_times.decode_ms(64, 100) / dense_times.decode_ms(1, 100)


def test_cached_tokens_are_not_computed() -> None:
    """Half of a prompt cached is about half of its prefill."""
    found = times(Layout())
    assert found.prefill_ms(8192, 4096) < 0.6 * found.prefill_ms(8192, 0)


def test_estimate_is_labelled_as_no_measurement() -> None:
    """A reader is told that it may be far off."""
    found = times(Layout())
    assert found.source is EstimateSource.ROOFLINE
    assert "no kernel was measured" in found.notes[0]


def test_model_without_sizes_still_gives_a_time() -> None:
    """Unknown layers leave out what depends on them, and nothing raises."""
    model = msgspec.structs.replace(dense(), layers=None, parts=())
    found = RooflineTimes(model, find_accelerator("H100"), Layout(), link=None)
    assert found.decode_ms(1, 100) >= 0.0


@pytest.mark.parametrize("phase", list(Phase))
def test_note_says_how_far_off_times_are_as_their_intervals_do(phase: Phase) -> None:
    """The first token's is wider than an output token's, and each factor is that of the interval printed beside it."""
    model = find_model_shape("llama-3.1-8b")
    assert model is not None
    note = RooflineTimes(model, find_accelerator("H100"), Layout(), because="not held").notes[0]
    priors, widths = ERRORS[EstimateSource.ROOFLINE]
    load = Load(layout=Layout(), clients=8, input_tokens=1000, output_tokens=200)
    found = calibrate("h100_sxm", "vllm", priors=priors, widths=widths).span(phase, load, 10.0)
    assert found.high is not None
    assert f"{found.high / found.value:.1f} times" in note
    assert "not held" in note
