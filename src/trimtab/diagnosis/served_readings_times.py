"""Readings of times and lengths: means, quantiles no finer than a bucket, and time per token.

Laws, in the order in which they are tried:
    mean        sum over count of the merged histogram
    TPOT        as told; decode seconds over output tokens; chunk gaps' sum over the server's count of output tokens
                after the first; (E2E - TTFT) over (output tokens - 1)
A chunk gap is not a token gap: with speculation a chunk carries several tokens, so the gap is a reading of its own.
Failure modes: where requests come in fewer than two chunks the gaps do not see the tokens and TPOT is not told from
them; an engine whose mean wait exceeds its mean time to the first token leaves the wait out of the latter.
"""

import math
from collections.abc import Iterator

from trimtab.core.evidence import Evidence, Reading, Unknown
from trimtab.core.served import Buckets, Counter, Distribution
from trimtab.diagnosis.served_names import ServedName, high_of, low_of
from trimtab.diagnosis.served_quantiles import Quantile, mean_of, quantile_of
from trimtab.diagnosis.served_readings_pool import Origin, Pool, Told
from trimtab.diagnosis.served_window_tells import silent_ranks

MS = 1_000.0
CHUNK_GAPS_PER_REQUEST_MIN = 1.0
"""With fewer gaps than this a request, chunks do not show when its tokens were made."""

_MEANS = (
    (Distribution.QUEUE_TIME, ServedName.QUEUE_MS_MEAN, "ms", MS),
    (Distribution.DECODE_TIME, ServedName.DECODE_MS_MEAN, "ms", MS),
    (Distribution.E2E, ServedName.E2E_MS_MEAN, "ms", MS),
    (Distribution.CHUNK_GAP, ServedName.CHUNK_GAP_MS_MEAN, "ms", MS),
    (Distribution.TRANSFER_TIME, ServedName.TRANSFER_MS_MEAN, "ms", MS),
    (Distribution.TRANSFER_POST_TIME, ServedName.TRANSFER_POST_MS_MEAN, "ms", MS),
)
_QUANTILES = (
    (Distribution.TTFT, ServedName.TTFT_MS_P50, 0.50, "ms", MS),
    (Distribution.TTFT, ServedName.TTFT_MS_P99, 0.99, "ms", MS),
    (Distribution.QUEUE_TIME, ServedName.QUEUE_MS_P50, 0.50, "ms", MS),
    (Distribution.TPOT, ServedName.TPOT_MS_P50, 0.50, "ms", MS),
    (Distribution.TPOT, ServedName.TPOT_MS_P99, 0.99, "ms", MS),
    (Distribution.CHUNK_GAP, ServedName.CHUNK_GAP_MS_P50, 0.50, "ms", MS),
    (Distribution.TRANSFER_TIME, ServedName.TRANSFER_MS_P50, 0.50, "ms", MS),
    (Distribution.PROMPT_LENGTH, ServedName.PROMPT_LENGTH_P99, 0.99, "tokens", 1.0),
)


def times_readings(pool: Pool) -> Iterator[Reading]:
    """Give the readings of histograms."""
    for key, name, unit, scale in _MEANS:
        yield mean_reading(pool, key, name, unit, scale)
    yield from _first_tokens(pool)
    yield _at_front_end(pool)
    yield _tpot(pool)
    yield _tokens_per_chunk(pool)
    yield _length(pool, Distribution.PROMPT_LENGTH, Counter.PROMPT_TOKENS)
    yield _length(pool, Distribution.OUTPUT_LENGTH, Counter.OUTPUT_TOKENS)
    yield _step_tokens(pool)
    for key, name, level, unit, scale in _QUANTILES:
        yield from _quantile(pool, key, name, level, unit, scale)


def mean_s(pool: Pool, key: Distribution) -> float | None:
    """Return the mean of a histogram in its own unit, None if it is not told or empty."""
    found = pool.buckets(key)
    return mean_of(found[0]) if found else None


