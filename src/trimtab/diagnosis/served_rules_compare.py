"""Two arms or two days side by side: time per token and not per chunk, slices and not averages, noise before blame."""

from collections.abc import Iterator

from trimtab.core.evidence import Readings
from trimtab.core.stats import difference_e_value, exact_no_harm
from trimtab.diagnosis.served_advice import Answer, Judgement, Subject
from trimtab.diagnosis.served_facts import (
    AcceptanceSlice,
    ArmTimes,
    GapChange,
    OutputDifference,
    ServedFacts,
    ValiditySlice,
)
from trimtab.diagnosis.served_names import ServedName

SAME_PART = 0.02
"""A time per token that changes by less is called unchanged."""

SLICE_SAME_SHARE = 0.03
"""A slice's draft acceptance that changes by less is called unchanged."""

POOLED_DIFFERS_SHARE = 0.1
"""Slices weighted by requests and a server's count of drafted tokens may differ by this much."""

MATCHED_BATCH_RATIO = 1.5
"""Batches that differ by more may explain a change of the time per token by themselves."""

VALIDITY_MARGIN = 0.02
"""More invalid answers than this are harm, whatever the slice's size."""

ALPHA = 0.05


def compare_judgements(readings: Readings, facts: ServedFacts) -> Iterator[Judgement]:
    """Give what the comparisons among the facts say; a page that contradicts them is heard."""
    if facts.arms is not None:
        yield _token_time(*facts.arms)
    if facts.acceptance:
        yield _acceptance(facts.acceptance, readings.value(ServedName.DRAFT_ACCEPTANCE_SHARE))
    if facts.validity:
        yield _validity(facts.validity)
    if facts.outputs is not None:
        yield _outputs(facts.outputs)
    if facts.gaps is not None:
        yield _gaps(facts.gaps)


def token_ms_of(arm: ArmTimes) -> float | None:
    """Return milliseconds per output token: as told, (E2E - TTFT) / (tokens - 1), or chunk gap over tokens per chunk.

    None where neither is told, and where everything came in one chunk: then nothing was seen between tokens.
    """
    if _one_chunk(arm):
        return None
    if arm.tpot_ms is not None:
        return arm.tpot_ms
    tokens = arm.output_tokens
    if arm.e2e_ms is not None and arm.ttft_ms is not None and tokens is not None and tokens > 1:
        return (arm.e2e_ms - arm.ttft_ms) / (tokens - 1.0)
    if arm.chunk_gap_ms is not None and arm.tokens_per_chunk:
        return arm.chunk_gap_ms / arm.tokens_per_chunk
    return None


def _one_chunk(arm: ArmTimes) -> bool:
    return arm.chunks is not None and arm.chunks <= 1


def _token_time(before: ArmTimes, after: ArmTimes) -> Judgement:
    subject = Subject.TOKEN_TIME
    if _one_chunk(before) or _one_chunk(after):
        tokens = (after if _one_chunk(after) else before).output_tokens
        return Judgement(
            subject=subject,
            answer=Answer.NOT_OBSERVABLE,
            because=f"{tokens or 0.0:.0f} tokens came in one chunk: TPOT is not observable from chunks",
        )
    old, new = token_ms_of(before), token_ms_of(after)
    if old is None or new is None or old <= 0:
        return Judgement(
            subject=subject,
            answer=None,
            because="a chunk gap is no token time, and nobody tells the tokens",
            would_tell="the server's count of output tokens (stream_options.include_usage), or tokens per chunk",
        )
    change = new / old - 1.0
    numbers = {"token_ms_before": old, "token_ms_after": new, "token_change": change}
    text = f"per token {old:.3g} -> {new:.3g} ms ({change:+.0%})"
    if before.chunk_gap_ms and after.chunk_gap_ms is not None:
        gap = after.chunk_gap_ms / before.chunk_gap_ms - 1.0
        numbers["chunk_gap_change"] = gap
        text += f"; chunk gap {gap:+.0%}, which is smoothness and no token time: judge by TPOT"
    batches = _by_batch(before, after, change)
    if batches:
        return Judgement(
            subject=subject,
            answer=None,
            because=f"{text}; {batches}",
            numbers=numbers,
            would_tell="both sides at the same batch",
        )
    if abs(change) <= SAME_PART:
        answer = Answer.UNCHANGED
    else:
        answer = Answer.FASTER if change < 0 else Answer.SLOWER
    return Judgement(subject=subject, answer=answer, because=text, numbers=numbers)


