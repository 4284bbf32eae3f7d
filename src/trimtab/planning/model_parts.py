"""What one rank of a layout holds of a model's weights, part by part.

    embedding, output matrix       vocabulary padded to a multiple of 64 x TP, dealt out over TP; first and last stage
    queries, dense, shared         dealt out over TP, copied in every attention group
    keys and values                dealt out over TP until there is one KV head a rank, then copied
    latent compressions, index     whole on every rank
    routed experts                 dealt out over experts' TP x EP, which span the attention groups; MXFP4 padded
    router, norms                  whole on every rank

Stages of a pipeline take consecutive layers; engines give the stages before the last the odd ones (vLLM), so the last,
which has the output matrix too, is the shorter one. The fullest stage is what must fit.
"""

import math
from typing import Final

import msgspec

from trimtab.core.layout import Layout
from trimtab.core.model_parts import PartName, WeightPart
from trimtab.core.served import ModelShape

VOCABULARY_PADDING: Final = 64
MXFP4_BITS: Final = 4.25
MXFP4_PADDING: Final = 256

_WHOLE: Final = (PartName.LATENT, PartName.INDEXER, PartName.ROUTER, PartName.NORMS)


class RankPart(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of one part on a rank, and the share (0 to 1) of the part that those are."""

    name: PartName
    bytes: float
    share: float


class RankWeights(msgspec.Struct, frozen=True, kw_only=True):
    """The weights of the fullest rank. `layers`: of its stage; `stage`: from 0; no `parts`: only a total is known."""

    total_bytes: float
    stage: int
    layers: int
    parts: tuple[RankPart, ...] = ()


def stage_layers(layers: int, stages: int) -> tuple[int, ...]:
    """Return how many layers each stage of a pipeline takes; raises ValueError for more stages than layers."""
    if not 1 <= stages <= layers:
        raise ValueError(f"{layers} layers do not fill {stages} stages")
    each, odd = divmod(layers, stages)
    found = [each] * stages
    for place in range(2, odd + 2):
        found[-place] += 1
    return tuple(found)


def stage_spans(layers: int, stages: int) -> tuple[tuple[int, int], ...]:
    """Return for each stage its first layer and the one behind its last."""
    spans, start = [], 0
    for count in stage_layers(layers, stages):
        spans.append((start, start + count))
        start += count
    return tuple(spans)


def rank_weights(model: ModelShape, layout: Layout) -> RankWeights | None:
    """Return the weights of the fullest rank; None where not even the model's total is known."""
    return max(stage_weights(model, layout), key=lambda each: each.total_bytes, default=None)


def stage_weights(model: ModelShape, layout: Layout) -> tuple[RankWeights, ...]:
    """Return what a rank holds in the stages that can be the fullest: the first, the longest and the last.

    Of several longest ones the latest counts: dense layers of a mixture come first and are the lighter ones. Empty
    where not even the model's total is known.
    """
    layers = max(model.layers or 1, layout.pp)
    if not model.parts and model.weight_bytes is None:
        return ()
    spans = stage_spans(layers, layout.pp)
    longest = max(range(len(spans)), key=lambda place: (spans[place][1] - spans[place][0], place))
    places = sorted({0, longest, len(spans) - 1})
    return tuple(_stage(model, layout, place, spans[place]) for place in places)


def _spread_total(model: ModelShape, layout: Layout) -> float:
    """Bytes on a rank where only the total and the experts' part are known: everything dealt out evenly."""
    experts = model.expert_bytes / max(1, layout.moe_tp * layout.moe_ep)
    return ((model.weight_bytes or 0.0) - model.expert_bytes) / (layout.tp * layout.pp) + (
        experts / layout.pp
    )


def _stage(model: ModelShape, layout: Layout, stage: int, span: tuple[int, int]) -> RankWeights:
    if not model.parts:
        return RankWeights(
            total_bytes=_spread_total(model, layout), stage=stage, layers=span[1] - span[0]
        )
    found = []
    for part in _with_tied_head(model, layout):
        share = _in_stage(part, layout, stage, span) * _on_rank(part, model, layout)
        if share > 0.0:
            found.append(RankPart(name=part.name, bytes=part.bytes * share, share=share))
    return RankWeights(
        total_bytes=sum(part.bytes for part in found),
        stage=stage,
        layers=span[1] - span[0],
        parts=tuple(found),
    )


def _with_tied_head(model: ModelShape, layout: Layout) -> tuple[WeightPart, ...]:
    """The parts, and the output matrix that the last stage needs of its own though it is tied to the embedding."""
    names = {part.name: part for part in model.parts}
    if layout.pp == 1 or PartName.HEAD in names or PartName.EMBEDDING not in names:
        return model.parts
    head = msgspec.structs.replace(names[PartName.EMBEDDING], name=PartName.HEAD)
    return (*model.parts, head)


def _in_stage(part: WeightPart, layout: Layout, stage: int, span: tuple[int, int]) -> float:
    """The share of a part that lies in a stage."""
    if part.name is PartName.EMBEDDING:
        return 1.0 if stage == 0 else 0.0
    if part.name is PartName.HEAD:
        return 1.0 if stage == layout.pp - 1 else 0.0
    if not part.layers:
        return 1.0 / layout.pp
    first, behind = part.first_layer, part.first_layer + part.layers
    return max(0, min(behind, span[1]) - max(first, span[0])) / part.layers


def _on_rank(part: WeightPart, model: ModelShape, layout: Layout) -> float:
    """The share of a stage's part that one rank holds."""
    if part.name in _WHOLE:
        return 1.0
    if part.name is PartName.EXPERTS:
        return _padding(part, model) / max(1, layout.moe_tp * layout.moe_ep)
    if part.name in (PartName.EMBEDDING, PartName.HEAD):
        return _vocabulary_share(model, layout)
    if part.name is PartName.KEY_VALUE and model.kv_heads:
        return max(1.0 / layout.tp, 1.0 / model.kv_heads)
    return 1.0 / layout.tp


def _padding(part: WeightPart, model: ModelShape) -> float:
    """How much wider engines hold experts than they are stored: kernels for MXFP4 pad the hidden size.

    gpt-oss-120b loads as 64.4 GiB where its checkpoint has 60.7 (vLLM issue 33155).
    """
    if not model.hidden or abs(part.bits - MXFP4_BITS) > 0.01:
        return 1.0
    return math.ceil(model.hidden / MXFP4_PADDING) * MXFP4_PADDING / model.hidden


def _vocabulary_share(model: ModelShape, layout: Layout) -> float:
    if not model.vocabulary:
        return 1.0 / layout.tp
    return math.ceil(_padded_vocabulary(model.vocabulary) / layout.tp) / model.vocabulary


def vocabulary_divides(model: ModelShape, tp: int) -> bool:
    """Say whether the padded vocabulary divides over a group, as vLLM requires; True where it is not known.

    Qwen3-14B has 40 heads and 151,936 tokens: 5 ranks divide the heads and are refused all the same.
    """
    return model.vocabulary is None or _padded_vocabulary(model.vocabulary) % tp == 0


def _padded_vocabulary(tokens: int) -> int:
    return math.ceil(tokens / VOCABULARY_PADDING) * VOCABULARY_PADDING
