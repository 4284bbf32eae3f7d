"""Whether prefill and decode should be split over replicas of their own: what it would relieve and what it would cost.

A split takes prefills out of the way of running streams, so it can relieve at most what a token takes longer than a
decode step. It needs replicas for both and moves the KV of every uncached input over the link between them. Devices
are dealt out as the phases use them: prefill time of a request against its share of the decode steps.
"""

from typing import Final

import msgspec

from trimtab.core.layout import Expected
from trimtab.planning.candidates import Candidate
from trimtab.planning.layouts import placed_replicas
from trimtab.planning.plan_ask import Ask

INTERFERENCE_MIN_SHARE: Final = 0.2
"""Below this part of the time per token there is little that a split could relieve."""

TRANSFER_MAX_SHARE: Final = 0.25
"""Above this part of the prefill, moving the KV is no longer hidden behind it."""


class Split(msgspec.Struct, frozen=True, kw_only=True):
    """What splitting prefill from decode would mean. `advised` None: cannot be told.

    `interference_share`: part of the time per token beyond the decode step; `prefill_share`: part of device time that
    prefill takes, so of N replicas N times that would prefill; `transfer_ms`: KV of one uncached input over the link.
    """

    possible: bool
    advised: bool | None
    because: str
    interference_share: float | None = None
    prefill_share: float | None = None
    transfer_ms: float | None = None


def split_of(best: Candidate, ask: Ask) -> Split:
    """Judge a split of the layout that was chosen, or that comes nearest."""
    expected = best.expected
    one = msgspec.structs.replace(best.layout, replicas=1)
    room = placed_replicas(one, ask.cluster)
    if room < 2:
        return Split(
            possible=False,
            advised=False,
            because=f"there is room for {room} replica of {one.label}, and a split needs one for each phase",
        )
    if expected is None:
        return Split(
            possible=True, advised=None, because="nothing is expected of a layout that does not fit"
        )
    interference = max(0.0, 1.0 - expected.step_ms / expected.tpot_ms.value)
    return _judged(expected, ask, interference)


def _judged(expected: Expected, ask: Ask, interference: float) -> Split:
    decode_ms = expected.step_ms * ask.demand.output_tokens / max(1.0, expected.batch)
    prefill = expected.prefill_ms / (expected.prefill_ms + decode_ms)
    transfer = _transfer_ms(ask)
    advised, because = _advice(expected, ask, interference, transfer)
    return Split(
        possible=True,
        advised=advised,
        because=because,
        interference_share=interference,
        prefill_share=prefill,
        transfer_ms=transfer,
    )


def _transfer_ms(ask: Ask) -> float | None:
    link = ask.cluster.joint or ask.cluster.link
    each = ask.model.kv_bytes_per_token
    if each is None or not link.bytes_per_s:
        return None
    uncached = ask.demand.input_tokens * (1.0 - ask.demand.prefix_share)
    return 1000.0 * each * uncached / link.bytes_per_s


def _advice(
    expected: Expected, ask: Ask, interference: float, transfer: float | None
) -> tuple[bool | None, str]:
    told = f"prefills are {interference:.0%} of the time per output token"
    if interference < INTERFERENCE_MIN_SHARE:
        return False, f"{told}: too little to relieve; plain replicas are simpler"
    target = ask.targets.tpot_ms
    if target is not None and expected.tpot_ms.value <= target:
        return False, f"{told}, and the target is met with mixed replicas"
    if transfer is None:
        return None, f"{told}, but what moving the KV would take is unknown"
    if transfer > TRANSFER_MAX_SHARE * expected.prefill_ms:
        return (
            False,
            f"{told}, but moving the KV takes {transfer:.3g} ms of a prefill of {expected.prefill_ms:.3g} ms",
        )
    if target is not None and expected.step_ms > target:
        return False, f"{told}, but the step alone ({expected.step_ms:.3g} ms) misses {target:g} ms"
    return True, f"{told}; moving the KV takes {transfer:.3g} ms: worth a measurement"
