"""What the record of n-gram speculation says: its condition, predictions, gates and triggers.

All latencies are compared at matched batch, because the arms run on replicas of their own whose loads differ.
"""

from msgspec.structs import replace

from trimtab.core.break_even import BreakEven
from trimtab.core.cost import SpeculationTable
from trimtab.core.cuts import Cut, Dimension, temperature_bucket
from trimtab.core.gate import GateSpec, Metric, Question, Statistic
from trimtab.core.lever import (
    ExpectedEffect,
    Situation,
    TriggerAction,
    TriggerSignal,
    TriggerSpec,
)
from trimtab.diagnosis.calibration import speedup_at
from trimtab.diagnosis.causes import step_batch
from trimtab.levers.shape import clamp_ratio
from trimtab.levers.speculation_cuts import COVERAGE_FLOOR, LabelPromise
from trimtab.rollout.defaults import (
    TAIL_PROVEN_MARGIN,
    TPOT_MARGIN,
    technique_gain,
    technique_vetoes,
    veto,
)

HYSTERESIS = 0.7
"""The batch at which speculation may come back, as a part of the one at which it goes off."""

ACCEPTANCE_FLOOR = 0.30
"""Accepted over drafted tokens below which most verification is wasted."""

TPOT_GAIN_MARGIN = 0.05
TTFT_HARM_MARGIN = 0.25
CHUNK_GAP_HARM_MARGIN_MIN, CHUNK_GAP_HARM_MARGIN_MAX = 1.0, 10.0
"""Drafts make chunks lumpy: several tokens, then a longer gap. Users read tokens, so the margin is wide."""

CHUNK_GAP_ROOM = 1.5
"""How much longer than the predicted mean step the longest gap of a stream may be."""


def off_batch(table: SpeculationTable) -> float:
    """Return the batch above which speculation goes off: up to there its gain is shown; 0 where nowhere."""
    return table.break_even().off_at if table.ratios() else 0.0


def on_batch(off_at: float) -> float:
    """Return the batch below which it may come back: lower than `off_at`, so that it does not flap."""
    return round(off_at * HYSTERESIS, 2)


def condition_of(judged: tuple[LabelPromise, ...], off_at: float) -> str:
    """Return the condition of traffic in words."""
    labels = [each.label for each in judged if each.promising]
    where = f"requests labelled {', '.join(labels)}" if labels else "all requests"
    return f"{where}, while a replica decodes at most {off_at:.1f} streams at once"


def expected_effects(situation: Situation, table: SpeculationTable) -> tuple[ExpectedEffect, ...]:
    """Return the predicted TPOT and chunk gap ratios from the measured table; none without a batch."""
    batch = step_batch(situation.readings)
    likely = None if batch is None else speedup_at(table, batch)
    if likely is None:
        return ()
    below = [ratio for at, ratio in table.ratios() if at <= off_batch(table)]
    best, worst = max([likely, *below]), max(1.0, min([likely, *below]))
    effects = [
        ExpectedEffect(
            metric=Metric.TPOT_MS,
            ratio=clamp_ratio(1.0 / likely),
            low=clamp_ratio(1.0 / best),
            high=clamp_ratio(max(1.0 / likely, 1.0 / worst)),
            because=f"measured {likely:.2f}x at batch {batch:.1f} on {table.content}",
        )
    ]
    step = _step_ratio(table, likely)
    if step is not None:
        effects.append(
            ExpectedEffect(
                metric=Metric.CHUNK_GAP_MS,
                ratio=clamp_ratio(step),
                low=clamp_ratio(min(0.5, step)),
                high=max(2.0, CHUNK_GAP_ROOM * step),
                because=f"a step that verifies drafts takes {step:.1f} times as long and carries more tokens",
            )
        )
    return tuple(effects)


def _step_ratio(table: SpeculationTable, speedup: float) -> float | None:
    """Return how much longer a speculated step is: tokens per step over the gain in tokens per second."""
    told = [point.accepted_per_step for point in table.on if point.accepted_per_step is not None]
    return None if not told or speedup <= 0.0 else told[0] / speedup


def chunk_gap_margin(table: SpeculationTable) -> float:
    """Return how much worse the longest chunk gap may get: the predicted step with room, within bounds."""
    ratios = table.ratios()
    step = _step_ratio(table, ratios[0][1]) if ratios else None
    wanted = 0.0 if step is None else CHUNK_GAP_ROOM * step - 1.0
    return min(CHUNK_GAP_HARM_MARGIN_MAX, max(CHUNK_GAP_HARM_MARGIN_MIN, wanted))