def _by_batch(before: ArmTimes, after: ArmTimes, change: float) -> str:
    """Say that another batch may explain a change of the time per token; "" if it cannot."""
    if not before.batch or not after.batch or abs(change) <= SAME_PART:
        return ""
    ratio = after.batch / before.batch
    explains = ratio > MATCHED_BATCH_RATIO if change > 0 else ratio < 1.0 / MATCHED_BATCH_RATIO
    text = f"batch {before.batch:.0f} before and {after.batch:.0f} after, which may be all of it"
    return text if explains else ""


def _acceptance(slices: tuple[AcceptanceSlice, ...], pooled_told: float | None) -> Judgement:
    """Judge slices apart from their mix. `pooled_told`: over all traffic, as the server counts it after."""
    subject = Subject.ACCEPTANCE_MIX
    sums = [sum(each.share_before for each in slices), sum(each.share_after for each in slices)]
    before = sum(each.share_before * each.acceptance_before for each in slices)
    after = sum(each.share_after * each.acceptance_after for each in slices)
    lacking = ""
    if any(abs(total - 1.0) > 0.02 for total in sums):
        lacking = "the slices are not the whole traffic"
    elif len(slices) < 2:
        lacking = f"acceptance {before:.3f} -> {after:.3f} is of all traffic together"
    elif pooled_told is not None and abs(after - pooled_told) > POOLED_DIFFERS_SHARE:
        lacking = f"the slices make {after:.3f} and the server counts {pooled_told:.3f}: they are of other traffic"
    if lacking:
        return Judgement(
            subject=subject,
            answer=None,
            because=f"{lacking}: mix and acceptance cannot be told apart",
            would_tell="acceptance by sampling settings, with each slice's share of the traffic",
        )
    by_mix = sum(each.share_after * each.acceptance_before for each in slices) - before
    fell = [
        each.name
        for each in slices
        if each.acceptance_before - each.acceptance_after > SLICE_SAME_SHARE
    ]
    numbers = {"pooled_before": before, "pooled_after": after, "change_by_mix": by_mix}
    pooled = f"pooled acceptance {before:.3f} -> {after:.3f}"
    if fell:
        return Judgement(
            subject=subject,
            answer=Answer.ACCEPTANCE_FELL,
            because=f"{pooled}, of which the mix explains {by_mix:+.3f}; it fell within {', '.join(fell)}",
            choice=", ".join(fell),
            numbers=numbers,
        )
    if abs(after - before) <= SLICE_SAME_SHARE:
        return Judgement(subject=subject, answer=Answer.UNCHANGED, because=pooled, numbers=numbers)
    best = max(slices, key=lambda each: each.acceptance_after)
    return Judgement(
        subject=subject,
        answer=Answer.MIX_CHANGED,
        because=(
            f"{pooled} is explained by the mix ({by_mix:+.3f}); within each slice nothing changed: "
            f"keep speculation for {best.name}, judge the others apart"
        ),
        choice=best.name,
        numbers=numbers,
    )


