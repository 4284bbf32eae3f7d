"""Whether drafting pays at this batch, on this model, beside these features: measured ratios, never a promise.

Laws: off from the first measured batch that loses, on again at the interpolated break-even, which lies below it; what
lies between keeps its state. Speed of a drafted step = (1 + accepted per draft) / (1 + drafting / step).
Failure mode: ratios measured while requests waited speak of a saturated server only.
"""

import itertools
from collections.abc import Iterator, Sequence

from trimtab.core.evidence import Evidence, Readings
from trimtab.diagnosis.served_advice import Answer, Judgement, Subject
from trimtab.diagnosis.served_facts import ServedFacts, SpeculationFacts, TpotRatio
from trimtab.diagnosis.served_names import ServedName
from trimtab.diagnosis.served_rules_costs import batch_of, context_of, costs_of

SATURATED_SHARE = 0.95
"""From this part of a test in which requests waited on it says nothing of low load."""

SCRAPES_MIN = 2
"""One scrape is a moment and not the whole of a test."""


def speculation_judgements(readings: Readings, facts: ServedFacts) -> Iterator[Judgement]:
    """Give what the facts of speculation say; nothing without them."""
    told = facts.speculation or SpeculationFacts()
    if told.ratios or told.batches or told.is_on is not None:
        yield _by_batch(readings, told)
    else:
        yield from _by_cost(readings, facts)
    if told.step_ms is not None or told.proposer_ms is not None:
        yield _cost(readings, told)
    yield from _load(readings, told)
    if told.wanted_with:
        yield _pairs(told)


def _load(readings: Readings, told: SpeculationFacts) -> Iterator[Judgement]:
    """Say what a queue leaves of a test of speculation: by the facts, else by the scrapes of a server that drafts."""
    subject, share = Subject.SPECULATION_LOAD, told.waiting_share
    if share is None and drafts(readings):
        yield from _load_seen(readings)
    elif share is None and told.ratios:
        yield Judgement(
            subject=subject,
            answer=None,
            because="whether requests waited while the ratios were measured is not told",
            would_tell="the gauge of waiting requests over the test",
        )
    elif share is not None and share >= SATURATED_SHARE:
        yield Judgement(
            subject=subject,
            answer=Answer.NO_VERDICT,
            because=f"requests waited for {share:.0%} of the test: saturated; no verdict for low load",
            numbers={"waiting_share": share},
        )


def drafts(readings: Readings) -> bool:
    """Say whether the server drafts, by its own counters or gauges."""
    names = (ServedName.DRAFT_ACCEPTANCE_SHARE, ServedName.ACCEPTED_LENGTH_WITH_BONUS)
    return any(readings.value(name) is not None for name in names)


def _load_seen(readings: Readings) -> Iterator[Judgement]:
    subject, least = Subject.SPECULATION_LOAD, readings.get(ServedName.WAITING_MIN)
    if not isinstance(least, Evidence):
        yield Judgement(
            subject=subject,
            answer=None,
            because="the server drafts; whether requests wait all the time is not told",
            would_tell="the gauge of waiting requests over several scrapes",
        )
    elif least.value > 0 and (least.samples or 1) < SCRAPES_MIN:
        yield Judgement(
            subject=subject,
            answer=None,
            because=f"the server drafts and {least.value:.0f} requests wait at the only scrape",
            would_tell="more scrapes: whether they wait all the time",
        )
    elif least.value > 0:
        yield Judgement(
            subject=subject,
            answer=Answer.NO_VERDICT,
            because=(
                f"at least {least.value:.0f} requests waited at each of {least.samples} scrapes: saturated; "
                "no verdict for low load"
            ),
            numbers={"waiting_min": least.value},
        )


def _by_cost(readings: Readings, facts: ServedFacts) -> Iterator[Judgement]:
    """Say that drafts lose at this batch where checking them must cost more than they give; a gain is not claimed.

    Law: (1 + accepted) tokens a step, against a step that computes (1 + drafted) tokens of each stream. What a step
    takes beyond its predicted cost is the same with drafts and without.
    """
    costs = costs_of(readings, facts)
    drafted, accepted = _per_step(readings)
    if drafted is None or accepted is None or costs.bandwidth_part is None or not costs.step_ms:
        return
    memory, compute = costs.bandwidth_part, 1.0 - costs.bandwidth_part
    checked = compute * (1.0 + drafted)
    longer = memory + checked if costs.measured else max(memory, checked) / max(memory, compute)
    if 1.0 + accepted >= longer:
        return
    lacking = _not_told(readings, costs.measured)
    token = readings.value(ServedName.TPOT_MS_MEAN)
    if lacking or token is None:
        yield Judgement(
            subject=Subject.SPECULATION_BATCH,
            answer=None,
            because="checking the drafts may cost more than they give at this batch",
            would_tell=lacking,
        )
        return
    with_drafts = costs.step_ms * longer
    beyond = max(0.0, token * (1.0 + accepted) - with_drafts)
    speed = (1.0 + accepted) * (costs.step_ms + beyond) / (with_drafts + beyond)
    if speed >= 1.0:
        return
    yield Judgement(
        subject=Subject.SPECULATION_BATCH,
        answer=Answer.OFF,
        because=(
            f"at batch {costs.batch or 1.0:.0f} steps are bound by compute: {drafted:.2f} drafted and {accepted:.2f} "
            f"accepted tokens a step make {speed:.2f} times the tokens per second by {costs.source}"
        ),
        numbers={"batch": costs.batch or 1.0, "speedup": speed},
    )


def _not_told(readings: Readings, measured: bool) -> str:
    """Return what a verdict by cost still lacks: without prompt lengths the reading of KV is left out of a step."""
    if not measured and context_of(readings) is None:
        return "the engine's histogram of prompt lengths"
    return (
        "" if readings.value(ServedName.TPOT_MS_MEAN) is not None else "the time per output token"
    )


def _per_step(readings: Readings) -> tuple[float | None, float | None]:
    """Return drafted and accepted tokens of a stream's step, over all its steps; None where a counter is absent."""
    part = readings.value(ServedName.ACCEPTED_SHARE_OF_OUTPUT)
    share = readings.value(ServedName.DRAFT_ACCEPTANCE_SHARE)
    if part is None or part >= 1.0 or not share:
        return None, None
    accepted = part / (1.0 - part)
    return accepted / share, accepted


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
