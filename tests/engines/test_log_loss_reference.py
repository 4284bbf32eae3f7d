"""Log loss on the live arm against an independent implementation: transformers in float32, on the same F16 weights."""

import json
from pathlib import Path

import msgspec
import pytest

from trimtab.core.revision import Revision
from trimtab.engines.gguf_tensors import TensorKind
from trimtab.engines.llamacpp import NAME
from trimtab.engines.llamacpp_score import LlamaCppScore
from trimtab.runtime.clock import SystemClock
from trimtab.runtime.gguf_codec import convert
from trimtab.runtime.launcher import LlamaCppLauncher
from trimtab.runtime.model import engine_version, find_model
from trimtab.runtime.quality_arm import QualityArm, Window
from trimtab.runtime.quality_pair import plain_session
from trimtab.runtime.quantize_original import quantized_groups

pytestmark = [pytest.mark.engine_llamacpp, pytest.mark.alone, pytest.mark.timeout(300)]

REFERENCE = Path(__file__).parent / "reference_log_loss.json"
NATS_MAX = 0.02


class Scored(msgspec.Struct):
    """A text as scripts/reference_log_loss.py scored it."""

    kind: str
    first: int
    tokens: tuple[int, ...]
    losses: tuple[float, ...]


async def test_forced_tokens_cost_what_an_independent_implementation_says(tmp_path: Path) -> None:
    """Code and prose, 128 positions each: the means agree within 0.02 nats a token at F16."""
    pytest.importorskip("gguf", reason="the gguf package is not installed")
    reference = msgspec.convert(json.loads(REFERENCE.read_text()), list[Scored])
    source, target = find_model(""), tmp_path / "f16.gguf"
    convert(Path(source.path), target, dict.fromkeys(quantized_groups(source), TensorKind.F16))
    revision = Revision(
        engine=NAME,
        engine_version=engine_version(),
        model=find_model(str(target)),
        slots=1,
        context_tokens=1024,
    )
    launcher = LlamaCppLauncher(clock=SystemClock(), start_timeout_s=120.0)
    apart: dict[str, float] = {}
    try:
        [place] = launcher.place(["arm"])
        url = await launcher.start(revision, place)
        async with plain_session() as session:
            arm = QualityArm("arm", url, session, LlamaCppScore())
            for text in reference:
                window = Window(
                    kind=text.kind, name=text.kind, tokens=text.tokens, first=text.first
                )
                ours = (await arm.score(window)).mean
                apart[text.kind] = abs(ours - sum(text.losses) / len(text.losses))
    finally:
        await launcher.close()
    assert sorted(apart) == ["code", "prose"]
    assert max(apart.values()) <= NATS_MAX
