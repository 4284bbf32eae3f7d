"""The ladder of precisions of vLLM: weights alone, then activations with them, then the KV cache.

Here the stages move apart. (a) Weights: rounded to int8 and stored at their first width again, which tells what the
rounding costs and nothing of speed; W4A16 for speed. (b) Activations: W8A8 has the very weights of (a), so that it is
tried only where (a) has not failed; FP8. (c) KV: its types are measured with the original's weights, and with every
rung where KV capacity or transfer binds.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from trimtab.engines.compressed_tensors import Scheme, fused_only
from trimtab.engines.gguf_tensors import FEED_FORWARD, LINEAR, Group
from trimtab.quality.ladder import ORIGINAL_KV_VLLM, Rung, Stage, groups_word

ORIGINAL_NAME: Final = "bf16"


def vllm_ladder(
    lowered: Sequence[Group] | None, *, kv_types: Sequence[str], kv_binds: bool
) -> tuple[Rung, ...]:
    """Return the rungs for one model, the original first.

    `lowered`: groups that sensitivity allows to lower first, None where it was not measured: then the feed-forward
    ones. Groups whose kernel is shared with one that is not among them wait with it.
    """
    able = FEED_FORWARD if lowered is None else tuple(one for one in LINEAR if one in lowered)
    first = fused_only(able)
    steps = [first, LINEAR] if first and first != LINEAR else [LINEAR]
    original = Rung(name=ORIGINAL_NAME, stages=(Stage.ORIGINAL,), kv_type=ORIGINAL_KV_VLLM)
    others = tuple(one for one in kv_types if one != ORIGINAL_KV_VLLM)
    rungs = [original]
    for scheme in (Scheme.ROUNDED_INT8, Scheme.W4A16, Scheme.W8A8, Scheme.FP8):
        for groups in steps:
            rung = _rung(scheme, groups)
            # What was rounded in place tells nothing with another KV that its kernels' rung does not.
            more = others if kv_binds and not rung.quality_only else ()
            rungs += [rung, *(_with_kv(rung, kv) for kv in more)]
    return (*rungs, *(_with_kv(original, kv) for kv in others))


def _with_kv(rung: Rung, kv_type: str) -> Rung:
    stages = tuple(stage for stage in rung.stages if stage is not Stage.ORIGINAL)
    return msgspec.structs.replace(rung, kv_type=kv_type, stages=(*stages, Stage.KV))


def _rung(scheme: Scheme, groups: tuple[Group, ...]) -> Rung:
    activations = scheme in (Scheme.W8A8, Scheme.FP8)
    return Rung(
        name=_name(scheme, groups),
        stages=(Stage.WEIGHTS, Stage.ACTIVATIONS) if activations else (Stage.WEIGHTS,),
        kv_type=ORIGINAL_KV_VLLM,
        scheme=scheme,
        lowered=groups,
        after=_name(Scheme.ROUNDED_INT8, groups) if scheme is Scheme.W8A8 else "",
        quality_only=scheme.is_rounded,
    )


def _name(scheme: Scheme, groups: tuple[Group, ...]) -> str:
    return scheme.value if groups == LINEAR else f"{groups_word(groups)} {scheme.value}"