def mean_reading(
    pool: Pool, key: Distribution, name: str, unit: str, scale: float, note: str = ""
) -> Reading:
    """Return the mean of a histogram over ranks and sources."""
    found = pool.buckets(key)
    if found is None:
        return Unknown(name, pool.absent(key))
    buckets, origin, _ = found
    mean = mean_of(buckets)
    if mean is None:
        return Unknown(name, _no_mean(buckets, origin))
    text = "; ".join(part for part in (note, origin.growth) if part)
    return pool.evidence(name, mean * scale, unit, origin, samples=buckets.total, note=text)


def _at_front_end(pool: Pool) -> Reading:
    """Return the mean time to the first token as a front end sees it, whose queue stands before the engines'."""
    name = ServedName.FRONT_TTFT_MS_MEAN
    front = pool.of_front_ends()
    if front is None:
        return Unknown(name, "no source is a front end")
    return mean_reading(front, Distribution.TTFT, name, "ms", MS)


def _no_mean(buckets: Buckets, origin: Origin) -> str:
    if buckets.total <= 0:
        return f"no sample ({origin.growth})"
    return "the page tells no sum, or it is broken: a mean needs one"


def leaves_out_waiting(pool: Pool) -> bool:
    """Say whether the engine's time to the first token cannot hold the wait in its queue."""
    return _apart(pool) is not None


def _apart(pool: Pool) -> tuple[float, float, Buckets, Origin] | None:
    """Return mean first token, mean wait, first tokens and origin, where the first leaves out the second."""
    first, queue = mean_s(pool, Distribution.TTFT), mean_s(pool, Distribution.QUEUE_TIME)
    found, both = (
        pool.buckets(Distribution.TTFT),
        pool.origin(Distribution.TTFT, Distribution.QUEUE_TIME),
    )
    if first is None or queue is None or found is None or both is None:
        return None
    return (first, queue, found[0], both) if queue > first * 1.05 else None


def population_text(pool: Pool) -> str:
    """Return in words how requests with a first token and requests that ended differ, "" if they do not."""
    first, ended = pool.buckets(Distribution.TTFT), pool.buckets(Distribution.E2E)
    if first is None or ended is None:
        return ""
    begun, done = first[0].total, ended[0].total
    if abs(begun - done) <= max(1.0, 0.01 * max(begun, done)):
        return ""
    text = f"{begun:,.0f} requests had a first token and {done:,.0f} ended"
    if done > begun:
        return f"{text}: at least {done - begun:,.0f} ended without one or had it before"
    return f"{text}: at least {begun - done:,.0f} first tokens are of requests that did not end"


def _first_tokens(pool: Pool) -> Iterator[Reading]:
    """Give TTFT and prefill. Where TTFT leaves the wait out, a user waits for both, and TTFT is prefill."""
    people = population_text(pool)
    prefill = mean_reading(pool, Distribution.PREFILL_TIME, ServedName.PREFILL_MS_MEAN, "ms", MS)
    apart = _apart(pool)
    if apart is None:
        yield mean_reading(pool, Distribution.TTFT, ServedName.TTFT_MS_MEAN, "ms", MS, people)
        yield prefill
        return
    first, queue, firsts, origin = apart
    text = (
        f"the engine's own {first * MS:.4g} ms leave out the wait of {queue * MS:.4g} ms, "
        "which is longer: their sum is what a user waits"
    )
    note = "; ".join(part for part in (text, people, origin.growth) if part)
    total, samples = (first + queue) * MS, firsts.total
    yield pool.evidence(ServedName.TTFT_MS_MEAN, total, "ms", origin, samples=samples, note=note)
    if isinstance(prefill, Evidence):
        yield prefill
        return
    note = f"time to the first token, which leaves out the wait here; {origin.growth}"
    yield pool.evidence(
        ServedName.PREFILL_MS_MEAN, first * MS, "ms", origin, samples=samples, note=note
    )


