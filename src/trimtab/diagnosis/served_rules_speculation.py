"""Whether drafting pays at this batch, on this model, beside these features: measured ratios, never a promise.

Laws: off from the first measured batch that loses, on again at the interpolated break-even, which lies below it; what
lies between keeps its state. Speed of a drafted step = (1 + accepted per draft) / (1 + drafting / step).
Failure mode: ratios measured while requests waited speak of a saturated server only.
"""

import itertools
from collections.abc import Iterator, Sequence

from trimtab.core.evidence import Readings
from trimtab.diagnosis.served_advice import Answer, Judgement, Subject
from trimtab.diagnosis.served_facts import ServedFacts, SpeculationFacts, TpotRatio
from trimtab.diagnosis.served_names import ServedName
from trimtab.diagnosis.served_rules_costs import batch_of

SATURATED_SHARE = 0.95
"""From this part of a test in which requests waited on it says nothing of low load."""


def speculation_judgements(readings: Readings, facts: ServedFacts) -> Iterator[Judgement]:
    """Give what the facts of speculation say; nothing without them."""
    told = facts.speculation
    if told is None:
        return
    if told.ratios or told.batches or told.is_on is not None:
        yield _by_batch(readings, told)
    if told.step_ms is not None or told.proposer_ms is not None:
        yield _cost(readings, told)
    if told.waiting_share is not None and told.waiting_share >= SATURATED_SHARE:
        yield Judgement(
            subject=Subject.SPECULATION_LOAD,
            answer=Answer.NO_VERDICT,
            because=(
                f"requests waited for {told.waiting_share:.0%} of the test: saturated; no verdict for low load"
            ),
            numbers={"waiting_share": told.waiting_share},
        )
    elif told.waiting_share is None and told.ratios:
        yield Judgement(
            subject=Subject.SPECULATION_LOAD,
            answer=None,
            because="whether requests waited while the ratios were measured is not told",
            would_tell="the gauge of waiting requests over the test",
        )
    if told.wanted_with:
        yield _pairs(told)


def marks_of(ratios: Sequence[TpotRatio]) -> tuple[float | None, float | None]:
    """Return (off at and above, on at and below); (None, None) if no measured batch loses.

    (smallest batch, None): not even the smallest pays.
    """
    ordered = sorted(ratios, key=lambda each: each.batch)
    if ordered and ordered[0].ratio >= 1.0:
        return ordered[0].batch, None
    for low, high in itertools.pairwise(ordered):
        if high.ratio >= 1.0:
            part = (1.0 - low.ratio) / (high.ratio - low.ratio)
            return high.batch, low.batch + (high.batch - low.batch) * part
    return None, None


def states_of(ratios: Sequence[TpotRatio], batches: Sequence[float], is_on: bool) -> list[bool]:
    """Return on or off at each batch in turn, beginning from `is_on`."""
    off_at, on_at = marks_of(ratios)
    states = []
    for batch in batches:
        if off_at is not None and batch >= off_at:
            is_on = False
        elif off_at is None or (on_at is not None and batch <= on_at):
            is_on = True
        states.append(is_on and not (off_at is not None and on_at is None))
    return states


def _by_batch(readings: Readings, told: SpeculationFacts) -> Judgement:
    batch = batch_of(readings)
    batches = told.batches or (() if batch is None else (batch,))
    if len(told.ratios) < 2 or not batches:
        lacking = "two batches measured with and without drafts" if batches else "the running batch"
        return Judgement(
            subject=Subject.SPECULATION_BATCH,
            answer=None,
            because="at which batch drafting stops to pay is unknown",
            would_tell=lacking,
        )
    off_at, on_at = marks_of(told.ratios)
    states = states_of(told.ratios, batches, bool(told.is_on))
    numbers = {"batch": batches[-1]}
    if off_at is not None:
        numbers["off_at_batch"] = off_at
    if on_at is not None:
        numbers["on_at_batch"] = on_at
    if off_at is None:
        why = "drafting pays at every measured batch"
    elif on_at is None:
        why = f"drafting loses at every batch from {off_at:g} on, the smallest measured"
    else:
        why = (
            f"off at {off_at:g} and above, on again at {on_at:.0f} and below, as it was in between"
        )
    return Judgement(
        subject=Subject.SPECULATION_BATCH,
        answer=Answer.ON if states[-1] else Answer.OFF,
        because=why,
        choice=", ".join("on" if state else "off" for state in states),
        numbers=numbers,
    )


def _cost(readings: Readings, told: SpeculationFacts) -> Judgement:
    subject, step, proposer = Subject.SPECULATION_COST, told.step_ms, told.proposer_ms
    if step is None or proposer is None or step <= 0:
        return Judgement(
            subject=subject,
            answer=None,
            because="what a draft costs against a step is unknown",
            would_tell="time of one step" if not step else "time of drafting for one step",
        )
    accepted = told.tokens_per_draft
    if accepted is None:
        accepted = readings.value(ServedName.ACCEPTED_LENGTH_WITHOUT_BONUS)
    gain = 1.0 if accepted is None else accepted
    speedup = (1.0 + gain) / (1.0 + proposer / step)
    numbers = {"step_ms": step, "proposer_ms": proposer, "speedup": speedup}
    if speedup <= 1.0:
        return Judgement(
            subject=subject,
            answer=Answer.REFUSE,
            because=(
                f"drafting costs more than the step it saves: {proposer:.3g} ms for a step of {step:.3g} ms"
                + ("" if accepted is None else f" at {accepted:.2f} accepted tokens per draft")
            ),
            numbers=numbers,
        )
    if accepted is None:
        return Judgement(
            subject=subject,
            answer=None,
            because=f"drafting for {proposer:.3g} ms is cheaper than a step of {step:.3g} ms, if drafts are accepted",
            numbers={"step_ms": step, "proposer_ms": proposer},
            would_tell="accepted tokens per draft",
        )
    return Judgement(
        subject=subject,
        answer=Answer.ON,
        because=f"{accepted:.2f} accepted tokens per draft make {speedup:.2f} times the speed, before verification",
        numbers=numbers,
    )


def _pairs(told: SpeculationFacts) -> Judgement:
    subject = Subject.SPECULATION_PAIR
    if told.uncombinable is None:
        return Judgement(
            subject=subject,
            answer=None,
            because="what this engine's version combines with speculation is unknown",
            would_tell="the engine's own list for its version, or a canary with a validity gate",
        )
    bad = [each for each in told.wanted_with if each in told.uncombinable]
    if not bad:
        return Judgement(
            subject=subject,
            answer=Answer.KEEP,
            because=f"nothing speaks against speculation beside {', '.join(told.wanted_with)}",
        )
    return Judgement(
        subject=subject,
        answer=Answer.REFUSE,
        because=f"this engine cannot combine speculation with {', '.join(bad)}: refused before any traffic",
        choice=", ".join(bad),
    )
