"""Readings of what was done: tokens, requests, reuse of prefixes, drafts, transfers of KV.

Laws: a rate is growth over the window's seconds; a hit share is hits over queries of the same stretch, never queries
over hits; acceptance = accepted / drafted; accepted length without the bonus token = accepted / drafts, with it one
more, for the model's own token ends every step; the part of decode steps that had a draft = drafts / (output -
accepted tokens), for every step gives one token of its own; bytes per second of a transfer = bytes over the time in
transfers, not over the window.
"""

from collections.abc import Iterator

from trimtab.core.evidence import Reading, Unknown
from trimtab.core.served import Counter, Distribution, EngineKind, Gauge
from trimtab.diagnosis.served_names import ServedName, of_position
from trimtab.diagnosis.served_quantiles import mean_of
from trimtab.diagnosis.served_readings_pool import Origin, Pool, Told

_RATES = (
    (Counter.PREEMPTIONS, ServedName.PREEMPTIONS_PER_S, "preemptions/s"),
    (Counter.REQUESTS_FINISHED, ServedName.REQUESTS_FINISHED_PER_S, "requests/s"),
    (Counter.PROMPT_TOKENS, ServedName.PROMPT_TOKENS_PER_S, "tokens/s"),
    (Counter.OUTPUT_TOKENS, ServedName.OUTPUT_TOKENS_PER_S, "tokens/s"),
    (Counter.TRANSFER_FAILURES, ServedName.TRANSFER_FAILURES_PER_S, "transfers/s"),
    (Counter.TRANSFERS_EXPIRED, ServedName.TRANSFERS_EXPIRED_PER_S, "transfers/s"),
)

_REUSE = (
    (Counter.PREFIX_HITS, Counter.PREFIX_QUERIES),
    (Counter.CACHED_TOKENS, Counter.PROMPT_TOKENS),
)


def work_readings(pool: Pool) -> Iterator[Reading]:
    """Give the readings of counters."""
    for counter, name, unit in _RATES:
        yield _rate(pool, counter, name, unit)
    yield _count(pool, Counter.PREEMPTIONS, ServedName.PREEMPTIONS, "preemptions")
    yield _failed_share(pool)
    yield _computed(pool)
    yield from _prefix(pool)
    yield from _drafts(pool)
    yield from _transfers(pool)


def _rate(pool: Pool, counter: Counter, name: str, unit: str) -> Reading:
    told = pool.rate(counter)
    if isinstance(told, str):
        return Unknown(name, told)
    grown = pool.grown(counter)
    note = f"grew by {grown.value:g}; {told.origin.growth}" if grown else told.origin.growth
    if told.origin.lifetime:
        note = f"{note}, idle time included"
    return pool.evidence(name, told.value, unit, told.origin, note=note)


def _count(pool: Pool, counter: Counter, name: str, unit: str) -> Reading:
    """Return a count; none may only be said where every rank counts, some is true whoever else does not."""
    grown = pool.grown(counter)
    if grown is None:
        return Unknown(name, pool.absent(counter))
    untold, lost = pool.untold(counter), grown.origin.lost
    if not grown.value and (untold or lost):
        return Unknown(name, untold or f"rank {', '.join(lost)} vanished; the others counted none")
    note = "; ".join(part for part in (grown.origin.growth, untold) if part)
    return pool.evidence(name, grown.value, unit, grown.origin, note=note)


def _failed_share(pool: Pool) -> Reading:
    name = ServedName.REQUESTS_FAILED_SHARE
    failed = pool.grown(Counter.REQUESTS_FAILED, Counter.REQUESTS_FINISHED)
    finished = pool.grown(Counter.REQUESTS_FINISHED, Counter.REQUESTS_FAILED)
    if failed is None or finished is None:
        return Unknown(name, pool.absent(Counter.REQUESTS_FAILED, Counter.REQUESTS_FINISHED))
    whole = Told(finished.value + failed.value, finished.origin)
    return pool.ratio(name, failed, whole, "share", note="failed over failed and finished")


def _computed(pool: Pool) -> Reading:
    """Return prompt tokens computed per second; cached ones are taken off where the counter holds them."""
    name, prompt = ServedName.COMPUTED_PROMPT_TOKENS_PER_S, pool.rate(Counter.PROMPT_TOKENS)
    if isinstance(prompt, str):
        return Unknown(name, prompt)
    for counter in (Counter.CACHED_TOKENS, Counter.PREFIX_HITS):
        cached = pool.rate(counter)
        if isinstance(cached, Told) and cached.origin.windows == prompt.origin.windows:
            value = max(0.0, prompt.value - cached.value)
            note = f"prompt tokens less {counter.value}; {prompt.origin.growth}"
            return pool.evidence(name, value, "tokens/s", prompt.origin, note=note)
    if all(window.engine is EngineKind.LLAMACPP for window in prompt.origin.windows):
        note = f"llama.cpp counts what it computed; {prompt.origin.growth}"
        return pool.evidence(name, prompt.value, "tokens/s", prompt.origin, note=note)
    return Unknown(name, pool.absent(Counter.CACHED_TOKENS, Counter.PREFIX_HITS))