def gates_of(
    cuts: tuple[Cut, ...], judged: tuple[LabelPromise, ...], table: SpeculationTable
) -> tuple[GateSpec, ...]:
    """Return the gates: a TPOT gain in every promising cut, a trial of the rest, latencies at matched batch."""
    required: tuple[Cut | None, ...] = cuts or (None,)
    gains = tuple(
        technique_gain(
            f"tpot-gain-{'all' if cut is None else cut.value}",
            Metric.TPOT_MS,
            TPOT_GAIN_MARGIN,
            cut=cut,
            matched_batch=True,
        )
        for cut in required
    )
    others = tuple(gate for each in judged if not each.promising for gate in _trial(each.label))
    return (
        *gains,
        *others,
        veto(Metric.TTFT_MS, TTFT_HARM_MARGIN, matched_batch=True),
        veto(Metric.TPOT_MS, TAIL_PROVEN_MARGIN, statistic=Statistic.TAIL_P95),
        veto(Metric.CHUNK_GAP_MS, chunk_gap_margin(table), matched_batch=True),
        *technique_vetoes(matched_batch=True),
    )


def _trial(label: str) -> tuple[GateSpec, ...]:
    """Return the gates of a label that promises nothing: it is tried, and kept only if it gains all the same."""
    cut = Cut(Dimension.LABEL, label)
    gain = technique_gain(
        f"tpot-gain-{label}",
        Metric.TPOT_MS,
        TPOT_GAIN_MARGIN,
        cut=cut,
        matched_batch=True,
        required=False,
    )
    harm = GateSpec(
        name=f"tpot-veto-{label}",
        metric=Metric.TPOT_MS,
        question=Question.VETO,
        margin=TPOT_MARGIN,
        cut=cut,
        matched_batch=True,
        required=False,
    )
    return gain, harm


TEMPERATURES = (temperature_bucket(0.0), temperature_bucket(1.0))
"""Greedy and sampled: acceptance falls with temperature by design, so each is watched for itself."""


def triggers_of(
    table: SpeculationTable, *, fitted: BreakEven | None = None
) -> tuple[TriggerSpec, ...]:
    """Return the triggers: batch, net TPOT, acceptance and coverage; what drafts do, by temperature as well.

    So without a cut the signals of drafts are those of the temperature that does best (`rollout.signals`).
    `fitted`: the break-even by whose lower end it goes off, where predictions tell more of it than the table's rounds.
    """
    even = table.break_even() if fitted is None else fitted
    return (
        TriggerSpec(
            name="batch-over-break-even",
            signal=TriggerSignal.BATCH,
            off_at=even.off_at,
            on_at=on_batch(even.off_at),
            off_when_above=True,
            because=_why_off(even),
        ),
        *_drafts(None),
        *(
            each
            for value in TEMPERATURES
            if value is not None
            for each in _drafts(Cut(Dimension.TEMPERATURE, value))
        ),
    )


def _why_off(even: BreakEven) -> str:
    """Say why it goes off above a batch: a break-even is never measured itself, but lies between batches that are."""
    if even.low is not None:
        return f"above batch {even.off_at:.1f} no gain is shown; break-even: {even.told}"
    if even.untold_from is not None:
        return f"batch {even.untold_from} has too few paired rounds to tell whether it gains there"
    return f"nothing was measured above batch {even.off_at:g}"


def _drafts(cut: Cut | None) -> tuple[TriggerSpec, ...]:
    """Return what can only be seen while drafting, so that none of it brings the lever back by itself."""
    where = "" if cut is None else f"-{cut.dimension.value}-{cut.value}"
    found = (
        TriggerSpec(
            name=f"net-tpot-worse{where}",
            signal=TriggerSignal.NET_TPOT_RATIO,
            off_at=1.0,
            on_at=None,
            off_when_above=True,
            min_samples=10,
            because="tokens take longer with drafting than without at matched batch",
        ),
        TriggerSpec(
            name=f"acceptance-under-floor{where}",
            signal=TriggerSignal.DRAFT_ACCEPTANCE,
            off_at=ACCEPTANCE_FLOOR,
            on_at=None,
            off_when_above=False,
            because="most drafted tokens are rejected: verification is wasted",
        ),
        TriggerSpec(
            name=f"coverage-under-floor{where}",
            signal=TriggerSignal.DRAFT_COVERAGE,
            off_at=COVERAGE_FLOOR,
            on_at=None,
            off_when_above=False,
            because="too few output tokens come from drafts to pay for looking them up",
        ),
    )
    if cut is None:
        return found
    return tuple(replace(each, action=TriggerAction.DISABLE_CUT, cut=cut) for each in found)