def _tpot(pool: Pool) -> Reading:
    name, told = ServedName.TPOT_MS_MEAN, pool.buckets(Distribution.TPOT)
    if told is not None and mean_of(told[0]) is not None:
        output = pool.grown(Counter.OUTPUT_TOKENS)
        note = ""
        if output is not None and output.value > 0:
            each = "token" if told[0].total > 0.5 * output.value else "request"
            note = f"one sample a {each}"
        return mean_reading(pool, Distribution.TPOT, name, "ms", MS, note)
    for found in (_by_decode_seconds(pool), _by_chunks(pool)):
        if found is not None:
            return found
    return _by_requests(pool)


def _by_decode_seconds(pool: Pool) -> Reading | None:
    seconds = pool.grown(Counter.DECODE_SECONDS, Counter.OUTPUT_TOKENS)
    tokens = pool.grown(Counter.OUTPUT_TOKENS, Counter.DECODE_SECONDS)
    if seconds is None or tokens is None:
        return None
    note = "decode seconds over output tokens"
    return pool.ratio(
        ServedName.TPOT_MS_MEAN, seconds, tokens, "ms", note=note, transform=lambda s: s * MS
    )


def _after_first(pool: Pool) -> tuple[Buckets, Origin, float, float] | None:
    """Return chunk gaps, their origin, output tokens after the first of each request, and requests."""
    gaps = pool.buckets(Distribution.CHUNK_GAP)
    tokens = pool.grown(Counter.OUTPUT_TOKENS, Distribution.CHUNK_GAP)
    first = pool.buckets(Distribution.TTFT)
    if gaps is None or tokens is None or first is None:
        return None
    return gaps[0], gaps[1], max(0.0, tokens.value - first[0].total), first[0].total


def _by_chunks(pool: Pool) -> Reading | None:
    name, found = ServedName.TPOT_MS_MEAN, _after_first(pool)
    if found is None:
        return None
    gaps, origin, tokens, requests = found
    if tokens <= 0:
        return None
    if gaps.total < CHUNK_GAPS_PER_REQUEST_MIN * requests or gaps.total <= 0:
        text = (
            f"not observable from chunks: {tokens:,.0f} output tokens after the first came with "
            f"{gaps.total:,.0f} gaps between chunks of {requests:,.0f} requests"
        )
        return Unknown(name, text)
    if gaps.sum is None:
        return None
    note = f"sum of chunk gaps over the server's count of tokens after the first; {origin.growth}"
    return pool.evidence(name, gaps.sum / tokens * MS, "ms", origin, samples=tokens, note=note)


def _tokens_per_chunk(pool: Pool) -> Reading:
    name, found = ServedName.TOKENS_PER_CHUNK_MEAN, _after_first(pool)
    if found is None:
        return Unknown(name, pool.absent(Distribution.CHUNK_GAP, Counter.OUTPUT_TOKENS))
    gaps, origin, tokens, _ = found
    note = "output tokens after the first over gaps between chunks"
    return pool.ratio(name, Told(tokens, origin), Told(gaps.total, origin), "tokens", note=note)


def _by_requests(pool: Pool) -> Reading:
    name = ServedName.TPOT_MS_MEAN
    whole, first = mean_s(pool, Distribution.E2E), mean_s(pool, Distribution.TTFT)
    length = _length(pool, Distribution.OUTPUT_LENGTH, Counter.OUTPUT_TOKENS)
    origin = pool.origin(Distribution.E2E, Distribution.TTFT)
    if whole is None or first is None or origin is None or isinstance(length, Unknown):
        reason = "nor can it be told from end-to-end times, first tokens and output lengths"
        return Unknown(name, f"{pool.absent(Distribution.TPOT, Distribution.CHUNK_GAP)}; {reason}")
    if whole <= first or length.value <= 1.0:
        text = "requests end no later than their first token: different requests, or one token each"
        return Unknown(name, text)
    note = "; ".join(
        part
        for part in ("(E2E - TTFT) / (output tokens - 1)", population_text(pool), origin.growth)
        if part
    )
    if leaves_out_waiting(pool):
        first += mean_s(pool, Distribution.QUEUE_TIME) or 0.0
    value = max(0.0, whole - first) / (length.value - 1.0) * MS
    return pool.evidence(name, value, "ms", origin, samples=length.samples, note=note)