def _prefix(pool: Pool) -> Iterator[Reading]:
    yield _count(pool, Counter.PREFIX_QUERIES, ServedName.PREFIX_QUERIES_TOKENS, "tokens")
    yield _hit_share(pool)
    yield _hit_share_lifetime(pool)
    yield _quotient(
        pool,
        ServedName.EXTERNAL_HIT_SHARE,
        Counter.EXTERNAL_HITS,
        Counter.EXTERNAL_QUERIES,
        "share",
        at_most=1.0,
    )


def _hit_share(pool: Pool) -> Reading:
    name = ServedName.PREFIX_HIT_SHARE
    for hits, queries in _REUSE:
        part, whole = pool.grown(hits, queries), pool.grown(queries, hits)
        if part is not None and whole is not None:
            note = f"{hits.value} over {queries.value}"
            return pool.ratio(name, part, whole, "share", note=note, at_most=1.0)
    told = pool.gauges(Gauge.PREFIX_HIT_SHARE)
    if told is None:
        return Unknown(name, pool.absent(Counter.PREFIX_HITS, Gauge.PREFIX_HIT_SHARE))
    values, origin = told
    mean = sum(values) / len(values)
    if not 0.0 <= max(values) <= 1.0:
        return Unknown(name, f"the engine's own hit rate is {max(values):.4g}, which is no share")
    note = f"{origin.moment}; the engine's own figure over a stretch that it chooses"
    return pool.evidence(
        name, mean, "share", origin, samples=origin.scrapes, note=note, of_gauge=True
    )


def _hit_share_lifetime(pool: Pool) -> Reading:
    name = ServedName.PREFIX_HIT_SHARE_LIFETIME
    for hits, queries in _REUSE:
        origin = pool.origin(hits, queries)
        if origin is None:
            continue
        ranks = [rank.counters for window in origin.windows for rank in window.totals]
        told = [rank for rank in ranks if hits in rank and queries in rank]
        part, whole = (sum(rank[key] for rank in told) for key in (hits, queries))
        if whole <= 0:
            return Unknown(name, "nothing was looked up since the start")
        if part > whole:
            text = f"{part / whole:.4g} is above 1: the two series do not count the same thing"
            return Unknown(name, text)
        note = f"{hits.value} over {queries.value} since start, not of this window"
        return pool.evidence(name, part / whole, "share", origin, samples=whole, note=note)
    return Unknown(name, pool.absent(Counter.PREFIX_HITS))


def _drafts(pool: Pool) -> Iterator[Reading]:
    drafts, drafted = Counter.DRAFTS, Counter.DRAFTED_TOKENS
    accepted, output = Counter.ACCEPTED_TOKENS, Counter.OUTPUT_TOKENS
    yield _quotient(
        pool,
        ServedName.DRAFT_ACCEPTANCE_SHARE,
        accepted,
        drafted,
        "share",
        at_most=1.0,
        gauge=Gauge.ACCEPTANCE_SHARE,
    )
    yield from _accepted_length(pool)
    yield from _positions(pool)
    yield _quotient(pool, ServedName.DRAFTED_LENGTH_MEAN, drafted, drafts, "tokens/draft")
    yield _quotient(
        pool, ServedName.ACCEPTED_SHARE_OF_OUTPUT, accepted, output, "share", at_most=1.0
    )
    name, keys = ServedName.DRAFTED_SHARE_OF_STEPS, (drafts, accepted, output)
    made, taken, all_of_it = (pool.grown(key, *keys) for key in keys)
    if made is None or taken is None or all_of_it is None:
        yield Unknown(name, pool.absent(*keys))
        return
    steps = Told(all_of_it.value - taken.value, all_of_it.origin)
    note = "drafts over steps of single requests (output less accepted tokens)"
    yield pool.ratio(name, made, steps, "share", note=note, at_most=1.0)


def _positions(pool: Pool) -> Iterator[Reading]:
    """Give the share of drafts accepted at each position: where it falls, longer drafts only cost."""
    drafts = pool.grown(Counter.DRAFTS)
    if drafts is None or drafts.value <= 0:
        return
    ranks = [
        rank.accepted_by_position
        for window in drafts.origin.windows
        for rank in window.ranks
        if rank.accepted_by_position
    ]
    for at in range(max(map(len, ranks), default=0)):
        taken = sum(rank[at] for rank in ranks if at < len(rank))
        name = of_position(ServedName.DRAFT_ACCEPTANCE_SHARE, at + 1)
        note = f"drafts accepted up to token {at + 1}"
        part = Told(taken, drafts.origin)
        yield pool.ratio(name, part, drafts, "share", note=note, at_most=1.0)


