"""Role control as values: what a tick saw, what was decided, and why. Closed sets; `policies.roles` decides."""

from enum import StrEnum

import msgspec


class RoleAction(StrEnum):
    """What to do next. A replica changes role by draining first."""

    HOLD = "hold"
    SPLIT = "split"
    MORE_PREFILL = "more_prefill"
    MORE_DECODE = "more_decode"
    MERGE = "merge"


class RoleReason(StrEnum):
    """Why roles move or stay. Closed: a new rule needs a new reason."""

    UNKNOWN = "unknown"
    MOVING = "moving"
    COOLING_DOWN = "cooling_down"
    NOT_YET = "not_yet"
    WITHIN_BAND = "within_band"
    DECODE_FULL = "decode_full"
    PREFILL_NEEDS = "prefill_needs"
    DECODE_NEEDS = "decode_needs"
    LONG_PROMPTS_STALL = "long_prompts_stall"
    BOTH_NEED = "both_need"
    BOTH_LOW = "both_low"
    LOW_TRAFFIC = "low_traffic"
    REST_TOO_BUSY = "rest_too_busy"
    FEW_LONG_PROMPTS = "few_long_prompts"
    LAST_OF_ITS_ROLE = "last_of_its_role"
    PREFILL_IDLE = "prefill_idle"
    PREFILL_HAS_ROOM = "prefill_has_room"
    CHANGES_SPENT = "changes_spent"


class RoleAdvice(StrEnum):
    """What would help beside roles. Closed."""

    HIGHER_LOCAL_THRESHOLD = "higher_local_threshold"
    NEARER_PAIR = "nearer_pair"
    LOWER_KV_PRECISION = "lower_kv_precision"


class RolesSeen(msgspec.Struct, frozen=True, kw_only=True):
    """What one tick sees. None is unknown and freezes; milliseconds are the P90 of requests that ended lately.

    `prefill`, `decode`: ready replicas of the role, mixed ones counted as decode; `moving`: changing role now.
    `kv_used_share`: mean of the decode side, 0 to 1; `preemptions`: of the decode side since it was last looked at;
    `looks`: how often that was within the window, `looks_preempted`: how often of these it had preempted.
    `requests`: that gave a first token, ended or failed within the window; `in_flight`: requests on all replicas, those
    that wait counted, mean over the window's ticks.
    `local_work`, `ahead_work`: replicas that long prompts kept at work lately, on the decode side and sent ahead.
    `lost_share`: part of an answer's time, mean over answers, that goes by beyond what a stream alone would take for
    as many steps; `lost_unknown`: why it is None; `tokens_per_step`: mean over the same answers, None is unknown.
    `transfer_ms_p90`, `dearness_p90`: of `transfers` hand-overs, each held against its own prompt (`policies.roles`);
    None where nothing was handed over, which freezes nothing. `window_s`: of everything that is neither work nor lost.
    `work_window_s`: of those two, shorter while it was not watched for as long; `answers`: that `lost_share` is the
    mean of; None is unknown.
    """

    at_s: float
    prefill: int
    decode: int
    moving: int
    ttft_ms_p90: float | None
    ttft_target_ms: float
    tpot_ms_p90: float | None
    tpot_target_ms: float
    samples: int
    kv_used_share: float | None
    preemptions: int | None
    local_work: float | None
    ahead_work: float | None = 0.0
    lost_share: float | None = None
    lost_unknown: str = ""
    tokens_per_step: float | None = None
    transfers: int = 0
    transfer_ms_p90: float | None = None
    dearness_p90: float | None = None
    window_s: float | None = None
    work_window_s: float | None = None
    answers: int | None = None
    looks: int = 0
    looks_preempted: int = 0
    requests: int = 0
    in_flight: float | None = None


class RolesDecision(msgspec.Struct, frozen=True, kw_only=True):
    """What to do and why; `ttft_ratio`, `tpot_ratio`: the windowed s of both phases, None where unknown.

    `local_factor`: times the mark from which prompts travel; `advice`: what would help beside roles; `unknown`: in
    words what the reason `unknown` lacks.
    """

    at_s: float
    action: RoleAction
    reason: RoleReason
    ttft_ratio: float | None = None
    tpot_ratio: float | None = None
    local_factor: float = 1.0
    advice: tuple[RoleAdvice, ...] = ()
    unknown: tuple[str, ...] = ()
