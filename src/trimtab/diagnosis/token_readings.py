"""Readings about tokens: what was promised, held, delivered, computed, lost, drafted and accepted."""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence

from trimtab.core.evidence import Window
from trimtab.core.record import RequestRecord
from trimtab.diagnosis.names import Name, PerLabel
from trimtab.diagnosis.tally import Tally, block_of, share_of


def add_tokens(
    tally: Tally,
    good: Sequence[RequestRecord],
    window: Window,
    *,
    travel_tokens: int | None = None,
) -> None:
    """Add prompt, computed, delivered, predicted, captured, lost and output tokens.

    `travel_tokens`: uncached tokens above which a prompt is long; None: nobody says which are.
    """
    told = [r for r in good if r.tokens.prompt is not None and r.tokens.delivered is not None]
    reason = "no engine report says how many prompt tokens were reused"
    prompt = sum(record.tokens.prompt or 0 for record in told)
    delivered = sum(record.tokens.delivered or 0 for record in told)
    computed = sum(record.tokens.computed or 0 for record in told)
    if told:
        tally.add(Name.PROMPT_TOKENS, prompt, "tokens", samples=len(told))
        tally.add(Name.COMPUTED_TOKENS, computed, "tokens", samples=len(told))
        tally.add(Name.DELIVERED_TOKENS, delivered, "tokens", samples=len(told))
    else:
        for name in (Name.PROMPT_TOKENS, Name.COMPUTED_TOKENS, Name.DELIVERED_TOKENS):
            tally.unknown(name, reason)
    tally.ratio(Name.DELIVERED_SHARE, delivered, prompt, "share", samples=len(told), reason=reason)
    output = [r.tokens.output for r in good if r.tokens.output is not None]
    if output:
        tally.add(Name.OUTPUT_TOKENS, sum(output), "tokens", samples=len(output))
    else:
        tally.unknown(Name.OUTPUT_TOKENS, "no output token count is known")
    _add_long(tally, good, travel_tokens)
    _add_index_tokens(tally, told, window)


def _add_long(tally: Tally, good: Sequence[RequestRecord], travel_tokens: int | None) -> None:
    """Add the share of uncached tokens that are of prompts long enough to be computed on another replica."""
    if travel_tokens is None:
        tally.unknown(
            Name.LONG_UNCACHED_SHARE, "from how many tokens on a prompt is long is unknown"
        )
        return
    each = [tokens for record in good if (tokens := _uncached(record)) is not None]
    tally.ratio(
        Name.LONG_UNCACHED_SHARE,
        sum(tokens for tokens in each if tokens > travel_tokens),
        sum(each),
        "share",
        samples=len(each),
        reason="no engine report says how many prompt tokens were computed",
    )


def _uncached(record: RequestRecord) -> int | None:
    """Return the prompt tokens that somebody computed: of one that was sent ahead, what the prefill side did."""
    if record.prefill_replica is None:
        return record.tokens.computed
    return record.tokens.prompt if record.tokens.ahead is None else record.tokens.ahead


def _add_index_tokens(tally: Tally, told: Sequence[RequestRecord], window: Window) -> None:
    no_index = "no prefix index made a promise for these requests"
    promised = [r for r in told if r.tokens.predicted is not None]
    captured = [r.tokens.captured for r in told if r.tokens.captured is not None]
    predicted = sum(r.tokens.predicted or 0 for r in promised)
    if promised:
        tally.add(Name.PREDICTED_TOKENS, predicted, "tokens", samples=len(promised))
    else:
        tally.unknown(Name.PREDICTED_TOKENS, no_index)
    if captured:
        tally.add(Name.CAPTURED_TOKENS, sum(captured), "tokens", samples=len(captured))
    else:
        tally.unknown(Name.CAPTURED_TOKENS, "what replicas held at dispatch is unknown")
    tally.ratio(
        Name.DELIVERED_OVER_PREDICTED,
        sum(min(r.tokens.delivered or 0, r.tokens.predicted or 0) for r in promised),
        predicted,
        "share",
        samples=len(promised),
        reason=no_index,
    )
    judged = [r for r in told if r.tokens.skipped_lost is not None]
    if not judged:
        reason = "what the other replicas held is unknown"
        tally.unknown(Name.SKIPPED_TOKENS_LOST, reason)
        tally.unknown(Name.SKIPPED_LOST_SHARE, reason)
        return
    lost = [float(r.tokens.skipped_lost or 0) for r in judged]
    computed = [float(r.tokens.computed or 0) for r in judged]
    tally.add(Name.SKIPPED_TOKENS_LOST, sum(lost), "tokens", samples=len(judged))
    share = share_of(lost, computed, [block_of(r.arrived_at_s, window) for r in judged])
    if share is None:
        tally.unknown(Name.SKIPPED_LOST_SHARE, "no prompt token was computed")
    else:
        tally.add(
            Name.SKIPPED_LOST_SHARE,
            share.value,
            "share of computed tokens",
            samples=len(judged),
            interval=share.interval,
        )


