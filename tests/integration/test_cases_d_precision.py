"""Cases D2 and D4: which precision for what binds, what a four-bit canary pays with, rules that protect nothing.

D1 and D3, and D4's ruined slice, stand with the cases of quality.
"""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from case_kit import Case, is_candidate, spread, written
from engine_pages import trtllm
from gguf_kit import gguf, layers
from scrape_kit import Hist, Load, Told, diagnose, lever, proposed, sglang, vllm

from trimtab.core.record import RequestRecord
from trimtab.core.types import RolloutState, Verdict
from trimtab.engines.gguf import GGUFError, read_header
from trimtab.engines.gguf_rewrite import plan_conversion
from trimtab.engines.gguf_tensors import LINEAR, TensorKind

S = RolloutState
Page = Callable[..., str]
FOUR, EIGHT, KV = "four_bit_weights", "eight_bit_weights_and_activations", "eight_bit_kv"
MODEL = "Qwen/Qwen2.5-7B-Instruct"

# One page a minute apart of the next: counters of a busy server since its start.
DECODES = Load(
    running=8,
    waiting=0,
    kv=0.2,
    preemptions=0,
    queries=300_000,
    hits=15_000,
    prompt_tokens=300_000,
    output_tokens=180_000,
    finished=600,
    ttft=Hist(600, 0.06),
    queue=Hist(600, 0.001),
    prefill=Hist(600, 0.06),
    decode=Hist(600, 2.1),
    e2e=Hist(600, 2.2),
    tpot=Hist(180_000, 0.007),
    prompt_length=Hist(600, 500.0),
    output_length=Hist(600, 300.0),
)
PREFILLS = DECODES.but(
    running=200,
    queries=24_000_000,
    hits=1_200_000,
    prompt_tokens=24_000_000,
    output_tokens=20_000,
    finished=2_000,
    ttft=Hist(2_000, 0.8),
    prefill=Hist(2_000, 0.8),
    decode=Hist(2_000, 0.2),
    e2e=Hist(2_000, 1.0),
    tpot=Hist(20_000, 0.02),
    prompt_length=Hist(2_000, 12_000.0),
    output_length=Hist(2_000, 10.0),
)


def told_of(folder: Path, page: Page, load: Load, hardware: str) -> Told:
    """Diagnose a server of that load on that hardware, its target for the first token far away."""
    known = ("--model", MODEL, "--hardware", hardware, "--ttft-ms", "2000")
    return diagnose(folder, page(load), options=known)


def precisions(told: Told) -> list[str]:
    """The precisions that are proposed, in the order in which they come."""
    held = [each["lever"] for each in told.answer["levers"] if each["proposed"]]
    return [each for each in held if each in (FOUR, EIGHT, KV)]


@pytest.mark.parametrize(
    ("page", "running", "hardware"),
    [(vllm, 8, "H100"), (sglang, 4, "A100"), (trtllm, 12, "L40S"), (vllm, 2, "L4")],
)
def test_weights_alone_come_first_where_reading_them_binds(
    tmp_path: Path, page: Page, running: int, hardware: str
) -> None:
    """Decode-bound at a small batch with time to spare before the first token: four-bit weights alone."""
    told = told_of(tmp_path, page, DECODES.but(running=running), hardware)
    assert told.binding == ("decode", "memory_bandwidth")
    assert precisions(told) == [FOUR]


@pytest.mark.parametrize(("running", "hardware"), [(200, "H100"), (120, "A100"), (64, "L40S")])
@pytest.mark.parametrize("page", [vllm, trtllm])
def test_eight_bits_come_first_where_prefill_computes(
    tmp_path: Path, page: Page, running: int, hardware: str
) -> None:
    """Prefill-bound on a device with eight-bit arithmetic: activations too, and four bits out with the reason."""
    told = told_of(tmp_path, page, PREFILLS.but(running=running), hardware)
    assert told.binding == ("prefill", "compute")
    assert precisions(told) == [EIGHT]
    assert "unpacked" in lever(told, FOUR)["because"]


@pytest.mark.parametrize("hardware", ["V100"])
def test_device_without_eight_bit_arithmetic_gets_no_precision(
    tmp_path: Path, hardware: str
) -> None:
    """Nothing computes faster there: neither is proposed, and what would tell stands with it."""
    told = told_of(tmp_path, vllm, PREFILLS, hardware)
    assert precisions(told) == []
    assert lever(told, EIGHT)["proposed"] in (None, False)


def test_large_batch_rules_four_bits_out(tmp_path: Path) -> None:
    """Decode of 200 streams: unpacking costs more than it saves, whatever binds."""
    told = told_of(tmp_path, vllm, DECODES.but(running=200, tpot=Hist(180_000, 0.03)), "H100")
    assert FOUR not in proposed(told)
    assert lever(told, FOUR)["proposed"] is False


def four_bit_weights(**changes: str) -> str:
    """A record that puts another artifact of the same model in place; what it is does not matter to the gates."""
    return written(
        technique="quantization",
        revision='kv_type = "q8_0"',
        pays="quality",
        more='quality_gate = "scored items"\n',
        **changes,
    )


@pytest.mark.parametrize(
    ("tpot", "ttft", "back"),
    [(0.65, 1.45, True), (0.75, 1.35, True), (0.80, 1.30, True), (0.65, 1.02, False)],
)
async def test_first_token_that_pays_for_the_others_is_refused_with_its_cause(
    tpot: float, ttft: float, back: bool
) -> None:
    """TPOT falls by a third and TTFT grows by 45%: taken back, and the reason names the unpacking in prefill."""

    def answer(one: RequestRecord) -> RequestRecord:
        first, other = (ttft, tpot) if is_candidate(one) else (1.0, 1.0)
        return msgspec.structs.replace(
            one,
            tpot_ms=20.0 * spread(one) * other,
            ttft_ms=100.0 * spread(one, "ttft") * first,
        )

    case = await Case(four_bit_weights(shares="[0.25, 0.5]")).start()
    await case.serve(300, answer, until=S.ROLLED_BACK if back else S.ADOPTED)
    assert case.state is (S.ROLLED_BACK if back else S.ADOPTED)
    failed = [one for one in case.results if one.verdict is Verdict.FAIL]
    caused = [one for one in failed if "dequantization in the compute-bound phase" in one.reason]
    assert bool(caused) is back


@pytest.mark.parametrize("rule", ["lm_head.weight", "model.output.weight", "blk.7.ffn_up.weight"])
def test_rule_that_protects_nothing_is_no_rule(rule: str) -> None:
    """A name of another format, of another layer, with a prefix too many: said before a file is written."""
    data = gguf(layers())
    header = read_header(data, file_bytes=len(data))
    wanted = dict.fromkeys(LINEAR, TensorKind.Q4_0)
    with pytest.raises(GGUFError, match="a rule that matches nothing protects nothing"):
        plan_conversion(header, wanted, frozenset({rule}))
