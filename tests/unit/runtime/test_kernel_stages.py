"""Layouts with stages priced by those without, and refusals that hold for more than the layout that met them."""

from trimtab.runtime.kernel_sdk import names_device_alone, names_widths_alone
from trimtab.runtime.kernel_stages import Remembered, Staged


class Engine:
    """A compiled configuration of so many milliseconds a stream, which notes what it is asked."""

    def __init__(self, ms: float, name: str) -> None:
        self.ms = ms
        self.name = name
        self.asked: list[tuple[int, ...]] = []

    def decode_step_latency(self, *sizes: int) -> float:
        self.asked.append(sizes)
        return self.ms * sizes[0]

    def predict_prefill_latency(self, *sizes: int) -> float:
        return self.ms * sizes[1]

    def mixed_step_latency(self, *sizes: int) -> float:
        return self.ms * (sizes[0] + sizes[1])

    def decode_step_per_op(self, *sizes: int) -> list[tuple[str, float]]:
        return [(self.name, self.ms * sizes[0])]


def test_time_is_asked_for_once_whatever_the_stages() -> None:
    """Layouts that differ in their stages alone ask the same configuration."""
    inner = Engine(2.0, "matrix")
    whole = Remembered(inner)
    told = [
        Staged(whole, Remembered(Engine(ms, "p2p"))).decode_step_latency(8, 1023, 2)
        for ms in (0.5, 0.25)
    ]
    assert told == [20.0, 18.0]
    assert inner.asked == [(8, 1023, 2)]


def test_stages_add_what_they_send_to_every_kind_of_step() -> None:
    """A prompt, a chunk beside streams, and the parts of a step, of which sending comes last."""
    both = Staged(Engine(2.0, "matrix"), Engine(0.5, "p2p"))
    assert both.predict_prefill_latency(1, 100, 0) == 250.0
    assert both.mixed_step_latency(8, 2, 100, 2, 0) == 25.0
    assert both.decode_step_per_op(4, 1024, 2) == [("matrix", 8.0), ("p2p", 2.0)]


def test_refusal_that_names_sizes_is_of_one_layout() -> None:
    """Only one of nothing but widths holds for others; only one of the device for other tables."""
    of_widths = (
        'context MLA data missing for ContextKey { fmha_quant: "fp8", kv_quant: "bfloat16" } at /x'
    )
    of_device = "missing system flops: quant mode 'fp8_block' needs 'fp8_tc_flops'"
    of_sizes = 'MoE data missing for MoeKey { quant: "fp8", topk: 8, moe_tp_size: 8 }'
    of_heads = 'data missing for ContextKey { fmha_quant: "fp8", kv_quant: "fp8", head_size: 64 }'
    told = (of_widths, of_device, of_sizes, of_heads)
    assert [names_widths_alone(each) for each in told] == [True, True, False, False]
    assert [names_device_alone(each) for each in told] == [False, True, False, False]
