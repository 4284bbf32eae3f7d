"""What binds a transfer of KV, whether it is worth one, and what to do when it fails.

Laws: posting that takes half of a transfer means too many descriptors; a socket transport far below the link is the
wrong one; a first transfer far slower than later ones is set-up; only what runs near the link is bound by it. Remote
prefill is right where wait, hop and transfer together take less than the stall they save the streams that decode.
What the decode server had must be what was moved, but for the token that it computes anyway and less than a block.
Blocks that failed hand-offs keep: rate * blocks each * time held, against the pool.
"""

import math
from collections.abc import Iterator

import msgspec

from trimtab.core.evidence import Evidence, Readings
from trimtab.core.handover import shortfall
from trimtab.diagnosis.served_advice import Answer, Judgement, Subject
from trimtab.diagnosis.served_facts import HandOffFacts, ServedFacts, TransferFacts
from trimtab.diagnosis.served_names import ServedName, high_of
from trimtab.diagnosis.served_transfer_words import failures_counted, transfers_seen

POSTING_BINDS_PART = 0.5
LINK_BINDS_PART = 0.8
FAR_BELOW_LINK_PART = 0.1
SOCKETS = ("tcp", "sockets", "ethernet")
SOCKET_BYTES_PER_S = 2e9
"""Sockets on one node that move less than this stay behind any copy in memory."""

SET_UP_RATIO = 10.0
SET_UP_MIN_MS = 1000.0
SET_UP_SPREAD = 5.0
"""A mean this many times the median's upper edge is made by few slow transfers."""

SMALL_DESCRIPTOR_BYTES = 65536.0
"""Descriptors of this many bytes and more are not too many: posting then holds the copy itself."""

CHUNK_TOKENS = 2048
WAIT_MAX_MS = 5000.0
"""Beyond this wait nothing goes to a remote prefill, whatever it would save others."""

BLOCK_TOKENS, BLOCK_TOKENS_MAX = 16, 128
"""Blocks of KV where nobody tells their size: the usual, and the largest (vLLM on CPUs). Servers count whole ones."""

TAKEN_MIN_SHARE = 0.01
"""Short prompts that are never moved count as looked up too: only next to nothing means that nothing arrived."""


def transfer_judgements(readings: Readings, facts: ServedFacts) -> Iterator[Judgement]:
    """Give what readings and facts of transfers and hand-offs say; nothing where neither speaks of one."""
    told = facts.transfer or TransferFacts()
    moved = readings.value(ServedName.TRANSFER_MS_MEAN)
    if moved is not None or rate_of(readings) is not None or facts.transfer is not None:
        found = _set_up(readings, told) or _binds(readings, told)
        because = f"{found.because} ({transfers_seen(readings)})"
        yield msgspec.structs.replace(found, because=because)
    hand = facts.hand_off or HandOffFacts()
    if hand.transfer_failed is not None or hand.moved_tokens is not None:
        yield _outcome(hand, facts)
    elif moved is not None:
        yield from _arrived(readings)
    if hand.uncached_tokens is not None or hand.prefill_queue_ms is not None:
        yield _place(hand)
    if hand.failed_per_min is not None or hand.hold_s is not None:
        yield _leak(hand_off_seen(hand, readings, facts), failures_counted(hand, readings))


def hand_off_seen(hand: HandOffFacts, readings: Readings, facts: ServedFacts) -> HandOffFacts:
    """Return the facts of failed hand-offs with what pages tell of what was left out, in blocks.

    Hand-offs that expired kept their blocks for sure; where nobody counts those, the ones that failed may have. The
    pool is the engine's capacity, and each keeps the blocks of a mean prompt.
    """
    block = facts.block_tokens or 1
    failed = readings.value(ServedName.TRANSFERS_EXPIRED_PER_S)
    if failed is None:
        failed = readings.value(ServedName.TRANSFER_FAILURES_PER_S)
    prompt = readings.value(ServedName.PROMPT_LENGTH_MEAN)
    pool = readings.value(ServedName.KV_CAPACITY_TOKENS)
    told = {
        "failed_per_min": None if failed is None else 60.0 * failed,
        "blocks_each": None if prompt is None else math.ceil(prompt / block),
        "blocks_pool": None if pool is None else pool / block,
    }
    left_out = {name: value for name, value in told.items() if getattr(hand, name) is None}
    return msgspec.structs.replace(hand, **left_out)


