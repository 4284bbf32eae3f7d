"""What lm-eval found of one arm, item by item: its logged samples turned into outcomes that pair by document.

A line is one document under one filter: `doc_id`, `filter`, `metrics` (names), and a value for each metric. The first
metric that is right or wrong (1 or 0) counts. Source: the sample log of lm-evaluation-harness 0.4.
"""

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from trimtab.quality.eval_scores import EvalAnswer, EvalOutcome
from trimtab.quality.evals import EvalError

NO_FILTER: Final = "none"


class _Sample(msgspec.Struct):
    doc_id: int
    metrics: list[str]
    filter: str = NO_FILTER


def read_samples(lines: Iterable[bytes], *, task: str, name: str) -> tuple[EvalOutcome, ...]:
    """Return the outcomes of one task, in the order of its documents; each filter is a kind of its own.

    Raises `EvalError` that names `name` and the line.
    """
    found: dict[tuple[str, int], EvalOutcome] = {}
    for number, line in enumerate(lines, start=1):
        where = f"{name}, line {number}"
        try:
            sample = msgspec.json.decode(line, type=_Sample)
            values = msgspec.json.decode(line, type=dict[str, Any])
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise EvalError(f"{where} is no sample of lm-eval: {error}") from error
        right = _right(values, sample.metrics)
        if right is None:
            raise EvalError(
                f"{where}: none of its metrics ({', '.join(sample.metrics) or 'none'}) is right or wrong for one "
                "document: give a task that is scored by exact_match or acc"
            )
        kind = task if sample.filter == NO_FILTER else f"{task} {sample.filter}"
        outcome = EvalOutcome(f"{kind}/{sample.doc_id}", kind, EvalAnswer((right,)))
        if found.setdefault((kind, sample.doc_id), outcome) is not outcome:
            raise EvalError(f"{where}: the document {sample.doc_id} comes twice")
    if not found:
        raise EvalError(f"{name} has no samples")
    return tuple(found[key] for key in sorted(found))


def _right(values: dict[str, Any], metrics: Iterable[str]) -> bool | None:
    for metric in metrics:
        value = values.get(metric)
        if isinstance(value, int | float) and value in (0, 1):
            return bool(value)
    return None
