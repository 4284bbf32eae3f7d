"""Where n-gram speculation promises a gain: labels with measured hits, and the batch range that was measured."""

import re

import msgspec

from trimtab.core.cost import SpeculationTable
from trimtab.core.evidence import Readings
from trimtab.diagnosis.names import PerLabel, labels_in

COVERAGE_FLOOR = 0.10
"""Accepted over generated tokens below which a cut gains too little to pay for drafting."""

REPETITION_MIN = 0.50
"""Repetition of prompts from which on a label may be tried where nothing was drafted for it yet."""

DECODE_SHARE_MIN = 0.02
"""A label with a smaller part of all decode time is not worth a required cut."""


class LabelPromise(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a label is worth a required cut, and on what evidence. `decode_share` None is unknown."""

    label: str
    promising: bool
    decode_share: float | None
    because: str


def promises(readings: Readings, table: SpeculationTable) -> tuple[LabelPromise, ...]:
    """Judge every label: by its own drafts, else by the table's content, else by the repetition of its prompts.

    Repetition decides only where the table names no label at all, since a repetitive prompt does not say that
    the answer repeats it.
    """
    labels = labels_in(readings)
    words = set(re.findall(r"[\w-]+", table.content))
    names_label = any(label in words for label in labels)
    return tuple(
        _promise(readings, label, in_table=label in words, table_names_label=names_label)
        for label in labels
    )


def _promise(
    readings: Readings, label: str, *, in_table: bool, table_names_label: bool
) -> LabelPromise:
    share = readings.value(PerLabel.DECODE_SHARE.of(label))
    coverage = readings.value(PerLabel.COVERAGE.of(label))
    repetition = readings.value(PerLabel.REPETITION.of(label))
    if share is not None and share < DECODE_SHARE_MIN:
        promising, because = False, f"only {share:.1%} of decode time"
    elif coverage is not None:
        promising = coverage >= COVERAGE_FLOOR
        because = f"{coverage:.0%} of its tokens came from drafts, {COVERAGE_FLOOR:.0%} are needed"
    elif table_names_label:
        promising = in_table
        because = "the table was measured on it" if in_table else "drafting was not measured on it"
    elif repetition is None:
        promising, because = False, "neither drafts nor repetition are known"
    else:
        promising = repetition >= REPETITION_MIN
        because = (
            f"its prompts repeat {repetition:.0%} of themselves, {REPETITION_MIN:.0%} are needed"
        )
    return LabelPromise(label=label, promising=promising, decode_share=share, because=because)