def _arrived(readings: Readings) -> Iterator[Judgement]:
    """Judge by the page of a decode server whether what was moved was used; what arrived is not worth a word."""
    subject, taken = Subject.HAND_OFF, readings.get(ServedName.EXTERNAL_HIT_SHARE)
    if not isinstance(taken, Evidence):
        yield Judgement(
            subject=subject,
            answer=None,
            because="transfers ended well, which does not say that the decode server used them",
            would_tell="tokens of prompts that came from elsewhere, by the decode server's counters",
        )
    elif taken.value < TAKEN_MIN_SHARE:
        yield Judgement(
            subject=subject,
            answer=Answer.FAILED_TRANSFER,
            because=(
                f"transfers ended well, and the decode server took {taken.value:.1%} of {taken.samples or 0:,} "
                "looked-up tokens from them: it computed the prompts again, although the requests end well"
            ),
            numbers={"external_hit_share": taken.value},
        )


def rate_of(readings: Readings) -> float | None:
    """Return bytes per second while a transfer lasts, None if unknown."""
    told = readings.value(ServedName.TRANSFER_BYTES_PER_S)
    size, spent = (
        readings.value(ServedName.TRANSFER_BYTES_MEAN),
        readings.value(ServedName.TRANSFER_MS_MEAN),
    )
    if told is not None or size is None or not spent:
        return told
    return 1000.0 * size / spent


def _set_up(readings: Readings, told: TransferFacts) -> Judgement | None:
    """Say that set-up makes the mean: by the first transfer's own time, or a mean far above the median's bucket."""
    mean, first = readings.value(ServedName.TRANSFER_MS_MEAN), told.first_ms
    median = readings.value(high_of(ServedName.TRANSFER_MS_P50))
    if mean is None:
        return None
    later = mean if median is None else min(mean, median)
    by_first = first is not None and first >= max(SET_UP_MIN_MS, SET_UP_RATIO * later)
    by_spread = first is None and median is not None and mean >= SET_UP_SPREAD * median
    if not by_first and not by_spread:
        return None
    which = "a mean of" if later == mean else "a median of at most"
    slow = f"the first transfer took {(first or 0.0) / 1000.0:.1f} s, beside {which} {later / 1000.0:.2g} s"
    if by_spread:
        slow = (
            f"a mean of {mean / 1000.0:.2g} s lies far above the median, at most {later / 1000.0:.2g} s: a few "
            "transfers are slow"
        )
    numbers = {"later_ms": later} if first is None else {"first_ms": first, "later_ms": later}
    return Judgement(
        subject=Subject.TRANSFER,
        answer=Answer.SET_UP,
        because=(
            f"{slow}: set-up, excluded from what is judged; mean and rate hold it where it lies in their window; "
            "warm up before measuring"
        ),
        numbers=numbers,
    )


def _binds(readings: Readings, told: TransferFacts) -> Judgement:
    subject, rate, link = Subject.TRANSFER, rate_of(readings), told.link_bytes_per_s
    spent, posting = (
        readings.value(ServedName.TRANSFER_MS_MEAN),
        readings.value(ServedName.TRANSFER_POST_MS_MEAN),
    )
    numbers = {} if rate is None else {"bytes_per_s": rate}
    if rate is not None and _wrong_transport(rate, told):
        where = " on one node" if told.same_node else ""
        return Judgement(
            subject=subject,
            answer=Answer.TRANSPORT,
            because=f"{rate / 1e9:.2g} GB/s over {told.transport}{where}: wrong transport or direction",
            numbers=numbers,
        )
    if posting is not None and spent and _posting_binds(readings, posting / spent):
        return _descriptors(readings, posting, spent, numbers, link)
    if rate is None or not link:
        lacking = "bytes moved and their time" if rate is None else "what the link can carry"
        return Judgement(
            subject=subject,
            answer=None,
            because="neither posting nor transport explains it, and the rest cannot be told",
            numbers=numbers,
            would_tell=lacking,
        )
    if rate >= LINK_BINDS_PART * link:
        return Judgement(
            subject=subject,
            answer=Answer.BANDWIDTH,
            because=f"{rate / 1e9:.3g} of {link / 1e9:.3g} GB/s: the link itself binds",
            numbers=numbers,
        )
    if rate < FAR_BELOW_LINK_PART * link:
        return Judgement(
            subject=subject,
            answer=None,
            because=f"{rate / 1e9:.3g} of {link / 1e9:.3g} GB/s: the link does not bind, what does is unknown",
            numbers=numbers,
            would_tell="posting time and descriptors of a transfer, and its transport",
        )
    return Judgement(
        subject=subject,
        answer=Answer.NOTHING_BINDS,
        because=f"{rate / 1e9:.3g} of {link / 1e9:.3g} GB/s and neither posting nor set-up stands out",
        numbers=numbers,
    )


