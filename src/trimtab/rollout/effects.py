"""What a lever did, as the last look at its gates says: the ratios of what had to be shown, beside the predictions."""

from collections.abc import Sequence

from trimtab.core.events import Effect
from trimtab.core.gate import GateResult, Metric, Question
from trimtab.core.lever import LeverRecord


def effects_of(record: LeverRecord, results: Sequence[GateResult]) -> tuple[Effect, ...]:
    """Return the effects that the required gates measured."""
    return tuple(
        _effect(record, result)
        for result in results
        if result.required and result.value is not None and _is_ratio(result)
    )


def _is_ratio(result: GateResult) -> bool:
    """Whether a result says candidate over baseline; shares and rates are differences and stay with their gate."""
    differences = (Metric.ERROR_RATE, Metric.OUTPUT_DIFFERENCE)
    return result.metric not in differences and "tail" not in result.gate


def _effect(record: LeverRecord, result: GateResult) -> Effect:
    predicted = next((e.ratio for e in record.expected if e.metric is result.metric), None)
    return Effect(
        lever=record.name,
        metric=result.metric.value,
        cut=result.cut,
        ratio=result.value,
        low=result.interval.low if result.interval else None,
        high=result.interval.high if result.interval else None,
        n_baseline=result.n_baseline,
        n_candidate=result.n_candidate,
        n_units=result.n_units,
        predicted_ratio=predicted if result.question is Question.GAIN else None,
    )
