"""Which parallel layout: replicas of the smallest that fits for throughput, more ranks only for fit or single streams.

Laws: a tensor-parallel size must divide the heads; beyond the KV heads a rank's KV does not shrink and copies add up;
a latent KV is copied to every rank. Expert parallel pays for many tokens per step, many experts and a real all-to-all,
and its step waits for the busiest rank.
Failure mode: measured times at batch 1 say nothing of a loaded server.
"""

import math
from collections.abc import Iterator

import msgspec

from trimtab.core.evidence import Readings
from trimtab.diagnosis.roofline_layout import kv_heads_per_rank, largest_layout, layout_sizes
from trimtab.diagnosis.served_advice import Answer, Judgement, Subject
from trimtab.diagnosis.served_facts import (
    ExpertExchange,
    Goal,
    LayoutFacts,
    LayoutTime,
    Link,
    ServedFacts,
)
from trimtab.diagnosis.served_names import ServedName

EXPERT_TOKENS_MIN = 512.0
"""Below this many tokens per step expert parallel has too little to send around."""

EXPERTS_PER_RANK_MIN = 4.0
WEIGHTS_MAX_SHARE = 0.85
"""Weights that take more of the devices' memory leave too little for KV and activations."""

_SIZE_KEYS = ("tensor_parallel_size", "tp_size", "tensor_parallel")
SKEW_MAX = 1.5
"""Above this load of the busiest rank over the mean, experts are balanced first."""


def layout_judgements(readings: Readings, facts: ServedFacts) -> Iterator[Judgement]:
    """Give what the facts of a layout say, filled in from model, device and page; nothing without them."""
    if facts.layout is None:
        return
    told, model = _filled(facts.layout, readings, facts), facts.model
    heads = told.heads or (None if model is None else model.heads)
    kv_heads = told.kv_heads or (None if model is None else model.kv_heads)
    dealt = None if told.kv_replication else kv_heads
    if told.goal is not None or facts.layout.fits_on is not None:
        yield _size(told, facts, heads, dealt)
    if heads is not None or told.latent_attention or told.tensor_parallel is not None:
        yield _heads(told, heads, kv_heads, dealt)
    if told.experts is not None or told.exchange is not None:
        yield _experts(told)


def _filled(told: LayoutFacts, readings: Readings, facts: ServedFacts) -> LayoutFacts:
    """Return the facts with what model, accelerator, configuration and page tell of what was left out."""
    model = facts.model
    found: dict[str, object] = {
        "fits_on": _fewest(facts),
        "tensor_parallel_now": _configured_size(facts),
        "tokens_per_step": readings.value(ServedName.STEP_TOKENS_MEAN),
    }
    if model is not None:
        found |= {"experts": model.experts, "experts_per_token": model.experts_per_token}
    kept = {key: value for key, value in found.items() if getattr(told, key) is None}
    latent = told.latent_attention or (model is not None and model.latent_kv)
    return msgspec.structs.replace(told, latent_attention=latent, **kept)


def _fewest(facts: ServedFacts) -> int | None:
    """Return on how few devices the weights leave room for KV and activations, None if a size is unknown."""
    weights = None if facts.model is None else facts.model.weight_bytes
    memory = None if facts.accelerator is None else facts.accelerator.memory_bytes
    return None if not weights or not memory else math.ceil(weights / (WEIGHTS_MAX_SHARE * memory))


def _configured_size(facts: ServedFacts) -> int | None:
    text = next((facts.effective[key] for key in _SIZE_KEYS if key in facts.effective), "")
    return int(text) if text.isascii() and text.isdigit() and 0 < len(text) < 6 else None


def _cannot(subject: Subject, because: str, would_tell: str) -> Judgement:
    return Judgement(subject=subject, answer=None, because=because, would_tell=would_tell)


def _size(
    told: LayoutFacts, facts: ServedFacts, heads: int | None, kv_heads: int | None
) -> Judgement:
    subject, count, fits = Subject.TENSOR_PARALLEL, told.accelerators, told.fits_on
    if fits is None or count is None:
        if fits is None:
            what, flag = (
                "on how few accelerators the model fits",
                "--model and --hardware, or fits_on",
            )
        else:
            what, flag = "how many accelerators there are", "accelerators"
        return _cannot(subject, f"{what} is unknown", flag)
    if fits > count:
        return Judgement(
            subject=subject,
            answer=Answer.REJECT,
            because=f"the model needs {fits} accelerators and there are {count}",
        )
    if told.link is Link.PCIE and fits == 1:
        return Judgement(
            subject=subject,
            answer=Answer.NO_TENSOR_PARALLEL,
            because="it fits one accelerator, and without peer access every layer would cross the host",
            choice=f"{count} replicas of TP1",
        )
    if told.goal is None:
        return _cannot(subject, "what the layout is for is unknown", "goal: throughput or latency")
    target = told.tpot_ms_target if told.tpot_ms_target is not None else facts.tpot_ms_target
    sizes = _sizes(heads, kv_heads, count)
    if told.goal is Goal.THROUGHPUT:
        return _throughput(told, count, fits, target, sizes)
    return _latency(told, fits, target)