def _wrong_transport(rate: float, told: TransferFacts) -> bool:
    if told.transport is None or told.transport.lower() not in SOCKETS:
        return False
    limit = SOCKET_BYTES_PER_S
    if told.link_bytes_per_s is not None:
        limit = FAR_BELOW_LINK_PART * told.link_bytes_per_s
    return rate < limit


def _posting_binds(readings: Readings, part: float) -> bool:
    count, size = (
        readings.value(ServedName.TRANSFER_DESCRIPTORS_MEAN),
        readings.value(ServedName.TRANSFER_BYTES_MEAN),
    )
    large = count is not None and size is not None and size >= SMALL_DESCRIPTOR_BYTES * count
    return part >= POSTING_BINDS_PART and not large


def _descriptors(
    readings: Readings,
    posting: float,
    spent: float,
    numbers: dict[str, float],
    link: float | None,
) -> Judgement:
    count, size = (
        readings.value(ServedName.TRANSFER_DESCRIPTORS_MEAN),
        readings.value(ServedName.TRANSFER_BYTES_MEAN),
    )
    if count is None:
        return Judgement(
            subject=Subject.TRANSFER,
            answer=None,
            because=f"posting takes {posting / spent:.0%} of a transfer, for how many descriptors is unknown",
            numbers=numbers,
            would_tell="descriptors per transfer",
        )
    each = "" if size is None or not count else f" of {size / count / 1024.0:.1f} KiB"
    carried = "" if not link else f"; the link ({link / 1e9:.0f} GB/s) is not the limit"
    return Judgement(
        subject=Subject.TRANSFER,
        answer=Answer.DESCRIPTORS,
        because=(
            f"{posting:.0f} of {spent:.0f} ms go into posting {count:,.0f} descriptors{each}: "
            f"larger blocks or a contiguous layout{carried}"
        ),
        numbers={**numbers, "posting_part": posting / spent, "descriptors": count},
    )


def _outcome(hand: HandOffFacts, facts: ServedFacts) -> Judgement:
    subject = Subject.HAND_OFF
    if hand.transfer_failed:
        tokens = hand.uncached_tokens if hand.uncached_tokens is not None else hand.prompt_tokens
        if tokens is None or hand.local_limit_tokens is None:
            return Judgement(
                subject=subject,
                answer=None,
                because="never decode on a part of the KV; whether a local prefill is small enough is unknown",
                would_tell="tokens of the prompt and the limit of local prefill",
            )
        left = hand.retries_left or 0
        rest = (
            f"; {left} attempts are left in the budget, no more" if left else "; no second attempt"
        )
        local = tokens <= hand.local_limit_tokens
        return Judgement(
            subject=subject,
            answer=Answer.LOCAL if local else Answer.FAIL_ONCE,
            because=(
                f"{tokens} tokens are {'within' if local else 'above'} the local limit of "
                f"{hand.local_limit_tokens}{rest}"
            ),
        )
    if hand.moved_tokens is None or hand.cached_on_decode is None:
        return Judgement(
            subject=subject,
            answer=None,
            because="a status of 200 does not say that the KV arrived",
            would_tell="cached tokens of the prompt at the decode server",
        )
    missing = shortfall(
        sent=hand.moved_tokens,
        prompt_tokens=hand.moved_tokens if hand.prompt_tokens is None else hand.prompt_tokens,
        delivered=hand.cached_on_decode,
    )
    block = facts.block_tokens
    if block is None and missing is not None and BLOCK_TOKENS <= missing < BLOCK_TOKENS_MAX:
        return Judgement(
            subject=subject,
            answer=None,
            because=f"{missing} tokens are missing, which may be the last block, not yet full, or a part that was lost",
            would_tell="block_size (or page_size) of the decode server",
        )
    arrived = missing is not None and missing < (block or BLOCK_TOKENS)
    return Judgement(
        subject=subject,
        answer=Answer.DELIVERED if arrived else Answer.FAILED_TRANSFER,
        because=(
            f"the decode server had {hand.cached_on_decode:,} of {hand.moved_tokens:,} tokens"
            + ("" if arrived else ": a failed transfer, although the request ended well")
        ),
    )