def _validity(slices: tuple[ValiditySlice, ...]) -> Judgement:
    subject = Subject.SPECULATION_VALIDITY
    judged = {each.name: _no_harm(each) for each in slices}
    fell = [
        each.traffic_share * (each.valid_before / each.n_before - each.valid_after / each.n_after)
        for each in slices
        if each.n_before and each.n_after
    ]
    numbers = {"overall_fall": sum(fell)}
    bad = [name for name, harmless in judged.items() if harmless is False]
    if bad:
        return Judgement(
            subject=subject,
            answer=Answer.OFF_FOR_SLICE,
            because=(
                f"valid answers fall within {', '.join(bad)} by more than {VALIDITY_MARGIN:.0%}, "
                f"although only by {sum(fell):.1%} over all traffic: off there, kept elsewhere"
            ),
            choice=", ".join(bad),
            numbers=numbers,
        )
    unsure = [name for name, harmless in judged.items() if harmless is None]
    if unsure:
        return Judgement(
            subject=subject,
            answer=None,
            because=f"too few answers to exclude or show harm in {', '.join(unsure)}",
            numbers=numbers,
            would_tell=f"more answers of {', '.join(unsure)} in both arms",
        )
    return Judgement(
        subject=subject,
        answer=Answer.KEEP,
        because=f"in no slice more than {VALIDITY_MARGIN:.0%} of the answers became invalid",
        numbers=numbers,
    )


def _no_harm(each: ValiditySlice) -> bool | None:
    return exact_no_harm(
        each.n_before - each.valid_before,
        each.n_before,
        each.n_after - each.valid_after,
        each.n_after,
        margin=VALIDITY_MARGIN,
        alpha=ALPHA,
    )


def _outputs(told: OutputDifference) -> Judgement:
    subject = Subject.OUTPUT_DIFFERENCE
    if told.baseline_twice is None or not told.n_twice:
        return Judgement(
            subject=subject,
            answer=Answer.MEASURE_NOISE_FIRST,
            because=(
                f"{told.between_arms:.1%} of the outputs differ between arms; how many differ between two runs of "
                "the baseline comes first: batch size alone can change greedy text"
            ),
            numbers={"between_arms": told.between_arms},
            would_tell="the same prompts twice through the baseline",
        )
    evidence = difference_e_value(
        round(told.baseline_twice * told.n_twice),
        told.n_twice,
        round(told.between_arms * told.n),
        told.n,
        margin=0.0,
    )
    beyond = evidence >= 1.0 / ALPHA
    return Judgement(
        subject=subject,
        answer=Answer.BEYOND_NOISE if beyond else Answer.WITHIN_NOISE,
        because=(
            f"{told.between_arms:.1%} of n={told.n} differ between arms, {told.baseline_twice:.1%} of "
            f"n={told.n_twice} between two runs of the baseline"
        ),
        numbers={"between_arms": told.between_arms, "baseline_twice": told.baseline_twice},
    )


def _gaps(told: GapChange) -> Judgement:
    subject = Subject.TOKEN_GAPS
    four = (told.mean_before, told.mean_after, told.median_before, told.median_after)
    if any(value is None for value in four):
        return Judgement(
            subject=subject,
            answer=None,
            because="a mean alone mixes the first gap with all others",
            would_tell="mean and median of the gaps in both arms",
        )
    mean = (told.mean_after or 0.0) - (told.mean_before or 0.0)
    median = (told.median_after or 0.0) - (told.median_before or 0.0)
    numbers = {"mean_change_ms": mean, "median_change_ms": median}
    first = None
    if told.first_before is not None and told.first_after is not None:
        first = told.first_after - told.first_before
        numbers["first_change_ms"] = first
    if mean <= 0 and median <= 0:
        return Judgement(
            subject=subject,
            answer=Answer.UNCHANGED,
            because="no gap became longer",
            numbers=numbers,
        )
    if median > 0:
        return Judgement(
            subject=subject,
            answer=Answer.STEADY_GAPS,
            because=f"the median gap grew by {median:.3g} ms: steady decoding is slower",
            numbers=numbers,
        )
    if first is not None and first <= 0:
        return Judgement(
            subject=subject,
            answer=None,
            because="the mean grew, the median and the first gap did not: stalls in between",
            numbers=numbers,
            would_tell="the distribution of gaps by position",
        )
    return Judgement(
        subject=subject,
        answer=Answer.FIRST_GAP,
        because=(
            f"the mean gap grew by {mean:.3g} ms while the median fell by {-median:.3g} ms: the first step waits "
            "for the transfer, steady decoding is faster; judge them apart"
        ),
        numbers=numbers,
    )
