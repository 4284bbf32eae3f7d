"""Puts a walk over precisions together: the engine's side, a session, the walk itself."""

from typing import assert_never

from trimtab.core.ports import Clock
from trimtab.quality.quantized import Quantized
from trimtab.runtime.quality_pair import plain_session
from trimtab.runtime.quantize import Quantizer
from trimtab.runtime.quantize_ask import QuantizeAsk, WalkEngine
from trimtab.runtime.quantize_engine import LadderEngine, Progress
from trimtab.runtime.quantize_llamacpp import LlamaCppLadder
from trimtab.runtime.quantize_vllm import VllmLadder


async def quantize(ask: QuantizeAsk, clock: Clock, on_progress: Progress) -> Quantized:
    """Walk the ladder of a model; raises `LaunchError`, `ArmError`, `TextError`. Whatever was started is ended."""
    async with plain_session() as session:
        engine: LadderEngine
        match ask.engine:
            case WalkEngine.LLAMACPP:
                engine = LlamaCppLadder(ask, session, clock)
            case WalkEngine.VLLM:
                engine = VllmLadder(ask, session, clock)
            case _:
                assert_never(ask.engine)
        return await Quantizer(ask, engine, clock, on_progress).run()
