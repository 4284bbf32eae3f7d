"""A hand-over: a prompt prefilled on one replica whose KV goes to another, which decodes. Nouns and closed sets only.

In order: `PrefillDecision` says that it travels; a `KvTransfer` (core/ports.py) has it prefilled, which gives a
`Parcel` on the prefill side; it is delivered, which gives a `Delivery`: what the decode request must carry; the decode
side answers; what it reused is held against what was sent; a `HandOver` is what is kept of all that.

The decode side computes the prompt's last token again and emits the first token of the answer. No sampler state
travels: seed, temperature and penalties are applied there alone, as they would be to a local prompt.
"""

from enum import StrEnum
from typing import Final

import msgspec


class PrefillPlace(StrEnum):
    """Where a prompt is prefilled."""

    LOCAL = "local"
    REMOTE = "remote"


class PrefillReason(StrEnum):
    """Why a prompt is prefilled where it is. Closed: a new rule needs a new reason."""

    CACHED = "cached"
    SHORT_PROMPT = "short_prompt"
    SHORT_ANSWER = "short_answer"
    CANNOT_TRAVEL = "cannot_travel"
    NO_PREFILL_REPLICA = "no_prefill_replica"
    KV_KEYS_DIFFER = "kv_keys_differ"
    UNKNOWN_COST = "unknown_cost"
    UNKNOWN_TRANSFER = "unknown_transfer"
    NO_TRANSFER = "no_transfer"
    NO_ROOM_FOR_PARCEL = "no_room_for_parcel"
    PAIR_FAILS = "pair_fails"
    PREFILL_REFUSES = "prefill_refuses"
    PREFILL_FILLS_UP = "prefill_fills_up"
    AFTER_FAILURE = "after_failure"
    AS_TOLD = "as_told"
    LOCAL_FASTER = "local_faster"
    REMOTE_FASTER = "remote_faster"


OTHERS_TERMS: Final = ("stall", "coming")
"""Terms of a prediction that others wait, not the request itself."""


class PrefillPrediction(msgspec.Struct, frozen=True, kw_only=True):
    """One side's milliseconds, `terms` summing to `ms`; `stall` and `coming` are others' delay, the rest its own."""

    replica: str
    terms: dict[str, float]

    @property
    def ms(self) -> float:
        """All of it, as sides are compared."""
        return sum(self.terms.values())

    @property
    def own_ms(self) -> float:
        """What the request itself waits, which is what an outcome can be compared with."""
        return self.ms - sum(self.terms.get(name, 0.0) for name in OTHERS_TERMS)


class PrefillDecision(msgspec.Struct, frozen=True, kw_only=True):
    """Where a prompt is prefilled and why; `local` and `remote` (the best pool member) None where not predicted."""

    request_id: str
    place: PrefillPlace
    replica: str
    reason: PrefillReason
    local: PrefillPrediction | None = None
    remote: PrefillPrediction | None = None
    others: tuple[PrefillPrediction, ...] = ()


class PrefillScore(msgspec.Struct, frozen=True, kw_only=True):
    """A decision held against what came of it.

    `waited_ms`: from the decision to the first token, None where none came or it was not streamed; `error`:
    |predicted - waited| / waited; `local_factor`, `remote_factor`: the corrections that the decision was made with.
    """

    decision: PrefillDecision
    waited_ms: float | None = None
    error: float | None = None
    local_factor: float = 1.0
    remote_factor: float = 1.0


class HandOverOutcome(StrEnum):
    """How a hand-over ended. Of one that failed, the prompt was computed where it is decoded."""

    DELIVERED = "delivered"
    FAILED = "failed"
    ABANDONED = "abandoned"


class HandOverCause(StrEnum):
    """Why a hand-over did not deliver. Closed: a new way to fail needs a new cause."""

    PREFILL_UNREACHABLE = "prefill_unreachable"
    PREFILL_REFUSED = "prefill_refused"
    PREFILL_BROKE_OFF = "prefill_broke_off"
    EXPORT_FAILED = "export_failed"
    NO_ROOM_FOR_PARCEL = "no_room_for_parcel"
    DECODE_FULL = "decode_full"
    DECODE_REFUSED = "decode_refused"
    DECODE_LOST = "decode_lost"
    TRANSFER_FAILED = "transfer_failed"
    TIMED_OUT = "timed_out"
    EXPIRED = "expired"
    SHORTFALL = "shortfall"
    CLIENT_LEFT = "client_left"
    STOPPING = "stopping"


