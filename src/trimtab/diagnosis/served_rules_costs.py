"""What prefill and decode should cost on a server, measured or predicted by roofline, and how much of it is used.

A measured cost model goes before the roofline, which knows peaks only and is a lower bound of time. Per rank:
    decode busy share  = decode steps per second * predicted step time
    prefill busy share = computed prompt tokens per second * predicted time per token
    steps per second   = output tokens per second / (batch * tokens per step of a stream)
"""

import msgspec

from trimtab.core.cost import CostModel
from trimtab.core.evidence import Readings
from trimtab.diagnosis.roofline import decode_work, floors_of, prefill_work
from trimtab.diagnosis.served_facts import ServedFacts
from trimtab.diagnosis.served_names import ServedName

PROMPT_TOKENS_ASSUMED = 1024.0
"""Prompt length at which a prefill is predicted where nobody tells it; its cost per token hardly depends on it."""


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """Predicted costs of one rank at its observed batch; None where a fact is missing, and `missing` says which.

    `token_ms`: per output token of one stream. `bandwidth_part`: part of a decode step (0 to 1) that is reading
    memory; `weights_part`: part that is reading weights; `communication_ms`, `memory_ms`: least time of a step's
    collectives and of its reading.
    `*_busy_share`: part of the time that the observed work would take at these costs. `batch`: streams of a step.
    """

    source: str = ""
    missing: str = ""
    batch: float | None = None
    prefill_ms_per_token: float | None = None
    step_ms: float | None = None
    token_ms: float | None = None
    bandwidth_part: float | None = None
    weights_part: float | None = None
    prefill_busy_share: float | None = None
    decode_busy_share: float | None = None
    communication_ms: float | None = None
    memory_ms: float | None = None
    measured: bool = False


class _StepCost(msgspec.Struct, frozen=True, kw_only=True):
    source: str
    prefill_ms_per_token: float | None
    step_ms: float | None = None
    bandwidth_part: float | None = None
    weights_part: float | None = None
    communication_ms: float | None = None
    memory_ms: float | None = None
    measured: bool = False


def costs_of(readings: Readings, facts: ServedFacts) -> Costs:
    """Return what the work observed should cost; nothing is assumed of a model or accelerator that is not told."""
    batch = batch_of(readings)
    step = _step(readings, facts, batch)
    if isinstance(step, str):
        return Costs(missing=step, batch=batch)
    per_step = tokens_per_step_of(readings)
    ranks = max(1.0, readings.value(ServedName.RANKS) or 1.0)
    output = readings.value(ServedName.OUTPUT_TOKENS_PER_S)
    computed = readings.value(ServedName.COMPUTED_PROMPT_TOKENS_PER_S)
    decode_busy = prefill_busy = None
    if output is not None and step.step_ms is not None and batch:
        decode_busy = output / ranks / (batch * per_step) * step.step_ms / 1000.0
    if computed is not None and step.prefill_ms_per_token is not None:
        prefill_busy = computed / ranks * step.prefill_ms_per_token / 1000.0
    return Costs(
        source=step.source,
        batch=batch,
        prefill_ms_per_token=step.prefill_ms_per_token,
        step_ms=step.step_ms,
        token_ms=None if step.step_ms is None else step.step_ms / per_step,
        bandwidth_part=step.bandwidth_part,
        weights_part=step.weights_part,
        prefill_busy_share=prefill_busy,
        decode_busy_share=decode_busy,
        communication_ms=step.communication_ms,
        memory_ms=step.memory_ms,
        measured=step.measured,
    )


def batch_of(readings: Readings) -> float | None:
    """Return the streams of a decode step on one rank: running requests over ranks, at least 1 while any runs."""
    running = readings.value(ServedName.RUNNING_MEAN)
    if running is None or running <= 0:
        return None
    return max(1.0, running / max(1.0, readings.value(ServedName.RANKS) or 1.0))


def tokens_per_step_of(readings: Readings) -> float:
    """Return the tokens that a stream gets per step: 1, with drafts more on the steps that had one."""
    length = readings.value(ServedName.ACCEPTED_LENGTH_WITH_BONUS)
    if length is None:
        return 1.0
    drafted = readings.value(ServedName.DRAFTED_SHARE_OF_STEPS)
    return max(1.0, 1.0 + (length - 1.0) * (1.0 if drafted is None else min(1.0, drafted)))


def context_of(readings: Readings) -> float | None:
    """Return the mean tokens of context that a stream reads in a step: its prompt and half of its output."""
    prompt = readings.value(ServedName.PROMPT_LENGTH_MEAN)
    if prompt is None:
        return None
    return prompt + 0.5 * (readings.value(ServedName.OUTPUT_LENGTH_MEAN) or 0.0)


def _timed_ms(cost: CostModel, batch: float, readings: Readings) -> float:
    """Return a whole step by timed tokens; what steps gave when nobody counted is taken to be what they give now."""
    if cost.tokens_per_step is None:
        return cost.step_ms(batch) * tokens_per_step_of(readings)
    return cost.whole_step_ms(batch)


def _step(readings: Readings, facts: ServedFacts, batch: float | None) -> _StepCost | str:
    if facts.cost is not None:
        return _StepCost(
            source=f"measured ({facts.cost.source})",
            prefill_ms_per_token=facts.cost.prefill_ms_per_token,
            step_ms=None if batch is None else _timed_ms(facts.cost, batch, readings),
            bandwidth_part=None if batch is None else facts.cost.bandwidth_share_of_step(batch),
            weights_part=None if batch is None else facts.cost.bandwidth_share_of_step(batch),
            measured=True,
        )
    lacking = [
        flag
        for flag, fact in (("--model", facts.model), ("--hardware", facts.accelerator))
        if fact is None
    ]
    if lacking:
        return f"{' and '.join(lacking)} would tell what a step should cost"
    return _by_roofline(readings, facts, batch)


def _by_roofline(readings: Readings, facts: ServedFacts, batch: float | None) -> _StepCost | str:
    """The one place that asks the roofline."""
    model, device, devices = facts.model, facts.accelerator, facts.accelerators or 1
    assert model is not None, "asked for without a model"
    assert device is not None, "asked for without an accelerator"
    source = f"roofline of {model.name} on {devices} x {device.name}"
    prompt = readings.value(ServedName.PROMPT_LENGTH_MEAN)
    prefill = prefill_work(model, tokens=prompt or PROMPT_TOKENS_ASSUMED, devices=devices)
    per_prompt = floors_of(prefill, device).floor_ms
    per_token = None if per_prompt is None else per_prompt / prefill.tokens
    if batch is None:
        return _StepCost(source=source, prefill_ms_per_token=per_token)
    # A lower bound stays one if the context is unknown and its KV is left out.
    context = context_of(readings)
    source += "" if context is not None else ", KV left out for want of prompt lengths"
    work = decode_work(model, batch=batch, context_tokens=context or 0.0, devices=devices)
    floors = floors_of(work, device)
    compute, memory = floors.compute_ms, floors.memory_ms
    if memory is None:
        return f"weights of {model.name} or bandwidth of {device.name} would tell what a step should cost"
    weights = (work.weight_bytes or 0.0) / work.bytes if work.bytes else 0.0
    part = None if compute is None else memory / (compute + memory)
    return _StepCost(
        source=source,
        prefill_ms_per_token=per_token,
        step_ms=max(memory, compute or 0.0, floors.communication_ms or 0.0),
        memory_ms=memory,
        bandwidth_part=part,
        weights_part=None if part is None else weights * part,
        communication_ms=floors.communication_ms,
    )
