"""The original of a walk: expanded where the file came quantized, started, scored once, and heard once."""

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from trimtab.core.ports import LaunchError
from trimtab.core.revision import Model
from trimtab.engines.gguf import GGUFHeader
from trimtab.engines.gguf_tensors import KIND_NAMES, LINEAR, NUMBERS, Group, TensorKind, place_of
from trimtab.quality.eval_scores import EvalOutcome
from trimtab.quality.loss import BLOCK_TOKENS, TextScore, blocks_of, cuts_of
from trimtab.quality.paired import family_level, spread_told
from trimtab.quality.quantized import Plan
from trimtab.runtime.model import check_model
from trimtab.runtime.quality_arm import QualityArm, Window
from trimtab.runtime.quality_pair import POSITION_EDGES, Writing
from trimtab.runtime.quality_texts import CHARS_MAX, QualityText
from trimtab.runtime.quantize_ask import QuantizeAsk, WalkEngine

CONTEXT_TOKENS: Final = 2048
CONTEXT_TOKENS_VLLM: Final = 2 * CONTEXT_TOKENS
WINDOW_STARTS: Final = (64, 512)
"""Where the windows of a text begin, if the first one ends before the second."""

WINDOW_TOKENS_MAX: Final = (CONTEXT_TOKENS - WINDOW_STARTS[0]) // (2 * BLOCK_TOKENS) * BLOCK_TOKENS
FREE_PROMPT_TOKENS: Final = 96
LOSSLESS: Final = frozenset({"f32", "f16", "bf16"})


class Original(NamedTuple):
    """What every rung is compared with. `own`: what it wrote, scored by itself."""

    arm: QualityArm
    windows: tuple[Window, ...]
    scores: tuple[TextScore, ...]
    beginnings: tuple[Window, ...]
    writings: tuple[Writing, ...]
    own: tuple[TextScore, ...]
    items: tuple[EvalOutcome, ...]


def context_of(engine: WalkEngine) -> int:
    """Return the tokens that one request to an arm of an engine may have."""
    return CONTEXT_TOKENS_VLLM if engine is WalkEngine.VLLM else CONTEXT_TOKENS


def shipped_kind(header: GGUFHeader) -> str | None:
    """Return the type that most linear weights of a file have, None where it is no lossy one.

    Raises `LaunchError` where no linear layer is found under a name that is known.
    """
    counts: dict[str, int] = {}
    for tensor in header.table:
        if place_of(tensor.name).group in LINEAR:
            name = KIND_NAMES.get(tensor.kind, f"type {tensor.kind}")
            counts[name] = counts.get(name, 0) + 1
    if not counts:
        raise LaunchError(
            f"its tensors have no names that are known (architecture {header.architecture or 'unnamed'!r}): "
            "only models of llama.cpp's usual layer names can be walked"
        )
    most = max(counts, key=lambda name: (counts[name], name))
    return None if most in LOSSLESS else most


def quantized_groups(model: Model) -> tuple[Group, ...]:
    """Return the groups of a file that are to be expanded: all with a type that is no plain float."""
    plain = {NUMBERS[TensorKind.F32], NUMBERS[TensorKind.F16], NUMBERS[TensorKind.BF16]}
    header = check_model(model.path)
    found = {place_of(tensor.name).group for tensor in header.table if tensor.kind not in plain}
    return tuple(group for group in Group if group in found and group is not Group.OTHER)


async def windows_of(
    arm: QualityArm, texts: Sequence[QualityText], positions: int
) -> tuple[Window, ...]:
    """Cut every text into the windows that are scored: some positions near its start, some deep inside.

    `positions`: of each kind. Raises `LaunchError` where no text is long enough.
    """
    found: list[Window] = []
    least: dict[str, int] = {}
    kinds = [text.kind for text in texts]
    for text in texts:
        each = positions / (kinds.count(text.kind) * len(WINDOW_STARTS))
        size = max(BLOCK_TOKENS, round(each / BLOCK_TOKENS) * BLOCK_TOKENS)
        size = min(size, WINDOW_TOKENS_MAX)
        # Windows never overlap: a block that is scored twice would count as two.
        starts = (WINDOW_STARTS[0], max(WINDOW_STARTS[1], WINDOW_STARTS[0] + size))
        least[text.kind] = WINDOW_STARTS[0] + size
        tokens = await arm.tokens(text.text[:CHARS_MAX])
        found += [
            Window(kind=text.kind, name=text.name, tokens=tokens[: start + size], first=start)
            for start in starts
            if len(tokens) >= start + size
        ]
    if missing := sorted(set(kinds) - {window.kind for window in found}):
        raise LaunchError(
            f"no text of kind {missing[0]!r} is long enough to be scored: at least {least[missing[0]]} tokens "
            "are needed; give a longer text, or fewer --positions"
        )
    return tuple(found)


def beginnings_of(windows: Sequence[Window], count: int) -> tuple[Window, ...]:
    """Return places of the texts that are to be continued, spread over all of them."""
    found: list[Window] = []
    for window in windows:
        for start in range(0, len(window.tokens) - FREE_PROMPT_TOKENS, FREE_PROMPT_TOKENS):
            tokens = window.tokens[start : start + FREE_PROMPT_TOKENS]
            found.append(msgspec.structs.replace(window, tokens=tokens, first=FREE_PROMPT_TOKENS))
    step = max(1, len(found) // max(1, count))
    return tuple(found[::step][:count])


def plan_of(ask: QuantizeAsk, original: Original) -> Plan:
    """Say what will be measured, and how small a difference that can tell, before it is."""
    blocks = blocks_of(original.scores)
    level = family_level(len(cuts_of(blocks, POSITION_EDGES)))
    positions: dict[str, int] = {}
    for window in original.windows:
        positions[window.kind] = positions.get(window.kind, 0) + window.scored
    counts = {kind: count // BLOCK_TOKENS for kind, count in positions.items()}
    return Plan(
        positions=positions,
        blocks=counts,
        block_tokens=BLOCK_TOKENS,
        margin_nats=ask.margin_nats,
        spread_max={
            kind: spread_told(count, ask.margin_nats, level=level) for kind, count in counts.items()
        },
        free_prompts=len(original.beginnings),
        eval_items=len(ask.evals.items),
        eval_items_total=ask.evals.total,
        eval_runs=max((ask.evals.runs_of(item) for item in ask.evals.items), default=1),
        harness=ask.evals.harness.tasks,
        eval_margin=ask.eval_margin,
        rounds=ask.rounds,
        concurrencies=ask.concurrencies,
    )