def _quotient(
    pool: Pool,
    name: str,
    part: Counter,
    whole: Counter,
    unit: str,
    *,
    at_most: float | None = None,
    gauge: Gauge | None = None,
) -> Reading:
    above, below = pool.grown(part, whole), pool.grown(whole, part)
    if above is not None and below is not None:
        note = f"{part.value} over {whole.value}"
        return pool.ratio(name, above, below, unit, note=note, at_most=at_most)
    told = pool.gauges(gauge) if gauge else None
    if told is None:
        return Unknown(name, pool.absent(part, whole))
    values, origin = told
    note = f"{origin.moment}; the engine's own figure over a stretch that it chooses"
    mean = sum(values) / len(values)
    return pool.evidence(name, mean, unit, origin, samples=origin.scrapes, note=note, of_gauge=True)


def _accepted_length(pool: Pool) -> Iterator[Reading]:
    with_bonus = ServedName.ACCEPTED_LENGTH_WITH_BONUS
    without = ServedName.ACCEPTED_LENGTH_WITHOUT_BONUS
    told = pool.gauges(Gauge.ACCEPTED_LENGTH)
    counted = pool.origin(Counter.ACCEPTED_TOKENS, Counter.DRAFTS)
    if counted is None and told is not None:
        values, origin = told
        mean = sum(values) / len(values)
        for name, value, words in (
            (with_bonus, mean, "with the bonus token"),
            (
                without,
                max(0.0, mean - 1.0),
                "without the bonus token: the engine's figure less one",
            ),
        ):
            note = f"{words}; {origin.moment}"
            yield pool.evidence(
                name,
                value,
                "tokens/draft",
                origin,
                samples=origin.scrapes,
                note=note,
                of_gauge=True,
            )
        return
    accepted = pool.grown(Counter.ACCEPTED_TOKENS, Counter.DRAFTS)
    drafts = pool.grown(Counter.DRAFTS, Counter.ACCEPTED_TOKENS)
    if accepted is None or drafts is None:
        for name in (with_bonus, without):
            yield Unknown(name, pool.absent(Counter.ACCEPTED_TOKENS, Counter.DRAFTS))
        return
    yield pool.ratio(
        with_bonus,
        accepted,
        drafts,
        "tokens/draft",
        note="with the bonus token: 1 + accepted over drafts",
        transform=lambda length: 1.0 + length,
    )
    note = "without the bonus token: accepted over drafts"
    yield pool.ratio(without, accepted, drafts, "tokens/draft", note=note)


def _transfers(pool: Pool) -> Iterator[Reading]:
    yield _transfer_bytes_mean(pool)
    yield _transfer_bytes_per_s(pool)
    name = ServedName.TRANSFER_DESCRIPTORS_MEAN
    descriptors, moved = pool.grown(Counter.TRANSFER_DESCRIPTORS), _transfers_counted(pool)
    if descriptors is None or moved is None:
        yield Unknown(name, pool.absent(Counter.TRANSFER_DESCRIPTORS))
    else:
        yield pool.ratio(name, descriptors, moved, "descriptors/transfer")
    yield _count(pool, Counter.TRANSFER_FAILURES, ServedName.TRANSFER_FAILURES, "transfers")
    yield _count(pool, Counter.TRANSFERS_EXPIRED, ServedName.TRANSFERS_EXPIRED, "transfers")


def _transfers_counted(pool: Pool) -> Told | None:
    counted = pool.grown(Counter.TRANSFERS)
    if counted is not None:
        return counted
    timed = pool.buckets(Distribution.TRANSFER_TIME)
    return Told(timed[0].total, timed[1]) if timed else None


def _moved_bytes(pool: Pool) -> tuple[float, float, Origin] | None:
    """Return bytes moved, the transfers that moved them, and the origin."""
    sized = pool.buckets(Distribution.TRANSFER_SIZE)
    if sized is not None and sized[0].sum is not None:
        return sized[0].sum, sized[0].total, sized[1]
    counted, transfers = pool.grown(Counter.TRANSFER_BYTES), _transfers_counted(pool)
    if counted is None or transfers is None:
        return None
    return counted.value, transfers.value, counted.origin


def _transfer_bytes_mean(pool: Pool) -> Reading:
    name, moved = ServedName.TRANSFER_BYTES_MEAN, _moved_bytes(pool)
    if moved is None:
        return Unknown(name, pool.absent(Distribution.TRANSFER_SIZE, Counter.TRANSFER_BYTES))
    size, transfers, origin = moved
    return pool.ratio(name, Told(size, origin), Told(transfers, origin), "bytes/transfer")


def _transfer_bytes_per_s(pool: Pool) -> Reading:
    """Return the bytes of the mean transfer over the seconds of the mean transfer."""
    name, moved = ServedName.TRANSFER_BYTES_PER_S, _moved_bytes(pool)
    timed = pool.buckets(Distribution.TRANSFER_TIME)
    mean_s = mean_of(timed[0]) if timed else None
    if moved is None or timed is None:
        keys = (Distribution.TRANSFER_SIZE, Distribution.TRANSFER_TIME)
        return Unknown(name, pool.absent(*keys))
    size, transfers, origin = moved
    if not mean_s or transfers <= 0:
        return Unknown(name, f"no transfer was timed ({origin.growth})")
    note = f"while a transfer lasts, set-up and posting included; {origin.growth}"
    value = size / transfers / mean_s
    return pool.evidence(name, value, "bytes/s", timed[1], samples=transfers, note=note)
