"""What is measured about one request. Never prompt or output text: counts and keyed hashes only.

None means unknown; the reason is in `unknown` under the field's name. Latencies are in milliseconds.

Thousands of these are kept in memory. They hold plain values alone, no cycle can go through them, and Python's
collector is told not to look at them (`gc=False`).
"""

import msgspec

from trimtab.core.tenants import Priority
from trimtab.core.types import Arm, Constraint, ErrorClass


class Segment(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One part of a prompt (system, tools, a message): a keyed hash and a token count.

    `tokens` is estimated from bytes unless `exact`.
    """

    kind: str
    hash: str
    tokens: int
    exact: bool = False


class Phases(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Time per phase in milliseconds; None is unknown. Transfer is 0 where prefill and decode share a replica."""

    queue_ms: float | None = None
    prefill_ms: float | None = None
    transfer_ms: float | None = None
    decode_ms: float | None = None


class Tokens(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Token counts of a request.

    predicted: cached tokens the index promised at the decision; captured: what the chosen replica held at
    dispatch; delivered: what the engine reported as reused; held_best: the most any replica held then; ahead: what the
    prefill replica computed, as it said.
    """

    prompt: int | None = None
    predicted: int | None = None
    captured: int | None = None
    delivered: int | None = None
    held_best: int | None = None
    ahead: int | None = None
    output: int | None = None
    output_estimated: bool = False

    @property
    def computed(self) -> int | None:
        """Prompt tokens that were really computed: prompt minus delivered."""
        if self.prompt is None or self.delivered is None:
            return None
        return max(0, self.prompt - self.delivered)

    @property
    def skipped_lost(self) -> int | None:
        """Prompt tokens computed although some replica held them."""
        if self.held_best is None or self.delivered is None:
            return None
        return max(0, self.held_best - self.delivered)


class Drafting(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Speculation counts of a request. `accepted_per_step` = output tokens per decode step."""

    drafts: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    accepted_per_step: float | None = None


class RequestRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Everything measured about one request; the unit that gates, diagnoses and reports are computed from.

    `tenant`: whose key it showed; `retries`: how often it was sent anew, nothing having reached the client;
    `salt_ignored`: it named a cache salt of its own, which its tenant's went over; `prefill_replica`: where its prompt
    was prefilled if not on `replica`; `second_gap_ms`: between the first and the second piece of its answer, apart
    from TTFT and TPOT because a hand-over may show there; `model`: the one it named; `marks`: headers that a slice is
    drawn by, as name and keyed hash of the value; `output_valid`: whether the output of a request that asked for JSON
    is JSON, None where nothing was asked or it was not whole.
    """

    request_id: str
    arrived_at_s: float
    finished_at_s: float
    endpoint: str
    stream: bool
    arm: Arm = Arm.BASELINE
    lever: str | None = None
    slice: str | None = None
    block: int | None = None
    policy: str = ""
    replica: str | None = None
    prefill_replica: str | None = None
    revision: str | None = None
    session: str | None = None
    label: str | None = None
    repetition: float | None = None
    phases: Phases = Phases()
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2e_ms: float | None = None
    chunk_gap_ms_max: float | None = None
    chunk_gap_ms_mean: float | None = None
    second_gap_ms: float | None = None
    chunks: int = 0
    tokens: Tokens = Tokens()
    drafting: Drafting = Drafting()
    batch_at_admission: int | None = None
    concurrency_at_admission: int | None = None
    temperature: float | None = None
    constraint: Constraint = Constraint.FREE
    max_tokens: int | None = None
    status: int = 0
    error: ErrorClass = ErrorClass.NONE
    client_aborted: bool = False
    finish_reason: str | None = None
    looping: bool | None = None
    tenant: str | None = None
    priority: Priority = Priority.NORMAL
    retries: int = 0
    salt_ignored: bool = False
    model: str | None = None
    marks: tuple[str, ...] = ()
    output_valid: bool | None = None
    prompt_hash: str | None = None
    output_hash: str | None = None
    segments: tuple[Segment, ...] = ()
    stage: str | None = None
    hardware: str = ""
    topology: str = ""
    unknown: dict[str, str] = {}

    @property
    def tokens_per_step(self) -> float | None:
        """Output tokens after the first for each step that made them, by the engine's counts; None if it tells none.

        The first comes with the prompt, so it is no step's. Drafts that were accepted need no step of their own.
        """
        output, accepted = self.tokens.output, self.drafting.accepted
        if output is None or accepted is None or self.tokens.output_estimated or output < 2:
            return None
        return (output - 1) / max(1, output - 1 - accepted)

    @property
    def ok(self) -> bool:
        """Whether the request ended well: status 200, a complete answer, no abort by the client."""
        return self.status == 200 and self.error is ErrorClass.NONE and not self.client_aborted
