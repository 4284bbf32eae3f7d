"""The nouns of advice about servers of others: what binds, whether all is well, what to do first and what not."""

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from trimtab.core.findings import Diagnosis, Finding
from trimtab.core.lever import Narrowness
from trimtab.core.types import Phase, Resource, Technique


class Outcome(StrEnum):
    """What a diagnosis came to. Only `HEALTHY` says that all is well; `CANNOT_TELL` is neither good nor bad."""

    HEALTHY = "healthy"
    BOTTLENECK = "bottleneck"
    CANNOT_TELL = "cannot_tell"


class Activity(StrEnum):
    """Three things that look alike in one gauge, and their opposite."""

    WORKING = "working"
    IDLE = "idle"
    SATURATED = "saturated"
    STALE = "stale"
    UNKNOWN = "unknown"


class Binding(msgspec.Struct, frozen=True, kw_only=True):
    """The dominant bottleneck. `share`: its part of request time (0 to 1), None if unknown."""

    phase: Phase
    resource: Resource
    share: float | None
    because: str


class WarningKind(StrEnum):
    """Why a reading must not be taken at its word."""

    HIT_SHARE_UNTRUSTED = "hit_share_untrusted"
    HIT_SHARE_IMPOSSIBLE = "hit_share_impossible"
    HIT_SHARE_LIFETIME = "hit_share_lifetime"
    HIT_SHARE_CONFLICT = "hit_share_conflict"
    GAUGE_CONTRADICTS = "gauge_contradicts"
    ABOVE_LAST_EDGE = "above_last_edge"
    WIDE_BUCKET = "wide_bucket"
    CHUNKS_ARE_NOT_TOKENS = "chunks_are_not_tokens"
    TTFT_WITHOUT_QUEUE = "ttft_without_queue"
    RANK_SATURATED = "rank_saturated"
    RANK_LOST = "rank_lost"
    RESTARTED = "restarted"
    SINCE_START = "since_start"
    STALE = "stale"
    FAILURES = "failures"
    CONFIGURATION_DIFFERS = "configuration_differs"
    TRANSFER_FAILURES = "transfer_failures"
    BELOW_CEILINGS = "below_ceilings"


class ServedWarning(msgspec.Struct, frozen=True, kw_only=True):
    """Something that must be known before a reading is believed, with the evidence ids behind it."""

    kind: WarningKind
    text: str
    evidence: tuple[str, ...] = ()


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to do, or one that was weighed. `gain_share_max`: the most it could save of request time (0 to 1).

    `premise_holds` None: cannot be told; `because` then says what would tell. Only those that hold are advice.
    """

    lever: str
    technique: Technique | None
    narrowness: Narrowness
    gain_share_max: float | None
    premise: str
    premise_holds: bool | None
    because: str


class Subject(StrEnum):
    """What a judgement is about."""

    SPECULATION_BATCH = "speculation by batch"
    SPECULATION_COST = "cost of drafting"
    SPECULATION_LOAD = "load of the speculation test"
    SPECULATION_PAIR = "speculation beside other features"
    SPECULATION_VALIDITY = "validity under speculation"
    ACCEPTANCE_MIX = "draft acceptance and traffic mix"
    OUTPUT_DIFFERENCE = "outputs that differ between arms"
    TOKEN_TIME = "time per token between arms"
    CACHE_SOURCES = "prefix hits by source"
    SALTED_KEYS = "router keys of salted requests"
    ISOLATION = "isolation of tenants"
    PLACEMENT = "where the next request should go"
    BALANCE = "balance of the servers"
    TENSOR_PARALLEL = "tensor parallel degree"
    HEADS = "heads over ranks"
    EXPERT_PARALLEL = "expert parallel"
    TRANSFER = "what binds the transfer"
    HAND_OFF = "a hand-off that went wrong"
    PREFILL_PLACE = "local or remote prefill"
    BLOCK_LEAK = "blocks kept by failed hand-offs"
    TOKEN_GAPS = "first gap and steady gaps"


class Answer(StrEnum):
    """Every answer a judgement can have. None in its place means that it cannot be told."""

    ON = "on"
    OFF = "off"
    REFUSE = "refuse"
    NO_VERDICT = "no verdict"
    OFF_FOR_SLICE = "off for the slice"
    KEEP = "keep"
    MIX_CHANGED = "the mix changed"
    ACCEPTANCE_FELL = "acceptance fell"
    WITHIN_NOISE = "within the noise"
    BEYOND_NOISE = "beyond the noise"
    MEASURE_NOISE_FIRST = "measure the noise first"
    FASTER = "faster per token"
    SLOWER = "slower per token"
    UNCHANGED = "unchanged"
    NOT_OBSERVABLE = "not observable"
    TRUST_ENGINE = "trust the engine"
    SOURCES_AGREE = "sources agree"
    KEY_MISMATCH = "router key mismatch"
    KEYS_MATCH = "keys match"
    NOT_PROVEN = "not proven"
    PROVEN = "proven"
    BROKEN = "broken"
    CHOSEN = "chosen"
    BALANCED = "balanced"
    IMBALANCED = "imbalanced"
    REPLICAS = "replicas of a smaller layout"
    TENSOR_PARALLEL = "tensor parallel"
    NO_TENSOR_PARALLEL = "no tensor parallel"
    FITS_HEADS = "divides the heads"
    REJECT = "reject"
    NO_KV_SAVED = "saves no KV"
    ATTENTION_DATA_PARALLEL = "attention data-parallel"
    EXPERT_CANDIDATE = "candidate for a canary"
    BALANCE_FIRST = "balance the experts first"
    NOTHING_SAVED = "no communication saved"
    DESCRIPTORS = "descriptors"
    TRANSPORT = "transport"
    SET_UP = "set-up"
    BANDWIDTH = "bandwidth"
    NOTHING_BINDS = "nothing binds"
    LOCAL = "local"
    REMOTE = "remote"
    FAIL_ONCE = "one error"
    FAILED_TRANSFER = "failed transfer"
    DELIVERED = "delivered"
    EXHAUSTS = "exhausts the pool"
    BOUNDED = "stays bounded"
    FIRST_GAP = "the first gap"
    STEADY_GAPS = "the steady gaps"


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """An answer to one question that facts raise. `choice` names what was picked where there is something to pick.

    `answer` None: cannot be told, and `would_tell` says what is missing. `numbers` are the figures behind it, by name
    with the unit last.
    """

    subject: Subject
    answer: Answer | None
    because: str
    choice: str = ""
    numbers: Mapping[str, float] = {}
    would_tell: str = ""


class ServedAdvice(msgspec.Struct, frozen=True, kw_only=True):
    """What to make of servers of others. `binding` None: cannot be told, or nothing binds (`outcome` says which).

    `proposals` come narrowest first, those that do not hold included; `would_tell` are the flags, scrapes and metrics
    that would tell what is unknown.
    """

    diagnosis: Diagnosis
    outcome: Outcome
    activity: Activity
    binding: Binding | None
    healthy: bool | None
    healthy_because: str
    warnings: tuple[ServedWarning, ...] = ()
    not_to_do: tuple[Finding, ...] = ()
    proposals: tuple[Proposal, ...] = ()
    judgements: tuple[Judgement, ...] = ()
    would_tell: tuple[str, ...] = ()

    def judgement(self, subject: Subject) -> Judgement | None:
        """Return the first judgement of a subject, None if nothing raised it."""
        return next((each for each in self.judgements if each.subject is subject), None)

    def proposal(self, lever: str) -> Proposal | None:
        """Return what was said of a lever, None if it was not weighed."""
        return next((each for each in self.proposals if each.lever == lever), None)