def _place(hand: HandOffFacts) -> Judgement:
    subject, uncached = Subject.PREFILL_PLACE, hand.uncached_tokens
    if uncached == 0:
        return Judgement(
            subject=subject, answer=Answer.LOCAL, because="everything is cached where it decodes"
        )
    queue = hand.prefill_queue_ms or 0.0
    if queue > WAIT_MAX_MS:
        return Judgement(
            subject=subject,
            answer=Answer.LOCAL,
            because=f"the prefill pool makes it wait {queue / 1000.0:.1f} s",
        )
    chunk = hand.chunk_tokens or CHUNK_TOKENS
    if uncached is not None and uncached < chunk and not hand.stalled_streams:
        return Judgement(
            subject=subject,
            answer=Answer.LOCAL,
            because=f"{uncached} tokens are less than one chunk ({chunk}): nothing hides their transfer",
        )
    stall, streams = hand.local_stall_ms, hand.stalled_streams
    if uncached is None or hand.transfer_ms is None or stall is None or streams is None:
        lacking = {
            "uncached tokens": uncached,
            "time of the transfer": hand.transfer_ms,
            "stall of a local prefill": stall,
            "streams it would stall": streams,
        }
        return Judgement(
            subject=subject,
            answer=None,
            because="cost and saving are not both told; until then local",
            would_tell=", ".join(name for name, value in lacking.items() if value is None),
        )
    added = hand.transfer_ms + (hand.hop_ms or 0.0) + queue
    remote = streams > 0 and added < stall
    return Judgement(
        subject=subject,
        answer=Answer.REMOTE if remote else Answer.LOCAL,
        because=(
            f"remote adds {added:.0f} ms to this request; local would stall {streams} streams for {stall:.0f} ms"
        ),
        numbers={"added_ms": added, "stall_ms": stall, "streams": float(streams)},
    )


def _leak(hand: HandOffFacts, counted: str) -> Judgement:
    subject = Subject.BLOCK_LEAK
    rate, each, pool, hold = hand.failed_per_min, hand.blocks_each, hand.blocks_pool, hand.hold_s
    if rate is None or each is None or pool is None or hold is None:
        lacking = {
            "failed hand-offs per minute": rate,
            "blocks of each": each,
            "blocks of the pool": pool,
            "time that blocks are held": hold,
        }
        return Judgement(
            subject=subject,
            answer=None,
            because="how many blocks failed hand-offs keep cannot be told",
            would_tell=", ".join(name for name, value in lacking.items() if value is None),
        )
    held, per_min = rate * each * hold / 60.0, rate * each
    numbers = {"blocks_held": held, "blocks_pool": pool}
    if held < pool:
        return Judgement(
            subject=subject,
            answer=Answer.BOUNDED,
            because=f"at this rate failed hand-offs keep {held:,.0f} of {pool:,.0f} blocks{counted}",
            numbers=numbers,
        )
    minutes = pool / per_min
    timeout = (
        "" if hand.timeout_s is None else f" (router timeout {hand.timeout_s:g} s, held {hold:g} s)"
    )
    return Judgement(
        subject=subject,
        answer=Answer.EXHAUSTS,
        because=(
            f"{per_min:,.0f} blocks a minute are kept{timeout}{counted}: the pool of {pool:,.0f} is exhausted in "
            f"{minutes:.1f} minutes; disaggregation off until hand-offs end well"
        ),
        numbers={**numbers, "minutes_until_exhausted": minutes},
    )
