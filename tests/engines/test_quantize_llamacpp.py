"""The ladder of precisions on the real engine: one rung, a short text, everything read back."""

from pathlib import Path

import msgspec
import pytest

from trimtab.core.types import Verdict
from trimtab.quality.quantized import Quantized
from trimtab.quality.rung_results import loss_gate
from trimtab.runtime import quality_speed
from trimtab.runtime import quantize as quantize_module
from trimtab.runtime.clock import SystemClock
from trimtab.runtime.quality_texts import CODE, QualityText
from trimtab.runtime.quantize_ask import QuantizeAsk
from trimtab.runtime.quantize_sitting import NAME, Sitting
from trimtab.runtime.quantize_walk import quantize
from trimtab.runtime.sources import standard_library

pytestmark = [pytest.mark.engine_llamacpp, pytest.mark.alone, pytest.mark.timeout(900)]

CHARS = 1500
"""Long enough for the window near a text's start, too short for the one deep inside."""

BRIEF = {"INPUT_TOKENS": 32, "OUTPUT_TOKENS": 8, "LONE_OUTPUT_TOKENS": 12, "WARM_OUTPUT_TOKENS": 4}
"""That both are timed in turn is looked at here, not what comes out: a step at F16 takes a slow machine 50 ms."""

WRITTEN_TOKENS = 16


class InterruptedHereError(Exception):
    """Stands for Ctrl-C at a chosen moment."""


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes of few tokens, and a short piece of writing."""
    for name, tokens in BRIEF.items():
        monkeypatch.setattr(quality_speed, name, tokens)
    monkeypatch.setattr(quantize_module, "FREE_TOKENS", WRITTEN_TOKENS)


async def walk(
    folder: Path, *rungs: str, resume: bool = False, until: str | None = None
) -> Quantized:
    """Walk some rungs; with `until` it is interrupted as that rung begins."""

    def say(words: str, part: float) -> None:
        if until is not None and words.startswith(until):
            raise InterruptedHereError

    text = standard_library()["heapq.py"][:CHARS]
    ask = QuantizeAsk(
        model="",
        folder=folder,
        texts=(QualityText(CODE, "heapq.py", text),),
        positions=512,
        kv_types=("f16",),
        rounds=1,
        concurrencies=(2,),
        margin_nats=0.05,
        free_prompts=1,
        only=rungs,
        sensitivity=False,
        confirm=False,
        resume=resume,
    )
    return await quantize(ask, SystemClock(), say)


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*.gguf")}


async def test_interrupted_walk_goes_on_where_it_was_and_says_what_each_rung_holds(
    tmp_path: Path,
) -> None:
    """The row of the first sitting stands in the table of the second as it was measured; the original repeats exactly,
    Q8_0 passes, is smaller and is timed beside it; nothing else is left lying.
    """
    pytest.importorskip("gguf", reason="the gguf package is not installed")
    with pytest.raises(InterruptedHereError):
        await walk(tmp_path, "q8_0", until="q8_0")
    kept = msgspec.json.decode((tmp_path / NAME).read_bytes(), type=Sitting).results
    assert list(kept) == ["f16"]
    assert files(tmp_path) == {"original-f16.gguf"}
    found = await walk(tmp_path, "q8_0", resume=True)
    assert [one.rung.label for one in found.results] == ["f16", "q8_0"]
    assert found.results[0] == kept["f16"]
    assert any("1 of 2 rungs were measured in an earlier sitting" in note for note in found.notes)
    assert not (tmp_path / NAME).exists()
    check_rungs(found)
    assert files(tmp_path) - {"original-f16.gguf", Path(found.artifact or "").name} == set()


def check_rungs(found: Quantized) -> None:
    """What was measured of the original and of eight bits, and read back from their files."""
    original, eight = found.results
    assert found.repeats_exactly
    assert original.quality[loss_gate(CODE)].harm == 0.0
    assert eight.kinds[CODE] is Verdict.PASS
    assert eight.effective["ffn_down"] == {"q8_0": 30}
    assert eight.file_bytes < original.file_bytes
    assert eight.speed is not None
    assert eight.speed.tpot_ms.n == 1
    assert found.choice.rung in {"f16", "q8_0"}