def _sizes(heads: int | None, kv_heads: int | None, count: int) -> tuple[int, ...]:
    if heads is None:
        return tuple(size for size in range(1, count + 1) if count % size == 0)
    return layout_sizes(heads, kv_heads, count).allowed


def _throughput(
    told: LayoutFacts, count: int, fits: int, target: float | None, sizes: tuple[int, ...]
) -> Judgement:
    measured = {each.tensor_parallel: each.tpot_ms for each in told.measured}
    fitting = [size for size in sizes if size >= fits]
    good = [size for size in fitting if target is None or measured.get(size, 0.0) <= target]
    if not good:
        return Judgement(
            subject=Subject.TENSOR_PARALLEL,
            answer=Answer.REJECT,
            because=f"no size from {fits} to {count} divides the heads and meets the target",
        )
    size = good[0]
    if count < 2 * size:
        return Judgement(
            subject=Subject.TENSOR_PARALLEL,
            answer=Answer.TENSOR_PARALLEL if size > 1 else Answer.NO_TENSOR_PARALLEL,
            because=f"it fits {fits} of {count} accelerators: there is no room for a second replica",
            choice=f"TP{size}",
            numbers={"replicas": 1.0, "tensor_parallel": float(size)},
        )
    text = f"it fits {fits}: replicas of TP{size} share nothing, more ranks each would spend communication"
    if target is not None and size not in measured:
        text += f"; whether TP{size} meets {target:g} ms per token is to be measured"
    return Judgement(
        subject=Subject.TENSOR_PARALLEL,
        answer=Answer.REPLICAS,
        because=text,
        choice=f"{count // size} replicas of TP{size}",
        numbers={"replicas": float(count // size), "tensor_parallel": float(size)},
    )


def _latency(told: LayoutFacts, fits: int, target: float | None) -> Judgement:
    subject = Subject.TENSOR_PARALLEL
    measured = sorted(
        (each for each in told.measured if each.tensor_parallel >= fits),
        key=lambda each: each.tensor_parallel,
    )
    if target is None or not measured:
        lacking = "tpot_ms_target" if target is None else "TPOT at batch 1 of each size"
        return _cannot(subject, "which size meets the target cannot be told", lacking)
    met = next((each for each in measured if each.tpot_ms <= target), None)
    if met is None:
        best = min(measured, key=lambda each: each.tpot_ms)
        return Judgement(
            subject=subject,
            answer=Answer.REJECT,
            because=f"none measured meets {target:g} ms: TP{best.tensor_parallel} has {best.tpot_ms:g} ms",
        )
    numbers = {
        "tensor_parallel": float(met.tensor_parallel),
        "tpot_ms": met.tpot_ms,
        "tokens_per_s_per_accelerator": _per_accelerator(met),
    }
    text = (
        f"TP{met.tensor_parallel} is the smallest measured that meets {target:g} ms ({met.tpot_ms:g} ms); "
        f"{_per_accelerator(met):.1f} tokens/s per accelerator"
    )
    if met is not measured[0]:
        smaller = measured[0]
        text += f" against {_per_accelerator(smaller):.1f} at TP{smaller.tensor_parallel}"
        numbers["tokens_per_s_per_accelerator_smallest"] = _per_accelerator(smaller)
    return Judgement(
        subject=subject,
        answer=Answer.TENSOR_PARALLEL,
        because=text,
        choice=f"TP{met.tensor_parallel}",
        numbers=numbers,
    )


def _per_accelerator(each: LayoutTime) -> float:
    return 1000.0 / each.tpot_ms / each.tensor_parallel


def _heads(
    told: LayoutFacts, heads: int | None, kv_heads: int | None, dealt: int | None
) -> Judgement:
    """Judge the sizes by heads. `dealt`: KV heads that a size must deal out evenly, None if the engine need not."""
    subject, asked, count = Subject.HEADS, told.tensor_parallel, told.accelerators
    if told.latent_attention:
        ranks = asked or count
        if ranks is None:
            return _cannot(subject, "over how many ranks is unknown", "tensor_parallel")
        return Judgement(
            subject=subject,
            answer=Answer.ATTENTION_DATA_PARALLEL if ranks > 1 else Answer.FITS_HEADS,
            because=f"a latent KV is one head that every rank needs whole: {ranks} copies over {ranks} ranks",
            numbers={"kv_copies": float(ranks)},
        )
    if heads is None:
        return _cannot(subject, "the model's heads are unknown", "--model")
    sizes = layout_sizes(heads, dealt, max(count or 1, (asked or 1) * 2))
    if asked is not None and asked not in sizes.allowed:
        why = next(each.because for each in sizes.refused if each.size == asked)
        near = sizes.nearest(asked)
        return Judgement(
            subject=subject,
            answer=Answer.REJECT,
            because=f"{why}; nearest {' or '.join(str(size) for size in near)}",
            choice=", ".join(str(size) for size in near),
        )
    now = told.tensor_parallel_now
    if asked is not None and now is not None and asked > now:
        return _saved(asked, now, kv_heads)
    if count is None and asked is None:
        return _cannot(subject, "over how many ranks is unknown", "accelerators or tensor_parallel")
    allowed = tuple(size for size in sizes.allowed if size <= (count or asked or 1))
    half = [f"TP{each.size}" for each in sizes.refused if each.with_kv_support]
    text = f"TP {', '.join(str(size) for size in allowed)} divide {heads} heads"
    if half:
        text += f"; {', '.join(half)} only where the engine copies KV heads unevenly"
    size, groups = largest_layout(heads, dealt, count or asked or 1)
    return Judgement(
        subject=subject,
        answer=Answer.FITS_HEADS,
        because=f"{text}; TP{size} x {groups} replicas use all",
        choice=f"TP{size} x {groups}",
        numbers={"tensor_parallel": float(size), "replicas": float(groups)},
    )


def _saved(asked: int, now: int, kv_heads: int | None) -> Judgement:
    if kv_heads is None:
        return _cannot(Subject.HEADS, "the model's KV heads are unknown", "--model")
    before, after = kv_heads_per_rank(kv_heads, now), kv_heads_per_rank(kv_heads, asked)
    total = after * asked / (before * now)
    saves = after < before
    return Judgement(
        subject=Subject.HEADS,
        answer=Answer.FITS_HEADS if saves else Answer.NO_KV_SAVED,
        because=(
            f"TP{now} -> TP{asked}: KV heads per rank {before:g} -> {after:g}, KV of the whole group x{total:g}"
        ),
        numbers={"kv_heads_per_rank": after, "kv_total_ratio": total},
    )


def _experts(told: LayoutFacts) -> Judgement:
    subject = Subject.EXPERT_PARALLEL
    if told.exchange is ExpertExchange.ALL_REDUCE:
        return Judgement(
            subject=subject,
            answer=Answer.NOTHING_SAVED,
            because="this expert-parallel layout exchanges by all-reduce: no communication saved",
        )
    tokens, experts = told.tokens_per_step, told.experts
    if tokens is None or experts is None:
        what = "tokens_per_step" if tokens is None else "experts"
        return _cannot(subject, "how much there is to send around is unknown", what)
    ranks = told.accelerators
    if ranks is None and tokens >= EXPERT_TOKENS_MIN:
        return _cannot(subject, "over how many ranks is unknown", "accelerators")
    if tokens < EXPERT_TOKENS_MIN or experts < EXPERTS_PER_RANK_MIN * (ranks or 1):
        return Judgement(
            subject=subject,
            answer=Answer.TENSOR_PARALLEL,
            because=(
                f"{tokens:.0f} tokens a step, {experts} experts"
                + ("" if ranks is None else f", {ranks} ranks")
                + ": too few for expert parallel"
            ),
        )
    if told.exchange is None:
        return _cannot(
            subject, "how ranks exchange tokens is unknown", "exchange: all-to-all or all-reduce"
        )
    skew = told.expert_load_max_over_mean
    if skew is None:
        return _cannot(
            subject, "the load of the experts is not measured", "load of experts, max over mean"
        )
    numbers = {"straggler_factor": skew}
    if skew > SKEW_MAX:
        return Judgement(
            subject=subject,
            answer=Answer.BALANCE_FIRST,
            because=f"the busiest rank has {skew:g} times the mean load, and each step waits for it",
            numbers=numbers,
        )
    return Judgement(
        subject=subject,
        answer=Answer.EXPERT_CANDIDATE,
        because=f"{tokens:.0f} tokens per step, {experts} experts, all-to-all, load max/mean {skew:g}: worth a canary",
        numbers=numbers,
    )