def add_costs(tally: Tally, good: Sequence[RequestRecord]) -> None:
    """Add the observed milliseconds per decoded token."""
    decoded = [r for r in good if r.phases.decode_ms is not None and (r.tokens.output or 0) > 1]
    tally.ratio(
        Name.DECODE_MS_PER_TOKEN,
        math.fsum(r.phases.decode_ms or 0.0 for r in decoded),
        sum((r.tokens.output or 1) - 1 for r in decoded),
        "ms/token",
        samples=len(decoded),
        reason="no decode with a known time and a known token count",
    )


def add_drafts(tally: Tally, good: Sequence[RequestRecord]) -> None:
    """Add drafts, acceptance, coverage and accepted tokens per step over all requests."""
    told = [r for r in good if r.drafting.drafted is not None and r.drafting.accepted is not None]
    if not told:
        reason = "no engine report speaks of drafts"
        for name in (
            Name.DRAFTS,
            Name.DRAFTED_TOKENS,
            Name.ACCEPTED_TOKENS,
            Name.DRAFT_ACCEPTANCE,
            Name.DRAFT_COVERAGE,
            Name.ACCEPTED_PER_STEP,
        ):
            tally.unknown(name, reason)
        return
    n = len(told)
    drafted = sum(r.drafting.drafted or 0 for r in told)
    accepted = sum(r.drafting.accepted or 0 for r in told)
    output = sum(r.tokens.output or 0 for r in told)
    counted = [r.drafting.drafts for r in told if r.drafting.drafts is not None]
    if counted:
        tally.add(Name.DRAFTS, sum(counted), "drafts", samples=len(counted))
    else:
        tally.unknown(Name.DRAFTS, "the engine counts drafted tokens, not drafts")
    tally.add(Name.DRAFTED_TOKENS, drafted, "tokens", samples=n)
    tally.add(Name.ACCEPTED_TOKENS, accepted, "tokens", samples=n)
    tally.ratio(
        Name.DRAFT_ACCEPTANCE, accepted, drafted, "share", samples=n, reason="nothing was drafted"
    )
    reason = "no output token count is known"
    tally.ratio(Name.DRAFT_COVERAGE, accepted, output, "share", samples=n, reason=reason)
    tally.ratio(
        Name.ACCEPTED_PER_STEP,
        output,
        output - accepted,
        "tokens/step",
        samples=n,
        reason=reason,
    )


def add_labels(tally: Tally, good: Sequence[RequestRecord]) -> None:
    """Add request share, decode share, repetition and draft figures per workload label."""
    by_label: dict[str, list[RequestRecord]] = defaultdict(list)
    for record in good:
        if record.label is not None:
            by_label[record.label].append(record)
    decode_ms = math.fsum(record.phases.decode_ms or 0.0 for record in good)
    for label, theirs in sorted(by_label.items()):
        _add_label(tally, label, theirs, len(good), decode_ms)


def _add_label(
    tally: Tally, label: str, theirs: Sequence[RequestRecord], n: int, decode_ms: float
) -> None:
    sane = [r for r in theirs if not r.looping]
    drafted = _total(sane, lambda r: r.drafting.drafted)
    accepted = _total(sane, lambda r: r.drafting.accepted)
    output = _total([r for r in sane if r.drafting.accepted is not None], lambda r: r.tokens.output)
    own_ms = math.fsum(r.phases.decode_ms or 0.0 for r in theirs)
    repetition = [r.repetition for r in theirs if r.repetition is not None]
    rows = (
        (PerLabel.REQUEST_SHARE, len(theirs), n, "no request"),
        (PerLabel.DECODE_SHARE, own_ms, decode_ms, "decode times are unknown"),
        (PerLabel.REPETITION, math.fsum(repetition), len(repetition), "no prompt was measured"),
        (PerLabel.ACCEPTANCE, accepted, drafted, "nothing was drafted for this label"),
        (PerLabel.COVERAGE, accepted, output if drafted else 0, "nothing was drafted for it"),
    )
    for name, part, whole, reason in rows:
        tally.ratio(name.of(label), part, whole, "share", samples=len(theirs), reason=reason)


def _total(records: Sequence[RequestRecord], field: Callable[[RequestRecord], int | None]) -> int:
    return sum(field(record) or 0 for record in records)