def _length(pool: Pool, key: Distribution, counter: Counter) -> Reading:
    """Return the mean length of prompts or outputs: of requests that ended, else tokens over requests."""
    name = (
        ServedName.PROMPT_LENGTH_MEAN
        if key is Distribution.PROMPT_LENGTH
        else ServedName.OUTPUT_LENGTH_MEAN
    )
    told = mean_reading(pool, key, name, "tokens", 1.0)
    if isinstance(told, Evidence):
        return told
    tokens = pool.grown(counter)
    ended = pool.grown(Counter.REQUESTS_FINISHED, counter)
    if ended is None:
        requests = pool.buckets(Distribution.E2E)
        ended = Told(requests[0].total, requests[1]) if requests else None
    if tokens is None or ended is None or ended.origin.windows != tokens.origin.windows:
        return told
    windows = tokens.origin.windows
    if pool.beside(tokens.origin) or any(silent_ranks(window, counter) for window in windows):
        # Times beside this length may be of all: the requests of some stand for no others.
        return told
    note = f"{counter.value} over requests that ended, which are not all whose tokens were counted"
    return pool.ratio(name, tokens, ended, "tokens", note=note)


def _step_tokens(pool: Pool) -> Reading:
    name = ServedName.STEP_TOKENS_MEAN
    told = mean_reading(pool, Distribution.STEP_TOKENS, name, "tokens", 1.0)
    keys = (Counter.DECODE_STEPS, Counter.PROMPT_TOKENS, Counter.OUTPUT_TOKENS)
    steps, prompt, output = (pool.grown(key, *keys) for key in keys)
    if isinstance(told, Evidence) or steps is None or prompt is None or output is None:
        return told
    tokens = Told(prompt.value + output.value, steps.origin)
    return pool.ratio(name, tokens, steps, "tokens", note="prompt and output tokens over steps")


def _quantile(
    pool: Pool, key: Distribution, name: str, level: float, unit: str, scale: float
) -> Iterator[Reading]:
    found = pool.buckets(key)
    reason = pool.absent(key)
    if found is not None:
        buckets, origin, mixed = found
        where = quantile_of(buckets, level)
        if key is Distribution.TTFT and leaves_out_waiting(pool):
            reason = (
                "the engine's histogram leaves out the wait in the queue: only the mean is known"
            )
        elif where is not None:
            yield from _placed(pool, name, where, unit, scale, origin, mixed)
            return
        elif buckets.total <= 0:
            reason = f"no sample ({origin.growth})"
        else:
            reason = "the page gives no buckets, or those of its ranks and sources share no edge"
    yield Unknown(name, reason)


def _placed(
    pool: Pool, name: str, where: Quantile, unit: str, scale: float, origin: Origin, mixed: bool
) -> Iterator[Reading]:
    low, high = where.low * scale, where.high * scale
    if where.above_edge:
        text = f"> {low:g} {unit}: above the last bucket edge, so there is no upper end"
    else:
        text = (
            f"between {low:g} and {high:g} {unit}: one bucket, {where.width * scale:g} {unit} wide"
        )
    parts = (
        text,
        "ranks or sources have different edges; merged at those they share" if mixed else "",
        origin.growth,
    )
    value = low if where.interpolated is None else where.interpolated * scale
    interval = where.interval
    yield pool.evidence(
        name,
        value,
        unit,
        origin,
        samples=where.samples,
        interval=type(interval)(interval.low * scale, interval.high * scale, interval.level),
        note="; ".join(part for part in parts if part),
    )
    yield pool.evidence(low_of(name), low, unit, origin, samples=where.samples, note="lower edge")
    if math.isinf(high):
        yield Unknown(high_of(name), f"above the last bucket edge of {low:g} {unit}")
    else:
        yield pool.evidence(
            high_of(name), high, unit, origin, samples=where.samples, note="upper edge"
        )