class HandOverError(Exception):
    """A hand-over cannot go on: its cause, and in words what happened. Never quotes a prompt.

    `is_unavailable`: the prefill side said that it cannot serve now; `retry_after_s`: for how long, if it told that.
    """

    def __init__(
        self,
        cause: HandOverCause,
        message: str,
        *,
        is_unavailable: bool = False,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.cause = cause
        self.is_unavailable = is_unavailable
        self.retry_after_s = retry_after_s


class ReplicaLabels(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a replica runs, in the operator's words; empty is unknown. `link`: what joins it to the others.

    `accelerator`: what it computes on. It makes no two replicas near; what handing over between two kinds costs is
    expected of pairs of the same kinds alone.
    """

    host: str = ""
    accelerator: str = ""
    link: str = ""


NO_LABELS: Final = ReplicaLabels()


class Parcel(msgspec.Struct, frozen=True, kw_only=True):
    """KV of one prompt, ready on its prefill side. It holds a slot, a file or blocks there until `expires_s`.

    `handle`: what the engine's transfer needs to find it: the name of a file, or parameters as JSON. `tokens`: prompt
    tokens whose KV it holds; `prompt_tokens`: of the prompt as the engine counted; `bytes` None: not known before it is
    sent. Times: milliseconds; `prefill_ms` is what the request waited there, `engine_ms` what the engine computed;
    `export_ms` grows with the bytes, `setup_ms` does not: until the engine came to it. `is_out`: it lies outside of its
    prefill side, which is not needed any more to deliver it.
    """

    request_id: str
    source: str
    handle: str
    tokens: int
    prompt_tokens: int
    bytes: int | None
    prefill_ms: float
    export_ms: float
    expires_s: float
    cached_tokens: int | None = None
    engine_ms: float | None = None
    setup_ms: float = 0.0
    is_out: bool = False


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """What the decode side was given. `fields`: JSON texts by name that go into the decode request's body.

    An engine that pulls by itself (NIXL) moves nothing before that request: `bytes` and `transfer_ms` are None then.
    `setup_ms`: what did not depend on the size.
    """

    target: str
    fields: dict[str, str]
    slot: int | None = None
    tokens: int
    bytes: int | None = None
    setup_ms: float | None = None
    transfer_ms: float | None = None


class HandOver(msgspec.Struct, frozen=True, kw_only=True):
    """One hand-over as the ledger keeps it.

    `tokens_sent`: prompt tokens whose KV was sent; `tokens_delivered`: those of them that the decode side reused, as it
    said itself; `held_tokens`: those that it was believed to hold before; None is unknown. `setup_ms` and `transfer_ms`
    are apart: the first does not grow with the bytes. `transport`: what moves them, in words.
    """

    request_id: str
    source: str
    target: str
    outcome: HandOverOutcome
    cause: HandOverCause | None = None
    detail: str = ""
    prompt_tokens: int | None = None
    tokens_sent: int | None = None
    tokens_delivered: int | None = None
    held_tokens: int | None = None
    bytes: int | None = None
    waited_ms: float | None = None
    prefill_ms: float | None = None
    export_ms: float | None = None
    setup_ms: float | None = None
    transfer_ms: float | None = None
    descriptors: int | None = None
    transport: str = ""

    @property
    def moving_ms(self) -> float | None:
        """From the set-up to the last byte; None where the engine did not tell."""
        if self.transfer_ms is None:
            return None
        return (self.export_ms or 0.0) + (self.setup_ms or 0.0) + self.transfer_ms


REUSED_SHORT_BY_MAX: Final = 1
"""Engines compute a prompt's last token anew: it gives the first one of the answer."""


def shortfall(*, sent: int, prompt_tokens: int, delivered: int | None) -> int | None:
    """Return how many sent tokens the decode side did not reuse beyond the one it must compute; None is unknown."""
    if delivered is None:
        return None
    return max(0, min(sent, prompt_tokens - REUSED_SHORT_BY_MAX) - delivered)
