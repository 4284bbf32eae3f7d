"""What `trimtab quantize` is asked to walk."""

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path

import msgspec

from trimtab.quality.eval_scores import EvalSet
from trimtab.quality.ladder import ORIGINAL_KV
from trimtab.quality.quantized import Plan
from trimtab.runtime.quality_texts import QualityText


class WalkEngine(StrEnum):
    """Whose ladder is walked."""

    LLAMACPP = "llamacpp"
    VLLM = "vllm"


class QuantizeAsk(msgspec.Struct, frozen=True, kw_only=True):
    """What to walk and how carefully. `only`: names of rungs, all without; `folder`: where files are written."""

    model: str
    folder: Path
    texts: tuple[QualityText, ...]
    engine: WalkEngine = WalkEngine.LLAMACPP
    ignore: tuple[str, ...] = ()
    """Rules for modules that a checkpoint for vLLM keeps high: exact names, or `re:` and a pattern."""
    positions: int = 512
    """Scored positions of each kind of text."""
    kv_types: tuple[str, ...] = (ORIGINAL_KV, "q8_0")
    rounds: int = 4
    concurrencies: tuple[int, ...] = (2, 4)
    margin_nats: float = 0.02
    kv_binds: bool = False
    free_prompts: int = 8
    evals: EvalSet = EvalSet(items=(), total=0)
    eval_margin: float = 0.02
    only: tuple[str, ...] = ()
    sensitivity: bool = True
    confirm: bool = True
    resume: bool = False
    """Take over what an interrupted walk into the same folder has measured."""
    start_timeout_s: float = 120.0
    on_plan: Callable[[Plan], None] = lambda _: None
    """Hears what will be measured, before it is."""
